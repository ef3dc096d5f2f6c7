"""Which arithmetic, how many lanes: what is settled by rule, what by checks of bits, and what by the stopwatch."""

import random
import re
import warnings
from dataclasses import replace
from itertools import product

import pytest
import torch
from helpers.blobs import CPU, WORKLOADS, Blobs
from helpers.desks import assert_same_bits, full, trained
from helpers.fused import CASES, Queue, admitted, partly
from torch import nn

from study import records
from study.data.resident import Data
from study.engine import arithmetic, can_fuse, lane_count, lanes, timing, train
from study.engine.fused import onednn, stack
from study.schedules import SCHEDULES
from study.settings import Budget, Evaluation
from study.space import Dimension
from workloads.base import Splits
from workloads.layers import Dropout

ADAM = dict.fromkeys(("learning_rate", "beta1", "beta2", "epsilon"), 0.1)
AVERAGED = dict.fromkeys(("learning_rate", "momentum", "ema_decay"), 0.1)
TWICE = nn.Linear(3, 3)
CHAIN = WORKLOADS["linear_chain"]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "batch_size"), partly(product(CASES, [1, 2, 6, 33]), 10, 3))
def test_admitted_heights_hold_for_every_row(question, how, batch_size):
    study = question(how, batch_size=batch_size)
    heights = admitted(study)
    assert set(heights) <= {*lane_count.HEIGHTS, *lane_count.BETWEEN}
    alone = {i: trained(study, Queue(study, [i]), heights[:1])[i] for i in range(7)}
    assert_same_bits(trained(study, Queue(study, range(7)), heights), alone)


class Odd(Blobs):
    """Layers whose rows of a stack begin anywhere in a cache line, which tells in the last bits."""

    def __init__(self, features: int, width: int) -> None:
        super().__init__()
        self.features, self.hidden = features, width

    def splits(self, device: torch.device) -> Splits:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(124, self.features, generator=generator).split([64, 40, 20])
        targets = torch.randint(5, (124,), generator=generator).split([64, 40, 20])
        return Splits(*zip(inputs, targets, strict=True))

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(self.features, self.hidden), nn.ReLU(), nn.Linear(self.hidden, 5))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "workload", "batch_size"),
    partly(
        [("linear_blocks", Odd(784, 50), 1), ("linear_blocks", Odd(1024, 50), 3), ("linear_chain", Odd(784, 90), 1)], 3
    ),
)
def test_rows_that_are_not_of_whole_cache_lines(question, how, workload, batch_size):
    grid = Evaluation(first=0.5, ratio=2)
    study = question(how, "sgd", batch_size=batch_size, steps=140, evaluation=grid)
    data = workload.data()
    heights = list(lane_count.admitted(study, workload, data, most=8))
    together = trained(study, Queue(study, range(7)), heights, workload, data)
    alone = {i: trained(study, Queue(study, [i]), heights[:1], workload, data)[i] for i in range(7)}
    assert_same_bits(together, alone)


def test_a_height_that_computes_other_bits_is_not_admitted(question, monkeypatch):
    study = question("linear_chain")
    assert 4 in admitted(study)
    step = stack.Step.__call__

    def unsteady(self, inputs, *rest):
        losses = step(self, inputs, *rest)
        if len(inputs) == 4:
            self.parts[0].rows[3] += 1e-7
        return losses

    monkeypatch.setattr(stack.Step, "__call__", unsteady)
    assert 4 not in admitted(study)


@pytest.mark.slow
@pytest.mark.parametrize("fails", partly(["step_seconds", "cost_of"], 2))
@pytest.mark.parametrize(("most", "forced"), partly([(4, None), (8, None), (4, 11)], 3))
def test_measuring_that_runs_out_of_memory_settles_for_fewer_lanes(question, monkeypatch, fails, most, forced):
    cost = timing.cost_of

    def step_seconds(fused):  # the more, the faster
        return full() if fails == "step_seconds" and len(fused.lanes) > most else 1 / len(fused.lanes)

    def bounded(*arguments):
        return full() if fails == "cost_of" and arguments[-1] > most else cost(*arguments)

    monkeypatch.setattr(timing, "step_seconds", step_seconds)
    monkeypatch.setattr(timing, "cost_of", bounded)
    study = question("linear_chain", batch_size=33, budget=Budget(0, 100_000))  # worth checking every height
    found = train.measure(study, CHAIN, CHAIN.data(), most=16, lanes=forced)
    assert found.lanes == found.heights[-1] == most
    checked = lane_count.affordable(study)
    assert set(found.heights) <= set(lane_count.admitted(study, CHAIN, CHAIN.data(), most=16, heights=checked))


