"""Fused lanes equal one-trial runs: bit for bit within an arithmetic, to a stated tolerance across arithmetics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from blobs import Blobs
from torch import nn

from analysis.counting import Goal
from study import engine, lanes, serial, stack
from study.batches import Batches
from study.evaluation import Data
from study.optimizers import OPTIMIZERS
from study.records import Budget, Curve, Evaluation, Study, Trial
from study.schedules import SCHEDULES
from study.serial import Proposals
from study.space import Dimension
from workloads.base import Splits
from workloads.layers import Dropout

STEPS = 30
TOLERANCE = 1e-4  # relative, of every measured error after STEPS updates, across arithmetics
HYPERPARAMETERS = {
    "learning_rate": [0.05, 0.02, 0.1, 0.03, 0.08, 0.01, 0.04],
    "momentum": [0.0, 0.9, 0.5, 0.8, 0.3, 0.95, 0.7],
    "beta1": [0.9, 0.0, 0.5, 0.8, 0.3, 0.95, 0.7],
    "beta2": [0.99, 0.9, 0.95, 0.999, 0.8, 0.9, 0.9],
    "epsilon": [1e-6] * 7,
    "momentum_correction": [0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0],
    "weight_decay": [0.0, 0.01, 0.1, 0.0, 0.02, 0.03, 0.1],
    "trust_coefficient": [1.0, 0.5, 0.8, 0.9, 0.6, 2.0, 0.7],
    "precondition_frequency": [3, 5, 1, 4, 2, 7, 10],
    "learning_rate_decay_fraction": [0.5, 1.0, 0.7, 0.9, 0.6, 0.8, 1.0],
    "end_learning_rate_factor": [0.1, 0.01, 0.001, 0.3, 0.1, 0.01, 0.1],
    "learning_rate_first_drop_fraction": [0.5, 0.2, 0.4, 0.8, 0.3, 0.6, 1.0],
    "learning_rate_drops": [2, 1, 3, 2, 1, 3, 2],
    "learning_rate_drop_factor": [0.1, 0.3, 0.5, 0.01, 0.2, 0.1, 0.1],
    "learning_rate_timescale_fraction": [0.1, 1.0, 0.01, 0.3, 0.5, 0.05, 2.0],
    "label_smoothing": [0.0, 0.1, 0.2, 0.0, 0.3, 0.05, 0.1],
}


ADAM = ("learning_rate", "beta1", "beta2", "epsilon")
MOMENTUM = {name: {"choices": [0.1]} for name in ("learning_rate", "momentum")}
FUSING = [name for name, optimizer in OPTIMIZERS.items() if optimizer.update is not None]
TWICE = nn.Linear(3, 3)
CASES = {"bmm": Blobs(), "deferred": Blobs(), "vmap": Blobs(images=True)}


def fusing(optimizer: str) -> list[str]:
    """The arithmetics with lanes that take it."""
    return [how for how in CASES if how != "deferred" or OPTIMIZERS[optimizer].linear]


class Queue(Proposals):
    """Trials in this order; trial i takes the i-th of HYPERPARAMETERS."""

    def __init__(self, study: Study, order: Sequence[int], **changed: float) -> None:
        self.limit = study.train_steps
        self.trials = [self.trial(study, index, changed if index == 2 else {}) for index in order]

    @staticmethod
    def trial(study: Study, index: int, changed: dict[str, float]) -> Trial:
        wanted = {*study.asked_hyperparameters, "label_smoothing"}
        return study.trial(index, {name: HYPERPARAMETERS[name][index] for name in wanted} | changed)

    def ask(self, wait: bool) -> Trial | None:
        return self.trials.pop(0) if self.trials else None

    def step_limit(self, index: int) -> int:
        return self.limit


@pytest.fixture
def question(make_study: Any) -> Any:
    """A study of Blobs in an arithmetic; every trial runs its whole budget unless told otherwise."""

    def make(how: str, optimizer: str = "momentum", schedule: str = "constant", **fields: Any) -> Study:
        names = {**OPTIMIZERS[optimizer].hyperparameters, **SCHEDULES[schedule].hyperparameters, "label_smoothing": 0}
        return make_study(
            space={name: {"choices": HYPERPARAMETERS[name]} for name in names},
            examples=64,
            optimizer=optimizer,
            schedule=schedule,
            arithmetic=how,
            **{"stopping": "budget", "budget": Budget(epochs=0, steps=STEPS), "batch_size": 6} | fields,
        )

    return make


def run(study: Study, queue: Queue, heights: Sequence[int] = (4,)) -> dict[int, Curve]:
    workload = CASES[study.arithmetic]
    data = Data.of(workload.splits(torch.device("cpu")))
    return {curve.trial.index: curve for curve in lanes.train(study, workload, data, queue, heights, heights[-1])}


def admitted(study: Study) -> list[int]:
    workload = CASES[study.arithmetic]
    return list(engine.admitted(study, workload, Data.of(workload.splits(torch.device("cpu"))), most=8))


def assert_same_bits(a: dict[int, Curve], b: dict[int, Curve]) -> None:
    assert a.keys() == b.keys()
    for index in a:
        assert a[index].first_bad_step == b[index].first_bad_step
        np.testing.assert_array_equal(a[index].steps, b[index].steps)
        for metric in a[index].errors:
            np.testing.assert_array_equal(a[index].errors[metric], b[index].errors[metric], err_msg=f"{index} {metric}")


@pytest.mark.parametrize(
    ("optimizer", "schedule", "how"),
    [
        (optimizer, schedule, how)
        for optimizer, schedule in [
            # SOAP's path is a matter of rounding, see its docstring; test_optimizers compares lanes where it is not.
            *((name, "linear_decay") for name in FUSING if name != "soap"),
            *(("momentum", name) for name in SCHEDULES),
        ]
        for how in fusing(optimizer)
    ],
)
def test_a_lane_equals_the_serial_engine(question, optimizer, schedule, how):
    study = question(how, optimizer, schedule)
    workload = CASES[how]
    data = Data.of(workload.splits(torch.device("cpu")))
    plain = {c.trial.index: c for c in serial.train(study, workload, data, Queue(study, range(4)))}
    fused = run(study, Queue(study, range(4)), heights=(1, 2, 4))
    for index, curve in plain.items():
        np.testing.assert_array_equal(curve.steps, fused[index].steps)
        for name in ("val/loss", "test/loss", "train/loss"):
            np.testing.assert_allclose(fused[index].errors[name], curve.errors[name], rtol=TOLERANCE, err_msg=name)


@pytest.mark.parametrize(
    ("optimizer", "how"),
    # One of each kind: in place, by the fused kernel, by norms of layers, and by products and factors of matrices.
    [
        pytest.param(name, how, marks=[] if name in ("momentum", "adam", "lamb", "soap") else pytest.mark.slow)
        for name in FUSING
        for how in fusing(name)
    ],
)
def test_slot_height_neighbours_and_refill_order_change_no_bit(question, optimizer, how):
    # Goals end trials at different steps, so that rows are refilled and the tail is compacted.
    study = question(how, optimizer, stopping="goal", goal=Goal("val/loss", 1.3))
    heights = admitted(study)
    assert len(heights) >= 3
    alone = {i: run(study, Queue(study, [i]), heights[:1])[i] for i in range(7)}
    ends = {i: (len(curve.steps), round(float(curve.errors["val/loss"][-1]), 2)) for i, curve in alone.items()}
    assert len({end for end, _ in ends.values()}) > 1, ends
    for chosen in (heights[:1], heights[:2], heights, heights[-1:]):
        for order in (range(7), range(6, -1, -1), [3, 0, 6, 2, 5, 1, 4]):
            assert_same_bits(run(study, Queue(study, order), chosen), alone)


@pytest.mark.parametrize("how", CASES)
def test_a_diverging_lane_leaves_its_neighbours_bits_alone(question, how):
    study = question(how)
    heights = admitted(study)
    healthy = run(study, Queue(study, range(4)), heights)
    beside = run(study, Queue(study, range(4), learning_rate=1e30), heights)
    assert beside[2].first_bad_step is not None
    assert beside[2].first_bad_step < STEPS
    del healthy[2], beside[2]
    assert_same_bits(beside, healthy)


@pytest.mark.parametrize("how", CASES)
def test_the_first_bad_step_is_the_serial_engines(question, how):
    study = question(how)
    workload = CASES[how]
    data = Data.of(workload.splits(torch.device("cpu")))
    [plain] = serial.train(study, workload, data, Queue(study, [2], learning_rate=1e12))
    fused = run(study, Queue(study, [2], learning_rate=1e12))[2]
    assert plain.first_bad_step == fused.first_bad_step
    np.testing.assert_array_equal(plain.steps, fused.steps)


def test_segments_bound_memory_and_change_no_bit(question, monkeypatch):
    study = question("bmm")
    whole = run(study, Queue(study, range(3)))
    monkeypatch.setattr(lanes, "SEGMENT_INDICES", 1)
    assert_same_bits(run(study, Queue(study, range(3))), whole)


@pytest.mark.parametrize("batch_size", [1, 2, 6, 33])
@pytest.mark.parametrize("how", CASES)
def test_admitted_heights_hold_for_every_row(question, how, batch_size):
    study = question(how, batch_size=batch_size)
    heights = admitted(study)
    assert set(heights) <= set(engine.HEIGHTS)
    alone = {i: run(study, Queue(study, [i]), heights[:1])[i] for i in range(7)}
    assert_same_bits(run(study, Queue(study, range(7)), heights), alone)


class Odd(Blobs):
    """Layers whose rows of a stack begin anywhere in a cache line, which tells in the last bits."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.features, self.hidden = features, width

    def splits(self, device: torch.device) -> Splits:
        generator = torch.Generator().manual_seed(0)
        return Splits(
            *(
                (
                    torch.randn(count, self.features, generator=generator),
                    torch.randint(5, (count,), generator=generator),
                )
                for count in (64, 40, 20)
            )
        )

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 5))


