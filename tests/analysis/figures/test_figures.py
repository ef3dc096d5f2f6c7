"""Figures: the data on the axes, and what stands for a missing result."""

import re

import numpy as np
import pandas as pd
import pytest
from helpers.made_tables import METRIC, drawn, errors_at, limits, only, panels_of, table, trials

from analysis.estimates import tuned
from analysis.estimates.limits import fitted
from analysis.estimates.tuned import SEEDS
from analysis.figures import canvas, charts
from analysis.figures.scaling import INFEASIBLE, INTERVAL, NOT_REACHED, OF_SEEDS, OPTIMUM, PERFECT
from analysis.tables import fits
from analysis.tables.best_errors import by_budget
from analysis.tables.trials import maps

NAMES = {"workload": "digits", "optimizer": "sgd", "goal_metric": METRIC, "goal_threshold": 0.05}


def line(ax, label):
    (found,) = [line for line in ax.lines if line.get_label() == label]
    return found


def legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def points(ax, label):
    return {(float(x), float(y)) for x, y in zip(*line(ax, label).get_data(), strict=True)}


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
    assert low < 36 < 5000 < high
    budgets = line(drawn("examples_to_result", table(missed=(256,))), NOT_REACHED).get_ydata()
    assert list(budgets) == [5000 * 256]


def places(ax, *labels):
    """The centres of unconnected marks on the screen [pixels]."""
    marks = [line for line in ax.lines if line.get_label() in labels]
    return [tuple(xy) for mark in marks for xy in mark.get_transform().transform(np.column_stack(mark.get_data()))]


@pytest.mark.parametrize("missed", [(256,), (64, 256), (1, 4, 16, 64, 256)])
@pytest.mark.parametrize("names", [("adam", "sgd"), ("adam", "lamb", "sgd"), ("a", "b", "c", "d", "e")])
@pytest.mark.parametrize("hopeless", [False, True])
def test_marks_at_one_budget_stand_side_by_side(missed, names, hopeless):
    counts = {"complete": 0, "infeasible": 4} if hopeless else {}
    ax = drawn("steps_to_result", pd.concat([table(name, missed=missed).assign(**counts) for name in names]))
    found = sorted(places(ax, NOT_REACHED, INFEASIBLE))
    assert len(found) == len(missed) * len(names)
    apart = np.diff([x for x, _ in found]) / ax.figure.dpi * 72
    assert (apart > 5).all()  # a mark is 7 points wide
    sizes = ax.transData.transform([(size, 5000) for size in missed])[:, 0]
    nearest = [np.abs(sizes - x).argmin() for x, _ in found]
    assert nearest == [place for place in range(len(missed)) for _ in names]


def test_a_mark_that_hides_none_stands_at_its_batch_size():
    ax = drawn("steps_to_result", pd.concat([table("adam", missed=(256,)), table("sgd", missed=(64,))]))
    exact = ax.transData.transform([(64, 5000), (256, 5000)])
    np.testing.assert_allclose(sorted(places(ax, NOT_REACHED)), exact)


@pytest.mark.parametrize(
    ("fates", "label", "note"),
    [
        (["INFEASIBLE"], "", "learning rate; every trial diverged"),
        (["COMPLETE", "INFEASIBLE"], "steps to validation error < 0.05", "learning rate"),
    ],
)
def test_the_axis_of_steps_is_empty_where_every_trial_diverged(fates, label, note):
    points = trials()[lambda rows: rows["status"].isin(fates)]
    axes = points.assign(parameter="learning_rate", scale="log", value=points["learning_rate"])
    [ax] = panels_of("along_axes", {"axes": axes})
    assert ax.get_ylabel().replace("\n", " ") == label
    assert bool(len(ax.get_yticks())) == bool(label)
    assert note in [text.get_text() for text in ax.texts]
    [cross] = [line for line in ax.lines if line.get_label() == "infeasible"]
    low, high = ax.get_ylim()
    assert (low < cross.get_ydata()).all()
    assert (cross.get_ydata() < high).all()


