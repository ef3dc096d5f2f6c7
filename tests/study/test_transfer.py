"""Rules that move a tuned configuration: as functions, and trained from the command line on real digits."""

import json
import math
import re
import shutil
from functools import partial

import pandas as pd
import pytest
from helpers.processes import tables, written
from hypothesis import given
from hypothesis import strategies as st

from analysis import figures
from analysis.counting import Branch
from analysis.tables.transfer import ORDER
from study import store, transfer
from study.__main__ import main
from study.config.jobs import Job
from study.devices.placement import Placement
from study.errors import UsageError
from study.optimizers.base import HALF_LIFE, resolved
from study.records import Study
from study.search import stages
from study.search.transfer_rules import RULES, Move

ADAM = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
MOMENTUM = {"learning_rate": 0.1, "momentum": 0.9}
POWERS = ("constant", "square_root", "constant_half_life", "square_root_half_life")
SIZES = st.integers(min_value=1, max_value=2**16)
FEW = st.integers(min_value=1, max_value=256)
CONFIGURATIONS = st.fixed_dictionaries(
    {"learning_rate": st.floats(1e-6, 10), "beta1": st.floats(0.5, 0.999), "beta2": st.floats(0.5, 0.9999)}
)


def moved(rule, configuration, base, size, steps=10**6):
    return RULES[rule].move(configuration, Move(base, size, train_examples=1000, train_steps=steps))


def momentum(rate, **warmup):
    return {"learning_rate": rate, "momentum": 0.9, **warmup}


@pytest.mark.parametrize(
    ("rule", "configuration", "base", "size", "steps", "expected"),
    [
        ("constant", MOMENTUM, 32, 128, 10**6, MOMENTUM),
        ("square_root", MOMENTUM, 32, 128, 10**6, momentum(0.2)),
        ("square_root", MOMENTUM, 128, 32, 10**6, momentum(0.05)),
        ("constant_half_life", ADAM, 32, 64, 10**6, {**ADAM, "beta1": 0.81, "beta2": 0.998001}),
        # Linear: a warmup over five epochs, or 5 of 90 steps, from the learning rate of the base; none downwards
        ("linear", MOMENTUM, 32, 256, 10**6, momentum(0.8, warmup_examples=5000, warmup_initial_factor=1 / 8)),
        ("linear", MOMENTUM, 32, 128, 180, momentum(0.4, warmup_examples=10 * 128, warmup_initial_factor=1 / 4)),
        ("linear", MOMENTUM, 256, 32, 10**6, momentum(0.0125)),
        # It replaces a tuned one
        ("linear", momentum(0.1, warmup_steps=7.0), 32, 64, 10**6,
         momentum(0.2, warmup_examples=5000, warmup_initial_factor=0.5)),
    ],
)  # fmt: skip
def test_known_answers(rule, configuration, base, size, steps, expected):
    assert moved(rule, configuration, base, size, steps) == pytest.approx(expected)


@given(rule=st.sampled_from(sorted(RULES)), configuration=CONFIGURATIONS, size=SIZES)
def test_a_rule_moves_nothing_to_where_it_is(rule, configuration, size):
    assert moved(rule, configuration, size, size) == pytest.approx(configuration)


# From further away a decay rate of almost 0 does not come back.
@given(rule=st.sampled_from(POWERS), configuration=CONFIGURATIONS, base=FEW, between=FEW, size=FEW)
def test_two_moves_are_one(rule, configuration, base, between, size):
    there = moved(rule, moved(rule, configuration, base, between), between, size)
    assert there == pytest.approx(moved(rule, configuration, base, size))


@given(configuration=CONFIGURATIONS, base=SIZES, size=SIZES)
def test_half_lives_stay_in_examples(configuration, base, size):
    found = moved("square_root_half_life", configuration, base, size)
    half_life = base * math.log(0.5) / math.log(configuration["beta2"])
    assert found["beta2"] == pytest.approx(0.5 ** (size / half_life))
    assert found["learning_rate"] == moved("square_root", configuration, base, size)["learning_rate"]


GIVEN = {"learning_rate": 0.01, "beta1": 0.9, f"beta2{HALF_LIFE}": 500.0, f"ema_decay{HALF_LIFE}": 900.0}