@pytest.mark.parametrize(
    ("how", "workload", "batch_size"),
    [("deferred", Odd(784, 50), 1), ("deferred", Odd(1024, 50), 3), ("bmm", Odd(784, 90), 1)],
)
def test_rows_that_are_not_of_whole_cache_lines(question, how, workload, batch_size):
    grid = Evaluation(first=0.5, ratio=2)
    study = question(how, "sgd", batch_size=batch_size, budget=Budget(epochs=0, steps=140), evaluation=grid)
    data = Data.of(workload.splits(torch.device("cpu")))

    def found(order: Sequence[int], heights: Sequence[int], most: int) -> dict[int, Curve]:
        return {c.trial.index: c for c in lanes.train(study, workload, data, Queue(study, order), heights, most)}

    heights = list(engine.admitted(study, workload, data, most=8))
    together = found(range(7), heights, heights[-1])
    assert_same_bits(together, {i: found([i], heights[:1], 1)[i] for i in range(7)})


def test_a_height_that_computes_other_bits_is_not_admitted(question, monkeypatch):
    study = question("bmm")
    assert 4 in admitted(study)
    step = stack.Step.__call__

    def unsteady(self, inputs, *rest):
        losses = step(self, inputs, *rest)
        if len(inputs) == 4:
            self.weights[0][3] += 1e-7
        return losses

    monkeypatch.setattr(stack.Step, "__call__", unsteady)
    assert 4 not in admitted(study)


