"""End to end: the command line, real digits, real files."""

import json
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from helpers.made_workload import FAILING, own_folder
from helpers.processes import tables, written
from house import doc_pages

from analysis.figures import charts
from analysis.load import load
from analysis.report import build
from analysis.tables import steps_to_result
from study import store
from study.__main__ import main
from study.config import preflight
from study.config.jobs import parse_jobs

SMALL = ["sweep", "batch_size=16,256", "search.trials=3", "search.reruns=0", "budget.epochs=2"]


@pytest.fixture
def swept(swept_once):
    return swept_once(*SMALL)


@pytest.mark.slow
def test_sweep_writes_tables_figures_and_report(swept):
    steps = pd.read_csv(swept / "tables/steps_to_result.csv")
    assert list(steps["batch_size"]) == [16, 256]
    assert (steps["complete"] == 3).all()
    first = "workload optimizer batch_size goal_metric goal_threshold reached steps_to_result examples_to_result trial"
    assert list(steps.columns[:9]) == first.split()
    for name in ("tables/scaling.csv", "tables/cost.csv", "figures/steps_to_result.svg", "figures/steps_to_result.png"):
        assert (swept / name).stat().st_size > 0
    page = (swept / "report.html").read_text()
    assert "<svg" in page
    assert "torch" in page


@pytest.mark.slow
def test_a_report_draws_every_kind_of_figure_that_its_tables_allow(swept, tmp_path, all_figures):
    shutil.copytree(swept / "studies", tmp_path / "studies")
    assert main(["report", str(tmp_path)]) == 0
    drawn = {path.stem for path in (tmp_path / "figures").glob("*.svg")}
    assert drawn == {chart.name for chart in charts(build.read([tmp_path]).tables)}
    assert len(drawn) > 5


@pytest.mark.slow
def test_a_finished_sweep_only_rebuilds_its_report(swept):
    before = written(swept)
    (swept / "report.html").unlink()
    assert main([*SMALL, f"results={swept}"]) == 0
    assert written(swept) == before
    assert (swept / "report.html").exists()


@pytest.mark.slow
def test_another_folder_gives_the_same_tables_bit_for_bit(swept, tmp_path):
    assert main([*SMALL, f"results={tmp_path}", "engine.workers=1"]) == 0
    assert tables(tmp_path) == tables(swept)


@pytest.mark.slow
def test_more_trials_extend_and_equal_a_sweep_that_asked_for_them_at_once(swept, tmp_path):
    extended, at_once = tmp_path / "extended", tmp_path / "at_once"
    small = ["sweep", "batch_size=256", "budget.epochs=2"]
    assert main([*small, "search.trials=2", "search.reruns=0", f"results={extended}"]) == 0
    assert main([*small, "search.trials=4", "search.reruns=0", f"results={extended}"]) == 0
    assert main([*small, "search.trials=4", "search.reruns=0", f"results={at_once}"]) == 0
    assert tables(extended) == tables(at_once)


@pytest.mark.slow
def test_a_race_equals_full_budgets_read_as_a_race(tmp_path):
    small = ["sweep", "preset=quick", "search.reruns=0", "budget.epochs=4", "batch_size=64,256"]
    for rule in ("race", "budget"):
        assert main([*small, f"stopping={rule}", f"results={tmp_path / rule}"]) == 0
    raced = pd.read_csv(tmp_path / "race/tables/steps_to_result.csv")
    read = steps_to_result.table(list(load(tmp_path / "budget")), stopping="race")
    written = pd.read_csv(tmp_path / "race/tables/steps_to_result.csv", dtype=str)
    assert written[[*read]].to_csv(index=False) == read.to_csv(index=False)  # the page adds columns
    full = pd.read_csv(tmp_path / "budget/tables/steps_to_result.csv")
    assert (raced["steps_trained"] < full["steps_trained"]).all()
    assert "would have been skipped" in (tmp_path / "budget/report.html").read_text()


