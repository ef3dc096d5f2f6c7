"""`study.sweep`, `study.plan` and `study.results`: the results, records and refusals of the command line."""

import html
import importlib
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from helpers.fused import partly
from helpers.made_workload import own_folder
from house import doc_pages

import study
from analysis import figures
from analysis.result import Tables
from study.__main__ import main
from study.library import calls
from study.library.own_workload import OwnWorkload

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "results/published"
ONE_WORKER = {"engine": {"workers": 1}, "verbose": False}


@pytest.fixture(scope="module")
def mine(tmp_path_factory):
    return own_folder(tmp_path_factory.mktemp("own") / "mine")


@pytest.fixture
def images(mine, monkeypatch):
    """The workload of the file images.yaml as an object."""
    monkeypatch.syspath_prepend(str(mine))
    return importlib.import_module("made_images").Images("images", 100)


ASKED = {"goal": "val/classification_error < 0.3", "budget": {"epochs": 0, "steps": 60}, "batch_sizes": [2, 8]}


@pytest.fixture(scope="module")
def swept(mine, tmp_path_factory):
    """The arguments of a sweep of an object, and its result."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(mine))
        patch.setattr(figures, "charts", partial(figures.charts, names=["steps_to_result"]))
        images = importlib.import_module("made_images").Images("images", 100)
        folder = tmp_path_factory.mktemp("swept") / "results"
        asked = {"workload": images, "trials": 2, "results": folder, **ASKED, **ONE_WORKER}
        result = study.sweep(**asked)
    return asked, result


@pytest.mark.slow
def test_an_object_is_swept(swept):
    asked, result = swept
    assert list(result.steps["batch_size"]) == [2, 8]
    assert {"critical_batch_size_mccandlish", "maximum_useful_batch_size"} <= set(result.limits["definition"])
    assert result.compare().empty
    assert result.report == asked["results"] / "report.html"
    assert repr(result) == f"<Result of {asked['results']}: images with momentum at 2 batch sizes>"
    subject = "images to validation error < 0.3"
    page, text = result._repr_html_(), str(result)
    assert page.startswith(f"<h3>{html.escape(subject)}</h3>\n<p><b>Momentum.</b> ")
    assert text.startswith(f"{subject}\nMomentum: ")
    assert len(text.splitlines()) == len(result.sentences) + 1
    assert page.count("images to") == text.count("images") == 1
    assert "<table" in page
    assert f'href="{result.report}"' in page


@pytest.mark.slow
def test_the_record_names_the_call_and_the_code(swept):
    record = json.loads(next(swept[0]["results"].glob("studies/*/*/*/study.json")).read_text())
    [run] = record["provenance"]
    assert run["command"].startswith("study.sweep(workload=made_images.Images(name='images', train_examples=100), ")
    assert "code made_images.py" in run["fingerprint"]
    assert record["question"]["workload"] == {
        "_target_": "made_images.Images",
        "name": "images",
        "train_examples": 100,
    }


def test_no_record_names_the_address_of_a_notification(images):
    words = ["workload=images", "notify='ntfy://secret'", "batch_sizes=[2]"]
    own = OwnWorkload.of(images)
    assert calls._command("sweep", words[1:], None, False, {}) == "python -m study sweep 'batch_sizes=[2]'"
    assert calls._command("sweep", words, Path("mine"), True, {"images": own}) == (
        "study.sweep(workload=made_images.Images(name='images', train_examples=100), "
        "overrides=['batch_sizes=[2]'], config_dir='mine', mix=True)"
    )


@pytest.mark.slow
def test_a_second_call_trains_nothing(swept, images):
    asked, result = swept
    files = {path: path.stat().st_mtime_ns for path in asked["results"].glob("studies/**/*.*")}
    again = study.sweep(**asked | {"workload": images})
    assert {path: path.stat().st_mtime_ns for path in asked["results"].glob("studies/**/*.*")} == files
    assert again.steps.equals(result.steps)
    assert study.plan(**asked | {"workload": images}).empty


@pytest.mark.slow
def test_the_command_line_finds_the_same_tables(swept, mine, tmp_path):
    words = ["--config-dir", str(mine), "workload=images", "batch_sizes=[2,8]", "search.trials=2", "engine.workers=1"]
    assert main(["sweep", *words, f"results={tmp_path}"]) == 0
    for name in ("steps_to_result", "trials"):
        assert (tmp_path / f"tables/{name}.csv").read_bytes() == (
            swept[0]["results"] / f"tables/{name}.csv"
        ).read_bytes()


REFUSED = [
    ({"optimizer": "sdg"}, ["optimizer=sdg"]),
    ({"trails": 5}, ["trails=5"]),
    ({"lr": 0.1}, ["lr=0.1"]),
    ({"trials": "x"}, ["search.trials=x"]),
    ({"goal": "soon"}, ["goal=soon"]),
    ({"search": "refine", "trials": 20}, ["search=refine", "search.trials=20"]),
    ({"engine": {"workers": 0}}, ["engine.workers=0"]),
    ({"workload": ["mlp_digits", "mlp_digts"]}, ["workload=mlp_digits,mlp_digts"]),
    ({"batch_sizes": [0]}, ["batch_sizes=[0]"]),
    ({"config_dir": "nowhere"}, ["--config-dir", "nowhere"]),
]


@pytest.mark.parametrize(("given", "words"), partly(REFUSED, 3), ids=[str(given) for given, _ in REFUSED])
def test_refusals_are_those_of_the_command_line(given, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *words]) == 2
    told = capsys.readouterr().err.removeprefix("study: ").removesuffix("\n")
    with pytest.raises(study.Refused) as refused:
        study.plan(**given)
    assert str(refused.value) == told
    assert capsys.readouterr() == ("", "")


def test_two_objects_of_one_name_are_refused(images):
    with pytest.raises(study.Refused, match="two workloads have the name images"):
        study.plan([images, type(images)("images", 99)])
    assert "images" not in str(calls._BUSY.locked())


def test_an_object_needs_a_goal(images):
    with pytest.raises(study.Refused, match="goal is not set: give it, such as 'goal=val/c"):
        study.plan(images, batch_sizes=[2], budget={"epochs": 1, "steps": 1})


def test_one_sweep_at_a_time():
    with calls._BUSY, pytest.raises(study.Refused, match="another sweep of this process is not finished"):
        study.plan()


@pytest.mark.slow
def test_results_on_disk_are_read(swept):
    folder, own = swept[0]["results"], swept[1]
    assert study.results(folder).steps.equals(own.steps)
    looser = study.results([str(folder)], goals="val/classification_error < 0.5")
    assert looser.steps.equals(study.results(folder, goals=["val/classification_error < 0.5"]).steps)
    assert (looser.steps["steps_to_result"] <= own.steps["steps_to_result"]).all()


REFUSED_RESULTS = [
    ([PUBLISHED / "mlp_digits"], ["soon"], "a goal must read .*, but got 'soon'"),
    ([PUBLISHED / "mlp_digits"], "soon", "a goal must read .*, but got 'soon'"),
    ([PUBLISHED / "mlp_digits"], [3], "a goal must be a text, such as .*, but got 3"),
    ([PUBLISHED / "mlp_digits"], 3, "a goal must be a text, such as .*, but got 3"),
    ([], (), "give a results folder"),
    ([None], (), "give a results folder"),
    ([[]], (), "give a results folder"),
    ([ROOT / "results"], (), "no studies in .*; give a results folder below it: .*/results/published/"),
    ([3], (), "a results folder must be a path, such as 'results/mlp_digits', but got 3"),
]


@pytest.mark.parametrize(("folders", "goals", "told"), REFUSED_RESULTS, ids=str)
def test_results_that_cannot_be_read_are_refused(folders, goals, told):
    with pytest.raises(study.Refused, match=told):
        study.results(*folders, goals=goals)


@pytest.mark.parametrize("given", [{"config_dir": 3}, {"overrides": 3}, {"workload": 3}, {"workload": [None]}], ids=str)
def test_values_of_another_kind_are_refused(given):
    name, value = next(iter(given.items()))
    with pytest.raises(study.Refused, match=rf"^{name} must be .*, but got {value if value == 3 else None}"):
        study.plan(**given)


@pytest.mark.parametrize(
    ("name", "told"),
    [("trial", "'trial'; did you mean 'trials'?"), ("step_to_result", "did you mean 'steps_to_result'?"),
     ("x", "unknown table 'x'; there are: trials, steps_to_result.")],
)  # fmt: skip
def test_a_table_that_there_is_not_is_told_with_the_nearest(name, told):
    tables = Tables(trials=None, steps_to_result=None)
    with pytest.raises(KeyError, match=re.escape(told)):
        tables[name]
    assert (tables.get(name), name in tables) == (None, False)


@pytest.mark.slow
def test_figures_are_drawn_on_given_axes(swept):
    result = swept[1]
    figure, axes = plt.subplots()
    assert result.plot("examples_to_result", ax=axes) is axes
    assert len(axes.lines) > 1
    with pytest.raises(study.Refused, match="unknown figure 'nothing'; there are: steps_to_result"):
        result.plot("nothing")
    with pytest.raises(study.Refused, match=r"unknown figure 'step_to_result'; did you mean 'steps_to_result'\?$"):
        result.plot("step_to_result")
    with pytest.raises(study.Refused, match="no data for rules"):
        result.plot("rules")
    with pytest.raises(study.Refused, match="has 1 panels, but got 2 axes"):
        result.plot("examples_to_result", ax=[axes, axes])
    with pytest.raises(study.Refused, match="by must be one of optimizer, workload, but got 'x'"):
        result.compare("x")
    plt.close(figure)


def test_the_library_is_imported_when_it_is_used():
    heavy = "{'torch', 'pandas', 'hydra', 'optuna', 'argparse', 'rich'}"
    program = (
        f"import sys, study\nassert not {heavy} & {{*sys.modules}}, sys.modules.keys()\n"
        "assert {'sweep', 'plan', 'results', 'Refused', 'Failed'} <= {*dir(study)}\n"
        "assert callable(study.sweep) and callable(study.plan) and callable(study.results)\n"
        "assert not {'torch', 'hydra', 'optuna'} & {*sys.modules}, sys.modules.keys()\n"
    )
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr


SCRIPT = """
import study
from made_images import Images

