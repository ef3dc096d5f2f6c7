"""Verdicts on one statement and on many: levels, bounds, open intervals."""

import numpy as np
import pytest

from analysis.claims.statement import Levels, Statement, Tree, every, pooled, same, some

TEXT = ("a", "ratio")
YES, NO, OPEN = (Statement(*TEXT, *ends, floor=1.0) for ends in ((2, 1.5, 3), (0.5, 0.3, 0.7), (1.2, 0.8, 1.8)))


@pytest.mark.parametrize(
    ("tree", "verdict"),
    [
        (every([YES, YES]), "shown"),
        (every([YES, OPEN]), "not shown"),
        (every([YES, NO]), "contradicted"),
        (some([NO, YES]), "shown"),
        (some([NO, OPEN]), "not shown"),
        (some([NO, NO]), "contradicted"),
        (every([]), "not tested"),
        (every([every([]), YES]), "not shown"),
        (every([every([]), every([])]), "not tested"),
        (some([every([YES, YES]), NO]), "shown"),
    ],
)
def test_trees(tree, verdict):
    assert tree.verdict() == verdict


@pytest.mark.parametrize(
    ("tree", "count"),
    [
        (every([YES, OPEN]), 1),
        (every([some([OPEN, YES]), OPEN]), 1),  # the first part is shown, whatever its first statement says
        (every([same([YES._replace(low=0.99), YES, YES]), OPEN]), 1),
        (every([some([OPEN, NO]), every([YES])]), 1),
        (every([every([]), OPEN]), 1),
        (every([every([]), YES]), 0),
        (every([some([OPEN, OPEN]), every([OPEN, YES])]), 3),
    ],
)
def test_what_would_settle_a_tree_is_in_its_parts_that_are_not_shown(tree, count):
    assert tree.verdict() == "not shown"
    assert len([*tree.undecided()]) == count


def test_levels_are_corrected_where_one_statement_decides():
    barely = Statement(*TEXT, 2.0, 1.01, 4.0, floor=1.0)
    against = Statement(*TEXT, 0.5, 0.25, 0.99, floor=1.0)
    assert every([barely] * 5).verdict() == "shown"  # all five at the whole level
    assert some([barely] * 5).verdict() == "not shown"  # the fifth part of the level each
    assert some([against] * 5).verdict() == "contradicted"
    assert every([against, *[YES] * 4]).verdict() == "not shown"


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({"low": np.nan}, "not shown"),
        ({"high": np.inf}, "shown"),
        ({"low": 0.0}, "not shown"),
        ({"floor": -np.inf, "ceiling": 4.0}, "shown"),
        ({"floor": -np.inf, "ceiling": 1.2}, "contradicted"),
        ({"floor": -np.inf, "ceiling": 1.2, "two_sided": False}, "not shown"),
        ({"floor": 0.9, "ceiling": 1.1, "inside": False}, "shown"),
        ({"floor": 1.0, "ceiling": 4.0, "inside": False}, "contradicted"),
        ({"floor": 1.8, "ceiling": 4.0, "inside": False}, "not shown"),
    ],
)
def test_one_statement(change, verdict):
    assert YES._replace(**change).verdict() == verdict


@pytest.mark.parametrize(
    ("ends", "verdict", "at_a_smaller_level"),
    [
        ((0.0, 0.0, 0.5), "contradicted", "not shown"),
        ((0.0, 0.0, 0.0), "contradicted", "not shown"),
        ((0.0, 0.0, np.inf), "not shown", "not shown"),
        ((np.inf, 1.5, np.inf), "shown", "not shown"),
        ((np.inf, np.inf, np.inf), "shown", "not shown"),
    ],
)
def test_ratios_to_curves_that_missed_the_goal(ends, verdict, at_a_smaller_level):
    """Their intervals are those of a sign test, which has no width to scale."""
    statement = Statement(*TEXT, *ends, floor=1.0)
    assert statement.verdict() == verdict
    assert statement.verdict(Levels(0.01, 0.01)) == at_a_smaller_level
    assert statement._replace(floor=0.0, ceiling=np.inf).verdict() == "shown"


def test_students_t_widens_more_with_few_degrees_of_freedom():
    few, many = YES._replace(free=3).interval(0.01), YES.interval(0.01)
    assert few[0] < many[0] < YES.low
    assert YES.interval() == pytest.approx((1.5, 3.0))
    slope = Statement(*TEXT, 0.5, 0.3, 0.7, log=False)
    assert slope.interval(0.01) == pytest.approx((0.5 - 0.2 * 2.5758 / 1.95996, 0.5 + 0.2 * 2.5758 / 1.95996), rel=1e-4)


def test_judged_verdicts_are_at_the_level_of_the_tree():
    barely = Statement(*TEXT, 2.0, 1.01, 4.0, floor=1.0)
    [(name, _, verdict), _] = Tree(False, [barely, barely], "faster").judged(Levels())
    assert (name, verdict) == ("faster", "not shown")


@pytest.mark.parametrize(
    ("values", "spread", "verdict"),
    [
        ((1.3, 1.45, 1.4, 1.48), 1.5, "shown"),  # none alone
        ((1.3, 0.9, 1.1, 0.8), 1.5, "not shown"),
        ((1.3, 1.5, 1.4, 0.3), 1.5, "contradicted"),  # by one of them
        ((0.6, 0.65, 0.7, 0.6, 0.65, 0.62), 1.6, "contradicted"),  # by their mean
        ((1.3,), 1.5, "not shown"),
        ((1.3,), 1.2, "shown"),
    ],
)
def test_statements_about_the_same_number_are_pooled(values, spread, verdict):
    parts = [Statement(*TEXT, value, value / spread, value * spread, floor=1.0) for value in values]
    assert same(parts).verdict() == verdict


def test_a_mean_over_curves_that_differ_is_wide():
    alike, apart = (
        [Statement(*TEXT, v, v / 1.1, v * 1.1, floor=1.0) for v in each] for each in ((2, 2, 2), (1.2, 2, 4))
    )
    assert pooled(alike).verdict() == "shown"
    assert pooled(apart).verdict() == "not shown"
    assert pooled([Statement(*TEXT, 2.0, 0.0, np.inf, floor=1.0)] * 3) is None
