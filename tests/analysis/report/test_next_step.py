"""What to run next: advice, command and cost, where a sweep is unfinished, short, or one of several."""

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.fused import partly

from analysis.counting import Goal
from analysis.labels import counted
from analysis.load import load, load_study
from analysis.measurements import MeasurementReader
from analysis.report import build
from analysis.report.answer.continued import command
from analysis.report.answer.next_step import next_step
from study.settings import Evaluation

PUBLISHED = Path(__file__).parents[3] / "results/published"


@pytest.fixture
def proposed(sweep):
    """The next step of studies that `sweep` writes."""

    def step(ends, **fields):
        data = build.read([sweep(ends, **fields)])
        return data.answers[0].next

    return step


NEXT = {
    "unfinished": ({8: [400] * 8, 64: [100] * 7 + ["missing"]}, "continue the sweep: 1 search left", 2.5),
    "still falling": ({4: [800] * 8, 8: [400] * 8, 16: [200] * 8}, "sweep batch sizes 32 and 64, because", 120.0),
    "bounds": (
        {8: [40] * 8, 64: [100] * 8},
        "evaluate earlier, because the goal was met at the first evaluation",
        40.0,
    ),
    "flat": ({8: [100] * 8, 64: [50] * 8, 256: [50] * 8}, "train each tuned configuration with 4 fresh seeds", 30.0),
    "one size": ({8: [100] * 8}, "sweep batch sizes 2 and 32, because limits of scaling need three", 40.0),
    "two sizes": ({4: [100] * 8, 16: [50] * 8}, "sweep batch size 64, because limits of scaling need three", 20.0),
    "the largest size": (
        {4096: [100] * 8},
        "sweep batch sizes 256 and 1,024, because limits of scaling need three",
        40.0,
    ),
}


SHORT = {
    "largest": ({8: 900, 64: 800, 256: None}, "search with 2 times the budget, too, because no trial reached the goal "
        "at batch size 256", {"search.budgets": "[1,2]", "batch_size": "256"}),
    "several": ({8: 900, 64: None, 256: None}, "search with 2 times the budget, too, because no trial reached the goal "
        "at batch sizes 64 and 256", {"search.budgets": "[1,2]", "batch_size": "64,256"}),
    "smallest": ({8: None, 64: 400, 256: 200}, "search with 2 times the budget, too, because no trial reached the goal "
        "at batch size 8", {"search.budgets": "[1,2]", "batch_size": "8"}),
    "ample": ({8: 400, 64: 100, 256: None}, "search with 16 trials instead of 8, because no trial reached the goal at "
        "batch size 256, where the budget of 2,000 steps was ample", {"search.trials": "16"}),
    "one of two": ({8: 900, 64: 800, 256: None}, "search with 2 times the budget, too, because no trial reached the "
        "goal at batch size 256 with sgd", {"search.budgets": "[1,2]", "batch_size": "256"}),
    "searched with twice the budget": ({8: 400, 64: 600, 256: None}, "search with 16 trials instead of 8, because no "
        "trial reached the goal at batch size 256, where the budget of 4,000 steps was ample", {"search.trials": "16"}),
}  # fmt: skip
"""S(B), or None where no trial reached the goal within 2,000 steps; what is advised, and the overrides."""


@pytest.mark.slow
@pytest.mark.parametrize(("name", "case"), SHORT.items(), ids=SHORT)
def test_batch_sizes_that_missed_the_goal_need_no_fresh_seeds(sweep, name, case):
    ends, advice, overrides = case
    more = {"budgets": (1.0, 2.0)} if name.startswith("searched") else {}
    folder = sweep({size: [end] * 8 for size, end in ends.items()}, optimizer="sgd", **more)
    if name == "one of two":
        sweep({size: [400] * 8 for size in ends}, optimizer="momentum")
    if more:
        branch = next(load(folder)).branch._replace(budget=2.0)
        sweep({size: [None] * 8 for size in ends}, optimizer="sgd", branch=branch, **more)
    studies = list(load(folder))
    for study in studies:
        study.provenance[-1]["command"] = f"python -m study sweep results={folder}"
    searches = [study for study in studies if study.branch.budget == 1]
    data = build.read([folder])
    found = next_step(searches, *(data.tables[name] for name in ("steps_to_result", "scaling", "cost")))
    assert found.advice == advice
    assert dict(word.split("=") for word in shlex.split(found.command)[5:]) == overrides


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "advice", "seconds"), NEXT.values(), ids=NEXT)
def test_the_next_step_and_its_cost(proposed, ends, advice, seconds):
    found = proposed(ends, evaluation=Evaluation())
    assert found.advice.startswith(advice)
    assert found.seconds == pytest.approx(seconds)  # 2.5 s a trial, one worker
    assert found.command == ""  # these studies have no command on record
    assert found.known