class Residual(nn.Sequential):
    """More than one layer after the other."""

    def forward(self, x):
        return x + super().forward(x)


HOOKED = nn.Linear(2, 3)
HOOKED.register_forward_hook(lambda module, inputs, outputs: outputs * 2)


@pytest.mark.parametrize(
    ("model", "fields", "device", "how"),
    [
        (nn.Sequential(nn.Linear(2, 3)), {"batch_size": 64}, "cpu", "bmm"),
        (
            great := nn.Sequential(nn.Flatten(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 3)),
            {},
            "cpu",
            "deferred",
        ),
        (great, {"batch_size": 9}, "cpu", "bmm"),  # products would take longer than memory does
        (great, {}, "cuda", "bmm"),
        (great, {"optimizer": "adam", "space": {name: {"choices": [0.1]} for name in ADAM}}, "cpu", "bmm"),
        (great, {"space": MOMENTUM | {"ema_decay": {"choices": [0.9]}}}, "cpu", "bmm"),
        (nn.Sequential(nn.Linear(256, 500), nn.ReLU(), nn.Linear(500, 3)), {}, "cpu", "bmm"),  # stays in the caches
        (nn.Sequential(Dropout(0.2), *great), {}, "cpu", "bmm"),  # which inputs there will be is not known before
        (nn.Sequential(*great[:-1], nn.Linear(512, 512)), {}, "cpu", "bmm"),  # as much memory in another layer
        (nn.Sequential(nn.Linear(2, 3)), {"precision": "bf16"}, "cpu", "plain"),
        (nn.Sequential(nn.Linear(2, 3)), {"micro_batch": 3}, "cpu", "plain"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), {"batch_size": 4}, "cpu", "vmap"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), {"batch_size": 8}, "cpu", "plain"),
        (nn.Sequential(nn.Conv2d(1, 2, 3)), {"batch_size": 8}, "cuda", "vmap"),
        (nn.Sequential(nn.Conv2d(1, 2, 600)), {"batch_size": 4}, "cpu", "plain"),  # parameters fill the caches anyway
        (nn.Sequential(nn.Conv2d(1, 2, 600)), {"batch_size": 4}, "cuda", "vmap"),
        (nn.Sequential(nn.BatchNorm2d(2)), {"batch_size": 4}, "cpu", "plain"),  # running statistics: not of the step
        (nn.Sequential(nn.Dropout(0.5)), {"batch_size": 4}, "cpu", "plain"),  # one global stream for all lanes
        (nn.Sequential(nn.Conv2d(1, 2, 3)), {"batch_size": 8}, "cpu:0", "plain"),
        (nn.Sequential(nn.Linear(2, 3, bias=False)), {"batch_size": 8}, "cpu", "plain"),
        (nn.Sequential(TWICE, TWICE), {"batch_size": 8}, "cpu", "plain"),  # one layer, two places
        (nn.Sequential(nn.Linear(2, 3).requires_grad_(False)), {"batch_size": 4}, "cpu", "plain"),
        (nn.LSTM(2, 3), {"batch_size": 4}, "cpu", "plain"),
        (Residual(nn.Linear(3, 3)), {"batch_size": 64}, "cpu", "plain"),
        (nn.Sequential(HOOKED), {"batch_size": 64}, "cpu", "plain"),
    ],
)
def test_the_rule_of_arithmetic(make_study, model, fields, device, how):
    assert stack.arithmetic(model, make_study(**fields), device) == how


