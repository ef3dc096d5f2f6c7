"""Figures: the data on the axes, what stands for a missing result, and files that are the same on every run."""

from itertools import pairwise

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from analysis.figures import FIGURES, canvas, charts, draw, goal_text, save
from analysis.figures.scaling import NOT_REACHED, PERFECT
from analysis.scaling import fit_table

METRIC = "val/classification_error"


def table(optimizer="nesterov", sizes=(1, 4, 16, 64, 256), missed=(), workload="digits", momentum=0.9):
    """S(B) = 20 + 1000 / B, learning rate 0.01 B^0.5, budget 5,000 steps."""
    sizes = np.array(sizes)
    reached = ~np.isin(sizes, missed)
    steps = pd.array(np.round(20 + 1000 / sizes), dtype="Int64")
    steps[~reached] = pd.NA
    return pd.DataFrame(
        {
            "workload": workload,
            "optimizer": optimizer,
            "batch_size": sizes,
            "goal_metric": METRIC,
            "goal_threshold": 0.05,
            "reached": reached,
            "steps_to_result": steps,
            "examples_to_result": steps * sizes,
            "learning_rate": np.where(reached, 0.01 * np.sqrt(sizes), np.nan),
            "momentum": np.where(reached, momentum, np.nan),
            "train_steps": 5000,
        }
    )


def limits(optimizer="nesterov", workload="digits", perfect=(16.0, "="), useful=(256.0, ">")):
    rows = [("perfect_scaling_limit", *perfect), ("maximum_useful_batch_size", *useful)]
    frame = pd.DataFrame(rows, columns=["definition", "value", "bound"])
    return frame.assign(workload=workload, optimizer=optimizer, goal_metric=METRIC, goal_threshold=0.05)


def drawn(name, steps, scaling=None) -> Axes:
    tables = {"steps_to_result": steps} | ({} if scaling is None else {"scaling": scaling})
    return draw(only(name, tables))[0].axes[0]


def only(name, tables):
    (chart,) = charts(tables, [name])
    return chart


def line(ax, label):
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return found


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def test_curve_shows_the_steps_and_says_what_it_shows():
    ax = drawn("steps_to_result", table())
    curve = ax.lines[0]
    assert list(curve.get_xdata()) == [1, 4, 16, 64, 256]
    assert list(curve.get_ydata()) == [1020, 270, 82, 36, 24]
    assert ax.get_xscale() == ax.get_yscale() == "log"
    assert ax.get_xlabel() == "batch size (examples)"
    assert ax.get_ylabel() == "training steps to validation error < 0.05"
    assert ax.get_title("left") == "digits"
    assert "goal: validation error < 0.05" in [text.get_text() for text in ax.texts]
    assert legend(ax) == ["nesterov", PERFECT]


def test_perfect_scaling_starts_at_the_smallest_batch_size_that_reached_the_goal():
    dashed = line(drawn("steps_to_result", table(missed=(1,))), PERFECT)
    (x0, x1), (y0, y1) = dashed.get_xdata(), dashed.get_ydata()
    assert (x0, y0) == (4, 270)
    assert np.log(y1 / y0) / np.log(x1 / x0) == pytest.approx(-1)
    level = line(drawn("examples_to_result", table()), PERFECT).get_ydata()
    assert level[0] == level[1] == 1020


def test_a_missed_goal_breaks_the_curve_and_stands_open_at_its_budget():
    ax = drawn("steps_to_result", table(missed=(16, 256)))
    np.testing.assert_array_equal(ax.lines[0].get_ydata(), [1020, 270, np.nan, 36, np.nan])
    mark = line(ax, NOT_REACHED)
    assert list(mark.get_xdata()) == [16, 256]
    assert list(mark.get_ydata()) == [5000, 5000]
    assert mark.get_marker() == "^"
    assert mark.get_markerfacecolor() == canvas.PAPER
    assert NOT_REACHED in legend(ax)
    low, high = ax.get_ylim()
    assert low < 36
    assert high > 5000
    budgets = line(drawn("examples_to_result", table(missed=(256,))), NOT_REACHED).get_ydata()
    assert list(budgets) == [5000 * 256]


def test_a_study_without_any_result_is_drawn():
    steps = table(missed=(1, 4, 16, 64, 256))
    assert len(line(drawn("steps_to_result", steps), NOT_REACHED).get_xdata()) == 5
    assert charts({"steps_to_result": steps}, ["best_learning_rate"]) == []


def test_limits_drop_from_the_curve_and_point_on_where_no_end_is_shown():
    ax = drawn("steps_to_result", table(), limits())
    perfect = line(ax, "perfect-scaling limit")
    assert list(perfect.get_xdata()) == [16, 16]
    assert perfect.get_ydata()[1] == 82
    drop, arrow = (mark for mark in ax.lines if mark.get_label() == "maximum useful batch size")
    assert list(drop.get_xdata()) == [256, 256]
    assert arrow.get_marker() == ">"
    assert legend(ax)[2:] == ["perfect-scaling limit: 16", "maximum useful batch size: ≥ 256"]


def test_a_limit_that_was_not_found_or_lies_outside_is_not_drawn():
    assert legend(drawn("steps_to_result", table(), limits(perfect=(4096.0, "="))))[2:] == [
        "maximum useful batch size: ≥ 256"
    ]
    ax = drawn("steps_to_result", table(), limits(perfect=(np.nan, "="), useful=(64.0, "=")))
    assert legend(ax)[2:] == ["maximum useful batch size: 64"]