OUT_OF_REACH = Goal("val/classification_error", 0.04)
"""Errors of these curves fall from 0.9 to 0.05, at a step that they name."""


@pytest.mark.parametrize(
    ("ends", "goal", "advice", "seconds"),
    partly([
        (1500, OUT_OF_REACH, "double the budget, because no trial reached the goal; the least error was 0.05", 40.0),
        (500, OUT_OF_REACH, "choose a looser goal or other ranges of hyperparameters, because the least error, 0.05, "
            "hardly fell in the last half of the budget", np.nan),
        (None, OUT_OF_REACH, "choose a looser goal or other ranges of hyperparameters, because the least error, 0.9, "
            "hardly fell in the last half of the budget", np.nan),
        (1, Goal("val/classification_error", 0.1), "choose a stricter goal, because a single step meets it", np.nan),
    ], 2),
)  # fmt: skip
def test_the_next_step_where_the_goal_is_out_of_reach_or_met_at_once(proposed, ends, goal, advice, seconds):
    found = proposed({8: [ends] * 4, 64: [ends] * 4}, goal=goal)
    assert found.advice == advice
    assert found.seconds == pytest.approx(seconds, nan_ok=True)
    assert found.command == ""
    assert (found.known == "") == (goal is OUT_OF_REACH)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fresh", "known"),
    [
        ({"momentum": (8, 64, 256), "sgd": (8, 64, 256)}, r"Steps are known within a factor of 1\.\d\d to .* \(95 %\)"),
        (
            {"momentum": (8, 64, 256), "sgd": (8, 64)},
            r"Steps are known .* \(95 %\), except with SGD",
        ),
        ({"momentum": (8,), "sgd": ()}, "Steps have no interval yet"),
    ],
)
def test_steps_without_fresh_seeds_are_not_said_to_be_known(sweep, fresh, known):
    for optimizer, sizes in fresh.items():
        ends = {8: 400, 64: 200, 256: 150}
        folder = sweep({size: [end] * 8 for size, end in ends.items()}, optimizer=optimizer)
        branch = next(load(folder)).branch._replace(rerun=0)
        again = {size: [ends[size], round(1.1 * ends[size]), round(1.2 * ends[size])] for size in sizes}
        sweep(again, optimizer=optimizer, branch=branch, trials=3)
    assert re.fullmatch(known, build.read([folder]).answers[0].next.known)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arithmetic", "advice", "overrides", "cure"),
    [
        ("plain", "evaluate earlier, because ", ["evaluation.first=0.001"], "lower evaluation.first to see when"),
        ("command", "have the script write its first metrics earlier, because ", [], "have the script write its first"),
    ],
)
def test_a_script_is_to_evaluate_earlier_by_itself(sweep, arithmetic, advice, overrides, cure):
    folder = sweep({8: [40] * 8, 64: [100] * 8}, evaluation=Evaluation(), arithmetic=arithmetic)
    studies = list(load(folder))
    for study in studies:
        study.provenance[-1]["command"] = "python -m study sweep"
    data = build.read([folder])
    steps, limits, cost = (data.tables[name] for name in ("steps_to_result", "scaling", "cost"))
    found = next_step(studies, steps, limits, cost)
    assert found.advice.startswith(advice)
    assert sorted(found.command.split()[4:]) == sorted([*overrides, f"results={folder}-earlier"])
    assert [said for said in data.warnings if cure in said]


UNTRAINED = {
    "of a few examples": ({"untrained classification_error": 0.125}, 1, True),
    "of a moving average": ({"untrained classification_error": 0.125}, "ema_", True),
    "measured at step 0": ({"untrained classification_error": 1.0}, 0, True),
    "above the goal": ({"untrained classification_error": 0.875}, 1, False),
    "unknown": ({}, 1, False),
}
"""What a run recorded of the untrained model, the first measured step (or the prefix of the metric), and whether a
stricter goal is advised."""


