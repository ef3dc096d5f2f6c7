"""The table of noise scales: read from files, in words, and drawn."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers.made_tables import METRIC, panels_of

from analysis.load import LoadError, load
from analysis.noise_scale import table
from analysis.noise_scale.estimate import Blocks, noise_scale
from analysis.report.build import read

NAMES = {"workload": "digits", "optimizer": "sgd", "batch_size": 8, "goal_metric": METRIC, "goal_threshold": 0.05}
SUMS = {"own": [3.0, 5.0, 4.0], "total": [2.0, 3.0, 2.5], "units": [9.0, 11.0, 10.0]}


def rows(**columns):
    usual = {"estimator": "per_example", "form": "plain", "unit": 1, "step": 10, "examples_seen": 80, "error": 0.2}
    usual |= {"recorded_error": 0.2, "looped": False, "noise_scale": 90.0, "low": 60.0, "high": 130.0}
    return pd.DataFrame(NAMES | usual | columns)


def write(folder, step, text=None):
    sums = {"estimator": "per_example", "form": "plain", "unit": 1, "per_block": 4, **SUMS}
    point = {"step": step, "examples_seen": 8 * step, "error": 0.2, "recorded_error": None, "looped": False}
    (folder / "noise").mkdir(exist_ok=True)
    content = point | {"question": {"trial": {"index": 3}}, "sums": [sums]}
    (folder / f"noise/{step:06d}.json").write_text(json.dumps(content) if text is None else text)


@pytest.mark.slow
def test_points_on_file_become_rows_of_the_report(results):
    [study] = results({8: [30, 40, 50, 60]})
    assert table.table([study]).empty
    assert "noise_scale" not in read([study.folder.parents[3]]).tables
    for step in (12, 8):
        write(study.folder, step)
    found = read([study.folder.parents[3]]).tables["noise_scale"]
    assert list(found.columns) == table.COLUMNS
    assert found["step"].tolist() == [8, 12]
    expected = noise_scale(Blocks(1, 4, *(np.array(SUMS[key]) for key in ("own", "total", "units"))))
    assert found.loc[0, ["squared_gradient", "trace", "noise_scale", "low", "high"]].tolist() == list(expected)
    assert found.loc[0, ["trial", "examples", "examples_seen"]].tolist() == [3, 12, 64]
    write(study.folder, 8, text="{")
    with pytest.raises(LoadError, match="is torn"):
        table.table(load(study.folder.parents[3]))


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ((90.0, 60.0, 130.0), "90 (60 to 130)"),
        ((90.0, 60.0, np.inf), "at least 60"),
        ((90.0, 0.0, 130.0), "at most 130"),
        ((np.inf, 0.0, np.inf), "unknown"),
    ],
)
def test_intervals_in_words(ends, said):
    assert table.in_words(dict(zip(("noise_scale", "low", "high"), ends, strict=True))) == said


def test_the_sentence_compares_with_measured_limits():
    limits = pd.DataFrame({"definition": ["critical_batch_size_mccandlish", "maximum_useful_batch_size"], **{}})
    limits = limits.assign(**NAMES, estimate=[62.0, 1024.0], estimate_bound=["=", ">"], estimate_low=[46.0, np.nan])
    limits = limits.assign(estimate_high=[84.0, np.nan])
    measured = rows(step=[10, 40], examples_seen=[80, 320], noise_scale=[20.0, 90.0], low=[15.0, 60.0])
    measured = measured.assign(recorded_error=[0.2, 0.04])
    [said] = table.sentences(measured.assign(high=[30.0, 130.0]), limits)
    assert said == (
        "digits with sgd at batch size 8: the gradient noise scale is 20 (15 to 30) at step 10 and 90 (60 to "
        "130) at step 40, where it reached its goal; measured by steps: critical batch size 62 (46 to 84) and "
        "maximum useful batch size at least 1,024."
    )
    [alone] = table.sentences(rows(step=[10], recorded_error=0.04), limits.iloc[:0])
    assert alone.endswith("is 90 (60 to 130) at step 10, where it reached its goal; its steps show no limit to "
                          "compare it with.")  # fmt: skip


@pytest.mark.parametrize(("recorded", "error"), [(0.2, 0.2), (np.nan, 0.06), (np.nan, np.nan), (0.05, 0.04)])
def test_a_last_point_above_the_goal_is_not_said_to_have_reached_it(recorded, error):
    made = rows(step=[10], recorded_error=recorded, error=error)
    [said] = table.sentences(made, pd.DataFrame(columns=[*NAMES, "definition", "estimate"]))
    assert "at step 10, short of its goal; " in said


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"step": [10]}, None),
        ({"step": [10], "looped": True}, "torch.vmap cannot differentiate its model"),
        ({"step": [10], "estimator": "two_batch_sizes", "unit": 64}, "only batches of 64 examples were measured"),
        ({"step": [10], "recorded_error": 0.21}, "is 0.2 at step 10, but the sweep recorded 0.21"),
    ],
)
def test_doubts(columns, said):
    found = table.warnings(rows(**columns))
    assert [said in each for each in found] == ([] if said is None else [True])


def test_the_figure_shows_intervals_and_open_ends():
    measured = rows(step=[10, 40, 80], examples_seen=[80, 320, 640], low=[15.0, 60.0, 0.0])
    [ax] = panels_of("noise_scale", {"noise_scale": measured.assign(high=[30.0, np.inf, np.inf])})
    curve, open_ = ax.lines
    assert curve.get_xydata().tolist() == [[80, 90]]
    assert open_.get_xydata().tolist() == [[320, 60]]
    assert ax.collections[0].get_segments()[0].tolist() == [[80, 15], [80, 30]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["per example", "95 % interval", "no upper end"]
    assert ax.get_title("left") == "digits, batch size 8"