def test_where_no_trial_was_feasible_no_budget_was_missed():
    steps = table(missed=(16, 64, 256)).assign(complete=[4, 4, 0, 0, 2], infeasible=[0, 0, 4, 0, 2])
    ax = drawn("steps_to_result", steps)
    assert list(line(ax, INFEASIBLE).get_xdata()) == [16]
    assert list(line(ax, NOT_REACHED).get_xdata()) == [64, 256]
    assert line(ax, INFEASIBLE).get_marker() == "x"
    assert {INFEASIBLE, NOT_REACHED} <= {*legend(ax)}


def test_a_study_without_any_result_is_drawn():
    steps = table(missed=(1, 4, 16, 64, 256))
    assert len(line(drawn("steps_to_result", steps), NOT_REACHED).get_xdata()) == 5
    assert charts({"steps_to_result": steps}, ["best_learning_rate"]) == []


def test_limits_drop_from_the_curve_and_point_on_where_no_end_is_shown():
    ax = drawn("steps_to_result", table(), limits())
    perfect = line(ax, "perfect-scaling limit")
    assert list(perfect.get_xdata()) == [16, 16]
    assert perfect.get_ydata()[1] == pytest.approx(82)
    drop, arrow = (mark for mark in ax.lines if mark.get_label() == "maximum useful batch size")
    assert list(drop.get_xdata()) == [256, 256]
    assert arrow.get_marker() == ">"
    assert legend(ax)[2:] == ["perfect-scaling limit: 16", "maximum useful batch size: ≥ 256"]


def test_a_limit_that_was_not_found_or_lies_outside_is_not_drawn():
    ax = drawn("steps_to_result", table(), limits(perfect=(4096.0, "=")))
    assert legend(ax)[2:] == ["maximum useful batch size: ≥ 256"]
    ax = drawn("steps_to_result", table(), limits(perfect=(np.nan, "="), useful=(64.0, "=")))
    assert legend(ax)[2:] == ["maximum useful batch size: 64"]


def test_of_several_curves_only_ends_that_are_shown_are_drawn():
    """All others would stand on top of one another, at the first or last batch size."""
    steps = pd.concat([table("sgd"), table("nesterov")])
    both = pd.concat([limits("sgd", perfect=(1.0, "<")), limits("nesterov", useful=(64.0, "="))])
    (ax,) = panels_of("steps_to_result", {"steps_to_result": steps, "scaling": both})
    named = [line for line in ax.lines if re.search("limit|useful", line.get_label())]
    drawn_at = {(line.get_label(), line.get_xdata()[0]) for line in named}
    assert drawn_at == {("perfect-scaling limit", 16), ("maximum useful batch size", 64)}


@pytest.mark.parametrize(("curves", "ends"), [(2, ("perfect-scaling limit", "maximum useful batch size")), (3, ())])
def test_many_curves_have_only_the_marks_that_tell_them_apart(curves, ends):
    names = ["sgd", "nesterov", "adam"][:curves]
    seeds = {"read_from": SEEDS, "tuned_low": 20.0, "tuned_high": 2000.0}
    steps = pd.concat([table(name).assign(tuned_steps=lambda rows: rows["steps_to_result"], **seeds) for name in names])
    every = [limits(name, useful=(64.0, "=")) for name in names]
    (ax,) = panels_of("steps_to_result", {"steps_to_result": steps, "scaling": pd.concat(every)})
    assert ("fewest steps of the search" in legend(ax)) == (curves == 2)
    assert {label for label in legend(ax) if re.search("limit|useful", label)} == set(ends)
    assert [drawn.get_label() for drawn in ax.lines].count(PERFECT) == 1


def test_optimizers_share_axes_and_keep_their_colours_in_every_panel():
    first = pd.concat([table("sgd"), table("nesterov")])
    steps = pd.concat([first, table("nesterov", workload="other")])
    one, other = panels_of("steps_to_result", {"steps_to_result": steps})
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


def test_several_goals_share_axes():
    steps = pd.concat([table(), table().assign(goal_threshold=0.1, steps_to_result=pd.array([500, 90, 30, 20, 9]))])
    (ax,) = panels_of("several_goals", {"steps_to_result": steps})
    assert legend(ax) == ["validation error < 0.1", "validation error < 0.05"]  # the easier first
    assert list(line(ax, "validation error < 0.1").get_ydata()) == [500, 90, 30, 20, 9]
    assert charts({"steps_to_result": table()}, ["several_goals"]) == []