@pytest.mark.parametrize(("fingerprint", "first", "stricter"), partly(UNTRAINED.values(), 3), ids=UNTRAINED)
def test_a_goal_that_the_untrained_model_meets_is_made_stricter(sweep, monkeypatch, fingerprint, first, stricter):
    goal = Goal(f"val/{first if isinstance(first, str) else ''}classification_error", 0.2)
    folder = sweep({8: [40] * 4, 64: [40] * 4}, evaluation=Evaluation(), goal=goal)
    for path in folder.rglob("study.json"):
        record = json.loads(path.read_text())
        record["provenance"][-1]["fingerprint"] = fingerprint
        path.write_text(json.dumps(record))
    if first == 0:
        read = MeasurementReader.read
        at_0 = pd.DataFrame({"trial": 0, "step": [0], goal.metric: 0.1})
        monkeypatch.setattr(MeasurementReader, "read", lambda self, names: pd.concat([at_0, read(self, names)]))
    data = build.read([folder])
    assert data.answers[0].next.advice.startswith("choose a stricter goal" if stricter else "evaluate earlier")
    assert any("choose a stricter goal" in said for said in data.warnings) == stricter
    assert any("lower evaluation.first" in said for said in data.warnings) != stricter


def test_imported_trials_have_no_next_step():
    study = load_study(PUBLISHED / "mlp_digits/studies/mlp_digits/sgd/64")
    tables = build.tables([study], [study], build.Asked())
    study.question["stopping"] = "recorded"
    found = next_step([study], tables["steps_to_result"], tables["scaling"], tables["cost"])
    assert (found.advice, found.command) == ("", "")


@pytest.mark.parametrize(
    ("recorded", "overrides", "expected"),
    [
        (
            "python -m study sweep batch_size=8,16 search.trials=4",
            {"search.trials": 8},
            "batch_size=8,16 search.trials=8",
        ),
        ("python -m study sweep 'goal=val/loss < 1'", {"search.reruns": 4}, "'goal=val/loss < 1' search.reruns=4"),
        ("python -m study calibrate", {"search.reruns": 4}, None),
        ("", {}, None),
        ("""study.sweep(workload=m.M(name='it\\'s "it"'), overrides=[])""", {"search.reruns": 8}, None),
    ],
)
def test_the_command_is_the_recorded_one_with_other_values(tmp_path, monkeypatch, recorded, overrides, expected):
    monkeypatch.chdir(tmp_path)
    study = study_in("results/mlp_digits", recorded)
    assert command([study], overrides) == ("" if expected is None else f"python -m study sweep {expected}")


def study_in(results, recorded):
    """A published study as if it lay in another results folder, by another command."""
    study = load_study(PUBLISHED / "mlp_digits/studies/mlp_digits/sgd/64")
    study.provenance[-1]["command"] = recorded
    return replace(study, folder=Path(results, "studies/mlp_digits/sgd/64"))


@pytest.mark.parametrize(
    ("lies_in", "recorded", "overrides", "expected"),
    [
        ("results/mlp_digits", "", {}, ""),
        ("moved", "", {}, "results=moved"),
        ("moved", "results=there", {}, "results=moved"),
        ("there", "results=there", {}, "results=there"),
        ("./there/.", "results=there", {"search.reruns": 8}, "results=there search.reruns=8"),
        ("moved", "results=there", {"results": "moved-longer"}, "results=moved-longer"),
        ("there", "results=$PWD/there", {}, "results=$PWD/there"),
        ("a b", "results=there", {}, "'results=a b'"),
    ],
)
def test_the_command_goes_on_where_the_results_lie(tmp_path, monkeypatch, lies_in, recorded, overrides, expected):
    monkeypatch.chdir(tmp_path)
    recorded, expected = (words.replace("$PWD", str(tmp_path)) for words in (recorded, expected))
    study = study_in(lies_in, f"python -m study sweep {recorded}".strip())
    assert command([study], overrides) == f"python -m study sweep {expected}".strip()


