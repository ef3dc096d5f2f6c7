"""Several optimizers are ranked in a few lines, the verdict first; two have the sentences of their pair."""

from itertools import combinations

import pandas as pd
import pytest

from analysis.estimates.pairs import ALL, ONE, SEARCHES
from analysis.report.answer.ranking import ranking

NO_LIMITS = pd.DataFrame(columns=["workload", "optimizer", "goal_metric", "goal_threshold", "definition", "estimate"])
ROW = {"workload": "w", "goal_metric": "val/loss", "goal_threshold": 1.0}


def pairs(ratios, kind=ALL):
    """Statements about all pairs: (a, b) -> ratio, and each single batch size; ratios within 1.2 are not shown."""
    rows = []
    for (a, b), ratio in ratios.items():
        for each, first, last in ((kind, 1, 64), (ONE, 1, 1), (ONE, 8, 8), (ONE, 64, 64)):
            ends = {"ratio": ratio, "low": ratio / 1.2, "high": ratio * 1.2, "shown": not 1 / 1.2 <= ratio <= 1.2}
            rows.append(
                {"kind": each, "a": a, "b": b, "smallest_batch_size": first, "largest_batch_size": last, **ROW, **ends}
            )
    return pd.DataFrame(rows)


FIVE = dict(zip("abcde", (1, 1.1, 2, 4, 8), strict=True))
RANKED = {
    "five": (
        {(one, other): FIVE[other] / FIVE[one] for one, other in combinations(FIVE, 2)},
        [
            "Over batch sizes 1 to 64, a needs fewer steps than e (8 times, 6.67 to 9.6), d (4 times, 3.33 to 4.8) and "
            "c (2 times, 1.67 to 2.4).",
            "b needs fewer steps than e (7.27 times, 6.06 to 8.73), d (3.64 times, 3.03 to 4.36) and c (1.82 times, "
            "1.52 to 2.18).",
            "c needs fewer steps than e (4 times, 3.33 to 4.8) and d (2 times, 1.67 to 2.4).",
            "d needs fewer steps than e (2 times, 1.67 to 2.4).",
            "Not shown to differ over all batch sizes: a and b (a factor of 1.2 would have shown).",
        ],
    ),
    "the later name is faster": (
        {("a", "b"): 0.5, ("a", "c"): 1.0, ("b", "c"): 2.0},
        [
            "Over batch sizes 1 to 64, b needs fewer steps than a (2 times, 1.67 to 2.4) and c (2 times, 1.67 to 2.4).",
            "Not shown to differ over all batch sizes: a and c (a factor of 1.2 would have shown).",
        ],
    ),
    "all tie": (
        {("a", "b"): 1.0, ("a", "c"): 1.0, ("b", "c"): 1.0},
        ["Not shown to differ over all batch sizes: a and b; a and c; b and c (a factor of 1.2 would have shown)."],
    ),
    "two": ({("a", "b"): 2.0}, []),
}


@pytest.mark.parametrize(("ratios", "lines"), RANKED.values(), ids=RANKED)
def test_several_optimizers_are_ranked(ratios, lines):
    assert ranking(pairs(ratios), NO_LIMITS) == lines


def test_without_a_statement_over_all_batch_sizes_there_is_no_ranking():
    assert ranking(pairs(RANKED["all tie"][0], kind=SEARCHES), NO_LIMITS) == []


def test_a_pair_without_a_statement_over_all_batch_sizes_is_told_apart():
    ratios = RANKED["the later name is faster"][0]
    some = pairs(ratios)
    some = some[~((some["kind"] == ALL) & (some["b"] == "c") & (some["a"] == "b"))]
    said = ranking(some, NO_LIMITS)
    assert said[0].endswith("b needs fewer steps than a (2 times, 1.67 to 2.4).")
    assert said[-1].startswith("B needs fewer steps than c at batch size 1 (2 times, ")


def test_pairs_over_different_batch_sizes_name_their_own():
    ratios = {("a", "b"): 2.0, ("a", "c"): 4.0, ("b", "c"): 1.0}
    some = pairs(ratios)
    some.loc[(some["kind"] == ALL) & (some["b"] == "c"), "largest_batch_size"] = 8
    assert ranking(some, NO_LIMITS) == [
        "a needs fewer steps than c (4 times, 3.33 to 4.8) over batch sizes 1 to 8 and b (2 times, 1.67 to 2.4) over "
        "batch sizes 1 to 64.",
        "Not shown to differ over all batch sizes: b and c over batch sizes 1 to 8 (a factor of 1.2 would have shown).",
    ]


def test_critical_batch_sizes_come_last():
    limits = pd.DataFrame({**ROW, "optimizer": ["a", "b"], "definition": "critical_batch_size_mccandlish"})
    ends = {"estimate_low": [30.0, 50.0], "estimate_high": [50.0, 80.0], "estimate_bound": "="}
    said = ranking(pairs(RANKED["five"][0]), limits.assign(estimate=[40.0, 60.0], **ends))
    assert said[:-1] == RANKED["five"][1]
    assert said[-1].startswith("Critical batch sizes 40 with a and 60 with b, a ratio of 1.5 ")