def test_a_goal_that_was_missed_stands_open_at_its_budget_beside_the_others():
    steps = pd.concat([table(), table(missed=(64,)).assign(goal_threshold=0.01)])
    (ax,) = panels_of("several_goals", {"steps_to_result": steps})
    budget = steps.loc[steps["batch_size"] == 64, "train_steps"].iloc[0]
    assert points(ax, "not reached in budget") == {(64, budget)}
    assert "not reached in budget" in legend(ax)


def test_relative_steps_are_one_where_they_are_normalised():
    rows = [("mlp", 1, 2.0), ("mlp", 2, 1.0), ("cnn", 2, 1.0), ("cnn", 4, np.nan)]
    relative = pd.DataFrame(rows, columns=["workload", "batch_size", "relative_steps"])
    relative = relative.assign(compared="models", of="digits", optimizer="sgd", norm=2)
    relative = relative.assign(goal_metric=METRIC, goal_threshold=0.05)
    (ax,) = panels_of("relative_models", {"relative": relative})
    assert legend(ax) == ["cnn", "mlp", PERFECT]
    np.testing.assert_array_equal(line(ax, "cnn").get_ydata(), [1, np.nan])
    (x0, x1), (y0, y1) = line(ax, PERFECT).get_data()
    assert (x0, y0, x1, y1) == (2, 1, 4, 0.5)
    assert charts({"relative": relative}, ["relative_data_sets", "relative_subsets"]) == []


def test_time_and_examples_has_a_point_a_batch_size_and_both_fits():
    steps = table()
    (ax,) = panels_of("time_and_examples", {"steps_to_result": steps, "fits": fits.table(steps)})
    expected = {(float(s), float(s * b)) for s, b in zip(steps["steps_to_result"], steps["batch_size"], strict=True)}
    assert points(ax, "nesterov") == expected
    x, y = line(ax, "hyperbola").get_data()
    fit = fits.table(steps).set_index("fit").loc["hyperbola"]
    np.testing.assert_allclose((x / fit["steps_min"] - 1) * (y / fit["examples_min"] - 1), 1)
    assert "shoulder fit" in legend(ax)


def test_the_sharpest_bend_far_from_the_batch_sizes_is_drawn():
    steps = table()  # a warning is an error here: 50 is the largest sharpness of a fit, 4096^50 is too large a number
    far = fits.table(steps).assign(sharpness=50.0, critical_batch_size=4096.0 * steps["batch_size"].max())
    (ax,) = panels_of("time_and_examples", {"steps_to_result": steps, "fits": far})
    assert sum(each.get_label() in ("hyperbola", "shoulder") for each in ax.lines) == 2


def test_time_and_examples_go_through_the_steps_with_fresh_seeds_and_so_do_their_fits():
    steps = table().assign(read_from="fresh seeds", seeds=4, missed=0)
    steps["tuned_steps"] = steps["steps_to_result"].astype(float) * np.where(steps["batch_size"] == 1, 2, 1.5)
    found = fitted(steps)
    assert found["read_from"].tolist() == ["fresh seeds", "fresh seeds", "search", "search"]
    assert (found["steps_min"][:2].to_numpy() > 1.2 * found["steps_min"][2:].to_numpy()).all()
    (ax,) = panels_of("time_and_examples", {"steps_to_result": steps, "fits": found})
    assert points(ax, "nesterov") == {
        (s, s * b) for s, b in zip(steps["tuned_steps"], steps["batch_size"], strict=True)
    }
    assert sum(each.get_label() == "hyperbola" for each in ax.lines) == 1


def test_seconds_are_steps_times_what_a_step_took():
    seconds = table().assign(device="cpu", seconds_per_step=[0.1, 0.1, 0.2, 0.4, np.nan])
    (ax,) = panels_of("seconds_to_result", {"seconds": seconds})
    np.testing.assert_allclose(line(ax, "nesterov").get_ydata(), [102, 27, 16.4, 14.4, np.nan])
    assert "cpu" in [text.get_text() for text in ax.texts]
    assert PERFECT not in legend(ax)
    assert charts({"seconds": seconds.assign(seconds_per_step=np.nan)}, ["seconds_to_result"]) == []