def test_a_command_for_studies_of_several_commands_names_all_of_them():
    folder = PUBLISHED / "mlp_digits/studies/mlp_digits"
    studies = [load_study(folder / name) for name in ("momentum/8", "sgd/8", "sgd/64")]
    studies[0].provenance[-1]["command"] = "python -m study sweep results=here"
    for study in studies[1:]:
        study.provenance[-1]["command"] = "python -m study sweep optimizer=sgd batch_size=8,64 results=here"
    found = command(studies, {"search.reruns": 8})
    where = f"results={PUBLISHED / 'mlp_digits'}"
    assert found == f"python -m study sweep {where} optimizer=momentum,sgd batch_size=8,64 search.reruns=8"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recorded", "waiting", "expected"),
    [
        ("'batch_sizes=[8,64]'", ["momentum/64"], "batch_size=8,64"),
        ("optimizer=momentum,sgd batch_size=8,64", ["sgd/8", "sgd/64"], "optimizer=momentum,sgd batch_size=8,64"),
        ("search.trials=9 batch_size=8", ["momentum/64"], "search.trials=9 batch_size=8,64"),  # of another command
    ],
)
def test_the_next_step_of_an_interrupted_sweep_trains_what_waits(recorded, waiting, expected):
    folder = PUBLISHED / "mlp_digits/studies/mlp_digits"
    begun, *others = (load_study(folder / name) for name in ("momentum/8", *waiting))
    begun.provenance[-1]["command"] = f"python -m study sweep results={PUBLISHED / 'mlp_digits'} {recorded}"
    tables = build.tables([begun], [begun], build.Asked())
    studies = [begun, *(replace(study, provenance=[], trials=study.trials[:0]) for study in others)]
    found = next_step(studies[::-1], tables["steps_to_result"], tables["scaling"], tables["cost"])
    assert found.advice == f"continue the sweep: {counted(len(others), 'search', 'searches')} left"
    assert found.command.split()[5:] == expected.split()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("apart", "where"),
    [
        ({}, "one"),  # one sweep, which one command continues
        ({"results": "two"}, "two"),
        ({"words": " search=sobol"}, "one"),
        ({"sampler": "random"}, "one"),
    ],
)
def test_the_next_step_continues_one_sweep(sweep, tmp_path, apart, where):
    """Of two folders or questions, the one with the widest intervals: here sgd, which has no fresh seeds."""
    ends = {8: [100] * 8, 64: [50] * 8, 256: [50] * 8}
    for optimizer in ("momentum", "sgd"):
        mine = apart if optimizer == "sgd" else {}
        sampler = mine.get("sampler", "sobol")
        sweep(ends, tmp_path / mine.get("results", "one"), optimizer=optimizer, sampler=sampler)
    studies = [study for name in {"one", where} for study in load(tmp_path / name)]
    for study in studies:
        other = apart.get("words", "") if study.optimizer == "sgd" else ""
        recorded = f"python -m study sweep optimizer={study.optimizer} results={study.results}{other}"
        study.provenance[-1]["command"] = recorded
    data = build.read(sorted({study.results for study in studies}))
    steps, limits, cost = (data.tables[name] for name in ("steps_to_result", "scaling", "cost"))
    by_seeds = steps["optimizer"] == "momentum"
    steps = steps.assign(tuned_steps=steps["tuned_steps"].mask(by_seeds, 50.0))
    steps = steps.assign(tuned_low=steps["tuned_low"].mask(by_seeds, 40.0))
    steps = steps.assign(tuned_high=steps["tuned_high"].mask(by_seeds, 60.0))
    found = next_step(studies, steps, limits, cost)
    assert f"results={tmp_path / where}" in found.command.split()
    assert ("optimizer=momentum,sgd" in found.command) == (not apart)
    assert found.advice.startswith("for sgd, train each" if apart else "train each")
    assert found.seconds == pytest.approx(4 * 2.5 * len(steps) / (2 if apart else 1))


def test_the_next_step_of_some_batch_sizes_names_them(sweep, tmp_path):
    sweep({8: [400] * 8, 64: [100] * 7 + ["missing"]}, tmp_path / "one")
    sweep({256: [50] * 8}, tmp_path / "two")
    found = build.read([tmp_path / "one", tmp_path / "two"]).answers[0].next
    assert found.advice == "for momentum at batch sizes 8 and 64, continue the sweep: 1 search left"


def test_advice_without_a_command_names_whom_it_is_for(sweep, tmp_path):
    for size in (8, 256):
        sweep({size: [500] * 4}, tmp_path / str(size), goal=OUT_OF_REACH)
    found = build.read([tmp_path / "8", tmp_path / "256"]).answers[0].next
    assert re.match(r"for momentum at batch size \d+, choose a looser goal", found.advice)


