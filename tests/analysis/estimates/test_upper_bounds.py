"""Seeds that met the goal at the first evaluation: their steps are only an upper bound, and none is taken for known."""

import numpy as np
import pandas as pd
import pytest
from helpers.estimated import ends

from analysis import intervals
from analysis.batch_schedules import verified
from analysis.estimates import tuned
from analysis.estimates.pairs import ALL, CONFIGURATIONS, ONE, SeededCurve, statements
from analysis.tables import transfer

NAN = np.nan
BOUND = 0
"""The step before the first evaluation."""
SIZES = (1, 4, 16, 64, 256, 1024)
KNOWN = 4096
"""A batch size whose seeds show their noise."""


@pytest.mark.parametrize(
    ("a", "b", "least", "most"),
    [
        ([BOUND, 19, 19, 19, 19, 19], [19] * 6, 1, 1),  # the median of the ratios is known
        ([19] * 6, [BOUND, 19, 19, 19, 19, 19], 1, 1),
        ([19] * 3 + [BOUND] * 3, [19] * 6, 1, 23**0.5),  # one of the two middle ones is not
        ([19] * 6, [19] * 3 + [BOUND] * 3, 23**-0.5, 1),
        ([BOUND] * 6, [19] * 6, 1, (22 * 23) ** 0.5),
        ([BOUND] * 6, [BOUND] * 6, (22 * 23) ** -0.5, (22 * 23) ** 0.5),
        ([19] * 6, [19] * 6, 1, 1),
    ],
    ids=["a_of_one_seed", "b_of_one_seed", "a_of_half", "b_of_half", "a_of_all", "both_of_all", "none"],
)
def test_intervals_hold_all_ratios_that_upper_bounds_leave(a, b, least, most):
    """Seeds that met the goal at the first evaluation may have needed any number of steps up to it."""
    steps = [20.0, 21.0, 22.0, 23.0, 24.0, 25.0]
    one, other = ({each: ends(steps, before) for each in SIZES} for before in (a, b))
    found = statements(SeededCurve(one, NAN, 2, NAN), SeededCurve(other, NAN, 2, NAN))
    over_all = next(each for each in found if each.kind == ALL)
    assert (over_all.low, over_all.high) == pytest.approx((least, most))
    known = {KNOWN: ends(steps, 19)}
    found = statements(SeededCurve(one | known, 0.1, 2, NAN), SeededCurve(other | known, 0.1, 2, NAN))
    alone = next(each for each in found if each.kind == ONE)
    of_curves = float(np.exp(tuned.half_width(0.1 * 2**0.5, 2)))
    assert (alone.low, alone.high) == pytest.approx((least / of_curves, most * of_curves))


def test_an_upper_bound_opens_the_side_of_an_interval_that_it_may_lie_on():
    known, bound = ends([200.0] * 6), ends([100.0] * 6, [BOUND, 90, 90, 90, 90, 90])
    one, other = (SeededCurve({8: each}, NAN, 2, NAN) for each in (bound, known))
    [less], [more] = statements(one, other), statements(other, one)
    assert less.kind == more.kind == CONFIGURATIONS
    assert less[3:] == pytest.approx((2.0, 2.0, 200.0))
    assert more[3:] == pytest.approx((0.5, 1 / 200, 0.5))


@pytest.mark.parametrize(
    ("steps", "before", "middle"),
    [
        ([20, 40], [BOUND, 36], 20),  # the mean of both would pass for known steps
        ([20, 20, 40, 60], [BOUND, BOUND, 36, 55], 20),
        ([20, 30, 40, 60], [BOUND, 27, 36, 55], 1200**0.5),
        ([20, 30, 40], [BOUND, 27, 36], 30),
        ([20, np.inf], [BOUND, NAN], np.inf),  # half missed the goal
        ([1, 4], [BOUND, 3], 2),  # step 1 is the first that there is
    ],
)
def test_a_median_of_an_upper_bound_is_one(steps, before, middle):
    assert intervals.median(np.array(steps, dtype=float), np.array(before, dtype=float)) == pytest.approx(middle)


def test_the_noise_of_seeds_is_read_where_all_are_known():
    """Seeds below the first evaluation lie closer to each other than they were."""
    names = {"workload": "tiny", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.1}
    rows = [(1, 100, 90), (1, 200, 190), (2, 60, BOUND), (2, 60, BOUND), (2, 61, 60)]
    runs = pd.DataFrame(rows, columns=["batch_size", "steps", "step_before"]).assign(rerun=range(5), **names)
    steps = pd.DataFrame({"batch_size": [1, 2], "steps_to_result": [100, 60], "first_evaluation": [10, 60], **names})
    assert tuned.table(steps, runs)["seed_sd"].tolist() == pytest.approx([np.log(2) / 2**0.5] * 2)


@pytest.mark.parametrize(
    ("moved", "reference", "lost"),
    [
        (199, 99, (2.0, 2.0, 2.0)),
        (BOUND, 99, (2.0, 1 / 100, 2.0)),
        (199, BOUND, (2.0, 2.0, 200.0)),
        (BOUND, BOUND, (2.0, 1 / 100, 200.0)),
    ],
)
def test_the_cost_of_a_transfer_is_open_where_steps_are_upper_bounds(moved, reference, lost):
    one, other = (
        pd.DataFrame({"steps": [steps] * 6, "step_before": [before] * 6})
        for steps, before in ((200.0, moved), (100.0, reference))
    )
    assert tuple(transfer.lost(one, other).values()) == pytest.approx(lost)


def test_arms_of_a_schedule_have_no_ratio_where_steps_are_upper_bounds():
    arm = pd.DataFrame({"steps": [20.0, 22.0, np.inf], "step_before": [BOUND, 20.0, NAN]})
    assert np.isnan(verified.known_steps(arm)).tolist() == [True, False, False]
