"""The loss after one step: the best learning rate is exact on the noisy quadratic model, and no trace is left."""

import copy
import json

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.gradients.runs import Models, begun, quadratic

from analysis.one_step.estimate import best_learning_rates, fit_batches, interval
from study.noise import measure
from study.noise.one_step import Objective, climbed, measured
from study.noise.preconditioner import preconditioner

SIZES = (4, 16, 64, 256)


def exact(run, form):
    """(eps_max, B_n) of the noisy quadratic model: gradient h theta, Hessian h, covariance diag(h) for one example."""
    model = run.model
    with torch.no_grad():
        h = (model.curvatures * model.scale**2).expand_as(model.phi).flatten()  # of phi
        gradient, covariance = h * model.phi.flatten(), h
        factors = preconditioner(run) if form == "preconditioned" else torch.ones_like(h)
        step = factors * gradient
        bend = float((h * step**2).sum())
        return float(gradient @ step) / bend, float((h * factors**2 * covariance).sum()) / bend


def found(run, sizes=SIZES, batches=32):
    """form -> batch size -> best learning rates [1 + K]."""
    rates = {}
    for each in measured(run, 4, sizes, batches)["rates"]:
        known = best_learning_rates(each["learning_rates"], np.array(each["losses"], dtype=float))
        rates.setdefault(each["form"], {})[each["batch_size"]] = known
    return rates


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "batch_size", "steps", "power"),
    [("sgd", 4, 0, 0.0), ("sgd", 4, 40, 0.0), ("sgd", 256, 300, 0.0), ("sgd", 16, 40, 0.5), ("adam", 16, 10, 0.0)],
)
def test_the_best_learning_rate_and_the_fit_are_exact(optimizer, batch_size, steps, power, make_study):
    run = quadratic(make_study, optimizer=optimizer, batch_size=batch_size, steps=steps, power=power, seed=1)
    rates = found(run)
    assert list(rates) == (["plain"] if optimizer == "sgd" else ["plain", "preconditioned"])
    for form, by_size in rates.items():
        eps_max, noise_scale = exact(run, form)
        for size, each in by_size.items():
            low, high = interval(each, 0.999)
            assert low <= eps_max / (1 + noise_scale / size) <= high
            assert high / low < 10
        for space in ("log", "linear"):
            fit = fit_batches(by_size, space, 0.999)
            assert fit.low <= noise_scale <= fit.high
            assert fit.eps_low <= eps_max <= fit.eps_high


@pytest.mark.release
def test_intervals_hold_it_in_nineteen_of_twenty_runs(make_study):
    of_fits, of_rates = [], []
    for seed in range(40):
        run = quadratic(make_study, batch_size=16, steps=20, seed=seed)
        (eps_max, noise_scale), rates = exact(run, "plain"), found(run)["plain"]
        fit = fit_batches(rates)
        of_fits.append(fit.low <= noise_scale <= fit.high)
        for size, each in rates.items():
            low, high = interval(each)
            of_rates.append(low <= eps_max / (1 + noise_scale / size) <= high)
    assert sum(of_fits) >= 35
    assert sum(of_rates) >= 0.9 * len(of_rates)


@pytest.mark.parametrize("kind", ["dropout", "attention", "batch norm"])
def test_the_objective_is_the_loss_of_fixed_examples(kind, make_study):
    run = begun(make_study, Models(kind=kind), steps=2)
    objective = Objective(run, 20)
    before, other = objective.loss(0), objective.loss(1)
    assert before != other  # each batch has its own examples
    step = [torch.ones_like(base) for base in objective.base]
    assert objective.after(0, step, 0.0) == before == objective.loss(0)
    assert objective.after(0, step, 0.1) != before
    assert (objective.loss(0), objective.loss(1)) == (before, other)
    assert objective.after(0, step, float("nan")) == np.inf


def test_measuring_leaves_no_trace(make_study):
    run, other = (begun(make_study, Models(), "adam", steps=3) for _ in range(2))
    before = copy.deepcopy(run.optimizer.state_dict())
    first, again = (measured(run, 10, (2, 4, 8), 3) for _ in range(2))
    assert first == again
    assert str(run.optimizer.state_dict()) == str(before)
    for each in (run, other):
        each.advance(5)
    for one, two in zip(run.model.state_dict().values(), other.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize(
    ("height", "place"),
    [
        (lambda x: (x - 3) ** 2, 3),
        (lambda x: (x + 5) ** 2, -5),
        (lambda x: abs(x), 0),
        (lambda x: np.inf if x > -4 else (x + 6) ** 2, -6),
    ],
)
def test_climbing_downhill(height, place):
    assert climbed(height) == place


def test_climbing_ends_where_nothing_falls():
    assert abs(climbed(lambda x: -x)) == abs(climbed(lambda x: x)) == 10


SWEEP = ["sweep", "optimizer=momentum,adam", "batch_size=64", "search.trials=2", "search.reruns=0", "engine=serial"]
FEW = ["--one-step", "--optimizer", "adam", "--points", "2", "--examples", "64", "--step-batch-sizes", "4,16,64"]


@pytest.mark.slow
def test_the_verb_measures_reports_and_reads_again(swept_once, says, monkeypatch):
    swept = swept_once(*SWEEP)
    said = says("noise", swept, *FEW)
    assert "losses to measure, " in said
    assert "(fitted in log space); " in said
    rates, fits = (pd.read_csv(swept / f"tables/{name}.csv") for name in ("one_step_rates", "one_step"))
    assert rates.groupby(["step", "form"]).size().tolist() == [3] * 4
    assert set(fits["space"]) == {"log", "linear"}
    first = rates[rates["step"] == rates["step"].min()]
    assert first["loss_after"].lt(first["loss_before"]).all()
    monkeypatch.setattr(measure, "OF_KIND", {})  # nothing is measured again
    shown = json.loads(says("noise", swept, *FEW, "--json"))
    assert len(shown["rows"]) == len(fits)
    assert len(shown["tables"]["one_step_rates"]) == len(rates)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--step-batch-sizes", "4,16"], "--step-batch-sizes are those of --one-step"),
        (["--one-step", "--step-batch-sizes", "4,x"], "are whole numbers such as 4,16,64"),
        (["--one-step", "--step-batch-sizes", "4,16"], "--one-step needs three batch sizes or more from 1 to half of"),
        (["--one-step", "--step-batch-sizes", "4,16,1000"], "but got 4, 16, 1000"),
        (["--one-step", "--examples", "0"], "--examples must be at least 1"),
    ],
)
def test_refusals_say_what_to_change(words, why, swept_once, says):
    assert why in says("noise", swept_once(*SWEEP), *words, status=2)