def test_every_trial_is_a_point_along_an_axis():
    axes = pd.concat([trials(b).assign(parameter=p, scale=s) for p, s in SCALES.items() for b in (2, 8, 32, 128)])
    axes["value"] = np.where(axes["parameter"] == "learning_rate", axes["learning_rate"], axes["momentum"])
    found = panels_of("along_axes", {"axes": axes})
    assert [ax.get_title("left") for ax in found] == ["batch size 2", "batch size 32", "batch size 128"] * 2
    assert [ax.get_xlabel() for ax in found] == ["learning rate"] * 3 + ["1 − momentum"] * 3
    assert points(found[0], "reached") == {(0.1, 300)}
    assert points(found[0], "not reached") == {(0.2, 2000)}
    assert list(line(found[0], "infeasible").get_xdata()) == [0.4]
    assert list(line(found[3], "reached").get_xdata()) == pytest.approx([0.1])


SCALES = {"learning_rate": "log", "momentum": "reverse_log"}


def test_a_map_shows_what_became_of_each_trial_within_the_budget():
    (ax,) = panels_of("map_at_fixed_examples", {"maps": maps(trials())})
    assert ax.get_xlabel() == "learning rate"
    assert ax.get_ylabel() == "1 − momentum"
    for state, rate in (("reached", 0.1), ("not reached", 0.2), ("infeasible", 0.4), ("fastest", 0.1)):
        assert list(line(ax, state).get_xdata()) == [rate]
    assert any("within 2,400 examples" in text.get_text() for text in ax.texts)
    (steps,) = panels_of("map_at_fixed_steps", {"maps": maps(trials())})
    assert any("within 300 steps" in text.get_text() for text in steps.texts)


def test_best_of_n_has_a_curve_for_up_to_six_batch_sizes():
    rows = [(2**b, n, 1000 / n if n > 1 else np.inf) for b in range(10) for n in (1, 2, 4)]
    best = pd.DataFrame(rows, columns=["batch_size", "n", "steps"])
    (ax,) = panels_of("best_of_n", {"best_of_n": best.assign(**NAMES)})
    first, *between, last = legend(ax)
    assert (first, len(between), last) == ("batch size 1", 4, "batch size 512")
    assert points(ax, "batch size 1") == {(2, 500), (4, 250)}  # what is infinite has no point


def test_the_minimum_of_the_model_is_drawn_for_refine_alone():
    steps = pd.concat([table("sgd"), table("nesterov")])
    model = steps[["workload", "optimizer", "batch_size", "goal_metric", "goal_threshold"]].assign(
        sampler=np.where(steps["optimizer"] == "sgd", "refine", "sobol"),
        **{"model_steps": 17.0, "share": 0.04, "share_low": 0.0, "share_high": 0.1},
    )
    (ax,) = panels_of("steps_to_result", {"steps_to_result": steps, "tunability": model})
    [line] = [line for line in ax.lines if line.get_label() == "minimum of the model"]
    assert set(line.get_ydata()) == {17}
    assert "minimum of the model" in legend(ax)
    (ax,) = panels_of("steps_to_result", {"steps_to_result": steps, "tunability": model.iloc[:0].astype(object)})
    assert "minimum of the model" not in legend(ax)
    (ax,) = panels_of("tunability", {"tunability": model})
    assert points(ax, "sgd") == {(size, 4) for size in steps["batch_size"]}
    assert min(line.get_ydata().min() for line in ax.lines) == 0.01  # nothing is drawn at 0


def test_the_legend_names_another_goal_that_was_tuned_for():
    assert "tuned for validation error < 0.1" in legend(
        drawn("steps_to_result", table().assign(tuned_for="validation error < 0.1"))
    )
    assert not [text for text in legend(drawn("steps_to_result", table().assign(tuned_for=None))) if "tuned" in text]


