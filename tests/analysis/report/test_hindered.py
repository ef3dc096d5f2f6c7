"""What a report says and advises where no trial was feasible, or most commands failed."""

import json
import re
from dataclasses import replace

import pytest

from analysis.load import load
from analysis.report import build
from analysis.report.answer.next_step import next_step

CRASH = {"status": 1, "stopped": "", "output": "loading\nno file {data}"}
LOWER = "search.space.learning_rate.low=0.0001 search.space.learning_rate.high=0.01"
HINDERED = {
    "commands that failed": (
        {8: CRASH, 64: CRASH},
        "mend the command, because all 8 commands failed at batch sizes 8 and 64, and sweep again",
        "results=results/tiny-mended",
        "All 8 commands failed: trial 3 at batch size 8 ended with exit status 1, and its last line is 'no file "
        "{data}'; all of its output: .*/8/commands/000003/output.txt",
        ": all 4 commands failed; mend the command",
    ),
    "commands that failed at one batch size": (
        {8: None, 64: CRASH},
        "mend the command, because all 4 commands failed at batch size 64, and sweep again",
        "batch_size=64 results=results/tiny-mended",
        "All 4 commands failed: trial 3 at batch size 64 ended",
        "batch size 64: all 4 commands failed; mend the command",
    ),
    "commands that failed for the most part": (
        {8: None, 64: [CRASH, None, CRASH, CRASH]},
        "mend the command, because 3 of 4 commands failed at batch size 64, and sweep again",
        "batch_size=64 results=results/tiny-mended",
        "3 of 4 commands failed: trial 3 at batch size 64 ended",
        "batch size 64: 3 of 4 commands failed; mend the command",
    ),
    "commands that failed, and trials that diverged": (
        {8: None, 64: [CRASH, {}, CRASH, CRASH]},
        "mend the command, because 3 of 4 commands failed, and the others diverged at batch size 64, and sweep again",
        "batch_size=64 results=results/tiny-mended",
        "3 of 4 commands failed, and the others diverged: trial 3 at batch size 64 ended",
        "batch size 64: 3 of 4 commands failed, and the others diverged; mend the command",
    ),
    "trials that diverged": (
        {8: {}, 64: {}},
        "search lower learning rates, because all 8 trials diverged at batch sizes 8 and 64",
        f"{LOWER} results=results/tiny-lower",
        "",
        ": all 4 trials diverged; lower search.space.learning_rate.low and .high",
    ),
    "trials that diverged at one batch size": (
        {8: {}, 64: None},
        "search lower learning rates, because all 4 trials diverged at batch size 8",
        f"{LOWER} batch_size=8 results=results/tiny-lower",
        "",
        "batch size 8: all 4 trials diverged; lower search.space.learning_rate.low and .high",
    ),
}  # fmt: skip
"""How all or each of the trials of each batch size ended (None: feasible, without reaching the goal), and what is said.
"""


@pytest.mark.slow
@pytest.mark.parametrize(("ends", "advice", "command", "lead", "note"), HINDERED.values(), ids=HINDERED)
def test_no_larger_budget_is_advised(tmp_path, make_study, make_curve, write_study, ends, advice, command, lead, note):
    for size, of_size in ends.items():
        each = of_size if isinstance(of_size, list) else [of_size] * 4
        study = make_study(
            {"learning_rate": {"low": 1e-2, "high": 1.0, "scale": "log"}},
            optimizer="sgd",
            batch_size=size,
            max_launches=4,
        )
        curves = [
            replace(make_curve(study, index, bad=None if end is None else 1), command=end or {})
            for index, end in enumerate(each)
        ]
        folder = write_study(tmp_path, study, curves)
        for index in range(4):
            (folder / f"commands/{index:06d}").mkdir(parents=True)
            (folder / f"commands/{index:06d}/output.txt").touch()
    studies = list(load(tmp_path))
    for study in studies:
        study.provenance[-1]["command"] = "python -m study sweep"
    data = build.read([tmp_path])
    [answer] = data.answers
    assert answer.next.advice == advice
    assert answer.title == ("SGD did not reach the goal" if None in ends.values() else "SGD had no feasible trial")
    assert re.match(re.escape(lead).replace(r"\.\*", ".*"), answer.lead) if lead else answer.lead == ""
    steps, limits, cost = (data.tables[name] for name in ("steps_to_result", "scaling", "cost"))
    found = next_step(studies, steps, limits, cost)
    words = f"python -m study sweep {command}".replace("results/tiny", str(tmp_path)).split()
    assert (sorted(found.command.split()), found.cost) == (sorted(words), "")
    assert [said for said in data.warnings if note in said]
    assert any("raise the budget" in said for said in data.warnings) == (None in ends.values())