@given(rule=st.sampled_from(sorted(RULES)), base=SIZES, size=SIZES)
def test_decay_rates_given_by_their_half_life_move_as_those_given_as_they_are(rule, base, size):
    tuned = resolved(GIVEN, base)
    there, here = (resolved(moved(rule, h, base, size), size) for h in (tuned, GIVEN))
    assert here == pytest.approx(there)
    assert here["ema_decay"] == pytest.approx(tuned["ema_decay"])


def test_rules_on_half_lives_are_for_optimizers_that_have_some():
    assert [name for name in RULES if RULES[name].applies_to(MOMENTUM)] == ["constant", "square_root", "linear"]
    assert all(rule.applies_to(ADAM) and rule.applies_to(GIVEN) for rule in RULES.values())
    assert not any(rule.betas for name, rule in RULES.items() if "half_life" not in name)


def test_every_rule_has_its_place_in_tables_and_figures():
    assert sorted(RULES) == sorted(ORDER)


def test_every_rule_moves_legal_configurations_to_legal_ones(make_study):
    for optimizer, configuration in (("momentum", MOMENTUM), ("adam", ADAM)):
        for rule in (name for name in RULES if RULES[name].applies_to(configuration)):
            for base, size in ((1, 2**15), (2**15, 1)):
                there = moved(rule, configuration, base, size)
                make_study(optimizer=optimizer, space={name: [value] for name, value in there.items()})


SWEEP = [
    "sweep",
    "optimizer=momentum,adam",
    "batch_size=16,256",
    "search.trials=4",
    "search.reruns=0",
    "budget.epochs=5",
]
SWEEP += ["goal=val/classification_error<0.2", "engine.workers=1"]
RULES_ASKED = ["--rules", "constant,linear,square_root_half_life", "--seeds", "3", "--workers", "1"]
BASES = ["--base-batch-size", "16", "--base-batch-size", "256"]