def test_a_range_of_batches_is_the_batches_one_after_another():
    for step in (0, 3, 17):
        expected = torch.stack([Batches(5, 10, 4, torch.device("cpu"))(step + i) for i in range(9)])
        assert torch.equal(Batches(5, 10, 4, torch.device("cpu")).range(step, 9), expected)


@pytest.mark.parametrize(
    ("spoilt", "can"),
    [
        (lambda model: model, True),
        (lambda model: nn.Sequential(model, nn.Dropout(0.5)), False),  # one global stream of randomness
        (lambda model: model.register_parameter("unused", nn.Parameter(torch.zeros(2))) or model, False),
    ],
)
def test_what_lanes_cannot_train_is_found_out_beforehand(question, monkeypatch, spoilt, can):
    workload, model = CASES["vmap"], CASES["vmap"].model
    monkeypatch.setattr(workload, "model", lambda: spoilt(model()), raising=False)
    data = Data.of(workload.splits(torch.device("cpu")))
    assert engine.lanes_can(question("vmap"), workload, data) == can


@pytest.mark.parametrize("how", ["bmm", "deferred"])
def test_what_lanes_cannot_measure_is_found_out_beforehand(question, monkeypatch, how):
    workload = CASES[how]
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))
    monkeypatch.setattr(workload, "model", lambda: model, raising=False)
    splits = workload.splits(torch.device("cpu"))
    assert engine.lanes_can(question(how), workload, Data.of(splits))
    rows = Splits(*((inputs.unsqueeze(1), targets) for inputs, targets in splits))
    assert not engine.lanes_can(question(how), workload, Data.of(rows))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [40, 50, 60])
