"""Gradient noise at points of runs: exact on the noisy quadratic model, and no trace is left in the run."""

import copy

import numpy as np
import pytest
import torch
from helpers.gradients.runs import CONFIGURATIONS, Models, begun, quadratic

from analysis.noise_scale.estimate import Blocks, noise_scale
from study.noise.gradients import Gradients
from study.noise.point import measured
from study.noise.preconditioner import preconditioner


def estimates(run, examples=16, confidence=0.95, blocks=32):
    """(estimator, form) -> the noise scale at this point."""
    return {
        (sums["estimator"], sums["form"]): noise_scale(
            Blocks(sums["unit"], sums["per_block"], *(np.array(sums[key]) for key in ("own", "total", "units"))),
            confidence,
        )
        for sums in measured(run, examples, blocks).sums
    }


def exact(run, form):
    """The noise scale of the noisy quadratic model: gradient h theta, covariance diag(h) for one example."""
    model = run.model
    with torch.no_grad():
        factors = {"plain": lambda p: 1.0, "preconditioned": lambda p: p, "half_preconditioned": torch.sqrt}
        scale = factors[form](preconditioner(run)) if form != "plain" else 1.0
        gradient = (model.curvatures * model.phi * model.scale**2).flatten() * scale
        deviation = (model.curvatures.sqrt() * model.scale).expand_as(model.phi).flatten() * scale
    return float((deviation**2).sum() / (gradient**2).sum())


@pytest.mark.parametrize(
    ("optimizer", "batch_size", "steps", "power"),
    [
        ("sgd", 4, 0, 0.0),
        ("sgd", 4, 40, 0.0),
        ("sgd", 256, 300, 0.0),
        ("sgd", 16, 40, 0.5),
        ("adam", 16, 10, 0.0),
        ("adam", 256, 60, 0.0),
        ("rmsprop", 64, 20, 0.0),
    ],
)
def test_the_interval_holds_the_exact_noise_scale(optimizer, batch_size, steps, power, make_study):
    run = quadratic(make_study, optimizer=optimizer, batch_size=batch_size, steps=steps, power=power)
    found = estimates(run, examples=64, confidence=0.99)
    assert len(found) == (2 if optimizer == "sgd" else 6)
    for (_, form), each in found.items():
        assert each.low <= exact(run, form) <= each.high
        assert each.low > exact(run, form) / 4


@pytest.mark.slow
def test_intervals_hold_it_in_nineteen_of_twenty_runs(make_study):
    held: dict = {}
    for seed in range(40):
        run = quadratic(make_study, optimizer="adam", batch_size=16, steps=20, seed=seed)
        for key, each in estimates(run, blocks=16).items():
            held.setdefault(key, []).append(each.low <= exact(run, key[1]) <= each.high)
    assert len(held) == 6
    for key, cases in held.items():
        assert sum(cases) >= 35, key


@pytest.mark.parametrize("kind", ["dropout", "attention", "branches", "recurrent", "unused"])
def test_each_example_has_the_gradient_that_it_has_alone(kind, make_study):
    gradients = Gradients(begun(make_study, Models(kind=kind)), examples=6)
    given = gradients.block(0)
    each = torch.cat(list(gradients.of_each(0, *given)))
    looped = gradients.looped
    gradients.looped = True
    torch.testing.assert_close(each, torch.cat(list(gradients.of_each(0, *given))))
    assert looped == (kind == "branches")
    if kind not in ("dropout", "branches"):  # a batch has other masks, and another sum
        torch.testing.assert_close(each.mean(0), gradients.of_batch(0, *given))


def test_a_model_that_couples_examples_has_batches_alone(make_study):
    assert {key[0] for key in estimates(begun(make_study, Models(kind="batch norm")), 2)} == {"two_batch_sizes"}


def test_blocks_are_disjoint_and_gradients_come_in_parts(make_study, monkeypatch):
    run = begun(make_study, Models(kind="attention"))
    whole = measured(run, 2)
    inputs = torch.cat([Gradients(run, 2).block(number)[0] for number in range(32)])
    assert len(inputs.unique(dim=0)) == 64
    monkeypatch.setattr("study.noise.gradients.AT_ONCE", 1)
    for one, other in zip(whole.sums, measured(run, 2).sums, strict=True):
        assert one["units"] == pytest.approx(other["units"], rel=1e-5)


def test_measuring_leaves_no_trace(make_study):
    run, other = (begun(make_study, Models(), "adam", steps=3) for _ in range(2))
    before = copy.deepcopy(run.optimizer.state_dict())
    measured(run, 2)
    assert str(run.optimizer.state_dict()) == str(before)
    for each in (run, other):
        each.advance(5)
    for one, two in zip(run.model.state_dict().values(), other.model.state_dict().values(), strict=True):
        assert torch.equal(one, two)


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_a_weight_that_all_examples_share_changes_nothing(weight, make_study):
    class Weighted(Models):
        def weights(self, targets):
            return torch.full((len(targets),), weight)

    plain, weighted = (measured(begun(make_study, kind(kind="attention")), 2) for kind in (Models, Weighted))
    for one, other in zip(plain.sums, weighted.sums, strict=True):
        for key in ("own", "total", "units"):
            assert one[key] == pytest.approx(other[key], rel=1e-5)


@pytest.mark.parametrize("optimizer", CONFIGURATIONS)
def test_the_preconditioner_is_that_of_the_update(optimizer, make_study):
    run = begun(make_study, Models(kind="unused"), optimizer, steps=7)
    found = preconditioner(run)
    if optimizer in ("sgd", "muon", "soap", "torch.optim.RMSprop"):
        assert found is None
        return
    first, *_, unused = run.model.parameters()
    state, h = run.optimizer.state[first], {"beta2": 0.999, "epsilon": 1e-8} | run.hyperparameters
    square = state["square"] if "square" in state else state["exp_avg_sq"]
    started = 1 if optimizer == "rmsprop" else 1 - h["beta2"] ** 7
    torch.testing.assert_close(found[: first.numel()], 1 / ((square / started).sqrt() + h["epsilon"]).flatten())
    assert (found[-unused.numel() :] == 1).all()