@pytest.fixture(scope="module", autouse=True)
def _few_figures():
    """All others are drawn elsewhere, and take most of the time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("analysis.figures.charts", partial(figures.charts, names=["rules"]))
        yield


@pytest.fixture(scope="module")
def swept(swept_once):
    return swept_once(*SWEEP)


@pytest.fixture(scope="module")
def ruled(swept, tmp_path_factory):
    """The same with rules from two bases."""
    folder = tmp_path_factory.mktemp("ruled") / "results"
    shutil.copytree(swept, folder)
    assert main(["rules", str(folder), *BASES, *RULES_ASKED]) == 0
    return folder


def branches(folder):
    for path in sorted(folder.glob("studies/*/*/*/rule-*/study.json")):
        yield Study.from_question(json.loads(path.read_text())["question"]), store.load(path.parent)


@pytest.mark.slow
def test_every_other_batch_size_is_trained_with_the_same_seeds(ruled):
    seeds, rules = {}, {}
    for study, curves in branches(ruled):
        key = (study.optimizer, study.batch_size)
        mine = tuple((curve.trial.seed, curve.trial.order_seed) for curve in curves)
        seeds.setdefault(key, set()).add(mine)
        rules.setdefault(key, set()).add((study.branch.rule, study.branch.base))
        assert len(curves) == 3
        assert study.stopping == "goal"
        own = ruled / "studies" / study.name / study.optimizer / str(study.batch_size)
        assert {*mine}.isdisjoint((curve.trial.seed, curve.trial.order_seed) for curve in store.load(own))
    assert all(len(found) == 1 for found in seeds.values())
    upwards = {("constant", 16), ("linear", 16), ("tuned", 256)}
    assert rules["momentum", 256] == upwards
    assert rules["adam", 256] == upwards | {("square_root_half_life", 16)}
    assert rules["momentum", 16] == {("constant", 256), ("linear", 256), ("tuned", 16)}


@pytest.mark.slow
def test_what_is_trained_is_what_the_rule_says(ruled):
    made = [(study, [curve.trial.hyperparameters for curve in curves]) for study, curves in branches(ruled)]
    tuned = {(study.optimizer, study.batch_size): own for study, [own, *_] in made if study.branch.rule == "tuned"}
    seen = 0
    for study, trained in made:
        if study.branch.rule != "tuned":
            base = study.branch.base
            move = Move(base, study.batch_size, study.workload["train_examples"], study.train_steps)
            expected = RULES[study.branch.rule].move(tuned[study.optimizer, base], move)
            assert trained == [pytest.approx(expected)] * 3
            assert ("warmup_examples" in expected) == (study.branch.rule == "linear" and study.batch_size > base)
            seen += 1
    assert seen == 4 + 6


@pytest.mark.slow
def test_the_report_has_its_table_figure_and_sentences(ruled, says):
    before, measured = tables(ruled), written(ruled)
    for name in ("report.html", "figures/rules.svg", "tables/rules.csv"):
        (ruled / name).unlink()
    said = says("report", ruled, "--json")
    assert "transferred from batch size 16, steps stay within 1.5 times the tuned steps" in said
    assert written(ruled) == measured
    assert tables(ruled) == before
    page = (ruled / "report.html").read_text()
    assert page.count("Rules against tuning.</b>") == 4  # tables; the figure links to its definition
    assert 'href="#method-rules-against-tuning"' in page
    assert "square root, half-lives" in (ruled / "figures/rules.svg").read_text()


@pytest.mark.slow
def test_nothing_else_that_a_report_says_changes(swept, ruled):
    before, after = tables(swept), tables(ruled)
    assert {name for name in before if before[name] != after[name]} == {"rules.csv", "rule_steps.csv"}
    assert pd.read_csv(swept / "tables/rules.csv").empty


@pytest.mark.slow
def test_what_is_done_is_not_done_again(ruled):
    before = written(ruled)
    assert main(["rules", str(ruled), *BASES, *RULES_ASKED]) == 0
    assert written(ruled) == before


@pytest.mark.slow
def test_interrupted_and_resumed_is_as_if_it_had_not_been(swept, ruled, tmp_path, monkeypatch):
    saved = []

    def save(place, curve, keep=store.save, **how):
        saved.append(place)
        if len(saved) > 5:  # inside the second
            raise KeyboardInterrupt
        return keep(place, curve, **how)

    shutil.copytree(swept / "studies/mlp_digits/momentum", tmp_path / "studies/mlp_digits/momentum")
    command = ["rules", str(tmp_path), *BASES, "--rules", "constant,linear", "--seeds", "3", "--workers", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(store, "save", save)
        assert main(command) == 130
    assert len(list((saved[-1] / "trials").glob("*.parquet"))) == 2
    assert main(command) == 0
    whole = pd.read_csv(ruled / "tables/rule_steps.csv")
    expected = whole[whole["optimizer"] == "momentum"].reset_index(drop=True)
    pd.testing.assert_frame_equal(pd.read_csv(tmp_path / "tables/rule_steps.csv"), expected)


@pytest.mark.slow
def test_more_seeds_go_on_and_status_sees_them(ruled, tmp_path, says, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    shutil.copytree(ruled / "studies/mlp_digits/momentum", tmp_path / "studies/mlp_digits/momentum")
    command = ["rules", tmp_path, "--base-batch-size", 256, "--rules", "constant", "--workers", 1]
    said = says(*command, "--seeds", 4)
    assert "mlp_digits, momentum: what it will cost" in said
    assert "batch size 16: 2 configurations with 4 seeds each" in said
    assert "mlp_digits, momentum, tuned at batch size 256: steps divided by those after retuning" in said
    before = pd.read_csv(ruled / "tables/rule_steps.csv")
    before = before[before["optimizer"] == "momentum"].reset_index(drop=True)
    after = pd.read_csv(tmp_path / "tables/rule_steps.csv")
    pd.testing.assert_frame_equal(after[after["run"] < 3].reset_index(drop=True), before)
    more = after[after["run"] == 3]
    assert set(zip(more["rule"], more["base_batch_size"], strict=True)) == {("constant", 256), ("tuned", 16)}
    assert "constant from 256" in says("status", tmp_path)
    seeds = pd.read_csv(tmp_path / "tables/rules.csv").set_index(["base_batch_size", "rule"])["seeds"]
    assert seeds.to_dict() == {(16, "constant"): 3, (16, "linear"): 3, (256, "constant"): 4, (256, "linear"): 3}


@pytest.mark.slow
def test_refusals_name_the_rule_the_value_and_the_cure(swept, tmp_path, says):
    before = written(swept)
    published, released = tmp_path / "imported", tmp_path / "released"
    says("export", swept, released)
    says("import", released, published)
    for words, why in (
        ([swept, "--rules", "square_rot"], "unknown rule 'square_rot'; did you mean 'square_root'?"),
        ([swept, "--seeds", 0], "--seeds must be at least 1, but got 0."),
        (
            [swept, "--base-batch-size", 32],
            "mlp_digits, adam; mlp_digits, momentum: batch size 32 was not swept; choose among 16, 256.",
        ),
        ([tmp_path / "empty"], "there is no folder"),
        ([published], "was imported"),
    ):
        assert why in says("rules", *words, status=2)
    assert written(swept) == before


@pytest.fixture
def plan(tmp_path, make_study, make_curve, write_study):
    """What is to be done about a curve whose trials all reach the goal at these steps, by batch size; not trained."""

    def planned(asked, reached, unfinished=()):
        jobs = {}
        for size, reaches in reached.items():
            study = make_study(batch_size=size, trials=2)
            curves = [make_curve(study, i, reaches=reaches) for i in range(2 - (size in unfinished))]
            write_study(tmp_path, study, curves)
            jobs[size] = Job(study, tmp_path, Placement())
        found, left_out = transfer.transfers_of_curve(jobs, asked)
        return {each.job.study.batch_size: [study.branch for study in each.studies] for each in found}, left_out

    return planned


def test_what_is_not_tuned_is_left_out_and_where_the_goal_was_missed_nothing_is_compared(plan):
    asked = transfer.TransferRequest(bases=(8, 16), rules=("constant", "constant_half_life"), seeds=2)
    found, left_out = plan(asked, {8: 20, 16: None, 32: 30, 64: 10}, unfinished=(64,))
    assert left_out == [
        "batch size 64 is not tuned yet; finish its sweep first",
        "no trial of batch size 16 reached the goal, so it has no tuned configuration; choose among 8, 32",
        "rule constant_half_life changes decay rates, but the optimizer has none; choose another rule",
    ]
    constant = Branch(rerun=0, rule="constant", base=8)
    assert found == {16: [constant], 32: [Branch(rerun=0, rule="tuned", base=32), constant]}


def test_the_usual_bases_are_the_smallest_that_reached_the_goal_and_the_middle_one(plan):
    found, left_out = plan(transfer.TransferRequest(rules=("constant",)), {1: None, 2: 20, 4: 20, 8: 20, 16: 20})
    assert left_out == []
    assert {branch.base for branches in found.values() for branch in branches if branch.rule == "constant"} == {2, 8}


@pytest.mark.parametrize(
    ("reached", "reason"),
    [
        ({8: None, 16: None}, "no trial reached the goal, so nothing is tuned; `study report` says what to"),
        ({8: 20}, "batch size 8 is the only one, so there is none to transfer to; sweep another"),
    ],
)
def test_nothing_can_be_moved_from_nowhere_or_to_nowhere(plan, reached, reason):
    found, [left_out] = plan(transfer.TransferRequest(), reached)
    assert (found, left_out[: len(reason)]) == ({}, reason)


def test_a_base_that_was_fastest_on_twice_the_budget_brings_it_along(make_study, make_curve, write_study, tmp_path):
    jobs = {}
    for size in (8, 16):
        study = make_study(batch_size=size, trials=1, budgets=(1.0, 2.0))
        for search in stages.planned(study):
            steps = 60 if search.branch.budget == 1 else 40
            write_study(tmp_path, search, [make_curve(search, 0, reaches=steps)])
        jobs[size] = Job(study, tmp_path, Placement())
    found, _ = transfer.transfers_of_curve(jobs, transfer.TransferRequest(bases=(8,), rules=("linear",)))
    [tuned, linear] = next(each.studies for each in found if each.job.study.batch_size == 16)
    assert linear.branch == Branch(budget=2.0, rerun=0, rule="linear", base=8)
    assert (tuned.train_steps, linear.train_steps) == (200, 200)
    assert linear.search.space["warmup_examples"].choices == (round(200 * 16 / 18),)


def test_a_reason_that_holds_for_several_curves_is_told_once(monkeypatch, tmp_path, make_study):
    jobs = [Job(make_study(batch_size=8, optimizer=name), tmp_path, Placement()) for name in ("momentum", "sgd")]
    monkeypatch.setattr(transfer, "recorded", lambda *_: [job.study for job in jobs])
    monkeypatch.setattr(transfer.whole_sweep, "settled", list)
    monkeypatch.setattr(transfer, "transfers_of_curve", lambda *_: ([], ["batch size 33 was not swept"]))
    names = "; ".join(f"{job.study.name}, {job.study.series}" for job in jobs)
    with pytest.raises(UsageError, match=f"^{re.escape(names)}: batch size 33 was not swept.$"):
        transfer.transfers(tmp_path, transfer.TransferRequest((33,)), Placement())
