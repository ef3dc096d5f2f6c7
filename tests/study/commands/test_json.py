"""`--json` of every verb that reads: one object with the documented members, and valid JSON without NaN."""

import json
import re
from pathlib import Path

import pytest

from study.commands import VERBS, flags_of

ROOT = Path(__file__).parents[3]
PUBLISHED = ROOT / "results/published/mlp_digits"
FEW = ROOT / "tests/data/older_results/complete"
MEMBERS = {"format", "verb", "version", "rows", "sentences", "warnings", "tables", "files"}
READING = {
    "status": ["status", FEW],
    "advise": ["advise", PUBLISHED, "--gpus", "4"],
    "claims": ["claims", PUBLISHED],
    "list": ["list", "schedules"],
    "list all": ["list"],
    "data": ["data", "list", "digits"],
    "report": ["report", FEW, "--output", "OUT"],
}
ROWS = {
    "status": {"workload", "optimizer", "batch_size", "state", "complete", "seconds_left"},
    "advise": {"splits", "sentences", "notes"},
    "claims": {"claim", "verdict", "statements", "evidence", "settle", "command", "seconds"},
    "list": {"kind", "name", "purpose", "takes"},
    "data": {"name", "present", "where", "megabytes", "what"},
    "report": {"workload", "optimizer", "batch_size", "steps_to_result", "reached"},
}


def read(text):
    def refuse(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize("name", READING)
def test_it_prints_one_object(name, says, tmp_path):
    words = [str(word).replace("OUT", str(tmp_path / "out")) for word in READING[name]]
    found = read(says(*words, "--json"))
    assert set(found) == MEMBERS
    assert found["verb"] == words[0]
    assert found["rows"]
    assert all(ROWS[words[0]] <= set(row) for row in found["rows"])
    assert all(Path(file).exists() for file in found["files"].values())
    if name == "report":
        assert set(found["tables"]) >= {"scaling", "compare"}
        assert found["sentences"]


def test_the_page_names_the_commands_without_it():
    page = (ROOT / "docs/reference/json.md").read_text()
    named = re.search(r"^((?:`\w+`(?:, | and )?)+) have no `--json`", page, re.MULTILINE)
    assert {*re.findall(r"\w+", named[1])} - {"and"} == {name for name in VERBS if "--json" not in flags_of(name)}


def test_the_page_names_every_member_and_verb():
    page = (ROOT / "docs/reference/json.md").read_text()
    rows = re.findall(r"^\| `(\w+)`", page, re.MULTILINE)
    verbs = {
        "status",
        "plan",
        "report",
        "compare",
        "claims",
        "noise",
        "branch",
        "advise",
        "certify",
        "verify",
        "schedule",
        "sizes",
        "list",
        "data",
    }
    assert {*rows} == MEMBERS | verbs


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["list", "optimizers"], ["sgd", "Plain stochastic gradient descent."]),
        (["list"], ["mlp_digits", "momentum", "cosine", "refine", "quick", "workload=NAME. The model and its data."]),
        (["list", "workloads", "--config-dir", "MINE"], ["moons", "Two moons.", "mlp_digits"]),
        (["list", "data"], ["digits", "cifar10"]),
    ],
)
def test_choices_are_listed_from_the_headers_of_their_files(words, shown, says, tmp_path):
    (tmp_path / "workload").mkdir()
    (tmp_path / "workload/moons.yaml").write_text("# @package _global_\n# Two moons.\nworkload: {}\n")
    said = says(*(str(tmp_path) if word == "MINE" else word for word in words))
    assert [text for text in shown if text not in said] == []
