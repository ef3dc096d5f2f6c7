"""Known answers and laws of what counts."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis import counting
from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, Goal, Outcome, Rule, TrialCurve

NAN = math.nan
STEPS = [10, 20, 30, 40]


@pytest.mark.parametrize(
    ("stopping", "errors", "bad", "expected"),
    [
        ("budget", [0.9, 0.8, 0.7, 0.6], None, Outcome(COMPLETE, 40, None)),
        ("goal", [0.9, 0.8, 0.7, 0.6], None, Outcome(COMPLETE, 40, None)),
        ("budget", [0.9, 0.4, 0.7, 0.6], None, Outcome(COMPLETE, 40, 20)),
        # A curve that ran further than its rule asks is cut at the crossing.
        ("goal", [0.9, 0.4, 0.7, 0.6], None, Outcome(COMPLETE, 20, 20)),
        ("goal", [0.9, 0.4], None, Outcome(COMPLETE, 20, 20)),
        ("budget", [0.9, 0.4], None, Outcome(INCOMPLETE, 20, 20)),
        ("goal", [0.9, 0.8], None, Outcome(INCOMPLETE, 20, None)),
        ("goal", [], None, Outcome(INCOMPLETE, 0, None)),
        # Diverged after reaching: no part of the trial under `goal`, the end of it under `budget`.
        ("goal", [0.9, 0.4, 0.7], 35, Outcome(COMPLETE, 20, 20)),
        ("budget", [0.9, 0.4, 0.7], 35, Outcome(INFEASIBLE, 35, 20)),
        # Diverged before reaching, at the very update that reached, at the last update, at once.
        ("goal", [0.9], 15, Outcome(INFEASIBLE, 15, None)),
        ("budget", [0.9], 15, Outcome(INFEASIBLE, 15, None)),
        ("goal", [0.9, 0.4], 20, Outcome(INFEASIBLE, 20, 20)),
        ("goal", [0.9, 0.8, 0.7], 40, Outcome(INFEASIBLE, 40, None)),
        ("goal", [], 1, Outcome(INFEASIBLE, 1, None)),
        # Strictly below; not measured is never below.
        ("goal", [0.5, 0.5, 0.5, 0.5], None, Outcome(COMPLETE, 40, None)),
        ("goal", [NAN, 0.9, NAN, 0.4], None, Outcome(COMPLETE, 40, 40)),
        ("goal", [NAN, NAN, NAN, NAN], None, Outcome(COMPLETE, 40, None)),
        ("goal", [-math.inf, 0.9, 0.9, 0.9], None, Outcome(COMPLETE, 10, 10)),
    ],
)
def test_outcome(stopping, errors, bad, expected):
    trial = TrialCurve(STEPS[: len(errors)], errors, bad)
    assert counting.outcomes(Rule(stopping, 0.5, STEPS), {0: trial}) == {0: expected}


@pytest.mark.parametrize("stopping", ["goal", "budget"])
def test_a_goal_met_at_step_0_was_not_reached_by_training(stopping):
    found = counting.outcomes(Rule(stopping, 0.5, [0, 10]), {0: TrialCurve([0, 10], [0.1, 0.2], None)})
    assert found == {0: Outcome(COMPLETE, 10, 10)}


def race(*trials, factor=2.0, stages=()):
    """Outcomes of trials given as (the grid point that reaches the goal, the update that diverges)."""
    grid = [2, 3, 5, 8, 13, 21, 34]
    measured = []
    for reaches, bad in trials:
        steps = [step for step in grid if bad is None or step < bad]
        measured.append(TrialCurve(steps, [0.1 if reaches and step >= reaches else 0.9 for step in steps], bad))
    rule = Rule("race", 0.5, grid, factor, stages)
    return list(counting.outcomes(rule, dict(enumerate(measured))).values())


def test_a_race_ends_at_the_last_grid_point_within_r_times_the_best_before():
    assert race((None, None), (8, None), (None, None), (3, None), (None, None)) == [
        Outcome(COMPLETE, 34, None),
        Outcome(COMPLETE, 8, 8),
        Outcome(COMPLETE, 13, None),
        Outcome(COMPLETE, 3, 3),
        Outcome(COMPLETE, 5, None),
    ]
    assert race((8, None), (None, None), factor=1.0)[1] == Outcome(COMPLETE, 8, None)


@pytest.mark.parametrize(
    ("stages", "ends"),
    [
        ((), [34, 13, 21, 5, 3, 5]),  # each trial against those of lower index
        ((6,), [5, 5, 5, 5, 3, 5]),  # all against each other
        ((2, 4), [21, 13, 8, 5, 3, 5]),  # a stage against itself and those before; the last two as without stages
        ((4, 6), [8, 8, 8, 5, 3, 5]),
        ((3, 6), [21, 13, 21, 5, 3, 5]),
    ],
)
def test_a_race_is_against_all_trials_of_the_stage_and_those_before(stages, ends):
    never = (None, None)
    found = race(never, (13, None), never, (5, None), (3, None), never, stages=stages)
    assert [each.end for each in found] == ends


def test_in_a_race_what_lies_beyond_the_bound_does_not_count():
    first, late, diverged, before = race((8, None), (21, None), (None, 14), (None, 13))
    assert first.steps_to_goal == 8
    assert late == Outcome(COMPLETE, 13, None)  # reached the goal too late
    assert diverged == Outcome(COMPLETE, 13, None)  # would have diverged had it gone on
    assert before == Outcome(INFEASIBLE, 13, None)


@pytest.mark.parametrize(
    ("text", "metric", "threshold"),
    [
        ("val/classification_error < 0.05", "val/classification_error", 0.05),
        ("  test/cross_entropy_error<3.9 ", "test/cross_entropy_error", 3.9),
        ("train/classification_error < 1e-2", "train/classification_error", 0.01),
        ("val/classification_error < 1", "val/classification_error", 1.0),
        ("val/classification_error < .05", "val/classification_error", 0.05),
        ("val/log_likelihood_error < -1.5", "val/log_likelihood_error", -1.5),
        ("val/ema_log_likelihood_error<-2e3", "val/ema_log_likelihood_error", -2000.0),
        ("val/log_likelihood_error < 0", "val/log_likelihood_error", 0.0),
        ("val/mse < 1234567", "val/mse", 1234567.0),
        ("val/mse < 2.5e-12", "val/mse", 2.5e-12),
        ("val/loss < 0.12345678", "val/loss", 0.12345678),
    ],
)
def test_goal_reads(text, metric, threshold):
    assert Goal.parse(text) == Goal(metric, threshold)
    assert Goal.parse(str(Goal(metric, threshold))) == Goal(metric, threshold)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        *[(text, "must read") for text in ("", "0.05", "val/loss", "loss < 1", "dev/loss < 0.05", "val/loss > 0.05")],
        *[(f"val/loss {end}", "must read") for end in ("<= 0.05", "<=0.05", "< low", "< 0.05 0.1", "< 0.0.5", "< .")],
        ("val/classification_error < 0", "is never negative, so val/classification_error < 0 is never met; choose"),
        ("val/cross_entropy_error < -1", "a cross entropy error is never negative, .* choose a threshold above 0"),
        ("val/ema_cross_entropy_error < -1", "is never negative"),
        ("val/cross_entropy_error < nan", "nan"),
        ("val/cross_entropy_error < inf", "inf"),
        ("val/classification_error < 1.5", "at most 1"),
    ],
)
def test_goal_refuses(text, message):
    with pytest.raises(ValueError, match=message):
        Goal.parse(text)


errors = st.lists(st.one_of(st.just(NAN), st.floats(0, 1)), max_size=12)


@given(errors, st.floats(0, 1), st.floats(0, 1))
def test_a_looser_goal_never_needs_more_steps(errors, one, other):
    tight, loose = (
        math.inf if crossing is None else crossing
        for threshold in sorted((one, other))
        for crossing in [counting.first_crossing(np.arange(1, len(errors) + 1), errors, threshold)]
    )
    assert loose <= tight


@given(errors, st.floats(0, 1), st.one_of(st.none(), st.integers(1, 12)))
def test_what_ran_beyond_the_end_changes_nothing(errors, threshold, bad):
    def judge(errors, bad):
        trial = TrialCurve(np.arange(1, len(errors) + 1), errors, bad)
        return counting.outcomes(Rule("goal", threshold, range(1, 13)), {0: trial})[0]

    errors = errors[:bad]
    whole = judge(errors, bad)
    assert judge(errors[: whole.end], bad if whole.status == INFEASIBLE else None) == whole


@given(st.lists(st.sampled_from([COMPLETE, INFEASIBLE, INCOMPLETE]), max_size=20), st.integers(1, 10))
def test_the_prefix_holds_the_feasible_trials_wanted_and_no_more(statuses, wanted):
    prefix = statuses[: counting.counted_prefix(statuses, wanted)]
    assert prefix.count(COMPLETE) == min(wanted, statuses.count(COMPLETE))
    if prefix.count(COMPLETE) == wanted:
        assert prefix[-1] == COMPLETE
    else:
        assert prefix == statuses
