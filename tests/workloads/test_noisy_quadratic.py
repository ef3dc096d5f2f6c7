"""The noisy quadratic model as a workload: its noise is as stated, and trained it follows the exact recursion."""

import numpy as np
import pytest
import torch
from helpers import desks
from helpers.blobs import CPU
from helpers.desks import Desk
from helpers.fused import partly

from analysis.counting import Goal, first_crossing
from study.config import preflight
from study.config.jobs import parse_jobs
from study.data.resident import Data
from study.engine import can_fuse
from study.settings import Evaluation, Seeds
from study.user_code import activations
from workloads.layers import set_keys
from workloads.noisy_quadratic_exact import Recursion, spectrum
from workloads.user_code.importing import build


def configured(**more):
    more = {"name": "nqm", "train_examples": 4096, **more}
    return {"_target_": "workloads.noisy_quadratic.NoisyQuadraticModel", **more}


def gradients(workload, model, batch_size, keys):
    """The gradient [keys, R, d] that a step of this batch size descends, for each (seed, step, first)."""
    found = []
    for key in keys:
        set_keys([model.noise], *key)
        losses = workload.loss(model(torch.zeros(batch_size, 1)), torch.zeros(batch_size))
        assert losses.shape == (batch_size,)
        found += torch.autograd.grad(losses.mean(), [model.phi])
    return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize(("power", "batch_size"), partly([(0.0, 1), (0.5, 1), (0.0, 32), (0.5, 32)], 4, 3))
def test_the_noise_has_mean_0_and_the_covariance_of_the_curvatures_over_the_batch_size(batch_size, power):
    workload = build(configured(dimensions=10, replicas=16, preconditioner_power=power))
    torch.manual_seed(0)
    model = workload.model().train()
    noise = gradients(workload, model, batch_size, [(3, step, 0) for step in range(2000)])
    theta_gradient = noise / model.scale - model.curvatures * model.scale * model.phi.detach()
    unit = (theta_gradient * (batch_size / model.curvatures).sqrt()).flatten(1)
    # Each of 160 numbers, and of their pairs, within five standard deviations of a mean over 2,000 steps.
    assert unit.mean(0).abs().max() < 5 / 2000**0.5
    covariance = unit.T @ unit / 2000
    assert (covariance - torch.eye(160)).abs().max() < 5 / 2000**0.5
    assert covariance.diagonal().mean() == pytest.approx(1, abs=0.01)


def test_seeds_steps_and_parts_of_a_batch_have_noise_of_their_own():
    workload = build(configured(replicas=1, dimensions=10_001))  # not a multiple of the four numbers of a hash
    model = workload.model().train()
    keys = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 4), (0, 0, 4000), (1, 1, 4)]
    noise = gradients(workload, model, 4, [*keys, keys[0]]).flatten(1)
    assert torch.equal(noise[0], noise[-1])
    unit = (noise[:-1] - model.curvatures * model.phi.detach()) / model.curvatures.sqrt()
    for lag in (0, 1, 4):
        both = torch.corrcoef(torch.cat([unit, unit.roll(lag, dims=1)]))[: len(keys), len(keys) :]
        assert (both - torch.eye(len(keys)) * (lag == 0)).abs().max() < 5 / 10_001**0.5


def test_parts_of_a_batch_add_up_to_the_noise_of_all_of_it():
    workload = build(configured(dimensions=5, replicas=200))
    model = workload.model().train()
    rest = model.curvatures * model.phi.detach()
    total = sum(
        part / 12 * (gradients(workload, model, part, [(0, step, first) for step in range(200)]) - rest)
        for part, first in ((5, 0), (5, 5), (2, 10))
    )
    variance = total.square().mean((0, 1)) * 12 / model.curvatures
    assert (variance - 1).abs().max() < 0.03


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_at_first_the_weights_are_standard_normal_and_the_loss_is_noiseless(power):
    model = build(configured(dimensions=500, replicas=100, preconditioner_power=power)).model().eval()
    theta = (model.phi * model.scale).detach()
    assert (theta.square().mean(0) - 1).abs().max() < 6 * (2 / 100) ** 0.5
    loss = 0.5 * (spectrum(500) * theta.double().numpy() ** 2).sum(1).mean()
    outputs = model(torch.zeros(3, 1))
    assert outputs.tolist() == pytest.approx([loss] * 3, rel=1e-5)


