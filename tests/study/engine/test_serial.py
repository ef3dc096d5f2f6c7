"""The serial engine is a plain torch loop, and a trial is a pure function of its configuration."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers import checkpointed, desks
from helpers.blobs import Blobs
from helpers.desks import Desk, assert_same_bits, training
from helpers.fused import Scheduled, partly, plain_loop
from torch import nn

from analysis.counting import Goal
from study.data.order import epoch_permutation
from study.devices import generators
from study.engine.run import Run
from study.optimizers import OPTIMIZERS
from study.schedules import SCHEDULES
from study.search.points import point
from study.settings import Budget, Evaluation
from study.space import values
from workloads.layers import keyed_layers, set_keys

STEPS = 40
EVERY_STEP = Evaluation(first=1 / STEPS, ratio=1 + 1e-9, every=5)
FIXED = {
    "learning_rate": 0.1,
    "momentum": 0.8,
    "beta1": 0.8,
    "beta2": 0.95,
    "epsilon": 1e-6,
    "learning_rate_decay_fraction": 0.6,
    "end_learning_rate_factor": 0.01,
    "learning_rate_first_drop_fraction": 0.5,
    "learning_rate_drops": 2,
    "learning_rate_drop_factor": 0.1,
    "learning_rate_timescale_fraction": 0.25,
}
# What a user would write; registering a schedule enrols it here, by a KeyError, optimizers in test_optimizers.
PLAIN_OPTIMIZERS = {
    "sgd": lambda p, lr: torch.optim.SGD(p, lr=lr, fused=False),
    "momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.8, fused=False),
    "nesterov": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.8, nesterov=True, fused=False),
    "adam": lambda p, lr: torch.optim.Adam(p, lr=lr, betas=(0.8, 0.95), eps=1e-6, fused=False),
}
PLAIN_SCHEDULES = {
    "constant": lambda t: 1.0,
    "linear_decay": lambda t: 1 - 0.99 * t / 24 if t < 24 else 0.01,
    "cosine": lambda t: 0.505 + 0.495 * math.cos(math.pi * t / 24) if t < 24 else 0.01,
    "exponential": lambda t: 0.1 ** (t / 20),
    "step": lambda t: 1 if t < 20 else 0.1 if t < 30 else 0.01,
    "inverse_square_root": lambda t: (1 + t / 10) ** -0.5,
    "warmup_stable_decay": lambda t: 1 if t < 16 else 0.01 + 0.99 * (40 - t) / 24,
}
Tiny = partial(Blobs, validation=1100)  # more to evaluate than one chunk holds


class Weighted(Blobs):
    """Its loss has a hyperparameter."""

    hyperparameters = ("weight",)

    def loss(self, outputs, targets, weight=1.0):
        return weight * super().loss(outputs, targets)


@pytest.fixture
def tiny_study(make_study):
    """A Study of Tiny with fixed hyperparameters, measured at every one of its 40 steps."""

    def make(optimizer="sgd", schedule="constant", fixed=FIXED, **fields):
        asked = [*OPTIMIZERS[optimizer].hyperparameters, *SCHEDULES[schedule].hyperparameters]
        defaults = {"evaluation": EVERY_STEP, "goal": Goal("val/loss", 0.5), "space": {k: fixed[k] for k in asked}}
        return make_study(optimizer=optimizer, schedule=schedule, steps=STEPS, **defaults | fields)

    return make


def trials(study, *indices):
    return [study.trial(i, values(study.search.space, point(study, i))) for i in indices]


def curves(study, *indices, workload=None, limit=STEPS):
    desk = Desk(trials(study, *indices))
    desk.limit = limit
    return list(training(study, desk, workload=workload or Tiny()))


def in_a_plain_loop(study, workload, trial):
    """The training losses and the validation losses of every step."""
    built = []

    def build(model, h):
        optimizer = PLAIN_OPTIMIZERS[study.optimizer](model.parameters(), h["learning_rate"])
        built.append(Scheduled(optimizer, PLAIN_SCHEDULES[study.schedule]))
        return built[0]

    validation = list(plain_loop(study, workload, trial, build))
    return built[0].losses, validation


@pytest.mark.parametrize(
    ("optimizer", "schedule", "images"),
    # Each pair of two of them once.
    partly(
        [
            (optimizer, schedule, (row + column) % 2 == 1)
            for row, optimizer in enumerate(PLAIN_OPTIMIZERS)
            for column, schedule in enumerate(SCHEDULES)
        ],
        4,
    ),
)
def test_equals_a_plain_torch_loop_step_for_step(tiny_study, optimizer, schedule, images):
    study, workload = tiny_study(optimizer, schedule), Tiny(images)
    [curve] = curves(study, 5, workload=workload)
    _, expected = in_a_plain_loop(study, workload, curve.trial)
    assert curve.steps.tolist() == list(range(1, STEPS + 1))
    np.testing.assert_allclose(curve.errors["val/loss"], expected, rtol=2e-5)
    assert expected[-1] < expected[0]


class Dry(Blobs):
    """A model that draws nothing."""

    def model(self):
        return nn.Sequential(nn.Linear(24, 16), nn.ReLU(), nn.Linear(16, 5))


class Drawing(Dry):
    """A model that draws from torch's own generator, as `nn.Dropout` and much else do."""

    def model(self):
        return super().model().insert(1, nn.Dropout(0.5))


