"""Rules against tuning as they are read from files, put in words and drawn."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers.made_tables import METRIC, panels_of

from analysis.counting import Branch
from analysis.figures import canvas, charts
from analysis.load import load
from analysis.report import build
from analysis.tables import transfer
from study.search import stages


@pytest.fixture
def planted(tmp_path, make_study, make_curve, write_study):
    """Batch sizes 8 and 32 whose searches reach the goal at 40 and 20 steps in trial 1; `write` puts a moved
    configuration beside them, whose seeds reach it at these steps (None: missed; an int below 0: diverged)."""
    for size, steps in ((8, 40), (32, 20)):
        study = make_study(batch_size=size, trials=3)
        write_study(tmp_path, study, [make_curve(study, i, reaches=steps + 5 * abs(i - 1)) for i in range(3)])

    def write(rule, base, size, steps, rate=0.1, trial=1, wanted=None):
        branch = Branch(rerun=trial, rule=rule, base=base)
        point = {"learning_rate": rate, "momentum": 0.9}
        study = stages.trained_again(make_study(batch_size=size, trials=3), point, wanted or len(steps), branch)
        curves = [make_curve(study, i, reaches=s if s and s > 0 else None, bad=-s if s and s < 0 else None)
                  for i, s in enumerate(steps)]  # fmt: skip
        curves = [replace(curve, trial=study.trial(curve.trial.index, point)) for curve in curves]
        write_study(tmp_path, study, curves, close=wanted is None)
        return tmp_path

    return write


def read(folder):
    found = transfer.table(transfer.steps(list(load(folder))))
    return found.set_index(["base_batch_size", "rule", "batch_size"])


def test_planted_losses_and_misses_are_found(planted):
    planted("tuned", 32, 32, [20, 25, 30, 40, 50], rate=0.4)
    planted("linear", 8, 32, [40, 50, None, 80, -7], rate=0.8)
    row = read(planted("constant", 8, 32, [10, 25, 15, 20, 25], rate=0.2)).loc[8]
    linear, constant = row.loc["linear"].loc[32], row.loc["constant"].loc[32]
    assert (linear["seeds"], linear["missed"], linear["missed_share"]) == (5, 2, 0.4)
    assert (linear["missed_low"], linear["missed_high"]) == pytest.approx((0.0527, 0.8534), abs=1e-4)
    assert (linear["steps"], linear["steps_lost"]) == (80, 2)  # ratios 2, 2, missed, 2, missed
    assert linear["lost_high"] == np.inf
    assert (linear["learning_rate"], linear["tuned_learning_rate"]) == (0.8, 0.4)
    assert (linear["tuned_steps"], linear["steps_to_result"]) == (30, 20)
    assert (constant["missed"], constant["steps"], constant["steps_lost"]) == (0, 20, 0.5)
    assert (constant["lost_low"], constant["lost_high"]) == (0.5, np.inf)  # of five seeds there is no upper end


TUNED = [5, 10, 20, 40, 8, 16, 32, 6, 12, 24]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tuned", "runs", "expected"),
    [
        # Each run twice as slow as the one with its seed, and the seeds far apart: the loss is 2, and surely.
        (TUNED, [2 * steps for steps in TUNED], {"lost_low": 2, "steps_lost": 2, "lost_high": 2}),
        # The second and the ninth of ten.
        (TUNED, [2 * steps for steps in TUNED], {"low": 12, "steps": 24, "high": 64}),
        # Seeds that only one was trained with are not compared.
        ([20, 20], [30, 30, 90, 90, 90], {"seeds": 5, "steps": 90, "steps_lost": 1.5}),
        # A run without the goal counts as infinite, whatever the tuned one did: infinite, 0, 1, 1, 1, infinite.
        ([None, None, 20, 25, 20, 20], [None, 30, 20, 25, 20, None], {"steps_lost": 1}),
        ([None, None, 20, 25, 20, 20], [None, None, None, 33, None, None], {"missed": 5, "steps_lost": np.inf}),
        # What tuning misses with half of the seeds cannot be lost, nor is a move infinitely better.
        ([20, None, None, 40], [30] * 4, {"missed": 0, "steps": 30, "tuned_missed": 2, "tuned_steps": 40}),
        ([20, None, None, 40], [30] * 4, {"steps_lost": np.nan, "lost_low": np.nan, "lost_high": np.nan}),
    ],
)
def test_a_move_is_compared_with_the_tuned_runs_seed_by_seed(planted, tuned, runs, expected):
    planted("tuned", 32, 32, tuned)
    row = read(planted("constant", 8, 32, runs)).iloc[0]
    assert row[[*expected]].to_dict() == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_without_its_reference_a_move_still_has_its_misses(planted):
    folder = planted("constant", 8, 32, [30, None, 50])
    row = read(folder).iloc[0]
    assert (row["missed"], row["steps"]) == (1, 50)
    assert np.isnan(row["steps_lost"])
    table = transfer.table(transfer.steps(list(load(folder))))
    assert transfer.sentences(table) == []
    assert charts({"rules": table}, ["rules"]) == []


def test_runs_that_are_still_to_come_have_not_missed_the_goal(planted):
    row = read(planted("constant", 8, 32, [30, 40], wanted=10)).iloc[0]
    assert (row["seeds"], row["missed"]) == (2, 0)


@pytest.mark.slow
def test_what_was_moved_from_a_trial_that_was_beaten_since_is_left_out(planted):
    planted("constant", 8, 32, [30, 30], trial=0)
    folder = planted("square_root", 8, 32, [30, 30], trial=1)
    studies = list(load(folder))
    assert list(transfer.table(transfer.steps(studies))["rule"]) == ["square_root"]
    [line] = transfer.stale(studies)
    assert line.startswith("tiny, momentum: 1 moved configuration left out, because a better trial was found since")
    assert line in build.read([folder]).warnings


def test_nothing_is_current_where_a_wider_search_missed_the_goal(planted, make_study, make_curve, write_study):
    folder = planted("constant", 8, 32, [30, 30], trial=1)
    moved = [study for study in load(folder) if study.branch.rule is not None]
    for size in (8, 32):
        wide = make_study(batch_size=size, trials=3)
        write_study(folder / "wide", wide, [make_curve(wide, index) for index in range(3)])
    assert transfer.steps([*load(folder / "wide"), *moved]).empty


@pytest.mark.slow
def test_a_page_with_rules_says_so(planted):
    planted("tuned", 32, 32, [20, 20, 20])
    data = build.build([folder := planted("square_root", 8, 32, [50, 60, None])], planted("tuned", 8, 8, [40, 40, 40]))
    curve = "tiny with momentum to validation error < 0.1"
    words = f"{curve}: transferred from batch size 8, steps stay within 1.5 times the tuned steps: "
    assert f"{words}square root not even at the next batch size (3 times at 32)." in data.sentences
    assert "1 of 3 (1% to 91%)" in (folder / "report.html").read_text()


def moved(lost, base=32, rule="linear", missed=None, **more):
    """A table of losses by batch size; infinite where all ten seeds missed the goal."""
    found = pd.DataFrame({"batch_size": list(lost), "steps_lost": list(lost.values())}, dtype=float)
    found["missed"] = [(missed or {}).get(size, 10 if np.isinf(times) else 0) for size, times in lost.items()]
    names = {"workload": "digits", "optimizer": "sgd", "goal_metric": METRIC, "goal_threshold": 0.05, "seeds": 10}
    ends = {"lost_low": found["steps_lost"] * 0.9, "lost_high": found["steps_lost"] * 1.1}
    found = found.assign(**names, **ends, base_batch_size=base, rule=rule, **more)
    return found.astype({"batch_size": int})


@pytest.mark.parametrize(
    ("lost", "said"),
    [
        ({8: 1.5, 16: 1.0, 64: 1.2}, "from 8 to 64"),
        ({8: 1.2, 16: 2.0, 64: 1.2, 128: 1.6, 256: 1.0}, "from 32 to 64 (2 times at 16)"),  # no gap is crossed
        ({16: 3.0, 64: 1.6}, "not even at the next batch size (3 times at 16)"),
        ({16: np.inf, 64: 5.0}, "not even at the next batch size (at 16 it misses the goal in 10 of 10 trainings)"),
        ({2: np.inf, 16: np.inf, 64: 1.0}, "from 32 to 64 (at 2 and 16 it misses the goal in 20 of 20 trainings)"),
        ({64: 1.0, 128: np.nan, 256: 1.2}, "from 32 to 256"),  # at 128 the search alone missed the goal
    ],
)
def test_how_far_a_rule_carries(lost, said):
    [sentence] = transfer.sentences(moved(lost))
    assert sentence.endswith(f"times the tuned steps: linear with warmup {said}.")


def test_where_the_search_and_all_that_was_moved_missed_the_goal_is_no_bridge():
    [sentence] = transfer.sentences(moved({64: np.nan, 128: 1.0, 256: 1.2}, missed={64: 10}))
    assert sentence.endswith("not even at the next batch size (at 64 it misses the goal in 10 of 10 trainings).")
    assert transfer.sentences(moved({64: np.nan})) == []


def test_rules_have_one_order():
    names = ["linear_half_life", "mine", "square_root", "linear", "constant"]
    runs = pd.concat([moved({64: 30.0}, rule=name) for name in names]).rename(columns={"steps_lost": "steps"})
    runs = runs.assign(run=0, learning_rate=0.1, status="COMPLETE", steps_to_result=20.0)
    assert list(transfer.table(runs)["rule"]) == ["constant", "square_root", "linear", "linear_half_life", "mine"]
    assert transfer.table(runs.iloc[:0]).empty


def lines(ax, label):
    return [line for line in ax.lines if line.get_label() == label and len(line.get_xdata())]


def test_the_figure_shows_losses_around_the_base_and_misses_on_top():
    [ax] = panels_of("rules", {"rules": moved({8: 2.0, 16: 1.25, 64: 4.0, 128: np.inf}, missed={64: 3})})
    [curve] = lines(ax, "linear")
    np.testing.assert_array_equal(curve.get_xdata(), [8, 16, 32, 64, 128])
    np.testing.assert_array_equal(curve.get_ydata(), [2, 1.25, 1, 4, np.nan])
    assert curve.get_markevery() == [0, 1, 3, 4]  # at its base it has a star
    [star] = lines(ax, "tuned here and transferred")
    assert (list(star.get_xdata()), list(star.get_ydata())) == ([32], [1])
    [some] = lines(ax, "some seeds missed")
    assert list(some.get_xdata()) == [64]
    assert some.get_markerfacecolor() == canvas.PAPER
    [gone] = lines(ax, "most seeds missed")
    assert list(gone.get_xdata()) == [128]
    assert max(4 * 1.1, 4) < gone.get_ydata()[0] < ax.get_ylim()[1]
    labels = ["tuned here and transferred", "retuned", "95 % over seeds", "some seeds missed", "most seeds missed"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["linear", *labels]
    bars = lines(ax, "95 % over seeds")
    assert [tuple(bar.get_ydata()) for bar in bars][:2] == [(1.8, 2.2), (1.125, 1.375)]


def test_each_base_has_its_panel_and_each_rule_its_look_in_all_of_them():
    one = [moved({8: 1.0, 64: 2.0}, rule=rule) for rule in ("constant", "linear", "linear_half_life")]
    two = [moved({8: 1.0, 32: 2.0}, base=64, rule=rule) for rule in ("linear", "mine")]
    first, second = panels_of("rules", {"rules": pd.concat([*one, *two])})
    assert first.get_title("left") == "digits, from batch size 32"
    assert second.get_title("left") == "digits, from batch size 64"
    [linear], [kept], [again] = lines(first, "linear"), lines(first, "linear, half-lives"), lines(second, "linear")
    assert linear.get_color() == kept.get_color() == again.get_color()
    assert linear.get_linestyle() != kept.get_linestyle()
    assert linear.get_marker() == again.get_marker() != kept.get_marker()
    assert len({line.get_color() for line in (*lines(first, "constant"), linear, *lines(second, "mine"))}) == 3


@pytest.mark.parametrize("lost", [{16: np.inf, 64: np.inf}, {16: 0.0, 64: 0.4}, {55000: 1e6, 1: 1.0}])
def test_odd_losses_are_drawn_inside_their_axes(lost):
    [ax] = panels_of("rules", {"rules": moved(lost)})
    low, high = ax.get_ylim()
    assert 0 < low < 1 < high
    for line in lines(ax, "most seeds missed"):
        assert (line.get_ydata() < high).all()
        assert (line.get_ydata() > 1.2).all()