def test_a_few_commands_that_failed_are_named(tmp_path, make_study, make_curve, write_study):
    """They count as diverged, although one that had too little memory says nothing about its hyperparameters."""
    study = make_study(max_launches=5)
    killed = {"status": -9, "stopped": "", "output": ""}
    curves = [replace(make_curve(study, index, reaches=30), command=killed | {"status": 0}) for index in range(4)]
    write_study(tmp_path, study, [*curves, replace(make_curve(study, 4, bad=11), command=killed)])
    found = [said for said in build.read([tmp_path]).warnings if "commands failed" in said]
    assert len(found) == 1
    assert "1 of 5 commands failed, and count as diverged; if it was not for their hyperparameters, mend" in found[0]


RANGES = {
    "one optimizer fails at one batch size, one at both": {("momentum", 8): 1e-2, ("sgd", 8): 1e-2, ("sgd", 64): 1e-2},
    "other learning rates": {("nesterov", 8): 1e-4, ("sgd", 8): 1e-2, ("sgd", 64): 1e-2},
}


@pytest.mark.parametrize("lows", RANGES.values(), ids=RANGES)
def test_lower_learning_rates_are_for_the_optimizer_that_diverged(tmp_path, make_study, make_curve, write_study, lows):
    """Not for others that share the command: they would be trained again, below all rates that serve them."""
    for optimizer, size in {**lows, ("momentum", 64): 0}:
        low = lows.get((optimizer, size))
        space = {"learning_rate": {"low": low or 1e-2, "high": 100 * (low or 1e-2), "scale": "log"}}
        space |= {} if optimizer == "sgd" else {"momentum": {"choices": [0.9]}}
        study = make_study(space, optimizer=optimizer, batch_size=size, max_launches=4)
        write_study(tmp_path, study, [make_curve(study, index, bad=1 if low else None) for index in range(4)])
    studies = list(load(tmp_path))
    for study in studies:
        study.provenance[-1]["command"] = "python -m study sweep"
    data = build.read([tmp_path])
    found = next_step(studies, *(data.tables[name] for name in ("steps_to_result", "scaling", "cost")))
    why = "all 8 trials diverged at batch sizes 8 and 64 with sgd"
    assert found.advice == f"search lower learning rates, because {why}"
    assert {*found.command.split()} >= {*LOWER.split(), "optimizer=sgd"}


@pytest.mark.parametrize(
    ("untrained", "advice", "cure"),
    [
        (0.8, "search lower learning rates, because the least error, 0.9, is above that of an untrained model, 0.8",
            "above that of the untrained model, 0.8; search lower learning rates"),
        (1.0, "choose a looser goal or other ranges of hyperparameters", "0.9; raise the budget"),
        (None, "choose a looser goal or other ranges of hyperparameters", "0.9; raise the budget"),
    ],
)  # fmt: skip
def test_trials_that_learned_nothing_get_lower_learning_rates(sweep, untrained, advice, cure):
    folder = sweep({8: [None] * 4, 64: [None] * 4})
    for path in folder.rglob("study.json"):
        record = json.loads(path.read_text())
        recorded = {} if untrained is None else {"untrained classification_error": untrained}
        record["provenance"][-1] |= {"fingerprint": recorded, "command": "python -m study sweep"}
        path.write_text(json.dumps(record))
    data = build.read([folder])
    found = data.answers[0].next
    assert found.advice.startswith(advice)
    words = {f"results={folder}-lower", "search.space.learning_rate.high=0.001"}
    assert words <= {*found.command.split()} or untrained != 0.8
    assert [said for said in data.warnings if cure in said]
