"""`study calibrate` end to end on a small model: it agrees with the exact solution, and notices a broken instrument."""

import json

import numpy as np
import pytest
from helpers.fused import partly
from rich.console import Console

from study import whole_sweep
from study.__main__ import main
from study.calibration import compare, facts
from study.calibration.compare import Comparison, Interval
from study.config.jobs import parse_jobs
from study.errors import UsageError
from workloads.noisy_quadratic_exact import Recursion, spectrum

SMALL = ["workload.dimensions=60", "workload.replicas=32", "goal=val/loss<0.1", "batch_size=16,256"]
SMALL += ["search.trials=6", "search.reruns=3", "budget.epochs=0.02", "budget.steps=60"]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("calibrated")
    asked = ["workload=nqm_preconditioned", "optimizer=sgd,momentum", "engine.workers=1", *SMALL, f"results={folder}"]
    everything, missing = whole_sweep.jobs_here(asked, None)
    whole_sweep.train(missing, None, "", Console(quiet=True))
    return everything


@pytest.mark.slow
def test_what_was_trained_is_as_expected(jobs):
    found = compare.compare(jobs)
    expected = [(optimizer, size) for optimizer in ("sgd", "momentum") for size in (16, 256)]
    assert [(one.optimizer, one.batch_size) for one in found] == expected
    assert all(one.agrees for one in found)
    for one in found:
        assert len(one.reruns) == 3
        assert one.median in one.reruns
        assert 0.5 * one.tuned_exact < one.tuned_expected.low <= one.tuned_expected.high < 1.5 * one.tuned_exact


