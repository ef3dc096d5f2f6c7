"""The whole procedure on a surface whose best learning rate moves with the batch size."""

import math

import numpy as np
import pytest

from analysis.counting import COMPLETE, INFEASIBLE, Outcome, TrialCurve
from analysis.surrogate.curve import candidates, fitted, smaller_best, stage_points
from analysis.surrogate.process import Coordinates, Shape
from analysis.surrogate.proposals import spread
from analysis.surrogate.responses import WORST, Result

TWO = Coordinates.of(
    {
        "learning_rate": {"low": 0.001, "high": 10.0, "scale": "log"},
        "momentum": {"low": 0.0, "high": 0.99, "scale": "reverse_log"},
    }
)
OCTAVE = TWO.octave


def met(point, steps):
    return Result(point, TrialCurve([steps], [0.04], None), Outcome(COMPLETE, steps, steps))


def missed(point, end):
    return Result(point, TrialCurve([end], [0.2], None), Outcome(COMPLETE, end, None))


def trained(batch_size, points):
    """A trial needs 10^5 / B steps in a narrow valley, diverges above it, and misses the goal if it is slow."""
    found = []
    for rate, momentum in points:
        distance = rate + 0.5 * momentum - 0.6 - 0.5 * OCTAVE * math.log2(batch_size / 8)
        steps = round(100_000 / batch_size * math.exp(10 * abs(distance) + momentum**2))
        if distance > 0.1:
            found.append(Result((rate, momentum), TrialCurve([], [], 5), Outcome(INFEASIBLE, 5, None)))
        elif steps > 300_000 / batch_size:
            found.append(missed((rate, momentum), 300_000 // batch_size))
        else:
            found.append(met((rate, momentum), steps))
    return found


def scouts(batch_size, count=6):
    return [tuple(point) for point in spread(2, count, np.random.default_rng((0, batch_size))).round(6).tolist()]


def refined(batch_sizes, stages=(4, 4, 4)):
    results = {b: trained(b, scouts(b)) for b in batch_sizes}
    model = fitted(TWO, results, 0.05)
    for number, count in enumerate(stages, start=1):
        points = {b: stage_points(model, results, b, (0, b, number), count) for b in batch_sizes}
        results = {b: [*found, *trained(b, points[b])] for b, found in results.items()}
        model = fitted(TWO, results, 0.05, start=model.process.shape)
    return model, results


@pytest.mark.slow
def test_eighteen_trials_a_batch_size_find_the_valley():
    batch_sizes = (8, 32, 128, 512)
    model, results = refined(batch_sizes)
    excess = [math.log(results[b][candidates(model, results, b)[-1]].outcome.result * b / 100_000) for b in batch_sizes]
    random = [min(r.outcome.result or 10**6 for r in trained(b, scouts(b, 18))) * b / 100_000 for b in batch_sizes]
    assert max(excess) < math.log(1.25)
    assert max(excess) < math.log(max(random))
    assert model.process.shape.batch_slant == 0.5


def test_the_order_of_batch_sizes_does_not_matter():
    results = {b: trained(b, scouts(b)) for b in (8, 32)}
    one, other = fitted(TWO, results, 0.05), fitted(TWO, dict(reversed(results.items())), 0.05)
    assert one.process.shape == other.process.shape
    np.testing.assert_allclose(one.process.mean(scouts(32), 32), other.process.mean(scouts(32), 32))


def test_responses_are_on_the_scale_of_the_curve():
    model = fitted(TWO, {8: [met((0.5, 0.5), 100)], 32: [met((0.5, 0.5), 200)]}, 0.05, start=Shape())
    assert [model.responses[b].values[0] for b in (8, 32)] == pytest.approx([0, math.log(2)])
    alone = fitted(TWO, {32: [met((0.5, 0.5), 200)]}, 0.05)
    assert alone.responses[32].values[0] == 0


def test_all_trials_missed_or_diverged():
    results = {8: [missed((0.1, 0.2), 100), missed((0.3, 0.2), 100)], 32: trained(32, [(1.0, 1.0)] * 3)}
    model = fitted(TWO, results, 0.05)
    assert model.responses[32].values.tolist() == [WORST] * 3
    assert candidates(model, results, 32) == candidates(model, results, 8) == []
    assert len(set(stage_points(model, results, 32, (0, 32, 1), 4))) == 4


A, B, C = (0.1, 0.1), (0.2, 0.2), (0.3, 0.3)
# name: (results, the point that batch size 32 takes over)
BEHIND = {
    "behind": ({8: [met(A, 90), met(B, 100)], 32: [met(C, 100)]}, A),
    "a little behind": ({8: [met(A, 91)], 32: [met(C, 100)]}, None),
    "ahead": ({8: [met(A, 200)], 32: [met(C, 100)]}, None),
    "never reached": ({8: [met(A, 200)], 32: [missed(C, 100)]}, A),
    "never reached anywhere": ({8: [missed(A, 200)], 32: [missed(C, 100)]}, None),
    "the fewest of two": ({8: [met(A, 80)], 16: [met(B, 70)], 32: [met(C, 100)]}, B),
    "equal: the smallest batch size": ({16: [met(B, 70)], 8: [met(A, 70)], 32: [met(C, 100)]}, A),
    "larger batch sizes": ({32: [met(C, 100)], 64: [met(A, 20)]}, None),
    "trained already": ({8: [met(A, 50)], 32: [met(C, 100), met(A, 120)]}, None),
}


@pytest.mark.parametrize("name", BEHIND)
def test_the_best_of_a_smaller_batch_size(name):
    results, expected = BEHIND[name]
    assert smaller_best(results, 32) == expected
    model = fitted(TWO, results, 0.05)
    points = stage_points(model, results, 32, (0, 32, 1), 3)
    if expected is not None:
        assert points[-1] == expected
    else:
        assert points[-1] not in (A, B, C)