@pytest.mark.parametrize(
    ("optimizer", "micro_batch"), partly([("momentum", None), ("adam", 3), ("momentum", 3), ("adam", None)], 2)
)
def test_what_a_model_draws_by_itself_is_its_trials_own(tiny_study, optimizer, micro_batch):
    study = replace(tiny_study(optimizer), micro_batch=micro_batch)
    expected = curves(study, 0, 1, workload=Drawing())
    torch.manual_seed(12345)
    again = curves(study, 1, 0, workload=Drawing())
    for one, other in zip(expected, reversed(again), strict=True):
        assert_same_bits(one, other)
    errors = [curve.errors["val/loss"] for curve in expected]
    assert not np.array_equal(*errors)
    [dry] = curves(study, 0, workload=Dry())
    assert not np.array_equal(errors[0], dry.errors["val/loss"])


class Noisy(nn.Module):
    """A layer of the user's own that draws, in a file beside those of the package."""

    __module__ = "workloads.mine"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.randn_like(x) if self.training else x


def test_a_layer_that_draws_is_seeded_wherever_its_file_is(tiny_study, monkeypatch):
    """Else a trial would depend on what trained before it in the same process."""
    study, model = tiny_study(), Dry.model
    monkeypatch.setattr(Dry, "model", lambda self: nn.Sequential(model(self), Noisy()))
    for code in (Dry, Dry.loss):
        monkeypatch.setattr(code, "__module__", "workloads.mine")
    found = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        found.append(curves(study, 0, workload=Dry()))
    for one, other in zip(*found, strict=True):
        assert_same_bits(one, other)


