"""Statements about pairs of curves: known answers, missed seeds, false alarms, and what is said of them."""

import numpy as np
import pandas as pd
import pytest
from helpers.estimated import ends
from scipy import stats

from analysis.estimates import pairs, verdicts
from analysis.estimates.pairs import ALL, BEYOND, CONFIGURATIONS, KINDS, ONE, SEARCHES, UP_TO, SeededCurve, statements

INF, NAN = np.inf, np.nan
SIZES = (1, 4, 16, 64, 256, 1024)


def each(sizes, steps):
    return dict.fromkeys(sizes, steps)


def measured(steps, residual=NAN, free=2, critical=NAN):
    return SeededCurve({size: ends(taken) for size, taken in steps.items()}, residual, free, critical)


def of(found, kind):
    return [statement for statement in found if statement.kind == kind]


def noisy(generator, factors, noise=0.2, tuning=0.0, seeds=4):
    """Steps of fresh seeds by batch size; tuning moves a whole batch size, noise a seed."""
    return {
        size: 100 * factor * np.exp(tuning * generator.standard_normal() + noise * generator.standard_normal(seeds))
        for size, factor in zip(SIZES, factors, strict=True)
    }


def test_the_kinds_in_their_order_and_students_intervals():
    generator = np.random.default_rng(0)
    a, b = noisy(generator, [1] * 6), noisy(generator, [1, 1, 1, 2, 2, 2])
    found = statements(measured(a, 0.1, 2, 30.0), measured(b, 0.2, 2, 90.0))
    assert list(dict.fromkeys(statement.kind for statement in found)) == [*KINDS[:-1]]
    assert [(s.smallest_batch_size, s.largest_batch_size) for s in found[:3]] == [(1, 1024), (1, 16), (64, 1024)]
    d = np.array([np.log(b[size] / a[size]) for size in SIZES])
    for statement, rows in zip(found[:3], (d, d[:3], d[3:]), strict=True):
        means = rows.mean(axis=1)
        low, high = stats.t.interval(0.95, len(means) - 1, means.mean(), stats.sem(means))
        assert np.log(statement[3:]) == pytest.approx([means.mean(), low, high])
    one = of(found, ONE)[0]
    variance = d.var(axis=1, ddof=1).mean() / 4 + 0.1**2 + 0.2**2
    assert np.log(one[3:]) == pytest.approx(d[0].mean() + np.array([0, -1, 1]) * stats.t.ppf(0.975, 2) * variance**0.5)
    alone = of(found, CONFIGURATIONS)[0]
    low, high = stats.t.interval(0.95, 3, d[0].mean(), stats.sem(d[0]))
    assert np.log(alone[3:]) == pytest.approx([d[0].mean(), low, high])


@pytest.mark.parametrize(
    ("a", "b", "kinds"),
    [
        (each(SIZES[:2], [100, 110]), each(SIZES[:2], [100, 120]), {CONFIGURATIONS}),
        (each(SIZES, [100, 110]), each(SIZES[3:], [100, 120]), {ALL, CONFIGURATIONS}),
        (each(SIZES, [100]), each(SIZES, [100]), {ALL}),  # one seed has no variance
        ({}, each(SIZES, [100, 120]), set()),
        (each(SIZES, [INF, INF]), each(SIZES, [INF, INF]), set()),
    ],
    ids=["two_batch_sizes", "three_shared", "one_seed", "no_seeds", "all_missed"],
)
def test_what_the_data_allow(a, b, kinds):
    found = statements(measured(a), measured(b))
    assert {statement.kind for statement in found} == kinds


def test_no_split_without_a_finite_critical_batch_size():
    steps = each(SIZES, [100, 110])
    assert not of(statements(measured(steps), measured(steps)), UP_TO)
    found = statements(measured(steps, critical=16.0), measured(steps))  # the other one scales to the end
    assert (of(found, UP_TO)[0].largest_batch_size, of(found, BEYOND)[0].smallest_batch_size) == (16, 64)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([100] * 6, [INF] * 6, (INF, INF, INF)),
        ([100] * 5, [INF] * 5, (INF, 0, INF)),  # with five seeds a two-sided sign test rejects nothing
        ([100] * 6, [120, 130, 140, 150, 160, INF], (1.45, 1.2, INF)),
        ([100, 100, INF, INF, 100, 100], [INF, INF, 100, 100, 100, 100], (1, 0, INF)),
        ([100, INF, 100, 100], [110, INF, 120, 130], (1.197, 0.972, 1.473)),  # both missed: left out
    ],
)
def test_missed_seeds_are_judged_by_a_sign_test(a, b, expected):
    [found] = statements(measured({8: a}), measured({8: b}))
    assert found.kind == CONFIGURATIONS
    assert found[3:] == pytest.approx(expected, rel=0.01)
    assert found.shown == (expected[1] > 1)


