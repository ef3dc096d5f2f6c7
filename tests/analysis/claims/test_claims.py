"""Each claim on tables with a known answer: shown, not shown, contradicted, not tested."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers.claims.made_evidence import INF, SIZES, about, errors, evidence, limits, scaled, seeds, steps, trials

from analysis.claims import registry
from analysis.claims.evidence import Evidence
from analysis.claims.evidence import about as evidence_about
from analysis.claims.settle import settle
from analysis.load import load_study

LARGE = tuple(2**k for k in range(0, 15, 2))


def regimes(useful=(48, 40, 60), perfect=(4, 3, 5), critical=(16, 14, 18), part="1000", sizes=SIZES):
    return scaled([({"part": part}, {"useful": useful, "perfect": perfect, "critical": critical})], sizes)


def missed_beyond(last):
    """Regimes whose flat part lies between the largest batch size that reached the goal and the largest one."""
    made = regimes()
    steps_ = made.table("steps_to_result")
    missed = steps_["batch_size"] > last
    steps_ = steps_.assign(curve_steps=steps_["curve_steps"].mask(missed), reached=~missed)
    return Evidence({**made.tables, "steps_to_result": steps_}, made.about)


def goals(tight, loose, optimizers=("sgd",)):
    rows = [{"goal_threshold": 0.02, **tight}, {"goal_threshold": 0.05, **loose}]
    names = {"workload": "digits", "goal_metric": "val/classification_error", "bound": "="}
    curves = [pd.DataFrame(rows).assign(optimizer=name, **names) for name in optimizers]
    return evidence(critical_by_goal=pd.concat(curves))


def critical(value, spread):
    return {"critical_batch_size": value, "low": value / spread, "high": value * spread}


def momentum(small, large, kind="momentum", with_limits=(16, 14, 18)):
    """Momentum needs 1 / `small` of the steps of SGD up to its critical batch size, 16, and 1 / `large` beyond."""
    names = ({"optimizer": "sgd"}, {"optimizer": kind})
    of_momentum = seeds(optimizer=kind, steps=lambda size: 20 * (1 + 16 / size) / (small if size <= 16 else large))
    scaling = [limits(), limits(optimizer=kind, critical=with_limits)]
    abouts = [about(**name) for name in names]
    steps_ = [steps(**name) for name in names]
    return evidence(abouts, steps_to_result=steps_, scaling=scaling, rerun_steps=[seeds(), of_momentum])


def widths(narrow, wide):
    models = [("narrow", '{"widths": [8]}', narrow), ("wide", '{"widths": [64]}', wide)]
    return scaled([({"workload": name, "model": model}, {"critical": found}) for name, model, found in models])


def data_sets(sets, models, parts):
    """Two data sets, two models and two parts, whose critical batch sizes differ by these factors."""
    wide, spread = '{"widths": [64]}', 1.15

    def found(value):
        return {"critical": (value, value / spread, value * spread)}

    first = {"workload": "first", "dataset": "mnist", "part": "5000"}
    return scaled(
        [
            (first, found(32)),
            ({**first, "optimizer": "momentum"}, found(32 * models)),
            ({**first, "workload": "second", "dataset": "fashion"}, found(32 * sets)),
            ({**first, "workload": "wide", "model": wide}, found(32 * models)),
            ({**first, "workload": "small", "part": "500"}, found(32 * parts)),
        ]
    )


def rates(slope, noise, momentum_slope=None):
    """Learning rates that grow as B^slope for SGD, and effective ones as B^momentum_slope for momentum."""
    rough = np.exp(noise * np.array([1, -1, -1, 1, 1, -1, 1, -1]))
    made = [steps(learning_rate=0.01 * np.array(SIZES) ** slope * rough, momentum=np.nan)]
    if momentum_slope is not None:
        rate = 0.01 * np.array(SIZES, dtype=float) ** momentum_slope * rough
        made.append(steps(optimizer="momentum", learning_rate=rate, momentum=0.9))
    return evidence([about(), about(optimizer="momentum")], steps_to_result=made)


def regions(examples, at_steps):
    """The share that reaches the goal within equal examples and within equal steps."""
    made = [trials(examples, workload="epochs", unit="examples"), trials(at_steps, workload="steps")]
    return evidence([about(workload="epochs"), about(workload="steps")], trials=made)


def best(slope, gain, noise=0.001):
    """Errors as B^slope at equal steps, and label smoothing that cuts them by B^gain."""
    rough = dict(zip(SIZES, np.exp(noise * np.array([1, -1, 1, -1, -1, 1, -1, 1])), strict=True))
    plain = errors(lambda size: 0.1 * size**slope * rough[size])
    smooth = errors(lambda size: 0.1 * size ** (slope - gain), workload="smooth")
    return evidence([about(), about(workload="smooth", smoothing=0.1)], best_errors=[plain, smooth])


def further(adam, muon, beta_slope=1.0, small=1.0):
    """Critical batch sizes of Adam and Muon over momentum's; half-lives grow as B^beta_slope; the examples that Adam
    needs at B = 1 over those at the others."""
    lives = 100 * np.array(SIZES, dtype=float) ** beta_slope
    betas = 0.5 ** (np.array(SIZES) / lives)
    of_adam = steps(optimizer="adam", beta2=betas)
    flat = 1000 / of_adam["batch_size"]
    flat[0] *= small
    of_adam = of_adam.assign(**dict.fromkeys(("tuned_steps", "curve_steps"), flat))
    of_adam = of_adam.assign(optimum_low=flat / 1.1, optimum_high=flat * 1.1)
    abouts = [about(optimizer=name) for name in ("momentum", "adam", "muon")]
    ends = {name: (32 * each, 28 * each, 36 * each) for name, each in (("momentum", 1), ("adam", adam), ("muon", muon))}
    scaling = [limits(optimizer=name, critical=each) for name, each in ends.items()]
    made = [steps(optimizer="momentum"), of_adam, steps(optimizer="muon")]
    return evidence(abouts, steps_to_result=made, scaling=scaling)


CASES = [
    ("a", "shown", regimes()),
    ("a", "shown", regimes(useful=(100, 50, INF), critical=(4, 3.5, 4.5))),  # flat from B = 90 on
    ("a", "not shown", regimes(useful=(100, 50, INF))),  # the flat part may begin beyond the largest batch size
    ("a", "not shown", regimes(perfect=(2, 0.5, 5))),
    ("a", "not shown", regimes(perfect=(1.45, 1.3, 1.6))),  # steps fall with the square root from the start
    ("a", "not shown", missed_beyond(32)),  # it ends where larger batch sizes missed the goal
    ("a", "not shown", regimes(useful=(128, 120, INF, ">"))),  # it ends before the training set does
    ("a", "contradicted", regimes((16384, 16384, INF, ">"), critical=(8000, 7000, 9000), part="16384", sizes=LARGE)),
    ("b", "shown", goals(critical(20, 1.2), critical(24, 1.2))),
    ("b", "not shown", goals(critical(20, 2), critical(24, 2))),
    ("b", "contradicted", goals(critical(100, 1.2), critical(20, 1.2))),
    ("c", "shown", momentum(1.05, 2, with_limits=(64, 50, 80))),
    ("c", "shown", momentum(1.05, 2)),  # by the steps beyond, where the critical batch sizes are tied
    ("c", "not shown", momentum(1.0, 1.0)),
    ("c", "contradicted", momentum(2.5, 4, with_limits=(64, 50, 80))),  # not equal at small batch sizes
    ("c", "contradicted", momentum(1.0, 0.5, with_limits=(4, 3, 5))),
    ("d", "shown", widths((100, 80, 120), (20, 18, 22))),
    ("d", "not shown", widths((20, 10, 40), (30, 15, 60))),
    ("d", "contradicted", widths((20, 18, 22), (100, 80, 120))),  # wider is better by more than a factor of two
    ("d", "contradicted", widths((20, 19, 21), (20, 19, 21))),  # the models do not differ
    ("e", "shown", data_sets(sets=1.1, models=4, parts=0.9)),
    ("e", "not shown", data_sets(sets=2, models=2.2, parts=0.9)),
    ("e", "contradicted", data_sets(sets=6, models=1.5, parts=0.9)),
    ("e", "contradicted", data_sets(sets=1.1, models=4, parts=0.2)),
    ("f", "shown", rates(0.2, 0.1, momentum_slope=0.75)),
    ("f", "not shown", rates(0.75, 1.0, momentum_slope=0.75)),
    ("f", "contradicted", rates(1.0, 0.01, momentum_slope=1.0)),  # the linear rule everywhere
    ("g", "shown", regions(lambda size: 0.9 - 0.11 * np.log2(size), lambda size: 0.1 + 0.11 * np.log2(size))),
    ("g", "not shown", regions(lambda size: 0.5, lambda size: 0.5)),
    ("g", "contradicted", regions(lambda size: 0.1 + 0.11 * np.log2(size), lambda size: 0.1 + 0.11 * np.log2(size))),
    ("h", "shown", best(-0.2, 0.1)),
    ("h", "not shown", best(-0.2, 0.1, noise=0.5)),
    ("h", "contradicted", best(0.2, 0.1)),
    ("h", "contradicted", best(-0.2, -0.1)),  # smoothing helps small batch sizes more
    ("i", "shown", further(2, 3, beta_slope=0.0)),
    ("i", "not shown", further(1.1, 3, beta_slope=0.0)),
    ("i", "contradicted", further(0.5, 3, beta_slope=0.0)),
    ("i", "contradicted", further(2, 3, beta_slope=0.9)),  # the beta transfers, not the half-life
    ("i", "contradicted", further(2, 3, beta_slope=0.0, small=3)),
]
NAMES = [f"{letter}-{verdict}-{number}" for number, (letter, verdict, _) in enumerate(CASES)]


def judged(letter, made):
    return next(each for each in registry.judge(made) if each.letter == letter)


@pytest.mark.parametrize(("letter", "verdict", "made"), CASES, ids=NAMES)
def test_verdicts(letter, verdict, made):
    found = judged(letter, made)
    assert found.verdict == verdict, found.evidence
    assert found.row()["statements"] == len(found.statements) > 0
    assert found.evidence


@pytest.mark.parametrize(("letter", "verdict", "made"), CASES, ids=NAMES)
def test_more_fresh_seeds_are_not_proposed_for_what_trials_decide(letter, verdict, made):
    """They were for half-lives, which are those of the best trials."""
    decided = {name: each.by_trials for name, each, _ in judged(letter, made).statements}
    assert decided == {name: letter in "bfgh" or name == "half-lives transfer" for name in decided}


def test_a_curve_that_contradicts_a_claim_is_named_not_the_mean_over_curves():
    agrees, differs = (
        goals(critical(20, 1.2), critical(24, 1.2), "ab"),
        goals(critical(100, 1.2), critical(20, 1.2), "c"),
    )
    both = pd.concat([each.table("critical_by_goal") for each in (agrees, differs)])
    found = judged("b", evidence(critical_by_goal=both))
    assert found.verdict == "contradicted"
    [part] = found.parts
    assert "1 contradicted; digits with c " in part


@pytest.mark.parametrize("letter", registry.CLAIMS)
def test_what_nothing_was_measured_on_is_not_tested(letter):
    found = judged(letter, evidence([]))
    assert (found.verdict, found.parts) == ("not tested", [])


def test_every_claim_has_a_case_of_each_verdict():
    assert {(letter, verdict) for letter, verdict, _ in CASES} == {
        (letter, verdict) for letter in registry.CLAIMS for verdict in ("shown", "not shown", "contradicted")
    }


@pytest.mark.parametrize(
    ("letter", "made", "parts"),
    [
        ("d", scaled([({"workload": name, "model": name}, {}) for name in ("mlp", "cnn")]), {"models differ"}),
        ("h", evidence(best_errors=errors(lambda size: 0.1 / size)), {"no worse error at equal steps"}),
        ("e", data_sets(1.1, 4, 0.9), {"the data set matters less than model and optimizer",
                                    "the size of the data set matters little"}),
    ],
)  # fmt: skip
def test_a_part_without_measurements_keeps_a_claim_open(letter, made, parts):
    found = judged(letter, made)
    assert {name for name, _, _ in found.statements} == parts
    assert (found.verdict == "shown") == (letter == "e")


def test_parts_of_a_data_set_are_compared_at_the_same_goal():
    """Another goal moves the critical batch size, too."""
    made = data_sets(1.1, 4, 0.2)
    tables = {
        name: table.assign(goal_threshold=table["goal_threshold"].mask(table["workload"] == "small", 0.2))
        for name, table in made.tables.items()
    }
    compared = [{name for name, _, _ in judged("e", each).statements} for each in (made, Evidence(tables, made.about))]
    assert compared[0] - compared[1] == {"the size of the data set matters little"}


@pytest.mark.parametrize("loose", ["a", "z"])
def test_data_sets_are_compared_at_their_strictest_goals(loose):
    """The goal moves the critical batch size, and the name of a workload says nothing."""
    made = data_sets(1.1, 4, 0.9)
    tables = {
        name: pd.concat(
            [table, table[table["workload"] == "second"].assign(workload=loose, goal_threshold=0.5).pipe(_ten_times)]
        )
        for name, table in made.tables.items()
    }
    more = made.about[made.about["workload"] == "second"].assign(workload=loose, goal_threshold=0.5)
    found = [judged("e", each).statements for each in (made, Evidence(tables, pd.concat([more, made.about])))]
    values = [[each.value for name, each, _ in of if name.startswith("the data set")] for of in found]
    assert values[0] == values[1]


@pytest.mark.slow
@pytest.mark.parametrize("rough", ["a", "z"])
def test_of_curves_that_are_alike_the_most_precise_counts(rough):
    """Such as those of two search spaces; it was the first or the last by name."""
    names = ("second", "small")
    made = data_sets(1.1, 4, 0.9)
    tables, more = dict(made.tables), []
    for name in names:
        of_name = {key: table[table["workload"] == name] for key, table in made.tables.items()}
        again = {key: _ten_times(table).assign(workload=f"{rough}{name}") for key, table in of_name.items()}
        again["scaling"] = again["scaling"].assign(estimate_high=lambda table: 9 * table["estimate_high"])
        tables = {key: pd.concat([table, again[key]]) for key, table in tables.items()}
        more.append(made.about[made.about["workload"] == name].assign(workload=f"{rough}{name}"))
    both = judged("e", Evidence(tables, pd.concat([made.about, *more])))
    for part in ("the data set", "the size"):
        values = [
            {round(each.value, 6) for name, each, _ in of.statements if name.startswith(part)}
            for of in (judged("e", made), both)
        ]
        assert values[0] == values[1], part


@pytest.mark.parametrize("rough", ["second", "wide"])
def test_the_spread_of_data_sets_is_settled_where_its_interval_is_widest(rough):
    """It names no workload, and any sweep of another model was proposed, even if a known part asked for it."""
    made = data_sets(1.5, 1.6, 0.9)
    scaling = made.table("scaling")
    wide = scaling["estimate_high"].mask(scaling["workload"] == rough, 4 * scaling["estimate_high"])
    found = judged("e", Evidence({**made.tables, "scaling": scaling.assign(estimate_high=wide)}, made.about))
    assert next(found.tree.undecided()).widest == rough
    asked = []
    with pytest.raises(LookupError):
        settle(found, made, lambda workload: asked.append(workload) or [][0])
    assert asked == [rough]


def _ten_times(table):
    """Limits of scaling at ten times the batch sizes; other tables as they are."""
    limits = [name for name in table if name.startswith("estimate") and table[name].dtype == float]
    return table.assign(**{name: 10 * table[name] for name in limits})


@pytest.mark.parametrize(("parameters", "compared"), [((100, 120), True), ((100, 1000), False), ((np.nan, 9), True)])
def test_data_sets_are_compared_under_models_of_one_size(parameters, compared):
    """The same widths on larger images make another model."""
    made = data_sets(sets=6, models=1.5, parts=0.9)
    other = made.about["workload"] == "second"
    about = made.about.assign(parameters=np.where(other, parameters[1], parameters[0]))
    found = {name for name, _, _ in judged("e", Evidence(made.tables, about)).statements}
    assert ("the data set matters less than model and optimizer" in found) == compared


def test_label_smoothing_is_no_difference_of_data():
    made = [({"workload": "whole", "part": "5000"}, 32), ({"workload": "part", "part": "500", "smoothing": 0.1}, 320)]
    curves = [(of, {"critical": (value, value / 1.1, value * 1.1)}) for of, value in made]
    assert registry.CLAIMS["e"].tree(scaled(curves)).verdict() == "not tested"


def test_label_smoothing_is_judged_within_equal_steps():
    """Errors fall with the steps alone, and runs with label smoothing are longer the larger the batch size is."""

    def along(workload, last):
        table = [
            errors(lambda size, step=step: 0.1 * step**-0.3, workload).assign(step=step) for step in 2 ** np.arange(8)
        ]
        whole = pd.concat(table)
        return whole[whole["step"] <= last(whole["batch_size"])]

    parts = [along("digits", lambda sizes: sizes * 0 + 1), along("smooth", lambda sizes: sizes)]
    tree = registry.CLAIMS["h"].tree(evidence([about(), about(workload="smooth", smoothing=0.1)], best_errors=parts))
    [gain] = [each for name, each, _ in tree.judged() if name.startswith("label smoothing")]
    assert gain.value == pytest.approx(0, abs=1e-9)


def test_momentum_that_misses_the_goal_at_large_batch_sizes_does_not_scale_further():
    sizes = tuple(2**k for k in range(12))
    missed = seeds(optimizer="momentum", sizes=sizes, steps=lambda size: 20 * (1 + 16 / size) if size <= 16 else np.inf)
    names = [{"optimizer": name} for name in ("sgd", "momentum")]
    tables = {"steps_to_result": [steps(sizes=sizes, **name) for name in names], "scaling": limits()}
    made = evidence([about(**name) for name in names], **tables, rerun_steps=[seeds(sizes=sizes), missed])
    tree = registry.CLAIMS["c"].tree(made)
    assert [each.value for name, each, _ in tree.judged() if name == "scales further"] == [0.0]
    assert "shown" not in [verdict for name, _, verdict in tree.judged() if name == "scales further"]
    assert tree.verdict() == "not shown"


def test_only_independent_searches_say_how_large_a_region_is():
    made = regions(lambda size: 0.9 - 0.11 * np.log2(size), lambda size: 0.5)
    learned = made.about.assign(independent=False)
    assert judged("g", Evidence(made.tables, learned)).verdict == "not tested"


@pytest.mark.parametrize(
    ("loose", "spread", "optimizers", "text"),
    [
        (18, 1.15, ("sgd", "adam"), "digits with adam at "),  # the interval of the mean of two is too wide
        (18, 1.15, ("sgd", "adam", "lamb", "muon"), "4 curves: mean ratio"),
        (18, 1.6, ("sgd", "adam", "lamb", "muon"), "4 curves: mean ratio"),  # shown by the mean alone
    ],
)
def test_a_claim_that_is_shown_prints_a_statement_that_shows_it(loose, spread, optimizers, text):
    judged = registry.judge(goals(critical(16, spread), critical(loose, spread), optimizers))[1]
    assert judged.verdict == "shown"
    [part] = judged.parts
    assert f"shown; {text}" in part, part


def test_the_table_holds_the_claims_that_are_tested():
    found = registry.table(registry.judge(regimes()))
    assert found["claim"].tolist() == ["a"]
    [row] = found.to_dict("records")
    assert (row["verdict"], row["statements"], row["shown"]) == ("shown", 4, 3)
    assert "digits with sgd" in row["evidence"]


SMOOTHED = {
    "a built-in classification": ({"label_smoothing": 0.0}, {}, True),
    "a loss that has it tuned": ({}, {"label_smoothing": [0, 0.1]}, True),
    "a regression": ({}, {}, False),
}
"""The arguments of a workload, what its search tunes, and whether the test of a claim may tune label smoothing."""


@pytest.mark.parametrize(("arguments", "tuned", "smoothed"), SMOOTHED.values(), ids=SMOOTHED)
def test_the_test_of_a_claim_tunes_label_smoothing_where_the_workload_has_it(arguments, tuned, smoothed):
    study = load_study(Path(__file__).parents[3] / "results/published/mlp_digits/studies/mlp_digits/sgd/64")
    study.provenance[-1]["command"] = "python -m study sweep workload=mine"
    del study.question["workload"]["label_smoothing"]
    study.question["workload"].update(arguments)
    study.question["search"]["space"].update(tuned)
    made = Evidence({}, evidence_about([study]))
    [judged] = [each for each in registry.judge(made) if each.letter == "h"]
    found = settle(judged, made, lambda workload: [study])
    assert ("search.space.label_smoothing" in found.command) == smoothed
    assert "stopping=budget" in found.command
