"""`search.until`: what it accepts, what it adds, and where it ends."""

import json
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from helpers.fused import partly
from rich.console import Console

from analysis.estimates.until import widest
from analysis.question.until import Until
from analysis.report import build
from study import store
from study.__main__ import main
from study.commands import until
from study.config.jobs import parse_jobs
from study.errors import UsageError

PUBLISHED = Path(__file__).parents[3] / "results/published/mlp_digits"
BOTH = ("optimizer=sgd,momentum", "search=sobol", f"results={PUBLISHED}")


@pytest.fixture
def published(monkeypatch):
    """The tables of the published digits, read from their files: five fresh seeds, and widths of 1.19 and 1.28."""
    tables = {name: pd.read_csv(PUBLISHED / f"tables/{name}.csv") for name in ("steps_to_result", "compare")}
    monkeypatch.setattr(build, "read", lambda _: SimpleNamespace(tables=tables))


def further(*words):
    console = Console(record=True, width=500)
    jobs = parse_jobs([*BOTH, *words])
    return until.further(jobs, jobs, console), console.export_text()


@pytest.mark.parametrize(
    ("words", "added", "said"),
    partly(
        [
            (["search.until=width 1.2"], ["search.reruns=10"], "S(B) spans a factor of 1.28"),
            (["search.until=factor 1.1"], ["search.reruns=10"], "over all batch sizes spans a factor of 1.19"),
            (["search.until=width 1.3"], [], "is met"),
            (["search.until=factor 1.2"], [], "is met"),
            (["search.until=width 1.2", "search.until_cost=1.1"], [], "search.until_cost=1.1 allows"),
            ([], [], ""),
        ],
        2,
    ),
)
def test_a_sweep_goes_on_until_its_intervals_are_narrow(published, words, added, said):
    found, text = further(*words)
    assert found == added
    assert said in text


@pytest.fixture
def with_another_workload(published, monkeypatch):
    """The same tables, with a second workload beside the first, and a third optimizer that has no fresh seeds."""
    tables = build.read(None).tables
    steps, pairs = tables["steps_to_result"], tables["compare"]
    both = {name: pd.concat([each, each.assign(workload="other")]) for name, each in tables.items()}
    third = steps[steps["optimizer"] == "sgd"].assign(optimizer="adam", tuned_high=1e9, optimum_high=1e9)
    both["steps_to_result"] = pd.concat([both["steps_to_result"], third])
    both["compare"] = pd.concat([both["compare"], pairs[pairs["kind"] == "two searches"].assign(a="adam", b="sgd")])
    monkeypatch.setattr(build, "read", lambda _: SimpleNamespace(tables=both))


@pytest.mark.parametrize("until", ["width 1.3", "factor 1.2"])
def test_only_curves_of_this_sweep_count(with_another_workload, until):
    assert further(f"search.until={until}")[0] == []


def test_each_workload_has_its_own_comparison(with_another_workload):
    tables = build.read(None).tables
    pairs = tables["compare"][tables["compare"]["a"] != "adam"]
    assert widest(Until("factor", 1.2), tables["steps_to_result"], pairs) == pytest.approx(1.19, abs=0.01)


def test_a_batch_size_that_missed_the_goal_does_not_ask_for_the_same_again(published, monkeypatch):
    """Nothing is added to it, so its file still records the first question."""
    recorded = store.recorded

    def stale(results, study):
        on_file = recorded(results, study)
        fresh = {"reruns": 5 if study.batch_size == 1 else 10}
        return on_file._replace(question={**on_file.question, "search": on_file.question["search"] | fresh})

    monkeypatch.setattr(store, "recorded", stale)
    assert further("search.until=width 1.2")[0] == ["search.reruns=16"]


@pytest.mark.parametrize("text", ["1.3", "factor", "factor 1", "width 0.5", "factors 1.3", "factor nan", "width 1.2 "])
def test_a_width_is_a_kind_and_a_factor_above_one(text):
    if text == "width 1.2 ":
        assert str(parse_jobs([f"search.until={text}"])[0].options.until) == "width 1.2"
        return
    with pytest.raises(UsageError, match=r"search\.until must"):
        parse_jobs([f"search.until='{text}'"])


@pytest.mark.parametrize(
    "words",
    [
        ["optimizer=sgd", "search.until=factor 1.3"],
        ["optimizer=sgd,adam", "batch_size=8,64", "search.until=factor 1.3"],
    ],
)
def test_a_comparison_that_the_sweep_cannot_make_is_refused_before_training(words):
    with pytest.raises(UsageError, match="3 batch sizes"):
        until.check(parse_jobs(words))


@pytest.mark.slow
def test_the_stated_cost_is_a_multiple_of_what_the_command_asks_for(tmp_path, monkeypatch):
    """Not of what an earlier run of it added: else each repetition would raise the limit."""
    words = ["sweep", "optimizer=sgd", "batch_size=64", "search=sobol", "search.trials=2", f"results={tmp_path}"]
    words += ["budget={epochs: 0, steps: 30}", "goal=val/classification_error < 0.5", "search.until=width 1.5"]
    asked = []
    monkeypatch.setattr(until, "further", lambda jobs, first, _: asked.append((jobs, first)) or [])
    for reruns in (3, 2):
        assert main([*words, f"search.reruns={reruns}"]) == 0
    jobs, first = asked[-1]
    assert [each[0].study.search.reruns for each in (jobs, first)] == [3, 2]


@pytest.mark.slow
@pytest.mark.release
def test_seeds_then_rounds_are_added_up_to_the_stated_cost(swept_once):
    words = [
        "optimizer=sgd,momentum",
        "batch_size=4,32,256",
        "search.scouts=4",
        "search.refine=[3]",
        "search.confirm=2",
    ]
    results = swept_once("sweep", *words, "search.until=width 1.01", "search.until_cost=3")
    question = json.loads((results / "studies/mlp_digits/sgd/32/study.json").read_text())["question"]["search"]
    assert (question["reruns"], question["added"], question["trials"]) == (16, 1, 18)
    runs = pd.read_csv(results / "tables/rerun_steps.csv")
    assert (runs.groupby(["optimizer", "batch_size"]).size() == 16).all()
