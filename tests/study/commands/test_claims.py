"""`study claims`: what it prints, and the sweeps that it proposes."""

import shlex
from pathlib import Path

import pytest

from analysis.claims import registry
from analysis.claims.settle import settle
from analysis.gallery.gather import gather
from study.config.jobs import parse_jobs

PUBLISHED = Path(__file__).parents[3] / "results/published"
SWEEPS = [
    pytest.param({"workload": "mlp_digits", **keys}, id=f"{letter}-{number}")
    for letter, claim in registry.CLAIMS.items()
    for number, keys in enumerate([*([claim.test] if claim.test else []), *claim.models])
]


@pytest.mark.slow
@pytest.mark.parametrize("keys", SWEEPS)
def test_proposed_sweeps_are_accepted(keys):
    assert parse_jobs([f"{key}={value}" for key, value in keys.items()], None)


@pytest.fixture(scope="module")
def settled():
    found = gather([PUBLISHED / "mlp_digits"])
    judged = registry.judge(found.evidence)
    return {each.letter: (each.verdict, settle(each, found.evidence, found.searches)) for each in judged}


@pytest.mark.parametrize(
    ("letter", "verdict", "advice", "last"),
    [
        ("b", "not shown", "mlp_digits: search with 40 trials instead of 20", "search.trials=40"),
        ("c", "shown", "", ""),
        ("d", "not tested", "sweep these workloads", "workload.widths=[1024]"),
        ("i", "not tested", "test it on mlp_digits", "results=results/mlp_digits-claim-i"),
    ],
)
def test_what_would_settle_a_claim(settled, letter, verdict, advice, last):
    found, settles = settled[letter]
    assert found == verdict
    assert settles.advice.startswith(advice)
    assert bool(advice) == bool(settles.advice)
    words = shlex.split(settles.command)
    assert (words[-1:] or [""]) == [last]
    if verdict == "not shown":
        assert 0 < settles.seconds < 3600


def test_a_claim_that_needs_full_budgets_names_their_cost(settled):
    evidence = registry.Evidence({}, gather([PUBLISHED / "mlp_digits"]).evidence.about)
    goals = registry.judge(evidence)[1]
    made = gather([PUBLISHED / "mlp_digits"])
    settles = settle(goals, registry.Evidence({"cost": made.evidence.table("cost")}, evidence.about), made.searches)
    assert "stopping=budget" in settles.command
    assert settles.seconds > 0


def test_the_terminal_shows_every_claim_and_the_next_commands(says):
    said = says("claims", PUBLISHED / "mlp_digits")
    for letter, claim in registry.CLAIMS.items():
        assert f"({letter})" in said
        assert claim.text.split()[0] in said
    assert "(c) scales further: shown, 2 of 2 statements shown" in said
    assert "python -m study sweep optimizer=sgd,momentum stopping=budget" in said


def test_folders_without_results_are_refused(says, tmp_path):
    assert "no studies in" in says("claims", tmp_path, status=2)