@pytest.mark.parametrize("name", ["steps_to_result", "examples_to_result", "seconds_to_result"])
@pytest.mark.parametrize(
    ("count", "fresh", "held"), [(5, 3, OF_SEEDS), (6, 3, OPTIMUM), (6, 1, OPTIMUM), (5, 1, None), (6, 0, INTERVAL)]
)
def test_the_legend_says_what_the_bars_hold(name, count, fresh, held):
    steps = table(sizes=tuple(4**power for power in range(count)))
    key = ["workload", "optimizer", "batch_size", "goal_metric", "goal_threshold"]
    again = [steps[key].assign(steps=steps["steps_to_result"] * (1.0 + 0.1 * seed)) for seed in range(fresh)]
    runs = pd.concat([*again, steps[key].iloc[:0].assign(steps=0.0)])
    steps = tuned.table(steps, runs).assign(low=15.0, high=2000.0)
    shown = steps.assign(seconds_per_step=0.01, device="cpu") if name == "seconds_to_result" else steps
    (ax,) = panels_of(name, {"seconds" if name == "seconds_to_result" else "steps_to_result": shown})
    assert [text for text in legend(ax) if "95 %" in text] == [held] * bool(held)


def test_reruns_stand_beside_the_search_that_they_repeat():
    runs = pd.DataFrame({"rerun": [0, 1, 2], "steps": [120.0, 150.0, np.inf], "status": "COMPLETE"})
    (ax,) = panels_of("reruns", {"rerun_steps": runs.assign(**NAMES, batch_size=8, trial=3, steps_to_result=100)})
    assert points(ax, "sgd: the search") == {(8, 100)}
    assert sorted(line(ax, "rerun").get_ydata()) == [120, 150]
    assert len(line(ax, "rerun missed").get_xdata()) == 1


@pytest.mark.parametrize(("at_8", "at_64", "drawn_at"), [(0.2, 0.1, 0.1), (0.04, 0.0, 0.02)], ids=["above 0", "0"])
def test_errors_against_budgets_and_batch_sizes(at_8, at_64, drawn_at):
    """On a log axis an error of 0 has a place, too."""
    falling = pd.concat([errors_at(8, [(10, 0.5), (100, at_8)]), errors_at(64, [(10, 0.3), (100, at_64)])])
    (ax,) = panels_of("error_against_budget", {"best_errors": falling})
    assert points(ax, "batch size 8") == {(10, 0.5), (100, at_8)}
    assert points(ax, "batch size 64") == {(10, 0.3), (100, drawn_at)}
    assert any("0 drawn at 0.02" in text.get_text() for text in ax.texts) is (at_64 == 0)
    by_steps, by_examples = panels_of("error_against_batch_size", {"budgets": by_budget(falling)})
    assert points(by_steps, "100 steps") == {(8, at_8), (64, drawn_at)}
    assert points(by_examples, "800 examples (0.8 epochs)") == {(8, at_8), (64, 0.3)}


@pytest.mark.parametrize(
    ("errors", "drawn_at"), [((0.3, 0.28, 0.25), (0.3, 0.28, 0.25)), ((0.0, 0.0, 0.0), (0.001, 0.001, 0.001))]
)
def test_label_smoothing_has_a_linear_axis_from_zero(errors, drawn_at):
    values = (0.0, 0.01, 0.1)
    smoothing = pd.DataFrame({"label_smoothing": values, "error": errors, "trials": 5, "batch_size": 8})
    (ax,) = panels_of("label_smoothing", {"smoothing": smoothing.assign(**NAMES)})
    assert ax.get_xscale() == "linear"
    assert points(ax, "batch size 8") == set(zip(values, drawn_at, strict=True))


@pytest.mark.parametrize(("tokens", "shown"), [(None, None), (512, ["512", *(f"{2**k}k" for k in range(8))])])
def test_batch_sizes_in_tokens_on_top(tokens, shown):
    steps = table() if tokens is None else table().assign(tokens_per_example=tokens)
    tops = drawn("steps_to_result", steps).child_axes
    assert [text.get_text() for top in tops for text in top.get_xticklabels()] == (shown or [])
