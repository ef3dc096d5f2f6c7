"""The data of the explorer, and where its section stands; `test_explorer_in_browser` tries it in a browser."""

import hashlib
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.report import explorer
from analysis.report.build import Asked, build, tables
from analysis.report.explorer import data as payloads
from analysis.report.page import ReportData, page

LIBRARY = Path(explorer.__file__).parent / "vendored/uplot"
KINDS = {
    "plain": ({8: [300, None, 100], 64: [40, 50]}, {}),
    "some diverged, one missing": ({8: ["bad", 300, "missing", 200]}, {}),
    "goal not reached": ({8: [None, None]}, {}),
    "all diverged": ({8: ["bad", "bad"], 16: [20]}, {}),
    "stopped at the goal": ({8: [300, None], 64: [40, 50]}, {"stopping": "goal"}),
    "races": ({8: [300, 100, None], 64: [40, 50]}, {"stopping": "race"}),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS)
def found(request, results):
    """The tables of one kind of results."""
    studies, fields = request.param
    made = results(studies, **fields)
    return tables(made, made, Asked())


def studies_of(data):
    return [each for panel in data["panels"] for optimizer in panel["optimizers"] for each in optimizer["studies"]]


def test_curves_and_trials_are_those_of_the_tables(found):
    studies, curves = studies_of(payloads.payload(found)), found["learning_curves"]
    table = found["trials"].set_index(["batch_size", "trial"])
    assert sum(len(study["trial"]) for study in studies) == len(table)
    for study in studies:
        mine = curves[curves["batch_size"] == study["batch_size"]]
        steps = np.cumsum(study["grid"])
        assert [trial for trial in study["trial"] if trial in set(mine["trial"])] == list(dict.fromkeys(mine["trial"]))
        for trial, (places, errors) in zip(study["trial"], study["curves"], strict=True):
            rows = mine[mine["trial"] == trial]
            at = range(len(errors)) if places is None else places
            assert [steps[place] for place in at] == rows["step"].tolist()
            assert errors == pytest.approx(rows["error"].tolist(), rel=1e-2)
        rows = table.loc[[(study["batch_size"], trial) for trial in study["trial"]]]
        assert study["steps_to_goal"] == [None if pd.isna(steps) else steps for steps in rows["steps_to_goal"]]
        rates = np.array(study["values"][0], dtype=float)
        assert rates == pytest.approx(rows["learning_rate"].to_numpy(dtype=float), rel=1e-5, nan_ok=True)


@pytest.mark.slow
def test_every_number_is_json(found):
    text = explorer.embedded(payloads.payload(found))
    assert json.loads(text)["panels"]
    assert "NaN" not in text


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, 3])
def test_large_results_are_thinned_and_the_section_says_so(results, monkeypatch, most):
    made = results({8: [100 + 50 * trial for trial in range(8)], 64: [None] * 8})
    found = tables(made, made, Asked())
    whole = payloads.payload(found)
    assert "Shown are" not in explorer.block(found)
    for name, value in (("MOST_TRIALS", 2 * most), ("MOST_POINTS", 1), ("LEAST_TRIALS", 1), ("LEAST_POINTS", 5)):
        monkeypatch.setattr(payloads, name, value)
    data = payloads.payload(found)
    assert data["counts"] == {"shown": 2 * most, "all": 16}
    assert f"Shown are {2 * most} of 16 trials" in explorer.block(found)
    small, large = studies_of(data)
    assert (small["trial"][0], small["trial"][-1]) == (0, 7)
    assert small["every"] > 1
    for study, before in zip((small, large), studies_of(whole), strict=True):
        assert len(study["grid"]) < len(before["grid"])
        assert sum(study["grid"]) == sum(before["grid"]) == 2000
    assert small["steps"] in np.cumsum(small["grid"])


@pytest.mark.slow
@pytest.mark.parametrize("static", [False, True])
def test_a_static_page_is_without_it(sweep, tmp_path, static):
    build([sweep({8: [300, 200], 64: [40, 50]})], tmp_path / "report", Asked(static=static))
    text = (tmp_path / "report/report.html").read_text()
    assert ('id="explorer"' in text) is not static
    assert ("uPlot" in text) is not static
    assert "default-src 'none'" in text
    markup = re.sub(r"(?s)<script.*?</script>", "", text)
    assert not re.search("https?:|@import", markup)


def test_names_cannot_leave_the_script(results):
    made = results({8: [300]})
    named = {name: table.replace("tiny", "<!--<script>") for name, table in tables(made, made, Asked()).items()}
    section = explorer.block(named)
    assert "u003cscript>" in section
    assert "<!--" not in section
    assert page(ReportData("Digits", [], [], {}, [], "", explorer=section)).count("</script>") == 4


def test_the_library_is_the_released_one_with_its_licence():
    """uPlot 1.6.32 as in the npm package; a later version changes this digest."""
    digest = hashlib.sha256((LIBRARY / "uPlot.iife.min.js").read_bytes()).hexdigest()
    assert digest == "19c8d4c6ad88929a79f4ae49d6f7161566dfd0ba3d15cc495e974f787eb78f1f"
    assert "The MIT License" in (LIBRARY / "LICENSE").read_text()
