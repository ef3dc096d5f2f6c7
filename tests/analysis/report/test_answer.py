"""The first screen: titles that claim what the intervals hold, a row for each optimizer, and what to run next."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from analysis.counting import Goal
from analysis.estimates import verdicts
from analysis.estimates.pairs import ALL, ONE
from analysis.labels import OPTIMIZERS, goal_text
from analysis.load import load_study
from analysis.report import build, headlines
from analysis.report.answer import Answer, answers
from analysis.report.answer.finding import begun, finding
from analysis.report.answer.headed import headed
from analysis.report.answer.rows import rows
from analysis.report.answer.values import UNKNOWN, ShownLimit
from analysis.tables.scaling import CRITICAL, USEFUL

PUBLISHED = Path(__file__).parents[3] / "results/published"
NAMES = {"workload": "digits", "goal_metric": "val/classification_error", "goal_threshold": 0.05}
SIZES = (1, 8, 64)
FALLING = dict(zip(SIZES, (800, 100, 50), strict=True))
PAIRS = ["kind", "a", "b", "smallest_batch_size", "largest_batch_size", "ratio", "low", "high", "shown"]


def steps_of(curves):
    """Steps by fresh seeds of {optimizer: {batch size: steps, or None where the goal was missed}}."""
    rows = [(optimizer, size, steps) for optimizer, curve in curves.items() for size, steps in curve.items()]
    found = pd.DataFrame(rows, columns=["optimizer", "batch_size", "tuned_steps"]).assign(**NAMES)
    found = found.assign(steps_to_result=found["tuned_steps"].astype("Int64"), read_from="fresh seeds")
    interval = {"tuned_low": found["tuned_steps"] / 2, "tuned_high": found["tuned_steps"] * 2, "learning_rate": 0.1}
    return found.assign(reached=found["tuned_steps"].notna(), complete=8, infeasible=0, **interval)


def limits_of(critical, useful=()):
    """Critical batch sizes {optimizer: (estimate, low, high, bound)}; maximum useful ones alike."""
    found = [(name, CRITICAL, *row) for name, row in critical.items()]
    found += [(name, USEFUL, *row) for name, row in dict(useful).items()]
    columns = ["optimizer", "definition", "estimate", "estimate_low", "estimate_high", "estimate_bound"]
    return pd.DataFrame(found, columns=columns).assign(**NAMES)


def pairs_of(*rows):
    """A row for each (kind, a, b, ratio, low, high, shown)."""
    found = [(kind, a, b, 1, 64, ratio, low, high, shown) for kind, a, b, ratio, low, high, shown in rows]
    return pd.DataFrame(found, columns=PAIRS).astype({"shown": bool}).assign(**NAMES)


SGD, MOMENTUM = (37, 31, 43, "="), (62, 46, 84, "=")
TITLES = {
    "shown to differ": (
        {"momentum": MOMENTUM, "sgd": SGD},
        "Momentum scales to batch size 62 (46 to 84), SGD to 37 (31 to 43)",
    ),
    "the order is that of the limits": (
        {"momentum": SGD, "sgd": MOMENTUM},
        "SGD scales to batch size 62 (46 to 84), Momentum to 37 (31 to 43)",
    ),
    "intervals that overlap": (
        {"momentum": (62, 30, 128, "="), "sgd": (37, 18, 76, "=")},
        "Momentum and SGD tie: they scale to batch sizes 62 (30 to 128) and 37 (18 to 76)",
    ),
    "a bound": (
        {"momentum": (64, np.nan, np.nan, ">"), "sgd": SGD},
        "Momentum scales to at least batch size 64, SGD to 37 (31 to 43)",
    ),
    "an open interval": (
        {"momentum": (62, 46, np.inf, "="), "sgd": (37, 0, 43, "=")},
        "Momentum scales to batch size 62 (above 46), SGD to 37 (below 43)",
    ),
    "no interval": (
        {"momentum": (62, np.nan, np.nan, "="), "sgd": SGD},
        "Momentum scales to batch size 62, SGD to 37 (31 to 43)",
    ),
    "the two of three that differ most": (
        {"adam": (114, 67, 194, "="), "lamb": (88, 45, 171, "="), "sgd": (29, 16, 51, "=")},
        "Adam scales further than SGD: to batch size 114 (67 to 194) against 29 (16 to 51)",
    ),
    "three that tie": (
        {"adam": (60, 30, 120, "="), "lamb": (50, 25, 99, "="), "torch.optim.RAdam": (40, 20, 80, "=")},
        "Adam, LAMB and torch.optim.RAdam tie: they scale to batch sizes "
        "60 (30 to 120), 50 (25 to 99) and 40 (20 to 80)",
    ),
    "one": ({"sgd": SGD}, "SGD scales to batch size 37 (31 to 43)"),
    "one without a name": ({"unknown": SGD}, "Unnamed optimizer scales to batch size 37 (31 to 43)"),
    "one below the smallest": ({"sgd": (1, np.nan, np.nan, "<")}, "SGD scales to at most batch size 1"),
}


@pytest.mark.parametrize(("critical", "title"), TITLES.values(), ids=TITLES)
def test_a_title_claims_what_the_intervals_hold(critical, title):
    found = finding(steps_of(dict.fromkeys(critical, FALLING)), limits_of(critical), pairs_of())
    assert found.title == title


NONE = (np.nan, np.nan, np.nan, "=")


@pytest.mark.parametrize(
    ("curve", "useful", "said"),
    [
        (dict.fromkeys(SIZES), NONE, "Momentum did not reach the goal"),
        ({1: None, 8: 9, 64: None}, NONE, "Momentum reached the goal at batch size 8 alone"),
        ({1: 20, 8: 9, 64: None}, NONE, "Momentum reached the goal at batch sizes 1 and 8 alone"),
        ({1: 20, 8: 9}, (8, np.nan, np.nan, ">"), "Momentum still saves steps at batch size 8"),
        ({1: 10, 8: 30, 64: 60}, NONE, "Momentum needs more steps at larger batch sizes"),
    ],
)
def test_a_curve_without_a_critical_batch_size_says_what_it_shows(curve, useful, said):
    limits = limits_of({"momentum": NONE, "sgd": SGD}, {"momentum": useful})
    found = finding(steps_of({"momentum": curve, "sgd": FALLING}), limits, pairs_of())
    assert found.title == f"SGD scales to batch size 37 (31 to 43); {said}"
    nothing = pd.DataFrame(columns=["optimizer", "batch_size", "steps_to_goal", "learning_rate"])
    [row, _] = rows(steps_of({"momentum": curve, "sgd": FALLING}), limits, nothing)
    assert (row.steps == UNKNOWN) == (said == "Momentum did not reach the goal")


@pytest.mark.parametrize(
    ("names", "title"),
    [
        (["sgd"], "SGD did not reach the goal"),
        (["unknown"], "Unnamed optimizer did not reach the goal"),
        (["sgd", "adam"], "Neither Adam nor SGD reached the goal"),
        (["sgd", "adam", "lamb"], "None of Adam, LAMB and SGD reached the goal"),
    ],
)
def test_a_goal_that_was_missed_by_all_is_said_once(names, title):
    steps, limits = steps_of(dict.fromkeys(names, dict.fromkeys(SIZES))), limits_of(dict.fromkeys(names, NONE))
    nothing = pd.DataFrame(columns=["optimizer", "batch_size", "steps_to_goal", "learning_rate"])
    made = rows(steps, limits, nothing)
    answer = Answer(("digits", "error", 0.05), names, *finding(steps, limits, pairs_of()), made, None)
    assert answer.lines == [f"{title}."]


TIED = {"momentum": (62, 30, 128, "="), "sgd": (37, 18, 76, "=")}
FASTER = {
    "a": ((1.5, 1.2, 1.9, True), "Momentum needs 1.5 times (1.2 to 1.9) fewer steps than SGD"),
    "b": ((0.5, 0.4, 0.625, True), "SGD needs 2 times (1.6 to 2.5) fewer steps than Momentum"),
    "open above": ((0.5, 0.0, 0.625, True), "SGD needs 2 times (above 1.6) fewer steps than Momentum"),
    "not shown": ((1.5, 0.9, 2.5, False), "Momentum and SGD tie: "),
    "the other missed the goal": ((np.inf, 2.0, np.inf, True), "Momentum and SGD tie: "),
}


@pytest.mark.parametrize(("ratio", "title"), FASTER.values(), ids=FASTER)
def test_of_optimizers_that_scale_alike_the_title_tells_the_faster(ratio, title):
    pairs = pairs_of((ALL, "momentum", "sgd", *ratio), (ONE, "momentum", "sgd", 9, 8, 10, True))
    found = finding(steps_of(dict.fromkeys(TIED, FALLING)), limits_of(TIED), pairs)
    assert found.title.startswith(title)
    assert ("tie: they scale" in found.lead) == ("needs" in title)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlp_digits", "narrow_cnn_fashion_mnist", "transformer_shakespeare"])
def test_no_sentence_repeats_what_its_heading_holds(name):
    tables = {
        table: pd.read_csv(PUBLISHED / name / f"tables/{table}.csv")
        for table in ("steps_to_result", "scaling", "compare", "trials")
    }
    steps, limits, pairs, trials = tables.values()
    group = (name, steps["goal_metric"][0], steps["goal_threshold"][0])
    made = rows(steps, limits, trials)
    answer = Answer(group, sorted(set(steps["optimizer"])), *finding(steps, limits, pairs), made, None)
    sentences = [*verdicts.sentences(pairs, limits), *headlines.sentences(steps, limits)]
    [parts], others = headed([*sentences, "Step budget: 9 steps."], [answer])
    assert others == ["Step budget: 9 steps."]
    assert sum(len(part.sentences) for part in parts) == len(sentences)
    said = [*answer.lines, *(sentence for part in parts for sentence in part.sentences)]
    assert not [sentence for sentence in said if name in sentence or answer.goal in sentence]
    assert [row.optimizer for row in made] == [part.heading for part in parts if part.heading != "Compared"]
    assert all(sentence[0].isupper() for sentence in said)
    assert "nan" not in " ".join(said)
    compared = " ".join(sentence for part in parts if part.heading == "Compared" for sentence in part.sentences)
    assert not {*re.findall(r"\w+", compared)} & {*OPTIMIZERS}


def test_the_learning_rates_of_a_row_are_those_of_the_good_trials_there():
    trials = pd.DataFrame({"batch_size": [64, 64, 64, 64, 8], "steps_to_goal": pd.array([50, 60, 61, None, 50])})
    trials = trials.assign(optimizer="sgd", learning_rate=[0.1, 0.2, 0.3, 0.4, 0.01], **NAMES)
    [row] = rows(steps_of({"sgd": FALLING}), limits_of({"sgd": SGD}), trials)
    assert str(row.learning_rate) == "0.100 (0.100 to 0.200) at batch size 64"
    assert str(row.steps) == "50 (25 to 100) at batch size 64"
    assert "critical batch size 37 (31 to 43)" in row.sentence


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ((64.0, 30.0, np.inf, ">"), "≥ 64 (above 30)"),
        ((64.0, 64.0, np.inf, ">"), "≥ 64"),
        ((8.0, 0.0, 20.0, "<"), "≤ 8 (below 20)"),
        ((8.0, 0.0, 8.0, "<"), "≤ 8"),
        ((8.0, 0.0, np.inf, "<"), "≤ 8"),
        ((8.0, 8.0, 20.0, "="), "8 (8 to 20)"),
    ],
)
def test_a_bound_is_not_said_twice(row, text):
    assert str(ShownLimit("sgd", *row).value) == text


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ({8: 40, 64: 40}, "Momentum met the goal at its first evaluation"),
        ({8: 40, 64: None}, "Momentum met the goal at its first evaluation"),
        ({8: None, 64: None}, "Momentum did not reach the goal"),
    ],
)
def test_a_curve_without_known_steps_says_why(steps, said):
    # A trial of the search reached the goal even where half of the fresh seeds missed it.
    curve = steps_of({"momentum": steps}).assign(first_evaluation=40, reached=True)
    assert finding(curve, limits_of({"momentum": NONE}), pairs_of()).title == said


@pytest.mark.slow
def test_several_goals_have_an_answer_each():
    folder = PUBLISHED / "mlp_digits/studies/mlp_digits"
    studies = [load_study(folder / name) for name in ("sgd/8", "sgd/64")]
    goals = [replace(studies[0].goal, threshold=threshold) for threshold in (0.4, 0.3)]
    found = answers(studies, build.tables(studies, studies, build.Asked(goals)))
    assert [answer.goal for answer in found] == [goal_text(goal.metric, goal.threshold) for goal in goals]
    assert all(isinstance(goal, Goal) for goal in goals)
    assert all(re.match("SGD", answer.title) for answer in found)


@pytest.mark.parametrize(("steps", "said"), [(1, "Momentum: 1 step ("), (2, "Momentum: 2 steps (")])
def test_one_step_is_singular(steps, said):
    nothing = pd.DataFrame(columns=["optimizer", "batch_size", "steps_to_goal", "learning_rate"])
    [row] = rows(steps_of({"momentum": {8: steps}}), limits_of({"momentum": NONE}), nothing)
    assert row.sentence.startswith(said)


BEGINNINGS = {
    "steps fall": "Steps fall",
    "sgd needs fewer steps": "SGD needs fewer steps",
    "sgd, adam and lion are tied": "SGD, adam and lion are tied",
    "lions.Lion needs fewer steps": "lions.Lion needs fewer steps",
    "sgd+doubling is no point": "sgd+doubling is no point",
    "fc_mnist, sgd: late": "fc_mnist, sgd: late",
    "stopping=budget reads it": "stopping=budget reads it",
    "none.": "None.",
    "": "",
}


@pytest.mark.parametrize(("text", "expected"), BEGINNINGS.items())
def test_a_sentence_that_begins_with_a_name_keeps_its_letters(text, expected):
    assert begun(text) == expected


def test_each_optimizer_needs_three_batch_sizes(sweep):
    """Four sizes, two for each optimizer, show no limit of scaling."""
    for optimizer, sizes in {"sgd": (4, 8), "momentum": (16, 32)}.items():
        folder = sweep({size: [100] * 8 for size in sizes}, optimizer=optimizer)
    assert build.read([folder]).answers[0].next.advice == "sweep batch size 128, because limits of scaling need three"