print("the script runs")
result = study.sweep(Images("images", 100), batch_sizes=[2], trials=2, results="out", goal={goal!r},
                     budget={{"epochs": 0, "steps": 60}}, engine={{"workers": 2}})
print("steps:", len(result.steps))
"""


@pytest.mark.slow
def test_a_script_needs_no_guard_and_warns_of_nothing(mine, tmp_path):
    script = mine / "script.py"
    script.write_text(SCRIPT.format(goal=ASKED["goal"]))
    run = subprocess.run([sys.executable, "-W", "error", script], cwd=tmp_path, capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.count("the script runs") == 1
    assert run.stdout.endswith("steps: 1\n")


@pytest.mark.slow
def test_the_page_runs(tmp_path, monkeypatch, capsys):
    for name, content in doc_pages.named_blocks("README.md").items():
        (tmp_path / Path(name).name).write_text(content)
    (tmp_path / "results").mkdir()
    (tmp_path / "results/published").symlink_to(PUBLISHED)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict = {}
    for block in doc_pages.blocks("docs/guide/python.md", "python"):
        exec(block, names)
    assert list(names["result"].steps["batch_size"]) == [4, 16, 64]
    assert len(names["looser"].steps) == len(names["published"].steps)
    assert (tmp_path / "results/digits.pdf").exists()
    assert list(names["plan"]["batch_size"]) == [64]
    assert "unknown optimizer 'sdg'; did you mean 'sgd'?" in capsys.readouterr().out
    plt.close("all")
