"""Batch-size schedules from the command line: swept, reported beside S(B), written for others, verified."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis import load
from analysis.batch_schedules import verified
from study.__main__ import main

SWEEP = [
    "sweep",
    "optimizer=sgd",
    "batch_schedule=constant,doubling",
    "batch_size=16",
    "search=sobol",
    "search.trials=3",
    "search.reruns=2",
    "budget.epochs=4",
    "budget.steps=20",
    "goal=val/cross_entropy_error < 0.6",
]


@pytest.fixture
def swept(swept_once):
    return swept_once(*SWEEP)


@pytest.mark.slow
def test_schedules_are_counted_in_steps_and_examples_beside_s_of_b(swept):
    steps, curves = (pd.read_csv(swept / f"tables/{name}.csv") for name in ("steps_to_result", "batch_schedules"))
    assert steps["optimizer"].tolist() == ["sgd", "sgd+doubling"]
    assert curves["optimizer"].tolist() == ["sgd+doubling"]
    for name in ("scaling", "fits", "compare", "at_budget", "best_errors"):
        assert set(pd.read_csv(swept / f"tables/{name}.csv").get("optimizer", [])) <= {"sgd"}
    [study] = [each for each in load.load(swept) if each.batch_schedule and each.branch.rerun is None]
    phases = study.phases(0)
    assert len(phases.sizes) >= 3
    row = steps[steps["optimizer"] == "sgd+doubling"].iloc[0]
    assert row["examples_to_result"] == phases.examples(int(row["steps_to_result"]))
    assert row["train_steps"] == phases.steps < steps[steps["optimizer"] == "sgd"]["train_steps"].item()
    listed = pd.read_csv(swept / "tables/batch_phases.csv")
    assert (tuple(listed["step"]), tuple(listed["size"])) == (phases.starts, phases.sizes)
    assert curves["constant_steps"].notna().all()
    held = json.loads(next(swept.glob("studies/*/sgd+doubling/16/study.json")).read_text())
    assert held["question"]["batch_schedule"]["kind"] == "doubling"
    assert held["provenance"][0]["engine"] == "lanes"


@pytest.mark.slow
def test_the_same_sweep_finds_everything_done(swept, says):
    assert "sgd+doubling from batch size 16" in says(*SWEEP, f"results={swept}")


@pytest.mark.slow
def test_a_sweep_of_schedules_alone_has_a_report(tmp_path, says):
    words = [word.replace("constant,doubling", "ramp") for word in SWEEP]
    said = says(*words, f"results={tmp_path}")
    assert "mlp_digits with sgd+ramp from batch size 16 to 128" in said
    assert (tmp_path / "report.html").exists()


@pytest.mark.slow
def test_tuned_schedules_differ_by_trial_and_are_complete(tmp_path, says):
    words = [word.replace("constant,doubling", "ramp") for word in SWEEP]
    says(*words, "search.space.batch_growth={low: 1, high: 8, scale: log}", "stopping=race", f"results={tmp_path}")
    [study] = [each for each in load.load(tmp_path) if each.branch.rerun is None]
    ends = {index: study.phases(index).steps for index in study.trials.index}
    assert len(set(ends.values())) > 1
    assert study.trials["batch_growth"].nunique() == len(study.trials)
    assert pd.read_csv(tmp_path / "tables/steps_to_result.csv")["incomplete"].item() == 0


@pytest.mark.slow
def test_two_devices_train_what_one_does(tmp_path, says):
    words = [*SWEEP, "search.reruns=0", "search.trials=1", "stopping=budget", "engine=serial"]
    words[words.index("batch_schedule=constant,doubling")] = "batch_schedule=ramp"
    losses = []
    for devices in (1, 2):
        says(*words, f"engine.devices={devices}", f"results={tmp_path / str(devices)}")
        [study] = load.load(tmp_path / str(devices))
        losses.append(study.measurements["val/cross_entropy_error"].to_numpy())
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_a_schedule_is_written_for_others(swept, says, tmp_path):
    assert '--step-batch-size-schedule "0:16 ' in says("schedule", swept, "--format", "megatron")
    assert "1,2" not in says("schedule", swept)
    says("schedule", swept, "--format", "torchtitan", "--output", tmp_path)
    assert (tmp_path / "stage-1.toml").exists()
    found = json.loads(says("schedule", swept, "--format", "megatron", "--output", tmp_path, "--json"))
    assert (tmp_path / "megatron.args").read_text().count("0:16 ") == 1
    assert found["files"] == {"megatron.args": str(tmp_path / "megatron.args")}
    assert found["rows"][0] == {"step": 0, "examples_seen": 0, "batch_size": 16, "learning_rate_factor": 1.0}
    assert (found["rows"][-1]["batch_size"], found["verb"]) == (None, "schedule")
    assert "give --tokens" in says("schedule", swept, "--format", "olmo", status=2)
    assert "must have one curve to write, but got" in says("schedule", swept, "--optimizer", "adam", status=2)


@pytest.mark.slow
def test_verified_with_fresh_seeds_and_gone_on_with(swept, says, tmp_path):
    said = says("verify", swept, "--seeds", 2)
    assert "what it will cost" in said
    found = pd.read_csv(swept / "tables/verified.csv")
    assert found["arm"].tolist()[0] == "constant 16"
    assert found["arm"].tolist()[-1] == "doubling"
    assert found["hyperparameters"].tolist() == ["tuned", "linear", "tuned"]
    assert (found["seeds"] == 2).all()
    assert (found["budget_examples"] - found["budget_examples"].min() < found["arm_batch_size"].max()).all()
    assert found["steps_ratio"].iloc[0] == 1
    own = {each.optimizer: each for each in load.load(next(swept.glob("verified/*/*/*")))}
    arms = list(load.load(next(swept.glob("verified/*/*/*"))))
    seeds = {tuple(each.trials["seed"]) for each in arms}
    assert len(seeds) == 1  # the arms share them
    used = {seed for each in load.load(swept) for seed in each.trials["seed"]}
    assert not used & {*seeds.pop()}
    assert set(own) == {"sgd", "sgd+doubling"}
    shown = json.loads(says("verify", swept, "--seeds", 3, "--json"))
    assert [row["seeds"] for row in shown["rows"]] == [3, 3, 3]
    assert "what it will cost" not in says("verify", swept, "--seeds", 3)


@pytest.mark.slow
def test_the_large_batch_size_has_the_usual_rule_of_its_optimizer(tmp_path, says):
    words = ["optimizer=lars" if word == "optimizer=sgd" else word for word in SWEEP]
    says(*words, "batch_schedule=doubling", "goal=val/cross_entropy_error < 1.5", f"results={tmp_path}")
    says("verify", tmp_path, "--seeds", 2)
    found = pd.read_csv(tmp_path / "tables/verified.csv")
    assert found["hyperparameters"].tolist() == ["constant", "square_root", "tuned"]


@pytest.mark.slow
def test_nothing_to_verify_is_refused(swept_once, says):
    plain = swept_once(*[word.replace("constant,doubling", "constant") for word in SWEEP])
    assert "has no curve with a batch-size schedule" in says("verify", plain, status=2)
    assert "--seeds must be at least 2" in says("verify", plain, "--seeds", 1, status=2)


def test_paired_intervals_are_students():
    mean, low, high = verified.interval(np.array([0.1, 0.3, 0.2, 0.4]))
    assert (mean, high - mean) == pytest.approx((0.25, 3.1824 * 0.1291 / 2), rel=1e-3)
    assert low == pytest.approx(2 * mean - high)


def test_verify_needs_a_finished_sweep(tmp_path):
    assert main(["verify", str(tmp_path)]) == 2