@pytest.mark.slow
def test_the_readmes_own_workload(tmp_path):
    mine = tmp_path / "mine"
    for name, content in doc_pages.named_blocks("README.md").items():
        (mine / name).parent.mkdir(parents=True, exist_ok=True)
        (mine / name).write_text(content)
    command = [
        "sweep",
        "--config-dir",
        str(mine),
        "workload=moons",
        "batch_size=64",
        "search.trials=6",
        "search.reruns=0",
    ]
    assert main([*command, "engine.workers=1", f"results={tmp_path / 'results'}"]) == 0
    steps = pd.read_csv(tmp_path / "results/tables/steps_to_result.csv")
    assert list(steps["reached"]) == [True]


FULL = """
from multiprocessing import current_process

from made_images import *

CALLS = {CALLS}
calls = 0


class Full(Images):
    def loss(self, outputs, targets):
        global calls
        name = current_process().name
        if name.startswith(("ForkServer", "Spawn")) and int(name.rpartition("-")[2]) % 2:
            calls += 1  # not in the process of the check, which refuses state that trials share
            if calls > CALLS:
                raise torch.OutOfMemoryError("no room")
        return super().loss(outputs, targets)
"""


@pytest.mark.slow
def test_one_sweep_crosses_arithmetics(tmp_path):
    """Convolutions are fused at small batch sizes and trained one by one above."""
    mine = own_folder(tmp_path / "mine")
    command = ["sweep", "--config-dir", str(mine), "workload=images", "engine.workers=1"]
    assert main([*command, f"results={tmp_path / 'results'}"]) == 0
    questions = [json.loads(path.read_text())["question"] for path in tmp_path.glob("results/studies/*/*/*/study.json")]
    assert {q["batch_size"]: q["arithmetic"] for q in questions} == {2: "vmap", 4: "vmap", 8: "plain", 16: "plain"}


@pytest.mark.slow
def test_a_study_that_does_not_fit_fails_alone(tmp_path, says):
    source = FAILING.replace("{error}", "torch.OutOfMemoryError('no room')")
    mine = own_folder(tmp_path / "mine", "too_large", source, "made_too_large.Failing")
    command = ["sweep", "--config-dir", str(mine), "workload=too_large,images", "batch_size=8"]
    said = says(*command, "engine.workers=1", f"results={tmp_path / 'results'}", status=1)
    assert "one trial of too_large at batch size 8 does not fit on cpu: choose a smaller model" in said
    steps = pd.read_csv(tmp_path / "results/tables/steps_to_result.csv")
    assert list(steps["workload"]) == ["images"]


@pytest.mark.slow
@pytest.mark.parametrize("calls", [0, pytest.param(60, marks=pytest.mark.release)])
def test_what_one_worker_has_no_room_for_the_others_train(tmp_path, capsys, calls):
    """Its device may be filled by somebody else, from the beginning or later."""
    source = FULL.replace("{CALLS}", str(calls))
    mine = own_folder(tmp_path / "mine", "full", source, f"made_full_{calls}.Full")
    steps = {}
    for workload in ("images", "full"):
        results = tmp_path / workload
        command = [
            "sweep",
            "--config-dir",
            str(mine),
            f"workload={workload}",
            "batch_size=4,16",
            "search.trials=6",
            "search.reruns=0",
        ]
        command += ["stopping=budget"]
        assert main([*command, "engine.workers=2", f"results={results}"]) == 0
        steps[workload] = pd.read_csv(results / "tables/steps_to_result.csv")
    pd.testing.assert_frame_equal(steps["images"].replace("images", "full"), steps["full"])
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"full at batch size (4|16) does not fit on cpu", said)
    assert "The other workers trained it." in said