@pytest.mark.slow
def test_the_verb_trains_reports_and_says_the_same_again(tmp_path, monkeypatch, capsys):
    file, results = tmp_path / "found.json", tmp_path / "results"
    assert main(["calibrate", *SMALL, "--results", str(results), "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert len(found["batch_sizes"]) == 8
    assert (results / "report.html").exists()
    first = capsys.readouterr().out
    assert "8 of 8 batch sizes are as expected" in first
    assert "nqm_preconditioned, momentum: the search\n" in first

    monkeypatch.setattr(Comparison, "agrees", False)
    assert main(["calibrate", *SMALL, "--results", str(results)]) == 1
    second = capsys.readouterr().out
    assert "batch size 16:" not in second  # nothing is trained again
    assert "0 of 8 batch sizes are as expected; not nqm sgd at 16" in second.replace("\n", " ")
    table = first.split("tuned configurations, trained again")[1].splitlines()[1:4]
    assert all(line in second for line in table)


def test_a_file_that_could_not_be_written_is_refused_before_training(tmp_path, capsys):
    results, file = tmp_path / "results", tmp_path / "nowhere/found.json"
    assert main(["calibrate", *SMALL, "--results", str(results), "--json", str(file)]) == 2
    assert (
        f"--json writes to a folder that exists, but there is no {file.parent}; create it." in capsys.readouterr().err
    )
    assert not results.exists()


@pytest.mark.slow
def test_the_optimum_is_no_worse_than_any_point_of_a_grid(jobs):
    for job in jobs:
        [one] = compare.compare([job])
        units = np.linspace(0, 1, 12)
        space = job.study.search.space
        axes = np.meshgrid(*(units for _ in space))
        points = [
            {name: space[name].value(unit) for name, unit in zip(sorted(space), place, strict=True)}
            for place in zip(*(axis.ravel() for axis in axes), strict=True)
        ]
        exact = compare.recursion(job.study, points)
        assert one.optimum <= exact.steps_to_goal(0.1, job.study.evaluation_steps).min()
        [at] = compare.recursion(job.study, [one.optimum_at]).steps_to_goal(0.1, job.study.evaluation_steps)
        assert at == one.optimum <= one.fewest_exact <= one.tuned_exact


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken",
    [
        lambda exact: {"batch_size": exact["batch_size"] * 1.5},  # noise of another covariance
        pytest.param(lambda exact: {"learning_rate": exact["learning_rate"] * 0.9}, marks=pytest.mark.slow),
        pytest.param(lambda exact: {"momentum": exact["momentum"] * 0.9}, marks=pytest.mark.slow),
        pytest.param(lambda exact: {"power": exact["power"] * 0.9}, marks=pytest.mark.slow),
    ],
    ids=["batch_size", "learning_rate", "momentum", "power"],
)
def test_another_model_is_noticed(jobs, monkeypatch, broken):
    def other(batch_size, learning_rate, momentum, **more):
        exact = {"batch_size": batch_size, "learning_rate": learning_rate, "momentum": momentum, **more}
        return Recursion(**exact | broken(exact))

    monkeypatch.setattr(compare, "Recursion", other)
    assert not all(one.agrees for one in compare.compare(jobs))


@pytest.mark.slow
def test_the_bounds_enclose_when_simulated_trials_cross(jobs):
    study = next(job.study for job in jobs if (job.study.optimizer, job.study.batch_size) == ("momentum", 16))
    h, rng, samples, replicas = spectrum(60), np.random.default_rng(0), 400, 32
    theta = rng.standard_normal((samples * replicas, 60))
    velocity, crossed_at = np.zeros_like(theta), np.full(samples, np.inf)
    bounds = compare.crossed(study, compare.recursion(study, [{"learning_rate": 0.06, "momentum": 0.5}]))
    for step in range(1, study.train_steps + 1):
        velocity *= 0.5
        velocity += h * theta + np.sqrt(h / 16) * rng.standard_normal(theta.shape)
        theta -= 0.06 * h**-0.5 * velocity
        if step in study.evaluation_steps:
            losses = (theta**2 @ (h / 2)).reshape(samples, replicas).mean(1)
            crossed_at[(losses < 0.1) & (crossed_at == np.inf)] = step
            at, at_least, at_most = next(bounds)
            assert at == step
            # Within three standard deviations of a fraction of 400.
            assert float(at_least[0]) - 0.075 <= (crossed_at <= step).mean() <= float(at_most[0]) + 0.075
    assert (crossed_at < np.median(crossed_at)).mean() > 0.25  # at several steps
    assert np.isfinite(crossed_at).all()


def compared(batch_size, steps, rate, optimizer="sgd", workload="nqm"):
    """A comparison in which everything measured is exact."""
    at, exactly = {"learning_rate": rate}, Interval(steps, steps)
    return Comparison(workload, optimizer, batch_size, at, [steps], steps, exactly, steps, steps, exactly, steps, at)


def curve(critical, slope=1.0, sharpness=2.0, **more):
    sizes = [2**power for power in range(2, 16)]
    return [
        compared(size, 100 * (1 + (critical / size) ** sharpness) ** (1 / sharpness), size**slope, **more)
        for size in sizes
    ]


def found(*comparisons):
    return {fact.claim: fact.met for fact in facts.judged([one for some in comparisons for one in some])}


def test_a_goal_that_is_never_reached_is_said(tmp_path, write_study, make_curve):
    [job] = parse_jobs(["workload=nqm_preconditioned", "optimizer=sgd", *SMALL, "batch_size=16", f"results={tmp_path}"])
    write_study(tmp_path, job.study, [make_curve(job.study, index) for index in range(6)])
    with pytest.raises(UsageError, match=r"sgd at batch size 16 never reached val/loss < 0.1; use more trials"):
        compare.compare([job])


KNOWS = "the exact solution needs a search of learning_rate and momentum alone"
SOLVED = "solved exactly, but got"


@pytest.mark.parametrize(
    ("asked", "said"),
    partly(
        [
            ({"schedule": "linear_decay"}, SOLVED),
            ({"optimizer": "adam"}, SOLVED),
            ({"workload": "mlp_digits"}, SOLVED),
            ({"search.reruns": "0"}, r"search\.reruns must be at least 1"),
            ({"optimizer": "momentum", "search.space.momentum_half_life_examples": "80"}, KNOWS),
            ({"search.space.l2": "0.1"}, KNOWS),
            ({"search.budgets": "[0.5,1]"}, KNOWS),
        ],
        4,
    ),
)
def test_what_is_not_solved_is_refused_before_training(tmp_path, asked, said):
    usual = {"workload": "nqm", "optimizer": "sgd", "search.reruns": "3", "batch_size": "64", "results": tmp_path}
    found, _ = whole_sweep.jobs_here([f"{key}={value}" for key, value in (usual | asked).items()], None)
    with pytest.raises(UsageError, match=said):
        compare.check(found)


def test_facts_are_recognised():
    momentum, preconditioned = {"optimizer": "momentum"}, {"workload": "nqm_preconditioned"}
    facts = found(
        curve(200), curve(1500, **momentum), curve(400, **preconditioned), curve(2500, **preconditioned | momentum)
    )
    assert sum(facts.values()) == len(facts) - 2  # momentum's curves here are lower everywhere
    assert not facts["nqm: momentum does not help well below SGD's critical batch size"]


@pytest.mark.parametrize(
    ("curves", "claim"),
    [
        ([curve(200, sharpness=0.4)], "perfect scaling, then a plateau"),
        ([curve(200, slope=0.5)], "best learning rate proportional"),
        ([curve(200), curve(300, optimizer="momentum")], "momentum's critical batch size is far larger"),
        ([curve(200), curve(150, workload="nqm_preconditioned")], "preconditioning makes"),
    ],
)
def test_what_is_no_fact_is_not_met(curves, claim):
    assert [met for name, met in found(*curves).items() if claim in name].count(False) == 1


def test_too_few_batch_sizes_are_not_judged():
    assert set(found(curve(200)[3:5]).values()) == {None}