@pytest.mark.parametrize("count", [5, 6, 8, 9, 20])
@pytest.mark.parametrize("confidence", [0.95, 0.995])
def test_the_sign_interval_is_the_sign_test(count, confidence):
    values = np.arange(1.0, count + 1)
    low, high = pairs.sign_interval(values, confidence)
    for median in values + 0.5:
        rejected = stats.binomtest(int((values > median).sum()), count).pvalue <= 1 - confidence
        assert rejected == (not low < median < high)


def alarms(generator, factor, sweeps, tuning):
    """The shares of pairs of curves that are shown to differ over all, and at a single batch size."""
    shown = []
    for _ in range(sweeps):
        curves = [noisy(generator, [slower] * 6, tuning=tuning) for slower in (1, factor)]
        found = statements(*(measured(curve, np.hypot(tuning, 0.125), 2) for curve in curves))
        shown.append([of(found, ALL)[0].shown, np.mean([statement.shown for statement in of(found, ONE)])])
    return np.mean(shown, axis=0)


def test_false_alarms_and_power():
    over_all, single = alarms(np.random.default_rng(0), 1.0, 60, tuning=0.1)
    assert over_all <= 0.12
    assert single <= 0.05
    assert alarms(np.random.default_rng(1), 1.5, 20, tuning=0.1)[0] > 0.8


@pytest.mark.slow
def test_how_often_equal_curves_are_called_different():
    over_all, single = alarms(np.random.default_rng(0), 1.0, 1000, tuning=0.2)
    assert 0.03 < over_all < 0.07
    assert single < 0.05


@pytest.mark.parametrize(
    ("other", "split"),
    [
        ((1024.0, NAN, NAN, ">"), True),
        ((16.0, NAN, NAN, ">"), False),  # which of the two is smaller is unknown
        ((1.0, NAN, NAN, "<"), False),  # the smaller one is not inside the measured range
        ((NAN, NAN, NAN, "="), True),
    ],
)
def test_the_range_is_split_only_where_the_smaller_critical_batch_size_is_known(other, split):
    table, _ = compared({"adam": FLAT, "sgd": SLOWER}, {"adam": other, "sgd": (30.0, 20.0, 45.0, "=")})
    assert (table["kind"] == UP_TO).any() == (table["kind"] == BEYOND).any() == split


METRIC = {"goal_metric": "val/loss", "goal_threshold": 0.1}


def compared(fresh, critical, known=(8,)):
    """The table of pairs and the limits of curves {optimizer: SeededCurve}."""
    names = sorted(fresh)
    rows = [(a, b, 8, 1.0, 0.5, 2.0) for n, a in enumerate(names) for b in names[n + 1 :]]
    searches = pd.DataFrame(rows, columns=["optimizer", "against", "batch_size", "speed_up", "low", "high"])
    ends = pd.DataFrame({"optimizer": names, "definition": "critical_batch_size_mccandlish"})
    columns = ("estimate", "estimate_low", "estimate_high", "estimate_bound")
    ends = ends.assign(**dict(zip(columns, zip(*(critical[name] for name in names), strict=True), strict=True)))
    runs = [
        {"optimizer": name, "batch_size": size, "rerun": number, "steps": steps}
        for name in names
        for size, taken in fresh[name].items()
        for number, steps in enumerate(taken)
    ]
    frames = searches, ends, pd.DataFrame(runs, columns=["optimizer", "batch_size", "rerun", "steps"])
    searches, ends, again = (frame.assign(workload="tiny", **METRIC) for frame in frames)
    steps = pd.DataFrame({"optimizer": np.repeat(names, len(known)), "workload": "tiny", **METRIC})
    steps = steps.assign(residual_sd=0.05, curve_steps=1.0, read_from="fresh seeds", tuned_steps=1.0)
    steps["batch_size"] = np.tile(known, len(names))
    return pairs.table(searches, steps, ends, again), ends