@pytest.mark.parametrize(
    ("change", "near"),
    [
        (lambda rows: rows, True),
        (lambda rows: rows * (1 + 1e-3), True),
        (lambda rows: rows.index_fill(1, torch.tensor(7), -0.05), True),  # one sign of a thousand
        (lambda rows: rows * (1 + 5e-2), False),
        (lambda rows: rows * torch.tensor([[1.0], [1.0], [0.0]]), False),  # a row that was not updated
        (lambda rows: rows.flip(1), False),
        (lambda rows: rows.index_fill(1, torch.tensor(7), torch.inf), False),
        (lambda rows: rows.index_fill(1, torch.tensor(7), torch.nan), False),
    ],
)
def test_rows_on_a_gpu_are_near_each_other_or_not(change, near):
    row = torch.randn(1, 1000, generator=torch.Generator().manual_seed(0)).index_fill(1, torch.tensor(7), 0.05)
    assert lane_count._near(change(row.expand(3, -1)), row, 1e-2) is near


def test_what_is_not_finite_in_every_row_is_near():
    row = torch.tensor([[1.0, torch.nan, torch.inf]])
    assert lane_count._near(row.expand(2, -1), row, 1e-2)
    assert not lane_count._near(torch.tensor([[1.0, torch.nan, 3.0]]), row, 1e-2)


@pytest.mark.slow
def test_what_does_not_fit_in_one_lane_does_not_fit(question, monkeypatch):
    monkeypatch.setattr(timing, "step_seconds", full)
    study = question("linear_chain")
    with pytest.raises(torch.OutOfMemoryError):
        train.measure(study, CHAIN, CHAIN.data(), most=4)


def test_a_cpu_without_room_for_the_reference_says_so(question, monkeypatch):
    monkeypatch.setattr(lane_count, "_computed", full)
    with pytest.raises(torch.OutOfMemoryError):
        admitted(question("vmap"))


class Residual(nn.Sequential):
    """More than one layer after the other."""

    def forward(self, x):
        return x + super().forward(x)


HOOKED, CLIPPED, REPLACED, WATCHED, TOLD = (nn.Sequential(nn.Linear(2, 3)) for _ in range(5))
HOOKED[0].register_forward_hook(lambda module, inputs, outputs: outputs * 2)
CLIPPED[0].register_full_backward_hook(lambda module, inputs, outputs: None)
REPLACED[0].forward = lambda x: x @ REPLACED[0].weight.mT
WATCHED[0].weight.register_hook(lambda gradient: gradient * 2)
TOLD[0].weight.register_post_accumulate_grad_hook(lambda weight: None)
SMALL, CONVOLUTION = nn.Sequential(nn.Linear(2, 3)), nn.Sequential(nn.Conv2d(1, 2, 3))
GREAT = nn.Sequential(nn.Flatten(), nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 3))
NARROWER = nn.Sequential(nn.Linear(256, 500), nn.ReLU(), nn.Linear(500, 3))
FOUR, EIGHT = {"batch_size": 4}, {"batch_size": 8}


