"""Tables of the page that people read: captions and cells."""

import numpy as np
import pandas as pd
import pytest

from analysis.report import html_tables, page
from analysis.report.estimate_tables import budget_shown
from analysis.report.table import shown


def test_a_table_of_several_pairs_says_what_its_intervals_hold_together():
    one = {"kind": "two searches", "smallest_batch_size": 8, "largest_batch_size": 8, "ratio": 2.0, "low": 1.5}
    pairs = pd.DataFrame([{**one, "high": 3.0, "shown": True, "a": a, "b": b} for a, b in ("xy", "xz", "yz")])
    facts = [shown(html_tables._pairs_shown(each), "Table 1.").facts for each in (pairs, pairs[:1])]
    assert facts == [["intervals 95% for all 3 pairs together"], []]


@pytest.mark.parametrize(
    ("ratio", "low", "high", "text"),
    [
        (2.0, 1.5, 3.0, "2 (1.50 to 3)"),
        (0.99999, 0.798, 1.25, "1.00 (0.798 to 1.25)"),
        (1.24, 0.9981, 1.54, "1.24 (0.998 to 1.54)"),
        (3.29, 2.85, np.inf, "3.29 (above 2.85)"),
        (2.37, 0.0, np.inf, "2.37 (open)"),
        (0.5, 0.0, 0.9, "0.500 (below 0.900)"),
        (np.inf, np.inf, np.inf, "∞"),
        (2.0, np.nan, np.nan, "2"),
    ],
)
def test_ratios_have_three_digits_and_their_open_ends_are_words(ratio, low, high, text):
    row = {"kind": "two configurations", "a": "x", "b": "y", "smallest_batch_size": 8, "largest_batch_size": 8}
    pairs = pd.DataFrame([row | {"ratio": ratio, "low": low, "high": high, "shown": False}])
    assert [cell.text for cell in html_tables._pairs_shown(pairs)["steps of b / a"]] == [text]


@pytest.mark.parametrize(
    ("column", "text"),
    [("momentum", "0.9987"), ("beta2", "0.9987"), ("tuned_momentum", "0.9987"), ("ema_decay", "0.9987"),
     ("least", "0.999"), ("sharpness", "0.999"), ("tuned / S(B)", "0.999"), ("critical_batch_size", "0.999"),
     ("learning_rate", "0.999")],
)  # fmt: skip
def test_only_momenta_have_the_digits_of_one_minus_their_value(column, text):
    table = shown(pd.DataFrame({column: [0.99873, 0.5]}), "Table 1.")
    assert table.rows[0][0].text == text


def test_search_spaces_list_batch_sizes_with_thousands_separated():
    sizes = pd.DataFrame({"workload": "digits", "optimizer": "sgd", "stage": 0, "batch_size": [64, 1024, 64, 2048]})
    [text] = html_tables._boxes_shown(sizes)["batch sizes"]
    assert text == "64, 1,024 and 2,048"


def test_an_open_end_of_an_error_at_a_budget_is_an_ellipsis():
    rows = {"workload": "mine", "optimizer": "adam", "goal_metric": "val/cross_entropy_error", "examples": 1000}
    rows |= {"batch_size": [8, 16], "error": [2.0, 2.1], "low": 1.9, "high": [2.2, np.inf], "within": True}
    found = budget_shown(pd.DataFrame(rows).assign(tolerance=0.01))
    assert [cell.text for cell in found["validation cross entropy"]] == ["2 (1.90 to 2.20)", "2.10 (1.90 to …)"]


def test_times_of_runs_have_units_and_sort_by_seconds():
    runs = [{"run": "a", "seconds_training": 919.04, "host": "x"}, {"run": "b", "seconds_training": 12.3, "host": "x"}]
    for studies in (runs, runs[:1]):
        same, differing = page._provenance(studies)
        times = (
            [cell.text for cell in (row[-1] for row in differing.rows)] if differing else [dict(same)["training time"]]
        )
        assert times == ["15 min 19 s", "12.3 s"][: len(studies)]
    assert page._provenance([{"run": "a", "seconds_training": None}, {"run": "b"}]).same == [("training time", "–")]
