"""What would settle a claim: the sweep that says most, with its command and its cost."""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.claims.evidence import Evidence
from analysis.claims.registry import FULL, Judged
from analysis.claims.statement import CONTRADICTED, SHOWN
from analysis.estimates.until import trainings
from analysis.labels import about
from analysis.load import GOAL, StudyData, rows_with
from analysis.report.answer.continued import SWEEP, command, seconds_of, workers_of
from analysis.report.answer.next_step import next_step, tuned_more

SMOOTHING = "search.space.label_smoothing"
Load = Callable[[str], Sequence[StudyData]]
"""The name of a workload -> the searches that give its S(B)."""


class Settles(NamedTuple):
    """What would settle a claim.

    Attributes:
        advice: in a sentence without a full stop; empty if it is settled.
        command: may be several lines; empty if none is on record.
        seconds: NaN if the time is unknown; `plan` in place of `sweep` measures it.
    """

    advice: str
    command: str = ""
    seconds: float = np.nan

    @property
    def text(self) -> str:
        """The advice with its cost.

        >>> Settles("sweep larger batch sizes", "python -m study sweep", 90.0).text
        'sweep larger batch sizes (about 1 min 30 s)'
        """
        cost = f" ({about(self.seconds)})" if np.isfinite(self.seconds) else ""
        return f"{self.advice}{cost}"


def settle(judged: Judged, evidence: Evidence, load: Load) -> Settles:
    """What would settle a claim that is neither shown nor contradicted.

    For an open statement of a part that is not shown, this is the next step that the report on its workload proposes.
    Where nothing was measured, it is the command of a measured workload with the keys that test the claim.

    >>> from analysis.claims.evidence import about
    >>> from analysis.claims.registry import judge
    >>> evidence = Evidence({}, about([study]))
    >>> goals = judge(evidence)[1]
    >>> found = settle(goals, evidence, lambda workload: [study])
    >>> found.advice, found.command.split()[-2:]
    ('test it on mlp_digits', ['search.trials=50', 'results=results/mlp_digits-claim-b'])
    """
    if judged.verdict in (SHOWN, CONTRADICTED):
        return Settles("")
    for statement in judged.tree.undecided():
        if workload := statement.widest or _named_first(statement.subject, evidence.about["workload"].unique()):
            return _next(workload, evidence, load(workload), statement.by_trials)
    return _test(judged, evidence, load)


def _named_first(subject: str, workloads: Iterable[str]) -> str | None:
    """The workload that a subject names first; the longest of those, as one name may begin with another."""
    return min(
        (each for each in workloads if each in subject),
        key=lambda each: (subject.index(each), -len(each)),
        default=None,
    )


def _next(workload: str, evidence: Evidence, studies: Sequence[StudyData], by_trials: bool) -> Settles:
    """The next step on one workload at its own goal, or twice the trials (one more round of `refine`)."""
    steps, limits, cost = (
        table[table["workload"] == workload]
        for table in (evidence.table("steps_to_result"), evidence.table("scaling"), evidence.table("cost"))
    )
    cost = cost.assign(workload=studies[0].workload)
    if by_trials:
        more = tuned_more(studies)
        seconds = seconds_of(studies, more.units, cost)
        return Settles(f"{workload}: {more.advice}", command(studies, more.overrides), seconds)
    goal = studies[0].goal
    steps, limits = (
        rows_with(table, GOAL, [*goal.names.values()]).assign(workload=studies[0].workload) for table in (steps, limits)
    )
    found = next_step(studies, steps, limits, cost)
    return Settles(f"{workload}: {found.advice}", found.command, found.seconds)


def _possible(test: Mapping[str, str], study: StudyData) -> dict[str, str]:
    """The keys that test a claim, without label smoothing if the workload has none: `sweep` refuses it there.

    >>> _possible({"search.trials": "50", SMOOTHING: "[0,0.1]"}, study)
    {'search.trials': '50', 'search.space.label_smoothing': '[0,0.1]'}
    """
    workload, tuned = study.question["workload"], study.question["search"]["space"]
    has = "label_smoothing" in workload or "label_smoothing" in tuned
    return {key: value for key, value in test.items() if has or key != SMOOTHING}


def _test(judged: Judged, evidence: Evidence, load: Load) -> Settles:
    """The sweep that tests a claim on which nothing was measured."""
    claim = judged.claim
    if claim.models:
        commands = [shlex.join([*SWEEP, *_words(each)]) for each in claim.models]
        return Settles("sweep these workloads; `plan` in place of `sweep` measures the cost", "\n".join(commands))
    workload = _cheapest(evidence.table("cost")) or next(iter(evidence.about["workload"]), None)
    if workload is None:
        return Settles("sweep any workload", shlex.join([*SWEEP, *_words(claim.test)]))
    studies = load(workload)
    results = f"results/{studies[0].workload}-claim-{judged.letter}"
    extended = command(studies, {**_possible(claim.test, studies[0]), "results": results})
    seconds = np.nan
    if claim.test.items() >= FULL.items() and len(cost := evidence.table("cost")):
        mine = cost[cost["workload"] == workload]
        whole = mine["seconds_per_step"] * [_budget(studies, row) for row in mine.to_dict("records")]
        trials = trainings({"sampler": "sobol", "trials": int(FULL["search.trials"]), "reruns": 0})
        seconds = float(whole.sum() * trials / workers_of(studies))
    return Settles(f"test it on {workload}", extended, seconds)


def _budget(studies: Sequence[StudyData], row: Mapping[str, object]) -> float:
    """The step budget of the study that a row of the costs is about."""
    found = (s.train_steps for s in studies if (s.optimizer, s.batch_size) == (row["optimizer"], row["batch_size"]))
    return float(next(found, np.nan))


def _cheapest(cost: pd.DataFrame) -> str | None:
    """The workload whose trials took the least time."""
    if cost.empty:
        return None
    each = (cost["seconds_training"] / cost["trials"].replace(0, np.nan)).groupby(cost["workload"]).mean()
    return str(each.idxmin()) if each.notna().any() else None


def _words(keys: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in keys.items()]