@pytest.mark.parametrize(
    ("model", "fields", "device", "how"),
    [
        (SMALL, {"batch_size": 64}, "cpu", "linear_chain"),
        (GREAT, {}, "cpu", "linear_blocks"),
        (GREAT, {"batch_size": 9}, "cpu", "linear_chain"),  # products would take longer than memory does
        (GREAT, {}, "cuda", "linear_chain"),
        (GREAT, {"optimizer": "adam", "space": ADAM}, "cpu", "linear_chain"),
        (GREAT, {"space": AVERAGED}, "cpu", "linear_chain"),
        (NARROWER, {}, "cpu", "linear_chain"),  # stays in the caches
        (nn.Sequential(Dropout(0.2), *GREAT), {}, "cpu", "linear_chain"),  # its inputs are not known before
        (nn.Sequential(*GREAT[:-1], nn.Linear(512, 512)), {}, "cpu", "linear_chain"),  # as much memory in another layer
        (SMALL, {"precision": "bf16"}, "cpu", "plain"),
        (SMALL, {"precision": "bf16"}, "cuda", "linear_chain"),
        (SMALL, {"precision": "tf32"}, "cpu", "linear_chain"),
        (GREAT, {"precision": "tf32"}, "cpu", "linear_blocks"),
        (CONVOLUTION, FOUR | {"precision": "bf16"}, "cpu", "plain"),
        (CONVOLUTION, FOUR | {"precision": "tf32"}, "cpu", "vmap"),
        (CONVOLUTION, EIGHT | {"precision": "bf16"}, "cuda", "vmap"),
        (SMALL, {"micro_batch": 3}, "cpu", "plain"),
        (CONVOLUTION, FOUR, "cpu", "vmap"),
        (CONVOLUTION, EIGHT, "cpu", "plain"),
        (CONVOLUTION, EIGHT, "cuda", "vmap"),
        (nn.Sequential(nn.Conv2d(1, 2, 600)), FOUR, "cpu", "plain"),  # parameters fill the caches anyway
        (nn.Sequential(nn.Conv2d(1, 2, 600)), FOUR, "cuda", "vmap"),
        (nn.Sequential(nn.BatchNorm2d(2)), FOUR, "cpu", "plain"),  # running statistics: not of the step
        (nn.Sequential(nn.Dropout(0.5)), FOUR, "cpu", "plain"),  # one global stream for all lanes
        (CONVOLUTION, EIGHT, "cpu:0", "plain"),
        (nn.Sequential(nn.Linear(2, 3, bias=False)), EIGHT, "cpu", "plain"),
        (nn.Sequential(TWICE, TWICE), EIGHT, "cpu", "plain"),  # one layer, two places
        (nn.Sequential(nn.Linear(2, 3).requires_grad_(False)), FOUR, "cpu", "plain"),
        (nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 3)), FOUR, "cpu", "vmap"),
        (nn.Sequential(nn.Linear(800, 800).requires_grad_(False), nn.Linear(800, 3)), FOUR, "cpu", "vmap"),  # shared
        (nn.LSTM(2, 3), FOUR, "cpu", "plain"),
        (Residual(nn.Linear(3, 3)), {"batch_size": 64}, "cpu", "plain"),
        *((model, {"batch_size": 64}, "cpu", "plain") for model in (HOOKED, CLIPPED, REPLACED, WATCHED, TOLD)),
    ],
)
def test_the_rule_of_arithmetic(make_study, monkeypatch, model, fields, device, how):
    monkeypatch.setattr(onednn, "faster", lambda: False)  # test_onednn has the other rows
    assert arithmetic.candidates(model, make_study(**fields), device)[0] == how


def test_fusing_that_is_forced_comes_before_plain_and_prefers_what_pays(make_study):
    asked = make_study(batch_size=8)
    assert arithmetic.candidates(CONVOLUTION, asked, "cpu") == ["plain"]
    assert arithmetic.candidates(CONVOLUTION, asked, "cpu", forced=True) == ["vmap", "plain"]
    assert arithmetic.candidates(SMALL, asked, "cpu") == ["linear_chain", "plain"]
    assert arithmetic.candidates(SMALL, asked, "cpu", forced=True)[0] == "linear_chain"


@pytest.mark.parametrize(("batch_size", "fits"), [(64, True), (65, False)])
def test_blocks_hold_at_least_one_step(make_study, batch_size, fits):
    study = make_study(batch_size=batch_size, examples=100)
    assert ("linear_blocks" in arithmetic.candidates(GREAT, study, "cpu", forced=True)) == fits