def test_lanes_are_timed_beyond_a_short_budget(question, name, warmup):
    study = question("bmm", schedule=name)
    space = {**study.search.space, "warmup_steps": Dimension(choices=(warmup,))}
    study = replace(study, budget=Budget(0, 50), search=replace(study.search, space=space))
    workload = CASES["bmm"]
    lanes_ = engine._started(study, workload, Data.of(workload.splits(torch.device("cpu"))), range(4))
    lanes_.advance(80)
    assert all(lane.log.first_bad_step is None for lane in lanes_.lanes)


def test_averages_double_what_an_evaluation_costs(question, monkeypatch):
    monkeypatch.setattr(engine, "least_seconds", lambda *_, **__: 1.0)
    workload = CASES["bmm"]
    data = Data.of(workload.splits(torch.device("cpu")))
    study = question("bmm")
    averaged = replace(study.search, space={**study.search.space, "ema_decay": Dimension(choices=(0.9,))})
    costs = [engine.measure(each, workload, data, 4) for each in (study, replace(study, search=averaged))]
    assert costs[1].validation == 2 * costs[0].validation
    assert costs[1].step == costs[0].step


def test_volumes_keep_their_axes():
    volumes = torch.randn(6, 1, 2, 3, 4), torch.zeros(6, dtype=torch.int64)
    data = Data.of(Splits(volumes, volumes, volumes))
    assert torch.equal(data.gather(torch.tensor([4, 1])), volumes[0][[4, 1]])


@pytest.mark.parametrize("failing", ["advance", "evaluate", "start"])
def test_lanes_that_run_out_of_memory_start_again_with_fewer(question, monkeypatch, failing):
    study = question("bmm", stopping="goal", goal=Goal("val/loss", 1.3))
    heights = admitted(study)
    alone = {i: run(study, Queue(study, [i]), heights[:1])[i] for i in range(7)}
    real, calls = getattr(lanes.Lanes, failing), []

    def short_of_memory(self, *arguments):
        calls.append(self.capacity)
        if self.capacity > 2 and len(calls) > 3:
            raise torch.OutOfMemoryError("no room")
        return real(self, *arguments)

    monkeypatch.setattr(lanes.Lanes, failing, short_of_memory)
    assert_same_bits(run(study, Queue(study, range(7)), heights), alone)
    assert {8, 4, 2} == set(calls)


def test_one_lane_that_does_not_fit_is_out_of_memory(question, monkeypatch):
    def full(self, steps):
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(lanes.Lanes, "advance", full)
    with pytest.raises(torch.OutOfMemoryError):
        run(question("bmm"), Queue(question("bmm"), range(2)))


@pytest.mark.parametrize(("forced", "lanes_at_once"), [(1, 1), (3, 3), (4, 4), (None, 4)])
def test_lanes_can_be_forced(question, forced, lanes_at_once):
    study = question("bmm")
    data = Data.of(CASES["bmm"].splits(torch.device("cpu")))
    cost = engine.measure(study, CASES["bmm"], data, most=4, lanes=forced)
    assert cost.heights[-1] >= cost.lanes
    assert cost.lanes == lanes_at_once if forced else cost.lanes <= lanes_at_once
    curves = lanes.train(study, CASES["bmm"], data, Queue(study, range(7)), cost.heights, cost.lanes)
    fused = {curve.trial.index: curve for curve in curves}
    assert_same_bits(fused, run(study, Queue(study, range(7)), admitted(study)[:1]))


@pytest.mark.parametrize("how", CASES)
def test_a_stack_predicts_what_the_models_in_it_do(question, how):
    study, workload = question(how), CASES[how]
    data = Data.of(workload.splits(torch.device("cpu")))
    stacked = engine._started(study, workload, data, range(4))
    stacked.advance(3)
    inputs = data.as_model_wants(data.evaluated["val"][0])
    found = stacked.predictor([3, 1])(inputs)
    for outputs, row in zip(found, (3, 1), strict=True):
        model = workload.model().eval()
        model.load_state_dict({name: view[row] for name, view in stacked.stack.views.items()}, strict=False)
        torch.testing.assert_close(outputs, model(inputs), rtol=1e-5, atol=1e-6)