KNOWN = {"adam": (300.0, 200.0, 450.0, "="), "sgd": (30.0, 20.0, 45.0, "=")}
FLAT = each(SIZES, [100, 110, 90, 105])
SLOWER = {size: [steps * (2.2 if size > 30 else 1) * (1 + 0.01 * size % 0.3) for steps in FLAT[size]] for size in SIZES}


@pytest.mark.parametrize(
    ("fresh", "critical", "expected"),
    [
        (
            {"adam": FLAT, "sgd": SLOWER},
            KNOWN,
            [
                "adam and sgd are tied up to the critical batch size, over 1 to 16 (a factor of 1.",
                "adam needs 2.37 times (95%: 2.03 to 2.78) fewer steps than sgd beyond the critical batch size",
                "critical batch sizes 300 with adam and 30 with sgd, a ratio of 10 (95%: 5.64 to 17.7).",
            ],
        ),
        (
            {"adam": FLAT, "sgd": FLAT},
            KNOWN | {"adam": (1024.0, NAN, NAN, ">")},
            [
                "neither adam nor sgd is shown to need fewer steps: tied, a factor of 1 would have shown.",
                "critical batch sizes at least 1,024 with adam and 30 with sgd.",  # a bound has no ratio
            ],
        ),
        (
            {"adam": FLAT, "sgd": FLAT},
            KNOWN | {"adam": (40.0, 20.0, 80.0, "=")},
            ["critical batch sizes 40 with adam and 30 with sgd, a ratio of 1.33 (95%: 0.597 to 2.98): tied."],
        ),
        (
            {"adam": {}, "sgd": {}},
            KNOWN,
            ["tied, a factor of 2 would have shown; fresh seeds (search.reruns=4"],
        ),
        (
            {"adam": FLAT, "sgd": SLOWER, "lamb": FLAT},
            KNOWN | {"lamb": (NAN, NAN, NAN, "=")},
            [
                "no other pair of adam, lamb and sgd is shown to differ: tied",
                "adam and sgd are tied up to the critical batch size",  # a tie names its pair
                "lamb and sgd are tied up to the critical batch size",
            ],
        ),
        (
            {"adam": FLAT, "sgd": FLAT, "lamb": {**FLAT, 256: [steps / 2 for steps in FLAT[256]]}},
            KNOWN | {"lamb": (NAN, NAN, NAN, "=")},
            [
                "lamb needs fewer steps than adam at batch size 256 (2 times, 2 to 2), by seeds alone: better tuning",
                "lamb needs fewer steps than sgd at batch size 256 (2 times, 2 to 2), by seeds alone: better tuning",
            ],
        ),
    ],
    ids=["faster_beyond", "tied_and_bound", "ratio_tied", "searches_alone", "three", "seeds_alone"],
)
def test_what_is_said(fresh, critical, expected):
    said = " ".join(verdicts.sentences(*compared(fresh, critical)))
    assert [words for words in expected if words not in said] == [], said


def test_curves_that_cross_are_not_said_to_tie():
    factors = dict(zip(SIZES, (3, 2, 1, 1, 1 / 2, 1 / 3), strict=True))
    crossing = {size: [steps * factor for steps in FLAT[size]] for size, factor in factors.items()}
    first, second, *_ = verdicts.sentences(*compared({"adam": crossing, "sgd": FLAT}, KNOWN, SIZES))
    assert first.split("; ")[0].endswith(
        ": adam needs fewer steps than sgd at some batch sizes and more at others over batch sizes 1 to 1,024"
    )
    assert "are tied up to the critical batch size, over 1 to 16" in first
    assert "adam needs fewer steps than sgd at batch size 256 (2 times, " in second
    assert "sgd needs fewer steps than adam at batch size 1 (3 times, " in second


def test_searches_without_known_steps_are_not_said_to_be_tied():
    missed, limits = compared({"adam": {}, "sgd": {}}, dict.fromkeys(KNOWN, (NAN, NAN, NAN, "=")))
    assert verdicts.sentences(missed.assign(ratio=NAN, low=0.0, high=np.inf), limits) == []