def test_the_names_are_those_of_the_table():
    assert tuple(arithmetic.ARITHMETICS) == records.ARITHMETICS
    assert list(arithmetic.ARITHMETICS)[-2:] == ["plain", "command"]


class Does(nn.Module):
    """A function of outputs."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, y):
        return self.function(y)


class Masking(nn.Module):
    """A buffer, which may change at each forward pass."""

    def __init__(self, mask, growth=0):
        super().__init__()
        self.register_buffer("mask", mask)
        self.growth = growth

    def forward(self, y):
        if self.growth:
            self.mask += self.growth
        return y * self.mask


def reversing(y):
    """A gradient reversal (Ganin & Lempitsky 2015) as it is often written."""
    if y.requires_grad:
        y.register_hook(lambda gradient: -gradient)
    return y


class TripledBackward(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_full_backward_hook(lambda module, inputs, outputs: tuple(3 * each for each in inputs))

    def forward(self, x):
        return torch.tanh(x)


class Attending(nn.Module):
    """Attention among the outputs of an example."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x[:, None, :, None].repeat(1, 2, 1, 4)
        return nn.functional.scaled_dot_product_attention(y, y, y, is_causal=True).mean((1, 3))


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        (lambda model: model, None),
        (lambda model: nn.Sequential(model, Does(torch.tanh)), None),
        (lambda model: nn.Sequential(model, Masking(torch.ones(5))), None),
        (lambda model: nn.Sequential(model, Masking(torch.rand(5))), "its buffer 1.mask differs between seeds"),
        (lambda model: nn.Sequential(model, Masking(torch.ones(5), 1)), "its buffer 1.mask changes in a forward pass"),
        (lambda model: nn.Sequential(model, nn.Dropout(0.5)), "it draws random numbers; workloads.layers.Dropout"),
        (lambda model: nn.Sequential(model, Does(lambda y: y + random.random())), "draw from a global generator"),
        (lambda model: model.register_parameter("unused", nn.Parameter(torch.zeros(2))) or model, "do not contribute"),
        (lambda model: nn.Sequential(model, Does(lambda y: y if y.sum() > 0 else -y)), "branches on the values"),
        (lambda model: nn.Sequential(model, Does(lambda y: y * y.sum().item())), r"calls .item\(\)"),
        (lambda model: nn.Sequential(model, Does(lambda y: y + torch.histc(y, 5))), "torch.vmap has no rule for histc"),
        (lambda model: nn.Sequential(model, Does(lambda y: 1 / 0)), "two trials side by side raise ZeroDivisionError"),
        (lambda model: nn.Sequential(model, Attending()), None),
        (lambda model: nn.Sequential(model, Does(reversing)), "hooks on tensors or modules"),
        (lambda model: nn.Sequential(model, TripledBackward()), "hooks on tensors or modules"),
    ],
)
def test_what_lanes_cannot_train_is_found_out_beforehand(question, monkeypatch, spoilt, why):
    workload, model = WORKLOADS["vmap"], WORKLOADS["vmap"].model
    monkeypatch.setattr(workload, "model", lambda: spoilt(model()), raising=False)
    found = can_fuse.lanes_fail(question("vmap"), workload, workload.data())
    assert found is None if why is None else re.search(why, found), found


@pytest.mark.parametrize(
    ("text", "said"),
    [("short.", "short"), ("undefined " * 20, f"{'undefined ' * 19}undefined"), ("layers " * 40, f"{'layers ' * 28}…")],
)
def test_a_long_error_of_two_lanes_ends_with_a_whole_word(text, said):
    assert can_fuse.told(RuntimeError(text)) == f"two trials side by side raise RuntimeError: {said}"


def of_many(outputs, targets):
    if len(targets) < 3:
        warnings.warn("undefined for two examples", stacklevel=1)
        raise ValueError("only one class present")
    return 0.5


@pytest.mark.parametrize(
    ("metric", "why"),
    [(of_many, None), (lambda outputs, targets: random.random(), "its model, loss or errors draw")],
)
def test_a_metric_that_two_examples_do_not_define_fuses_and_a_random_one_does_not(question, monkeypatch, metric, why):
    workload = WORKLOADS["vmap"]
    monkeypatch.setattr(workload, "metrics", {"metric": metric}, raising=False)
    found = can_fuse.lanes_fail(question("vmap"), workload, workload.data())
    assert found is None if why is None else re.search(why, found), found


