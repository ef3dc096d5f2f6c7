"""Goals of a log: `val/loss < 3`, or `val/accuracy > 0.9`, which becomes an error; and what a goal could be."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.counting import AS_ERRORS, NUMBER, Goal
from analysis.labels import counted
from analysis.question.goals import ACCURACIES
from study.exchange.importing import ImportRefused
from study.exchange.logs import names
from study.exchange.logs.long_frame import Log

_GOAL = re.compile(rf"(?:(?P<pattern>[^<>:]*):)?\s*(?P<metric>[^<>:]+?)\s*(?P<sign>[<>])\s*(?P<threshold>{NUMBER})\s*")
_QUANTITY = re.compile(r"loss|err|ppl|perplex|acc\b|accuracy|entropy|nll|bpb|score|f1|auc|bleu|wer", re.IGNORECASE)
ONE = 1 + 1e-5
"""The largest fraction, rounded in single precision."""


class Wanted(NamedTuple):
    """A goal as the user gave it, for workloads that fit a pattern; `above`: the metric must rise above it."""

    text: str
    pattern: str
    metric: str
    above: bool
    threshold: float


def parse(text: str) -> Wanted:
    """Read `[WORKLOAD:]METRIC<X` or `[WORKLOAD:]METRIC>X`.

    Raises:
        ImportRefused: the text has another form.

    >>> parse("vit_*:val/accuracy > 0.9")[1:]
    ('vit_*', 'val/accuracy', True, 0.9)
    """
    match = _GOAL.fullmatch(text.strip())
    if match is None:
        raise ImportRefused(
            f"a goal must read 'METRIC < NUMBER' such as 'val/loss < 3', or 'METRIC > NUMBER' for a metric that grows, "
            f"but got {text!r}."
        )
    above = match["sign"] == ">"
    return Wanted(text, match["pattern"] or "*", match["metric"], above, float(match["threshold"]))


class Growing(NamedTuple):
    """How a growing metric is kept: error = (whole - metric) / whole, or whole - metric if `whole` is 0 or 1."""

    error: str
    whole: float

    def of(self, metric: Any) -> Any:
        """The error for a value, or for values, of the metric."""
        return (self.whole - metric) / (self.whole or 1.0)


def choose(log: Log, workloads: Mapping[str, Sequence[str]], texts: Sequence[str]) -> tuple[Log, dict[str, Goal]]:
    """(the log with accuracies and growing goals as errors, workload -> its goal).

    Arguments:
        workloads: workload -> its runs.

    Raises:
        ImportRefused: a goal is missing, malformed, not measured, or on a growing metric; the message has the cure.
    """
    wanted = [parse(text) for text in texts]
    for one in wanted:
        if not any(fnmatchcase(workload, one.pattern) for workload in workloads):
            raise ImportRefused(f"--goal {one.text!r} fits no workload; choose among {', '.join(sorted(workloads))}.")
    growing: dict[str, Growing] = {}
    for metric in log.metrics:
        if metric.rpartition("/")[2] in (*ACCURACIES, *AS_ERRORS):
            growing[metric] = _growing(log, metric, growing)
    goals: dict[str, Goal] = {}
    for workload, runs in sorted(workloads.items()):
        fitting = [each for each in wanted if fnmatchcase(workload, each.pattern)]
        if not fitting:
            raise ImportRefused(_missing(log, workloads, workload))
        goals[workload] = _goal(log, fitting[-1], runs, growing)
    return _with_errors(log, growing), goals


def _missing(log: Log, workloads: Mapping[str, Sequence[str]], workload: str) -> str:
    prefix = f"{workload}:" if len(workloads) > 1 else ""
    of_workload = log.rows[log.rows["run"].isin(workloads[workload])]
    first = sorted(log.metrics, key=lambda metric: (not metric.startswith("val/"), not metric.startswith("test/")))
    found = [f"--goal '{prefix}{text}'" for metric in first if (text := _suggested(log, of_workload, metric))]
    if not found:
        raise ImportRefused(no_metrics(log))
    about = "several metrics could be the goal" if len(found) > 1 else "a goal is needed"
    return (
        f"{about} of {workload}: a metric and the value that it must pass. Every batch size passes these: "
        f"{', '.join(found[:6])}. `study report --goal` can evaluate others later."
    )


def no_metrics(log: Log) -> str:
    """The message that no column is a metric."""
    likely = [name for name in log.left_out if _QUANTITY.search(name) and names.could_be_metric(name)]
    some = f"--map val/{names.plain(likely[0])}={likely[0]}" if likely else "--map val/loss=COLUMN"
    return (
        f"no column is a metric of train/, val/ or test/. These change during a run: {names.listed(log.left_out)}. "
        f"Name one: {some}."
    )


def _suggested(log: Log, rows: pd.DataFrame, metric: str) -> str | None:
    """A goal on a metric that every batch size passed; None if it was never measured."""
    known = rows[np.isfinite(rows[metric])]
    if known.empty:
        return None
    sizes = known["run"].map(lambda run: log.runs[run]["batch_size"])
    by_size = known[metric].groupby(sizes.to_numpy())
    if _rises(known, metric):
        return f"{metric}>{_rounded(by_size.max().min(), up=False):g}"
    return f"{metric}<{_rounded(by_size.min().max(), up=True):g}"


def _rounded(value: float, up: bool) -> float:
    """A value with three digits, further from the best."""
    if value == 0:
        return 0.001 if up else -0.001
    size = 10.0 ** (np.floor(np.log10(abs(value))) - 2)
    return float((np.floor(value / size) + 1 if up else np.ceil(value / size) - 1) * size)


def _rises(known: pd.DataFrame, metric: str) -> bool:
    """True if a metric is higher at the end than at the start of most runs."""
    by_run = known.groupby("run", sort=False)[metric]
    return bool((by_run.last() > by_run.first()).mean() > 0.5)


def _goal(log: Log, wanted: Wanted, runs: Sequence[str], growing: dict[str, Growing]) -> Goal:
    if not wanted.above and wanted.metric in {kept.error for kept in growing.values()}:
        return _checked(wanted, wanted.metric, wanted.threshold)
    metric = _metric(log, wanted)
    rows = log.rows[log.rows["run"].isin(runs)]
    known = rows[np.isfinite(rows[metric])]
    if known.empty:
        raise ImportRefused(f"--goal {wanted.text!r}: {metric} was never measured.")
    threshold = wanted.threshold
    if wanted.above:
        growing.setdefault(metric, _growing(log, metric, growing))
        kept = growing[metric]
        if kept.whole and (threshold >= kept.whole or (kept.whole > 1 and threshold <= 1)):
            raise ImportRefused(
                f"--goal {wanted.text!r}: {metric} goes up to {known[metric].max():g} here and is at most "
                f"{kept.whole:g}; give a goal on the same scale."
            )
        metric, threshold = kept.error, round(kept.of(threshold), 12)
    elif metric in growing or _begins_below(known, metric, threshold):
        raise ImportRefused(
            f"--goal {wanted.text!r}: {metric} rises during training, so it is no error; give the value that it must "
            f"rise above: --goal '{_suggested(log, rows, metric)}'."
        )
    return _checked(wanted, metric, threshold)


def _checked(wanted: Wanted, metric: str, threshold: float) -> Goal:
    try:
        return Goal(metric, threshold)
    except ValueError as error:
        raise ImportRefused(f"--goal {wanted.text!r}: {error}") from error


def _begins_below(known: pd.DataFrame, metric: str, threshold: float) -> bool:
    """True if a metric rises, and most runs begin below the goal."""
    return _rises(known, metric) and (known.groupby("run", sort=False)[metric].first() < threshold).mean() > 0.5


def _metric(log: Log, wanted: Wanted) -> str:
    """The metric of a goal, by its name or that of its column."""
    by_column = {column: metric for metric, columns in log.read_as.items() for column in columns}
    for name in (wanted.metric, by_column.get(wanted.metric), names.metric(wanted.metric)):
        if name in log.metrics:
            return str(name)
    if not log.metrics:
        raise ImportRefused(no_metrics(log))
    split = names.metric(wanted.metric) or f"val/{names.plain(wanted.metric)}"
    left = f", and {names.listed(log.left_out)}, which change during a run, too" if log.left_out else ""
    raise ImportRefused(
        f"--goal {wanted.text!r}: the log does not measure {wanted.metric}, only {names.listed(log.metrics)}{left}. "
        f"Choose one of these, or name the column: --map {split}=COLUMN."
    )


def _growing(log: Log, metric: str, others: Mapping[str, Growing]) -> Growing:
    """How a growing metric is kept: as 1 - metric if it lies between 0 and 1, also in percent; else as -metric."""
    split, _, name = metric.rpartition("/")
    values = log.rows[metric][np.isfinite(log.rows[metric])]
    least, most = values.min(), values.max()
    in_percent = name in ACCURACIES and ONE < most <= 100 * ONE and least >= 0
    if not (in_percent or (least >= 0 and most <= ONE)):
        return Growing(f"{split}/negative_{name}", 0.0)
    error = "classification_error" if name in ACCURACIES else AS_ERRORS.get(name, f"{name}_error")
    if f"{split}/{error}" in {*log.metrics, *(other.error for other in others.values())}:
        error = f"{name}_error"
    return Growing(f"{split}/{error}", 100.0 if in_percent else 1.0)


def _with_errors(log: Log, growing: Mapping[str, Growing]) -> Log:
    """The log with growing metrics as errors; what was not finite stays infinite."""
    rows, facts, notes, read_as = log.rows, [*log.facts], [*log.notes], dict(log.read_as)
    for metric, kept in growing.items():
        highest = rows[metric].where(np.isfinite(rows[metric])).groupby(rows["run"], sort=False).max()
        if kept.whole == 100 and (low := list(highest.index[highest <= 1])):
            notes.append(
                f"{metric} is taken as percent in all runs, since it goes up to {highest.max():g}; in "
                f"{counted(len(low), 'run')} it never exceeds 1: {names.listed(low, 3)}. If they hold fractions, "
                "multiply theirs by 100"
            )
        column = kept.of(rows[metric]).where(~np.isinf(rows[metric]), np.inf)
        rows = rows.drop(columns=metric).assign(**{kept.error: column})
        formula = {0.0: f"-{metric}", 1.0: f"1 - {metric}"}.get(kept.whole, f"1 - {metric} / 100")
        facts.append(f"Goals are on errors, so {kept.error} is {formula}")
        read_as[kept.error] = read_as.pop(metric, [metric])
    return replace(log, rows=rows, facts=facts, notes=notes, read_as=read_as)
