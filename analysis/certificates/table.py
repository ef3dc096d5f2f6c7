"""Certificates as a table and as sentences: tuned configurations whose mean error was tested."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.certificates.estimate import LEVEL, POWER, Certificate, certificate, seeds_needed
from analysis.counting import COMPLETE, INCOMPLETE, Branch, Goal
from analysis.labels import counted, goal_text, metric_text, number, with_interval
from analysis.load import ANSWER, StudyData
from analysis.tables import steps_to_result
from analysis.tables.answers import answer, by_study

COLUMNS = [*ANSWER, "trial", "step", *Certificate._fields, "diverged", "wanted", "steps_tested", "certified"]


def table(studies: Iterable[StudyData], goals: Sequence[Goal | None] = (None,)) -> pd.DataFrame:
    """Every test of a tuned configuration that `study certify` trained.

    Configurations that are not the tuned one any more, since the sweep found a better one, are left out.

    Arguments:
        studies: all searches.
        goals: the goals to test, where their metric was measured; None is each study's own.

    Returns:
        A row for each (workload, optimizer, batch_size, goal, step) with two trained seeds or more: trial, the columns
        of `analysis.certificates.estimate.Certificate`, diverged (how many seeds did), wanted (seeds), steps_tested (at
        how many steps this configuration was tested) and certified: p_value times steps_tested is below 0.01.

    >>> table([study]).empty  # the published configurations were not tested
    True
    """
    rows = [row for searches in by_study(studies) for goal in goals for row in _rows(searches, goal)]
    return pd.DataFrame(rows, columns=COLUMNS)


def _rows(searches: Mapping[Branch, StudyData], goal: Goal | None) -> Iterator[dict[str, Any]]:
    chosen = answer(searches)
    tuned = steps_to_result.row(chosen)["tuned_trial"] if chosen.begun else None
    current = chosen.branch._replace(rerun=tuned)
    tested = {
        branch.certify: study
        for branch, study in sorted(searches.items(), key=lambda pair: pair[0].certify or 0)
        if branch.certify is not None and branch._replace(certify=None) == current
    }
    goal = goal or chosen.goal
    found = {step: values for step, study in tested.items() if len(values := errors(study, goal)) > 1}
    for step, values in found.items():
        test = certificate(values, goal.threshold)
        yield {
            **chosen.names,
            **goal.names,
            **{"trial": tuned, "step": step, **test._asdict(), "diverged": int(np.isinf(values).sum())},
            **{"wanted": int(tested[step].question["search"]["trials"]), "steps_tested": len(found)},
            "certified": bool(test.p_value * len(found) < LEVEL),
        }


def errors(study: StudyData, goal: Goal) -> np.ndarray:
    """The errors of the trained seeds of a certificate at its step [n]; infinite where a seed diverged.

    Empty if the goal's metric was not measured there.

    >>> errors(study, study.goal).shape  # a search, whose trials do not end at one step
    (0,)
    """
    return study.once(("certificate", goal.metric), lambda: _errors(study, goal))


def _errors(study: StudyData, goal: Goal) -> np.ndarray:
    if study.branch.certify is None or goal.metric not in study.metrics:
        return np.array([])
    status = steps_to_result.outcomes(study, goal)["status"]
    read = study.reader.read([goal.metric])
    at_end = read[read["step"] == study.branch.certify].set_index("trial")[goal.metric].reindex(status.index)
    values = at_end.where(status == COMPLETE, np.inf)[status != INCOMPLETE]
    return values.dropna().to_numpy(dtype=float)


def p_text(value: float) -> str:
    """A p value.

    >>> p_text(0.00031), p_text(0.42), p_text(1e-12), p_text(float("nan"))
    ('0.00031', '0.42', '< 1e-6', 'unknown')
    """
    return "unknown" if np.isnan(value) else "< 1e-6" if value < 1e-6 else f"{value:.3g}"


def overview(rows: pd.DataFrame) -> pd.DataFrame:
    """The certificates as text, a row for each.

    >>> names = {"workload": "digits", "optimizer": "sgd", "batch_size": 64, "goal_metric": "val/loss"}
    >>> values = [3.2759, 3.2781, 3.2791, 3.2771, 3.2738, 3.2749]
    >>> row = names | {"goal_threshold": 3.28, "step": 440, "steps_tested": 1, "certified": True, "diverged": 0}
    >>> overview(pd.DataFrame([row | certificate(values, 3.28)._asdict()])).iloc[0, 2:].tolist()
    ['validation loss < 3.28', '64', '440', '6', '3.27648 (3.27439 to 3.27858)', '4.32', '0.00379', 'yes']
    """
    return pd.DataFrame(
        {
            "workload": row["workload"],
            "optimizer": row["optimizer"],
            "goal": goal_text(row["goal_metric"], row["goal_threshold"]),
            "batch size": f"{row['batch_size']:,}",
            "step": f"{row['step']:,}",
            "seeds": f"{row['seeds']:,}",
            "mean error": _mean(row),
            "t": "" if not np.isfinite(row["errors_below"]) else f"{row['errors_below']:.2f}",
            "p": p_text(row["p_value"]),
            "certified": "yes" if row["certified"] else "no",
        }
        for row in rows.to_dict("records")
    )


def _mean(row: Mapping[str, Any]) -> str:
    """The mean with its interval, to two digits of its standard error."""
    if not np.isfinite(row["mean"]):
        return "diverged"
    if not row["standard_error"] > 0:
        return number(row["mean"])
    digits = max(0, 1 - int(np.floor(np.log10(row["standard_error"]))))
    return with_interval(row["mean"], row["low"], row["high"], f"{{:.{digits}f}}".format)


def sentences(rows: pd.DataFrame, gap: float | None = None) -> list[str]:
    """Two sentences for each certificate: its verdict, and how many seeds show a gap.

    Arguments:
        gap: how far the mean lies below the goal; None: the measured distance.

    >>> sentences(table([study]))
    []
    """
    said = []
    for row in rows.to_dict("records"):
        goal, metric = goal_text(row["goal_metric"], row["goal_threshold"]), metric_text(row["goal_metric"])
        name = f"{row['workload']} with {row['optimizer']} at batch size {row['batch_size']:,}"
        said.append(f"{name}: {_verdict(row, metric, goal)}.")
        if row["sd"] > 0:
            said.append(f"{_needed(row, gap)}.")
    return said


def _verdict(row: Mapping[str, Any], metric: str, goal: str) -> str:
    if row["diverged"]:
        return f"not certified, because {row['diverged']} of {row['seeds']} seeds diverged before step {row['step']:,}"
    over = f"over {row['seeds']} fresh seeds, {metric} at step {row['step']:,} is {_mean(row)} on average"
    if np.isnan(row["p_value"]):
        return f"{over}; not certified, because all errors are equal and tell no spread: give more --seeds"
    side = "below" if row["errors_below"] >= 0 else "above"
    where = f"{abs(row['errors_below']):.2f} standard errors {side} the goal"
    many = f" times {row['steps_tested']} steps that were tested" if row["steps_tested"] > 1 else ""
    verdict = "certified" if row["certified"] else "not certified"
    p = f"p {p_text(row['p_value'])}" if row["p_value"] < 1e-6 else f"p = {p_text(row['p_value'])}"
    return f"{over}, {where}: {goal} is {verdict} ({p}{many}; below {LEVEL} is required)"


def _needed(row: Mapping[str, Any], gap: float | None) -> str:
    measured = row["goal_threshold"] - row["mean"]
    wanted = measured if gap is None else gap
    if wanted <= 0:
        return "The mean is not below the goal, and no number of seeds can show that it is; train for more --steps"
    n = seeds_needed(wanted, row["sd"], LEVEL / row["steps_tested"])
    what = "the measured gap" if gap is None else "a gap"
    if n is None:
        return f"To certify {what} of {number(wanted)}, more than a million seeds would be needed"
    return f"To certify {what} of {number(wanted)} with probability {POWER:g}, {counted(n, 'seed')} are needed"


def warnings(rows: pd.DataFrame) -> list[str]:
    """What a reader should know of certificates.

    >>> warnings(table([study]))
    []
    """
    said = []
    for row in rows.to_dict("records"):
        name = f"{row['workload']} with {row['optimizer']} at batch size {row['batch_size']:,}, step {row['step']:,}"
        if row["seeds"] < row["wanted"]:
            said.append(f"{name}: only {row['seeds']} of {row['wanted']} seeds are trained; run study certify again.")
    return said