def test_optimizers_share_axes_and_keep_their_colours_in_every_panel():
    first = pd.concat([table("sgd"), table("nesterov")])
    steps = pd.concat([first, table("nesterov", workload="other")])
    one, other = (figure.axes[0] for figure in draw(only("steps_to_result", {"steps_to_result": steps})))
    assert legend(one) == ["sgd", "nesterov", PERFECT]
    named = {line.get_label(): line for line in one.lines}
    assert named["sgd"].get_color() != named["nesterov"].get_color()
    assert named["sgd"].get_marker() != named["nesterov"].get_marker()
    assert other.lines[0].get_color() == named["nesterov"].get_color()
    assert other.get_title("left") == "other"


def test_each_goal_has_its_panel():
    steps = pd.concat([table(), table().assign(goal_threshold=0.1)])
    panels = only("steps_to_result", {"steps_to_result": steps}).panels
    assert [panel["steps_to_result"]["goal_threshold"].iloc[0] for panel in panels] == [0.05, 0.1]


def test_learning_rates_and_the_rules_they_are_compared_with():
    ax = drawn("best_learning_rate", table())
    np.testing.assert_allclose(ax.lines[0].get_ydata(), [0.01, 0.02, 0.04, 0.08, 0.16])
    np.testing.assert_allclose(line(ax, "linear rule").get_ydata(), [0.01, 2.56])
    np.testing.assert_allclose(line(ax, "square-root rule").get_ydata(), [0.01, 0.16])
    effective = drawn("best_effective_learning_rate", table()).lines[0]
    np.testing.assert_allclose(effective.get_ydata(), [0.1, 0.2, 0.4, 0.8, 1.6])


def test_without_momentum_the_effective_learning_rate_is_the_learning_rate():
    steps = pd.concat([table("sgd", momentum=np.nan), table("nesterov")])
    sgd = drawn("best_effective_learning_rate", steps).lines[0]
    np.testing.assert_allclose(sgd.get_ydata(), [0.01, 0.02, 0.04, 0.08, 0.16])
    assert charts({"steps_to_result": steps[steps["optimizer"] == "sgd"]}, ["best_effective_learning_rate"]) == []
    plain = table("sgd").drop(columns="momentum")
    assert charts({"steps_to_result": plain}, ["best_effective_learning_rate"]) == []
    assert len(only("best_learning_rate", {"steps_to_result": plain}).panels) == 1


@pytest.mark.parametrize(
    "name", [name for name in FIGURES if FIGURES[name].table == "steps_to_result" and name != "several_goals"]
)
@pytest.mark.parametrize("sizes", [(64,), (1, 2), tuple(2**i for i in range(17)), (2, 55000)])
def test_ticks_are_plain_and_never_overlap(name, sizes):
    steps = pd.concat([table("sgd", sizes), table("nesterov", sizes, missed=sizes[-1:])])
    found = charts({"steps_to_result": steps, "scaling": limits(), "fits": fit_table(steps)}, [name])
    if not found:
        assert name == "time_and_examples"
        assert len(sizes) < 3
        return
    (figure,) = draw(found[0])
    with matplotlib.rc_context(canvas.STYLE):
        figure.draw_without_rendering()
    (ax,) = figure.axes
    for axis, start, end in ((ax.xaxis, "x0", "x1"), (ax.yaxis, "y0", "y1")):
        boxes = [label.get_window_extent() for label in axis.get_ticklabels()]
        assert len(boxes) >= 2
        boxes.sort(key=lambda box: getattr(box, start))
        assert all(getattr(a, end) < getattr(b, start) for a, b in pairwise(boxes))
    inside = figure.bbox.padded(1)
    assert all(inside.contains(*corner) for corner in ax.get_legend().get_window_extent().corners())


def test_thinning():
    assert canvas.powers_of_two(0.7, 1434, 6) == [1, 4, 16, 64, 256, 1024]
    assert canvas.powers_of_two(1, 8, 9) == [1, 2, 4, 8]
    assert canvas.round_decimals(0.004, 0.3, 9) == [0.005, 0.01, 0.02, 0.05, 0.1, 0.2]
    assert canvas.round_decimals(0.004, 0.3, 4) == [0.01, 0.03, 0.1, 0.3]
    assert canvas.round_decimals(1e-6, 1, 3) == [1e-6, 1e-3, 1]


def test_goals_in_words():
    assert goal_text(METRIC, 0.05) == "validation error < 0.05"
    assert goal_text("test/cross_entropy_error", 3.9) == "test cross entropy < 3.9"
    assert goal_text("loss", 1) == "loss < 1"


def test_files_are_whole_and_the_same_on_every_run(tmp_path):
    tables = {"steps_to_result": pd.concat([table("sgd", missed=(256,)), table()]), "scaling": limits()}
    for name in ("steps_to_result", "best_effective_learning_rate"):
        assert save(only(name, tables), tmp_path / "one") == save(only(name, tables), tmp_path / "two")
        for kind in ("svg", "png"):
            one, two = (tmp_path / folder / f"{name}.{kind}" for folder in ("one", "two"))
            assert one.read_bytes() == two.read_bytes()
    assert not [path for path in (tmp_path / "one").iterdir() if path.name.startswith(".")]
    assert charts({"steps_to_result": table().iloc[:0]}) == []


def test_names_are_text_and_not_markup():
    name = "a<b>&$x$_{y}"
    svg = canvas.svg(draw(only("steps_to_result", {"steps_to_result": table(name, workload=name)}))[0])
    assert b"a&lt;b&gt;&amp;$x$_{y}" in svg
    assert b"<b>" not in svg


def test_drawing_leaves_the_settings_of_matplotlib_alone():
    before = dict(matplotlib.rcParams)
    drawn("steps_to_result", table())
    assert dict(matplotlib.rcParams) == before
