"""The critical batch size by branches: its estimate, its table and its figure."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers.made_tables import METRIC, panels_of
from scipy import stats

from analysis.branched import table
from analysis.branched.estimate import Excess, critical, excess
from analysis.load import LoadError

SIZES = (8, 16, 32, 64, 128)
NAMES = {"workload": "digits", "optimizer": "sgd", "batch_size": 8, "goal_metric": METRIC, "goal_threshold": 0.05}


def rows(**columns):
    usual = {"trial": 3, "step": 10, "examples_seen": 80, "critical_batch_size": 32, "low": 16.0, "high": 64.0}
    usual |= {"bound": "=", "rule": "linear", "factors": "1", "window": 4096, "tolerance": 0.01, "seeds": 4}
    usual |= {"metric": METRIC, "loss_at_start": 0.5, "loss": 0.4}
    frame = pd.DataFrame(NAMES | usual | columns, index=range(max(map(np.size, columns.values()), default=1)))
    return frame[table.COLUMNS]


def test_the_excess_is_that_of_a_paired_test():
    rng = np.random.default_rng(0)
    small = 2 + 0.1 * rng.standard_normal(6)
    losses = small + 0.05 + 0.02 * rng.standard_normal(6)
    found = excess(losses, small, tolerance=0.01)
    scale = small.mean()
    ends = stats.ttest_rel(losses, small).confidence_interval(0.95)
    assert found.loss == pytest.approx(losses.mean())
    assert found.excess == pytest.approx((losses - small).mean() / scale - 0.01)
    assert [found.low, found.high] == pytest.approx([end / scale - 0.01 for end in ends])


def test_a_branch_that_diverged_is_beyond_every_tolerance():
    assert excess(np.array([1.0, np.inf]), np.ones(2), 0.5) == Excess(np.inf, np.inf, np.inf, np.inf)
    found = {8: excess(np.ones(2), np.ones(2), 0.5), 16: excess(np.array([1.0, np.inf]), np.ones(2), 0.5)}
    assert tuple(critical(found)) == (8, 8.0, 16.0, "<")


@pytest.mark.parametrize("noise", [0.002, 0.02])
def test_intervals_hold_the_truth_in_nineteen_of_twenty_cases(noise):
    """The loss grows as in McCandlish et al.; the truth is the largest batch size within the tolerance."""
    rng, held, open_ = np.random.default_rng(1), 0, 0
    truth = {size: 1 + 0.02 * (size / 32 - 8 / 32) for size in SIZES}
    wanted = max(size for size in SIZES if truth[size] <= 1.021 * truth[8])
    for _ in range(300):
        common = noise * rng.standard_normal(4)
        drawn = {size: truth[size] + common + noise * rng.standard_normal(4) for size in SIZES}
        found = critical({size: excess(losses, drawn[8], 0.021) for size, losses in drawn.items()})
        held += found.low <= wanted < found.high
        open_ += np.isinf(found.high)
        assert found.low <= found.batch_size < found.high
    assert held >= 0.93 * 300
    assert (open_ > 0) == (noise == 0.02)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ((32, 16.0, 64.0, "="), "32 (16 to 64)"),
        ((32, 16.0, np.inf, "="), "32 (from 16)"),
        ((128, 128.0, np.inf, ">"), "at least 128"),
        ((128, 64.0, np.inf, ">"), "at least 128 (from 64)"),
        ((8, 8.0, 16.0, "<"), "below 16"),
        ((8, 8.0, np.inf, "<"), "8 (from 8)"),
    ],
)
def test_critical_batch_sizes_in_words(row, said):
    assert table.in_words(dict(zip(table.FOUND, row, strict=True))) == said


def test_sentences_and_warnings_of_a_trunk():
    found = rows(step=[10, 40], examples_seen=[80, 320], critical_batch_size=[8, 128], low=[8.0, 64.0],
                 high=[16.0, np.inf], bound=["<", ">"], loss=[0.498, 0.4])  # fmt: skip
    scaling = pd.DataFrame(
        columns=[*NAMES, "definition", "estimate", "estimate_bound", "estimate_low", "estimate_high"]
    )
    [said] = table.sentences(found, scaling)
    assert said == (
        "digits with sgd, branched from batch size 8: the critical batch size is below 16 after 80 examples and at "
        "least 128 (from 64) after 320 examples, by windows of 4,096 examples, a tolerance of 1.0% and the linear "
        "rule; "
        "its steps show no limit to compare it with."
    )
    losses = pd.DataFrame({"branch_batch_size": [8, 16, 16], "step": [40, 40, 10], "excess_high": [-0.01, -0.02, 0.1]})
    losses = losses.assign(**NAMES, rule="linear", factors="1", window=4096, tolerance=0.01)
    floor, *warned = table.warnings(found, losses)
    assert "at step 40 some larger batches end lower than the small one for certain" in floor
    assert len(warned) == 3
    assert "at step 10 the window lowers the loss by less than the tolerance" in warned[0]
    assert "at step 40 every batch size is within the tolerance: give larger multiples." in warned[1]
    assert "at step 10 no larger batch size is within the tolerance" in warned[2]
    assert table.overview(found)["critical batch size"].tolist() == ["below 16", "at least 128 (from 64)"]


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ((8, 8.0, 16.0, "<"), "no larger batch size is within the tolerance: branch from a smaller one."),
        ((8, 8.0, np.inf, "<"), "none for certain, so that the interval has no upper end: give more seeds."),
        ((16, 8.0, np.inf, "="), "none for certain, so that the interval has no upper end: give more seeds."),
        ((128, 64.0, np.inf, ">"), "every batch size is within the tolerance: give larger multiples."),
        ((16, 8.0, 32.0, "="), None),
    ],
)
def test_each_end_of_an_interval_has_its_own_cure(found, said):
    made = rows(
        step=[10], examples_seen=[80], loss=[0.4], **dict(zip(table.FOUND, [[each] for each in found], strict=True))
    )
    warned = table.warnings(made, pd.DataFrame(columns=table.LOSSES))
    assert [said in each for each in warned] == ([] if said is None else [True])


def test_a_request_without_branches_is_no_row_and_a_torn_one_is_refused(tmp_path):
    folder = tmp_path / "branched/digits/sgd/8-abc/linear-64"
    (folder / "studies").mkdir(parents=True)
    (folder / "request.json").write_text(json.dumps({"checkpoints": []}))
    assert table.tables([tmp_path]) == {}
    (folder.parent / "trunk.json").write_text("{")
    with pytest.raises(LoadError, match="is torn"):
        table.tables([tmp_path])


def test_the_figure_has_a_curve_for_each_trunk_and_rule():
    found = rows(step=[10, 40, 10], examples_seen=[80, 320, 80], critical_batch_size=[16, 128, 32])
    found = found.assign(low=[8.0, 64.0, 16.0], high=[32.0, np.inf, 64.0], bound=["=", ">", "="])
    found["optimizer"] = ["sgd", "sgd", "adam"]
    [ax] = panels_of("branched", {"branched": found})
    assert ax.get_title("left") == "digits"
    assert ax.texts[0].get_text().startswith("from batch size 8, tolerance 1.0%, windows of")
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts == ["sgd, linear", "adam, linear", "95 % interval", "no larger batch size was tried"]
    curve = next(line for line in ax.lines if line.get_label() == "sgd, linear")
    assert curve.get_xydata().tolist() == [[80, 16], [320, 128]]
    [*_, bars] = [each.get_segments() for each in ax.collections if len(each.get_segments()) == 2]
    assert bars[1][1][1] == ax.get_ylim()[1]  # no upper end


def test_a_bound_from_above_is_a_triangle_upside_down():
    found = rows(step=[10], examples_seen=[80], critical_batch_size=[8], low=8.0, high=[16.0], bound="<")
    [ax] = panels_of("branched", {"branched": found})
    assert [line.get_xydata().tolist() for line in ax.lines if line.get_marker() == "v"] == [[[80, 8]]]
    assert [text.get_text() for text in ax.get_legend().get_texts()][-1] == "larger ones lose more on average"
