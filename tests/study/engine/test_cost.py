"""What a sweep costs, and what measuring it costs: counted updates, and a clock that only updates move."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from helpers.blobs import WORKLOADS
from helpers.fused import partly

from study.engine import cost, lane_count, lanes, timing, train
from study.engine.cost import Cost, Work, evaluation_share, fewer_examples
from study.engine.lanes import SEGMENT_STEPS
from study.engine.run import Run
from study.settings import Budget, Evaluation
from study.terminal.costs import MOST_EVALUATION, evaluating

DIPS = {1: 8.0, 2: 4.0, 4: 2.0, 8: 1.0, 16: 1.5, 32: 2.0, 64: 3.0}
FALLS = {1: 8.0, 2: 4.0, 4: 2.0, 8: 1.0}
FLAT = dict.fromkeys(DIPS, 1.0)
RISES = {height: float(height) for height in DIPS}


def works(make_study, seconds_per_example, examples=1000):
    """A trial of 100 steps of 10 ms, evaluated at each 10 % more steps."""
    study = make_study(batch_size=8, budget=Budget(0, 100), tokens_per_example=64)
    cost = Cost(0.01, examples * seconds_per_example, 2 * examples * seconds_per_example, evaluated=(examples,) * 3)
    return [Work(study, cost, 2)]


@pytest.mark.parametrize(
    ("seconds_per_example", "cure"),
    [
        (1e-6, None),
        (1e-5, "evaluation.examples=800"),
        (1e-4, "evaluation.examples=80"),
        (1e-2, "evaluation.ratio=1.2 evaluates half"),
    ],
)
def test_a_large_share_names_the_cure(make_study, seconds_per_example, cure):
    left = works(make_study, seconds_per_example)
    said, share = evaluating(left), evaluation_share(left)
    assert said.startswith(f"Evaluation takes {share:.0%} of it")
    assert (share > MOST_EVALUATION) == (cure is not None)
    assert cure is None or cure in said


def test_the_cure_is_enough_and_no_less_than_needed(make_study):
    left = works(make_study, 1e-4)
    examples = fewer_examples(left, MOST_EVALUATION)
    assert evaluation_share(left, examples) <= MOST_EVALUATION < evaluation_share(left, examples + 10)
    assert evaluation_share(left, 10**6) == pytest.approx(evaluation_share(left))


def test_the_plan_counts_tokens(make_study):
    [work] = works(make_study, 1e-6)
    plan = work.plan(workers=1)
    assert (plan["examples"], plan["tokens"]) == (1600, 64 * 1600)


def test_what_is_not_evaluated_costs_nothing(make_study):
    """All but the last of n evaluations measure at most a quarter of the validation set if they may end early."""
    cost, budget = Cost(0.01, 1.0, 10.0), {"budget": Budget(0, 100), "stopping": "race"}
    often, rarely, early = (
        make_study(evaluation=Evaluation(every=every, exact=exact), **budget)
        for every, exact in ((5, True), (None, True), (None, False))
    )
    n = len(often.evaluation_steps)
    assert n > 20
    assert cost.evaluations(often) == n + 10 * (n // 5 + 1)
    assert cost.evaluations(rarely) == n + 10
    assert cost.evaluations(early) == 1 + (n - 1) / 4 + 10


@pytest.mark.parametrize(
    ("curve", "neighbour", "asked", "best"),
    [
        (DIPS, None, [1, 2, 4, 8, 16], 8),
        (DIPS, 8, [8, 16, 4], 8),
        (DIPS, 4, [4, 8, 16], 8),
        (DIPS, 16, [16, 32, 8, 4], 8),
        (DIPS, 64, [64, 32, 16, 8, 4], 8),
        (DIPS, 1, [1, 2, 4, 8, 16], 8),
        (FALLS, 16, [8, 4], 8),  # 16 is not admitted here
        (FALLS, 8, [8, 4], 8),
        (RISES, None, [1, 2], 1),
        (RISES, 4, [4, 8, 2, 1], 1),
        (FLAT, None, [1, 2, 4], 1),
        (FLAT, 4, [4, 8, 2, 1], 1),  # the lowest needs the least memory
        (FLAT, 1, [1, 2], 1),
        (FLAT | {8: math.inf}, 8, [8, 4, 2, 1], 1),
        (dict.fromkeys([1, 2], math.inf) | {4: 1.0}, 4, [4, 2, 1], 4),
    ],
)
def test_the_search_starts_from_the_lanes_of_a_neighbouring_batch_size(
    question, monkeypatch, curve, neighbour, asked, best
):
    """`inf`: memory runs out."""
    tried = []

    def update_seconds_of(study, workload, data, height):
        tried.append(height)
        if curve[height] == math.inf:
            raise MemoryError
        return curve[height]

    monkeypatch.setattr(timing, "update_seconds_of", update_seconds_of)
    monkeypatch.setattr(lane_count, "fused_cost", lambda *found: found)
    workload = WORKLOADS["linear_chain"]
    *_, known, lanes_at_once, _ = lane_count.fastest(
        question("linear_chain"), workload, workload.data(), curve, neighbour
    )
    assert (tried, lanes_at_once) == (asked, best)
    assert known == [height for height in curve if height <= max(h for h in tried if curve[h] < math.inf)]


@pytest.mark.parametrize(
    ("how", "batch_size", "steps", "heights"),
    [
        ("linear_chain", 64, 10, [4]),  # 12 of 100 updates
        ("linear_chain", 64, 200, [1, 2, 4]),  # 21 of 2,000
        ("linear_chain", 64, 500, [1, 2, 4, 8, 16]),
        ("linear_chain", 1, 2000, [1, 4]),  # 65 updates in each row
        ("vmap", 64, 200, [1, 2, 4]),
        ("vmap", 1, 2000, [1, 4]),
        ("linear_chain", 64, 1000, [1, 2, 4, 6, 8, 16, 32]),  # 18 of 10,000 in between
        ("linear_chain", 1, 10**6, sorted([*lane_count.HEIGHTS, *lane_count.BETWEEN])),
    ],
)
def test_checks_take_little_of_the_study(question, how, batch_size, steps, heights):
    study = question(how, batch_size=batch_size, examples=64, budget=Budget(0, steps))
    study = replace(study, search=replace(study.search, trials=10))
    assert lane_count.affordable(study) == heights


@pytest.fixture
def updates(monkeypatch):
    """Updates of single trials so far. Each moves the clock by a millisecond, and each look by a nanosecond."""
    made, looks = [], itertools.count()
    advance, update = lanes.Lanes.advance, Run.update

    def advanced(self, steps):
        made.append(steps * len(self.lanes))
        advance(self, steps)

    def updated(self, rate):
        made.append(1)
        return update(self, rate)

    monkeypatch.setattr(lanes.Lanes, "advance", advanced)
    monkeypatch.setattr(Run, "update", updated)
    monkeypatch.setattr(cost.time, "perf_counter", lambda: 1e-3 * sum(made) + 1e-9 * next(looks))
    return made


@pytest.mark.parametrize("how", partly(["linear_chain", "vmap", "plain"], 2))
@pytest.mark.parametrize(("trials", "steps"), partly([(6, 500), (30, 400)], 2))
@pytest.mark.parametrize("near", [None, Cost(0.001, 0.1, 0.1, lanes=4)])
def test_measuring_takes_at_most_a_twentieth_of_the_study(question, updates, how, trials, steps, near):
    study = question(how, budget=Budget(0, steps))
    study = replace(study, search=replace(study.search, trials=trials))
    workload = WORKLOADS[how if how in WORKLOADS else "vmap"]
    found = train.measure(study, workload, workload.data(), most=trials, neighbour=near)
    assert 2 <= sum(updates) <= 0.05 * trials * steps
    assert found.step == pytest.approx(0.001, rel=1e-3)


def test_evaluations_of_one_model_take_as_long_as_at_the_neighbouring_batch_size(question, monkeypatch):
    study, workload = question("plain", micro_batch=4), WORKLOADS["vmap"]
    near = train.measure(study, workload, workload.data(), most=1)
    monkeypatch.setattr(timing, "cost_of", lambda *_: pytest.fail("timed an evaluation"))
    found = train.measure(replace(study, batch_size=8), workload, workload.data(), most=1, neighbour=near)
    assert (found.validation, found.others, found.evaluated) == (near.validation, near.others, near.evaluated)
    assert (near.parts, found.parts) == (((4, 2),), ((4, 4),))


LANES = 64


class Clock:
    """Lanes on a GPU with a clock of their own, in seconds.

    Arguments:
        step: that the device computes an update.
        host: that the host prepares an update.
        fixed: that the host takes for each segment.
        wait: for the losses, at the end.
    """

    def __init__(self, study, step, host, fixed=0.002, wait=0.001):
        self.study, self.device, self.lanes = study, torch.device("cuda"), [None] * LANES
        self.stack = SimpleNamespace(period=1)
        self.times, self.now, self.made = (step, host, fixed, wait), 0.0, []

    def advance(self, steps):
        step, host, fixed, wait = self.times
        prepared = computed = self.now
        self.made.append(steps)
        for first in range(0, steps, SEGMENT_STEPS):
            count = min(SEGMENT_STEPS, steps - first)
            prepared += fixed + count * host
            computed = max(computed, prepared) + count * step
        self.now = computed + wait


@pytest.mark.parametrize(
    ("step", "host", "expected"),
    [
        (3e-4, 1e-4, 3e-4),
        (1e-3, 2e-4, 1e-3),
        (1e-2, 2e-4, 1e-2),
        (3e-1, 2e-4, 3e-1),
        (1e-4, 3e-4, 3e-4 + 0.002 / SEGMENT_STEPS),  # the device waits for the host
    ],
)
def test_the_preparation_of_a_segment_is_not_counted_twice(question, monkeypatch, step, host, expected):
    study = question("linear_chain", steps=1_000_000)
    clock = Clock(replace(study, search=replace(study.search, trials=300)), step, host)
    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    assert timing.step_seconds(clock) == pytest.approx(expected / LANES, rel=0.03)
    assert step > 2e-3 or max(clock.made) >= SEGMENT_STEPS
    assert clock.now < 2.5 or step > 0.1
