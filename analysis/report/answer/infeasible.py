"""Batch sizes at which no trial was feasible or learned anything, or most commands failed."""

from collections.abc import Sequence

import pandas as pd

from analysis.counting import Goal
from analysis.estimates import tuned
from analysis.labels import counted, end_text
from analysis.load import STUDY, StudyData
from analysis.tables.steps_to_result import counted_trials

LONGEST = 200
"""Characters of a line that a failed command printed."""
BELOW = 100
"""The least factor between the ends of a range of lower learning rates; one from 0 is divided by it."""


def hindered(studies: Sequence[StudyData], steps: pd.DataFrame) -> list[StudyData]:
    """The studies without a feasible trial, and those most of whose commands failed.

    >>> steps = pd.DataFrame({"workload": "mlp_digits", "optimizer": "sgd", "batch_size": [64], "complete": 0})
    >>> [len(hindered([study], steps.assign(infeasible=count))) for count in (80, 0)]
    [1, 0]
    """
    keys = {tuple(row[name] for name in STUDY) for row in steps.to_dict("records") if tuned.nothing_feasible(row)}
    return [study for study in studies if study.key in keys or failed([study])]


def failed(studies: Sequence[StudyData]) -> bool:
    """Whether most trials of these studies were commands that failed.

    >>> failed([study])
    False
    """
    return 2 * sum(len(study.failures) for study in studies) > sum(len(study.trials) for study in studies)


def happened(studies: Sequence[StudyData]) -> str:
    """What made the trials of these studies infeasible: all of them, or most.

    >>> happened([study])
    'all 20 trials diverged'
    >>> study.failures.update(dict.fromkeys(study.trials.index, {"status": 1, "output": ""}))
    >>> happened([study])
    'all 20 commands failed'
    """
    trials, failures = sum(len(study.trials) for study in studies), sum(len(study.failures) for study in studies)
    if failures in (0, trials):
        return f"all {counted(trials, 'command' if failures else 'trial')} {'failed' if failures else 'diverged'}"
    diverged = sum(int(study.trials["first_bad_step"].notna().sum()) for study in studies)
    others = ", and the others diverged" if diverged == trials else ""
    return f"{failures:,} of {trials:,} commands failed{others}"


def never_improved(study: StudyData, goal: Goal) -> float:
    """The error of the untrained model if no trial had a smaller one after a step; NaN otherwise, or if it is unknown.

    >>> never_improved(study, study.goal)
    nan
    """
    untrained = study.untrained(goal.metric)
    least = counted_trials(study, goal)["least_error"].min()
    return untrained if untrained < least < float("inf") else float("nan")


def example(studies: Sequence[StudyData]) -> str:
    """How the last command that failed ended; empty if none failed.

    >>> example([study])
    ''
    >>> study.failures[3] = {"status": 1, "output": "loading\\nno such file"}
    >>> example([study])
    "trial 3 at batch size 64 ended with exit status 1, and its last line is 'no such file'"
    """
    found = [(study, index) for study in studies for index in study.failures]
    if not found:
        return ""
    study, index = max(found, key=lambda each: each[1])
    ended, output = study.failures[index], study.folder / "commands" / f"{index:06d}" / "output.txt"
    lines = ended["output"].splitlines()
    last = f"its last line is {lines[-1][:LONGEST]!r}" if lines else "it printed nothing"
    where = f"; all of its output: {output}" if output.exists() else ""
    return f"trial {index} at batch size {study.batch_size:,} {end_text(ended)}, and {last}{where}"


def lower(studies: Sequence[StudyData]) -> dict[str, float]:
    """The range of learning rates below one in which all trials diverged, as wide as it on a log scale or a factor of
    `BELOW`: overrides of a sweep; empty if no range of learning rates was searched.

    >>> lower([study])  # it was 0.001 to 10
    {'search.space.learning_rate.low': 1e-07, 'search.space.learning_rate.high': 0.001}
    """
    ranges = [study.searched.get("learning_rate", {}) for study in studies]
    if not all("low" in each for each in ranges):
        return {}
    low, high = min(each["low"] for each in ranges), max(each["high"] for each in ranges)
    low, high = (low / max(high / low, BELOW), low) if low > 0 else (low, high / BELOW)
    return {f"search.space.learning_rate.{side}": float(f"{end:.2g}") for side, end in (("low", low), ("high", high))}