@pytest.mark.parametrize(
    ("ratio", "ahead", "behind"), [(np.inf, "adam", "sgd"), (0.0, "sgd", "adam")], ids=["the second", "the first"]
)
def test_a_search_that_never_reached_the_goal_is_not_tied(ratio, ahead, behind):
    searches, limits = compared({"adam": {}, "sgd": {}}, dict.fromkeys(KNOWN, (NAN, NAN, NAN, "=")))
    [said] = verdicts.sentences(searches.assign(ratio=ratio, low=NAN, high=NAN, shown=False), limits)
    assert said.endswith(f": {ahead} and {behind} have no ratio, as only {ahead} has known steps to the goal.")


RATHER = "it is not known yet "
ONE_TRIAL = (NAN, NAN)


@pytest.mark.parametrize(
    ("ends", "words", "tied"),
    [
        ({("adam", "sgd"): ONE_TRIAL}, "whether adam or sgd needs fewer steps: by these trials the interval of", False),
        ({("adam", "sgd"): (0.0, INF)}, "whether adam or sgd needs fewer steps: by these trials the interval", False),
        ({("adam", "sgd"): (0.8, INF)}, "whether adam or sgd needs fewer steps: by these trials the interval", False),
        ({("adam", "sgd"): (0.8, 1.25)}, None, True),
        (
            {("adam", "lamb"): ONE_TRIAL, ("adam", "sgd"): ONE_TRIAL, ("lamb", "sgd"): ONE_TRIAL},
            "which of adam, lamb and sgd needs fewer steps",
            False,
        ),
        (
            {("adam", "lamb"): (0.8, 1.25), ("adam", "sgd"): ONE_TRIAL, ("lamb", "sgd"): ONE_TRIAL},
            "which needs fewer steps of adam and sgd or of lamb and sgd",
            True,
        ),
    ],
)
@pytest.mark.parametrize("cure", [True, False])
def test_a_pair_without_an_interval_is_not_said_to_tie(ends, words, tied, cure):
    known = dict.fromkeys(("adam", "lamb", "sgd"), (NAN, NAN, NAN, "="))
    table, limits = compared({name: {} for pair in ends for name in pair}, known)
    for (a, b), interval in ends.items():
        table.loc[(table["a"] == a) & (table["b"] == b), ["low", "high"]] = interval
    said = verdicts.sentences(table.assign(shown=False), limits, cure=cure)
    assert any("a factor of 1.2 would have shown" in each for each in said) == tied
    assert not [each for each in said if "no other pair" in each]
    assert not [each for each in said if "no factor" in each]
    untold = [each for each in said if RATHER in each]
    assert len(untold) == (words is not None)
    for each in untold:
        assert f": {RATHER}{words}" in each
        assert (
            "run at least 4 trials at each batch size (search.trials) and fresh seeds (search.reruns=4" in each
        ) == cure


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            ALL,
            "it is not known yet whether a or b needs fewer steps over batch sizes 8 to 512: by these fresh",
        ),
        (ONE, "it is not known yet whether a or b needs fewer steps at each single batch size: by these fresh seeds"),
    ],
)
def test_a_statement_without_an_interval_is_no_tie_beside_one_that_is_shown(kind, words):
    row = {"workload": "w", "a": "a", "b": "b", "goal_metric": "val/loss", "goal_threshold": 1.0, "ratio": 1.1}
    row |= {"smallest_batch_size": 8, "largest_batch_size": 512}
    open_ = row | {"kind": kind, "low": 0.0, "high": INF, "shown": False}
    shown = row | {"kind": CONFIGURATIONS, "low": 1.05, "high": 1.2, "shown": True}
    columns = ["workload", "optimizer", "goal_metric", "goal_threshold", "definition", "estimate"]
    said = " ".join(verdicts.sentences(pd.DataFrame([open_, shown]), pd.DataFrame(columns=columns)))
    assert words in said
    assert "tied" not in said