@pytest.mark.parametrize(
    ("together", "advice"),
    partly(
        [
            (True, "sweep batch sizes 32 and 64 with momentum, because steps still fall at 16"),
            (False, "for momentum, sweep batch sizes 32 and 64, because steps still fall at 16"),
        ],
        2,
    ),
    ids=["one command", "two commands"],
)
def test_larger_batch_sizes_are_for_the_optimizers_whose_steps_still_fall(sweep, together, advice):
    sweep({4: [800] * 8, 8: [400] * 8, 16: [200] * 8}, optimizer="momentum")
    folder = sweep({4: [800] * 8, 8: [790] * 8, 16: [780] * 8}, optimizer="sgd")
    studies = list(load(folder))
    for study in studies:
        own = "" if together or study.optimizer == "momentum" else " search.trials=8"
        study.provenance[-1]["command"] = f"python -m study sweep optimizer=momentum,sgd results={folder}{own}"
    data = build.read([folder])
    found = next_step(studies, *(data.tables[name] for name in ("steps_to_result", "scaling", "cost")))
    assert found.advice == advice
    assert "optimizer=momentum" in found.command.split()


def test_a_doubled_budget_is_a_whole_number(sweep):
    folder = sweep({8: [500_000] * 4, 64: [None] * 4}, steps=600_000, goal=OUT_OF_REACH)
    studies = list(load(folder))
    for study in studies:
        study.provenance[-1]["command"] = f"python -m study sweep budget.steps=600000 results={folder}"
    data = build.read([folder])
    steps, limits, cost = (data.tables[name] for name in ("steps_to_result", "scaling", "cost"))
    assert "budget.steps=1200000" in next_step(studies, steps, limits, cost).command.split()


def test_the_next_step_of_one_of_several_workloads_sweeps_it_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recorded = "python -m study sweep workload={} results=both search.trials=4"
    for workloads, expected in (("mlp_digits,softmax_digits", ["mlp_digits"]), ("a,b", ["a,b"])):  # b is renamed
        found = command([study_in("both", recorded.format(workloads))], {"search.trials": 8})
        assert [word[9:] for word in found.split() if word.startswith("workload=")] == expected


CHOICES = {
    "a class by its path": (["optimizer=torch optimizer.target=lions.Lion"], ["lions.Lion"], None, "torch"),
    "a file for a class": (["optimizer=my_lion,sgd"] * 2, ["lions.Lion", "sgd"], "lions.Lion", "my_lion"),
    "a file for a registered one": (["optimizer=slow_sgd,momentum"] * 2, ["sgd", "momentum"], "sgd", "slow_sgd"),
    "two files": (["optimizer=my_lion,signs"] * 2, ["lions.Lion", "signs.Sign"], "lions.Lion", "my_lion,signs"),
    "others were deleted": (["optimizer=my_lion,adam,momentum"], ["lions.Lion"], "lions.Lion", "my_lion"),
    "several commands": (["optimizer=sgd", "optimizer=my_lion,sgd"], ["sgd", "lions.Lion"], None, "sgd,my_lion"),
    "no choice in the command": (["search.trials=4", "search.trials=5"], ["sgd", "momentum"], None, "sgd,momentum"),
    "a growing batch": (["optimizer=sgd,adam"], ["sgd+doubling"], "sgd+doubling", "sgd"),
    "an optimizer of another question": (["optimizer=my_lion"], ["lions.Lion"], "sgd,nesterov", "sgd,nesterov"),
}
"""The words of the last command of each study, the recorded optimizers, those asked for, and the choices of these."""


@pytest.mark.parametrize(("commands", "recorded", "asked", "expected"), CHOICES.values(), ids=CHOICES)
def test_a_command_names_the_choices_and_not_the_recorded_optimizers(commands, recorded, asked, expected):
    studies = []
    for words, optimizer in zip(commands, recorded, strict=True):
        study = study_in("results/mlp_digits", f"python -m study sweep {words}")
        study.question["optimizer"], _, grows = optimizer.partition("+")
        study.question["batch_schedule"] = {"kind": grows} if grows else None
        studies.append(study)
    found = command(studies, {"optimizer": asked} if asked else {})
    assert [word[10:] for word in found.split() if word.startswith("optimizer=")] == [expected]