def test_parts_of_a_batch_and_steps_draw_apart(tiny_study):
    study = tiny_study()
    run = Run(study, Drawing(), Drawing().data(), trials(study, 0)[0], 3)
    drawn = []
    run.trained.register_forward_hook(lambda *_: drawn.append(torch.rand(4).tolist()))
    for _ in range(3):
        run.update(0.1)
        run.step += 1
    assert len(drawn) == 3 * -(-study.batch_size // 3)
    assert len({*map(tuple, drawn)}) == len(drawn)


def test_nesterov_without_momentum_is_sgd(tiny_study):
    nesterov = curves(tiny_study("nesterov", fixed=FIXED | {"momentum": 0.0}), 0)[0]
    momentum = curves(tiny_study("momentum", fixed=FIXED | {"momentum": 0.0}), 0)[0]
    sgd = curves(tiny_study("sgd"), 0)[0]
    for curve in (nesterov, momentum):
        assert curve.errors["val/loss"].tolist() == sgd.errors["val/loss"].tolist()


@pytest.mark.parametrize("train_steps", [1, 7, 40])
def test_evaluations_land_on_the_grid(tiny_study, train_steps):
    study = tiny_study(budget=Budget(0, train_steps), evaluation=Evaluation())
    [curve] = curves(study, 0)
    assert curve.steps.tolist() == [*study.evaluation_steps]


def test_stops_at_the_goal(tiny_study):
    [whole] = curves(tiny_study(), 0)
    losses = whole.errors["val/loss"]
    threshold = float(losses[12]) * (1 + 1e-9)
    first = int(np.flatnonzero(losses < threshold)[0])
    [curve] = curves(tiny_study(stopping="goal", goal=Goal("val/loss", threshold)), 0)
    assert curve.steps[-1] == first + 1 < STEPS
    assert curve.errors["val/loss"].tolist() == losses[: first + 1].tolist()
    assert np.isfinite([values[-1] for values in curve.errors.values()]).all()
    # Strictly below: a loss equal to the threshold is no goal met.
    [equal] = curves(tiny_study(stopping="goal", goal=Goal("val/loss", float(losses.min()))), 0)
    assert len(equal.steps) == STEPS


def test_every_split_is_measured_at_every_fifth_evaluation_the_last_and_the_crossing(tiny_study):
    [curve] = curves(tiny_study(), 0)
    losses = curve.errors["val/loss"]
    assert np.isfinite(losses).all()
    threshold = float(losses[12]) * (1 + 1e-9)
    crossing = int(np.flatnonzero(losses < threshold)[0])
    assert crossing % 5 != 4
    for every, others in ((5, range(4, STEPS, 5)), (None, ())):  # counted from 0: the fifth is number 4
        grid = replace(EVERY_STEP, every=every)
        [curve] = curves(tiny_study(goal=Goal("val/loss", threshold), evaluation=grid), 0)
        for metric in ("train/loss", "test/loss", "train/classification_error", "test/classification_error"):
            assert set(np.flatnonzero(np.isfinite(curve.errors[metric]))) == {*others, crossing, STEPS - 1}
    [curve] = curves(tiny_study(evaluation=Evaluation(1 / STEPS, 1 + 1e-9, every=1)), 0)
    assert all(np.isfinite(values).all() for values in curve.errors.values())


def test_errors_are_means_over_whole_splits(tiny_study):
    """Measured after one step on the model of the plain loop, written out once more for all three splits."""
    study = tiny_study(budget=Budget(0, 1))
    workload = Tiny()
    [curve] = curves(study, 0, workload=workload)
    torch.manual_seed(curve.trial.seed)
    model = workload.model()
    train, val, test = workload.splits("cpu")
    batch = epoch_permutation(curve.trial.order_seed, 0, 64)[:8]
    set_keys(keyed_layers(model), curve.trial.seed, 0)
    F.cross_entropy(model(train[0][batch]), train[1][batch]).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
        for split, (inputs, targets) in {"train": train, "val": val, "test": test}.items():
            outputs = model.eval()(inputs)
            assert curve.errors[f"{split}/loss"] == pytest.approx(F.cross_entropy(outputs, targets).item(), rel=1e-5)
            wrong = (outputs.argmax(1) != targets).double().mean().item()
            assert curve.errors[f"{split}/classification_error"] == pytest.approx(wrong)


@pytest.mark.parametrize("grid", [EVERY_STEP, Evaluation(first=0.5)], ids=["every_step", "coarse"])
@pytest.mark.parametrize(("learning_rate", "images"), [(1e38, False), (1e3, True), (1e20, True)])
def test_a_diverging_run_names_its_first_bad_step(tiny_study, learning_rate, images, grid):
    study = tiny_study(fixed=FIXED | {"learning_rate": learning_rate}, evaluation=grid)
    [curve] = curves(study, 0, workload=Tiny(images))
    losses, _ = in_a_plain_loop(study, Tiny(images), curve.trial)
    bad = next(step for step, loss in enumerate(losses, start=1) if not np.isfinite(loss))
    assert curve.first_bad_step == bad > 1
    assert curve.steps.tolist() == [step for step in study.evaluation_steps if step < bad]


def test_parameters_that_overflow_are_found_at_the_evaluation(tiny_study):
    """The first loss is finite, the update it leads to is not."""
    study = tiny_study(space={"learning_rate": 3e38, "weight": 100.0})
    [curve] = curves(study, 0, workload=Weighted(validation=1100))
    assert (curve.first_bad_step, len(curve.steps)) == (1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("images", [False, True], ids=["linear", "images"])
def test_a_trial_is_the_same_alone_again_and_after_others(tiny_study, images):
    study, workload = tiny_study("momentum"), Tiny(images)
    [alone] = curves(study, 3, workload=workload)
    torch.rand(5)
    [again] = curves(study, 3, workload=workload)
    other, after = curves(study, 7, 3, workload=workload)
    assert_same_bits(alone, again)
    assert_same_bits(alone, after)
    assert other.errors["val/loss"].tolist() != after.errors["val/loss"].tolist()


def test_training_leaves_the_global_generator_alone(tiny_study):
    state = torch.get_rng_state()
    curves(tiny_study(), 0, workload=Tiny(images=True))
    curves(tiny_study(), 0, workload=Drawing())
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("optimizer", "at_each_step"), [("momentum", False), ("kfac", True)])
def test_generators_are_put_back_at_each_step_only_for_optimizers_that_may_draw(
    resumable, monkeypatch, optimizer, at_each_step
):
    calls, restored = [], generators.of_torch_restored
    monkeypatch.setattr(generators, "of_torch_restored", lambda *where: calls.append(where) or restored(*where))
    study = resumable("plain", optimizer)
    desks.trained(study, Desk([checkpointed.trial(study, 0)]))
    assert (len(calls) > study.last_step) == at_each_step
    assert calls


def test_a_step_limit_cuts_a_trial_at_the_grid(tiny_study):
    study = tiny_study(evaluation=Evaluation(first=0.1, ratio=1.5))
    [whole], [cut] = curves(study, 0), curves(study, 0, limit=20)
    expected = [step for step in study.evaluation_steps if step <= 20]
    assert cut.steps.tolist() == expected
    assert cut.errors["val/loss"].tolist() == whole.errors["val/loss"][: len(expected)].tolist()


def test_the_losss_own_hyperparameters_reach_it(tiny_study):
    """Twice the loss is twice the learning rate, exactly."""
    weighted = tiny_study(space={"learning_rate": 0.1, "weight": 2.0})
    [curve] = curves(weighted, 0, workload=Weighted(validation=1100))
    [doubled] = curves(tiny_study(fixed=FIXED | {"learning_rate": 0.2}), 0)
    assert curve.errors["val/loss"].tolist() == doubled.errors["val/loss"].tolist()