@pytest.mark.slow
def test_goals_after_the_fact(tmp_path, says):
    """Looser ones are read off any curve; others need full budgets, and are refused with the reason."""
    small = ["sweep", "batch_size=64,256", "search.trials=4", "search.reruns=0", "budget.epochs=2"]
    for rule in ("race", "budget"):
        assert main([*small, f"stopping={rule}", f"results={tmp_path / rule}"]) == 0
    looser, tighter = (f"val/cross_entropy_error<{threshold}" for threshold in (0.3, 0.1))
    goals = ["--goal", looser, "--goal", tighter]
    for rule, expected in (("race", [0.3]), ("budget", [0.1, 0.3])):
        says("report", tmp_path / rule, *goals)
        [folder] = (tmp_path / rule / "goals").iterdir()
        steps = pd.read_csv(folder / "tables/steps_to_result.csv")
        assert sorted(set(steps["goal_threshold"])) == expected
        assert ("needs stopping=budget" in (folder / "report.html").read_text()) is (rule == "race")
    for rule, goal, why in (
        ("race", tighter, "needs stopping=budget"),
        ("budget", "val/x<1", "mlp_digits, momentum: val/x is not measured"),
        ("budget", "soon", "a goal must read"),
    ):
        assert why in says("report", tmp_path / rule, "--goal", goal, status=2)


def test_fused_trials_that_are_forced_stay_fused_as_they_were(tmp_path):
    """Whatever the rule says today, here or on another device."""
    small = ["batch_size=64", f"results={tmp_path}"]
    [job] = preflight.settle(parse_jobs(small))
    store.open_study(tmp_path, replace(job.study, arithmetic="linear_blocks"), {"device": "cpu"})
    [again] = preflight.settle(parse_jobs([*small, "engine=lanes"]))
    assert again.study.arithmetic == "linear_blocks"


@pytest.mark.slow
def test_a_study_begun_on_another_device_goes_on_in_its_arithmetic(tmp_path, says):
    small = [
        "batch_size=64",
        "search.trials=2",
        "search.reruns=0",
        "budget.epochs=2",
        "engine.workers=1",
        f"results={tmp_path}",
    ]
    [job] = preflight.settle(parse_jobs(small))
    assert job.study.arithmetic == "linear_chain"
    store.open_study(tmp_path, replace(job.study, arithmetic="plain"), {"device": "cuda:0"})
    forced = says("sweep", *small, "engine=lanes", status=2)
    assert "arithmetic: plain -> linear_chain" in forced  # it would be another question
    out = says("sweep", *small)
    assert "holds trials that were trained on cuda; trials on cpu agree with them only to a tolerance" in out
    question, runs = store.recorded(tmp_path, job.study) or ({}, [])
    assert question["arithmetic"] == "plain"
    assert [run["device"] for run in runs] == ["cuda:0", "cpu"]


@pytest.mark.slow
def test_one_report_on_several_folders(tmp_path, says):
    for optimizer in ("sgd", "momentum"):
        small = [
            "batch_size=64,256",
            "search.trials=2",
            "search.reruns=0",
            "budget.epochs=2",
            f"results={tmp_path / optimizer}",
        ]
        assert main(["sweep", f"optimizer={optimizer}", *small]) == 0
    both = [str(tmp_path / "sgd"), str(tmp_path / "momentum")]
    said = says("compare", *both, "--output", tmp_path / "both", "--json")
    assert "it is not known yet whether momentum or sgd needs fewer steps" in said
    steps = pd.read_csv(tmp_path / "both/tables/steps_to_result.csv")
    assert (list(steps["optimizer"]), list(steps["batch_size"])) == (["momentum"] * 2 + ["sgd"] * 2, [64, 256] * 2)
    page = (tmp_path / "both/report.html").read_text()
    assert all(folder in page for folder in both)  # the commands that made them
    assert "Optimizers compared" in page
    one = says("compare", both[0], status=2)
    assert "with one optimizer, but got mlp_digits with sgd at batch sizes 64 and 256" in one
    shutil.copytree(both[0], tmp_path / "copy")
    twice = says("report", both[0], tmp_path / "copy", "--output", tmp_path / "twice", status=2)
    assert "both hold mlp_digits, sgd, batch size 64" in twice
    assert not (tmp_path / "twice").exists()