@pytest.mark.parametrize("kind", [ALL, ONE, CONFIGURATIONS])
def test_a_pair_with_fresh_seeds_is_not_told_the_number_that_it_has(kind):
    row = {"kind": kind, "workload": "w", "a": "a", "b": "b", "goal_metric": "val/loss", "goal_threshold": 1.0}
    row |= {"smallest_batch_size": 8, "largest_batch_size": 512, "ratio": 1.1, "low": 0.0, "high": INF, "shown": False}
    columns = ["workload", "optimizer", "goal_metric", "goal_threshold", "definition", "estimate"]
    [said] = verdicts.sentences(pd.DataFrame([row]), pd.DataFrame(columns=columns))
    assert said.endswith("run more fresh seeds: raise search.reruns, or search.confirm with search=refine.")


MISSED = {
    "one": ({256: INF}, "a needs fewer steps than b {} 256, where b missed the goal"),
    "several": ({256: INF, 512: INF}, "a needs fewer steps than b {}s 256 and 512, where b missed the goal"),
    "with others": (
        {8: 2.0, 64: 3.0, 256: INF, 512: INF},
        "a needs fewer steps than b {0} 8 (2 times, 1.25 to 2.5) and 64 (3 times, 1.25 to 2.5), and {0}s 256 and 512, "
        "where b missed the goal",
    ),
}


@pytest.mark.parametrize(("ratios", "words"), MISSED.values(), ids=MISSED)
@pytest.mark.parametrize("kind", [ONE, CONFIGURATIONS, SEARCHES])
def test_batch_sizes_that_the_other_missed_are_named_once(ratios, words, kind):
    row = {"kind": kind, "workload": "w", "a": "a", "b": "b", "goal_metric": "val/loss", "goal_threshold": 1.0}
    rows = [
        row | {"smallest_batch_size": size, "ratio": ratio, "low": 1.25, "high": INF if np.isinf(ratio) else 2.5}
        for size, ratio in ratios.items()
    ]
    columns = ["workload", "optimizer", "goal_metric", "goal_threshold", "definition", "estimate"]
    [said] = verdicts.sentences(pd.DataFrame(rows).assign(shown=True), pd.DataFrame(columns=columns))
    where = "by the trials of the searches, at batch size" if kind == SEARCHES else "at batch size"
    assert words.format(where) in said
    assert said.count("missed the goal") == 1


def test_imported_searches_are_not_told_to_train():
    tied = compared({"adam": {}, "sgd": {}}, KNOWN)
    said = {cure: " ".join(verdicts.sentences(*tied, cure=cure)) for cure in (True, False)}
    assert "fresh seeds" in said[True]
    assert "tied" in said[False]
    assert "fresh seeds" not in said[False]


def test_with_more_than_two_optimizers_the_level_is_stricter():
    two, _ = compared({"adam": FLAT, "sgd": SLOWER}, KNOWN)
    three, _ = compared({"adam": FLAT, "sgd": SLOWER, "lamb": FLAT}, KNOWN | {"lamb": KNOWN["sgd"]})
    one, same = (table[(table["b"] == "sgd") & (table["a"] == "adam")].iloc[0] for table in (two, three))
    assert (one["kind"], one["ratio"]) == (ALL, same["ratio"])
    assert same["low"] < one["low"]
    assert list(two["kind"].unique()) == [kind for kind in KINDS if (two["kind"] == kind).any()]
    assert (two["kind"] == SEARCHES).sum() == 1


@pytest.mark.parametrize("kind", [ALL, ONE, CONFIGURATIONS])
@pytest.mark.parametrize(
    ("ratio", "low", "high", "shown"),
    [
        (1.31, 1.0036, 1.7, "1.004 to 1.7"),
        (1 / 1.31, 1 / 1.7, 1 / 1.0036, "1.004 to 1.7"),
        (1.31, 1.0036, INF, "above 1.004"),
        (1.31, 1.0251, 1.7, "1.03 to 1.7"),
    ],
)
def test_an_interval_that_shows_a_difference_does_not_begin_at_1(kind, ratio, low, high, shown):
    row = {"kind": kind, "workload": "w", "a": "a", "b": "b", "goal_metric": "val/loss", "goal_threshold": 1.0}
    row |= {"smallest_batch_size": 8, "largest_batch_size": 8, "ratio": ratio, "low": low, "high": high, "shown": True}
    limits = pd.DataFrame(columns=["workload", "optimizer", "goal_metric", "goal_threshold", "definition", "estimate"])
    [said, *_] = verdicts.sentences(pd.DataFrame([row]), limits)
    assert f"{shown})" in said