@pytest.mark.parametrize("rate", [0.01, 1e6])
def test_a_check_that_diverges_checks_nothing(make_study, monkeypatch, rate):
    """NaN is alike in all rows: steps are made smaller until they tell heights apart."""
    study = make_study({"learning_rate": rate, "momentum": 0.9}, batch_size=4, arithmetic="linear_chain")
    compute = lane_count._computed

    def differing(study, workload, data, height, **more):
        found = compute(study, workload, data, height, **more)
        return [found[0] * 1.001, *found[1:]] if height == 8 else found

    monkeypatch.setattr(lane_count, "_computed", differing)
    assert 8 not in admitted(study)


@pytest.mark.parametrize("how", ["linear_chain", "linear_blocks"])
def test_what_lanes_cannot_measure_is_found_out_beforehand(question, monkeypatch, how):
    workload = WORKLOADS[how]
    model = nn.Sequential(nn.Linear(24, 32), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5))
    monkeypatch.setattr(workload, "model", lambda: model, raising=False)
    assert can_fuse.lanes_fail(question(how), workload, workload.data()) is None
    rows = Splits(*((inputs.unsqueeze(1), targets) for inputs, targets in workload.splits(CPU)))
    assert can_fuse.lanes_fail(question(how), workload, Data.of(rows))


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("warmup", [40, 50, 60])
def test_lanes_are_timed_beyond_a_short_budget(question, name, warmup):
    study = question("linear_chain", schedule=name)
    space = {**study.search.space, "warmup_steps": Dimension(choices=(warmup,))}
    study = replace(study, budget=Budget(0, 50), search=replace(study.search, space=space))
    fused = timing.started(study, CHAIN, CHAIN.data(), range(4))
    fused.advance(80)
    assert all(lane.log.first_bad_step is None for lane in fused.lanes)


def test_averages_double_what_an_evaluation_costs(question, monkeypatch):
    monkeypatch.setattr(timing, "least_seconds", lambda *_, **__: 1.0)
    study = question("linear_chain")
    averaged = replace(study.search, space={**study.search.space, "ema_decay": Dimension(choices=(0.9,))})
    one, both = (train.measure(each, CHAIN, CHAIN.data(), 4) for each in (study, replace(study, search=averaged)))
    assert (both.validation, both.step) == (2 * one.validation, one.step)


@pytest.mark.slow
@pytest.mark.parametrize(("forced", "lanes_at_once"), partly([(3, 3), (1, 1), (None, 4), (4, 4)], 2))
def test_lanes_can_be_forced(question, forced, lanes_at_once):
    study = question("linear_chain")
    cost = train.measure(study, CHAIN, CHAIN.data(), most=4, lanes=forced)
    assert cost.heights[-1] >= cost.lanes
    assert cost.lanes == lanes_at_once if forced else cost.lanes <= lanes_at_once
    curves = lanes.train(study, CHAIN, CHAIN.data(), Queue(study, range(7)), cost.heights, cost.lanes)
    found = {curve.trial.index: curve for curve in curves}
    assert_same_bits(found, trained(study, Queue(study, range(7)), admitted(study)[:1]))


@pytest.mark.parametrize(("steps", "budget"), [(10, 0.0045), (1_000_000, 0.06)])
def test_the_timing_of_lanes_takes_little_of_the_study(question, monkeypatch, steps, budget):
    """Steps of 1 ms: the three timings of a study of 3 s take 1.5 ms each, those of a long study 20 ms."""
    budgets = []
    monkeypatch.setattr(timing, "least_seconds", lambda call, budget: budgets.append(budget) or 0.001)
    study = question("linear_chain", steps=steps)
    study = replace(study, search=replace(study.search, trials=300))
    timing.update_seconds_of(study, CHAIN, CHAIN.data(), 1)
    assert budgets == [0, pytest.approx(budget)]