@pytest.fixture
def asked(make_study):
    """A study of the model with these constructor arguments, by serial steps unless told otherwise."""

    def make(optimizer, batch_size, steps, arguments, **fields):
        return make_study(
            space={"learning_rate": 0.1} | ({"momentum": 0.9} if optimizer == "momentum" else {}),
            workload=configured(**arguments),
            optimizer=optimizer,
            batch_size=batch_size,
            goal=Goal("val/loss", 1e-9),
            steps=steps,
            **fields,
        )

    return make


def trained(study, chosen):
    """The curves of trials of these hyperparameters, each over its whole budget."""
    workload = build(study.workload)
    desk = Desk([study.trial(index, one) for index, one in enumerate(chosen)])
    curves = desks.trained(study, desk, (1, 2, 4), workload, Data.of(workload.splits(CPU)))
    return [curves[index] for index in range(len(chosen))]


RUNS = {
    "sgd": ("sgd", 0.0, 128, {"learning_rate": 0.8}),
    "sgd near its limit": ("sgd", 0.0, 4096, {"learning_rate": 1.7}),
    "momentum": ("momentum", 0.0, 256, {"learning_rate": 0.3, "momentum": 0.8}),
    "momentum that oscillates": ("momentum", 0.0, 4096, {"learning_rate": 2.0, "momentum": 0.9}),
    "preconditioned": ("sgd", 0.5, 256, {"learning_rate": 0.2}),
    "preconditioned momentum": ("momentum", 0.5, 1024, {"learning_rate": 0.15, "momentum": 0.7}),
}


@pytest.mark.slow
@pytest.mark.parametrize("run", partly(RUNS, 3))
def test_at_a_fixed_learning_rate_steps_to_a_goal_are_the_exact_ones_to_a_percent(asked, run):
    optimizer, power, batch_size, chosen = RUNS[run]
    exact = Recursion(batch_size, *chosen.values(), curvatures=spectrum(1000), power=power)
    grid = range(1, 600)
    losses = exact.losses(grid)
    goals = [goal for goal in (0.5, 0.2, 0.1, 0.05) if losses[-1] < goal]
    assert len(goals) >= 2
    last = int(exact.steps_to_goal(goals[-1], grid) * 1.05) + 2
    every_step = Evaluation(1 / last, 1 + 1e-9, 10_000)
    # One training: with other seeds it may be off by two percent.
    shared = Seeds(shared=True)
    study = asked(optimizer, batch_size, last, {"preconditioner_power": power}, evaluation=every_step, seeds=shared)
    [curve] = trained(study, [chosen])
    assert list(curve.steps) == list(range(1, last + 1))
    for goal in goals:
        expected = float(exact.steps_to_goal(goal, grid))
        found = first_crossing(curve.steps, curve.errors["val/loss"], goal)
        assert abs(found - expected) <= max(1, 0.01 * expected), (goal, found, expected)


def test_lanes_equal_single_trials(asked):
    arguments = {"dimensions": 40, "replicas": 16, "preconditioner_power": 0.5}
    study = asked("momentum", 4, 30, arguments)
    chosen = [{"learning_rate": rate, "momentum": momentum} for rate, momentum in ((0.5, 0.0), (0.02, 0.9), (0.1, 0.5))]
    fused = asked("momentum", 4, 30, arguments, arithmetic="vmap")
    workload = build(study.workload)
    assert can_fuse.lanes_fail(fused, workload, Data.of(workload.splits(CPU))) is None
    for alone, beside in zip(trained(study, chosen), trained(fused, chosen), strict=True):
        for name, errors in alone.errors.items():
            np.testing.assert_allclose(beside.errors[name], errors, rtol=1e-5, err_msg=name)


def test_large_batches_are_not_taken_in_parts():
    """Its model saves as much for one example as for thousands, which once counted as a quarter for each example."""
    workload = build(configured())
    assert activations.saved_bytes(workload, *workload.splits(CPU).train) < 100
    [job] = preflight.settle(parse_jobs(["workload=nqm", "optimizer=sgd", "batch_size=16384"]))
    assert (job.study.micro_batch, job.study.arithmetic) == (None, "plain")


def test_bad_powers_are_refused():
    for power in (-0.1, 1.5, "half"):
        with pytest.raises(ValueError, match=r"preconditioner_power must be a number in \[0, 1\]"):
            build(configured(preconditioner_power=power))
