"""The search space of each batch size as a model sees it: the share that is close to the optimum, and the minimum.

A Gaussian process over all trials of a curve (`analysis.surrogate`) gives these numbers. They are named as a model's,
and no S(B) is read from them.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.counting import INCOMPLETE, Goal, Outcome
from analysis.edges import unit
from analysis.load import ANSWER, StudyData
from analysis.parallel import spread
from analysis.surrogate.curve import Fitted, fitted
from analysis.surrogate.process import Coordinates
from analysis.surrogate.proposals import DIGITS
from analysis.surrogate.responses import Result, about_errors, shortened
from analysis.surrogate.tunability import landscape
from analysis.tables.steps_to_result import answerable, counted_trials, measured, row

FEWEST = 15
"""The fewest trials of a batch size that show its search space."""
MOST = 500
"""The most trials of a curve in a model, whose time grows as their cube; each batch size then keeps its best ones."""
MANY_SEARCHES = 100
"""Searches from which on curves are modelled in several processes."""
COLUMNS = ["sampler", "trials", "share", "share_low", "share_high", "model_steps"]


class Trials(NamedTuple):
    """The trials of one search as a process takes them, with the measurements that their responses depend on.

    Attributes:
        results: the counted trials that ended.
        never_negative, error_floor: see `analysis.surrogate.responses.about_errors`.
    """

    results: tuple[Result, ...]
    never_negative: bool
    error_floor: float | None


def trials(study: StudyData, goal: Goal | None = None) -> Trials | None:
    """The trials of a search, read once; None if there are too few, or a parameter has names or is absent in a trial.

    >>> found = trials(study)
    >>> len(found.results), found.results[1].point, found.results[1].outcome.result
    (20, (0.753614,), 21)
    """
    goal = goal or study.goal
    return study.once(("landscape", goal), lambda: _trials(study, goal))


def _trials(study: StudyData, goal: Goal) -> Trials | None:
    space = study.question["search"].get("space") or {}
    ended = counted_trials(study, goal)
    ended = ended[ended["status"] != INCOMPLETE]
    values = study.trials.reindex(index=ended.index, columns=sorted(space))
    named = any(isinstance(value, str) for dimension in space.values() for value in dimension.get("choices", ()))
    if len(ended) < FEWEST or named or values.isna().any(axis=None) or not _ranges(space):
        return None
    curves = measured(study, goal)
    results = []
    ends = ended[["status", "end", "steps_to_goal"]].itertuples(name=None)
    for (index, status, end, steps), chosen in zip(ends, values.itertuples(index=False, name=None), strict=True):
        point = tuple(round(unit(space[name], value), DIGITS) for name, value in zip(values, chosen, strict=True))
        outcome = Outcome(status, int(end), None if pd.isna(steps) else int(steps))
        results.append(shortened(Result(point, curves[index], outcome)))
    errors = np.concatenate([np.asarray(curves[index].errors, dtype=float) for index in ended.index])
    return Trials(tuple(results), *about_errors(goal.metric, errors))


def _ranges(space: Mapping[str, Any]) -> bool:
    """False if an imported search does not say where it looked."""
    return bool(space) and all("choices" in each or {"low", "high", "scale"} <= set(each) for each in space.values())


def modelled(studies: Iterable[StudyData], goals: Sequence[Goal | None] = (None,)) -> Iterator[list[dict[str, Any]]]:
    """Begin to model each curve, in other processes if there are many searches; gives the rows of each for `table`.

    Batch sizes whose spaces differ, because some were widened, have models of their own.

    Arguments:
        goals: the goals to read from the curves; None is each study's own.

    >>> [len(rows) for rows in modelled([study])]
    [1]
    """
    curves: dict[tuple[Any, ...], dict[int, StudyData]] = {}
    for study, goal in answerable(studies, goals):
        if trials(study, goal) is not None:
            space = json.dumps(study.question["search"]["space"], sort_keys=True)
            curves.setdefault((*study.curve, goal, space), {})[study.batch_size] = study
    asked = [(key[2], dict(sorted(searches.items()))) for key, searches in curves.items()]
    return spread(_rows, asked, if_at_least=MANY_SEARCHES, size=sum(map(len, curves.values())))


def table(curves: Iterable[list[dict[str, Any]]]) -> pd.DataFrame:
    """The search space of every batch size whose search reached the goal and has enough trials.

    Arguments:
        curves: from `modelled`.

    Returns:
        A row for each (workload, optimizer, batch_size, goal): sampler, trials (that inform the model at this batch
        size), share (of the search space with its extended ranges, in which a configuration needs at most 1.2
        times the steps of the best) with its 95 % interval share_low and share_high, and model_steps (the steps of the
        model's best configuration).

    >>> found = table(modelled([study]))
    >>> found[["batch_size", "trials", "share", "share_low", "share_high", "model_steps"]].round(2)
       batch_size  trials  share  share_low  share_high  model_steps
    0          64      20   0.09       0.07        0.14        23.32
    """
    return pd.DataFrame(chain.from_iterable(curves), columns=[*ANSWER, *COLUMNS])


def _rows(curve: tuple[Goal, Mapping[int, StudyData]]) -> list[dict[str, Any]]:
    """The rows of one curve: its goal, and its searches by batch size."""
    goal, searches = curve
    if not any(row(study, goal)["reached"] for study in searches.values()):
        return []
    model, rows = _model(goal, searches), []
    for size, study in searches.items():
        if not row(study, goal)["reached"]:
            continue
        _, response, (share, low, high) = landscape(model.process, size, _box(study))
        rows.append(
            {
                **study.names,
                **goal.names,
                **{"sampler": study.question["search"].get("sampler"), "trials": len(model.responses[size].values)},
                **{"share": share, "share_low": low, "share_high": high},
                "model_steps": float(np.exp(response + model.responses[size].least)),
            }
        )
    return rows


def _box(study: StudyData) -> list[tuple[float, float]]:
    """The ends of each range, which rounds may have extended, in units of the range that the process knows."""
    declared, searched = study.question["search"]["space"], study.searched
    return [
        (0.0, 1.0) if (wide := searched[name]) == each else (unit(each, wide["low"]), unit(each, wide["high"]))
        for name, each in sorted(declared.items())
    ]


def _model(goal: Goal, searches: Mapping[int, StudyData]) -> Fitted:
    of_size = {size: made for size, study in searches.items() if (made := trials(study, goal)) is not None}
    floors = [made.error_floor for made in of_size.values() if made.error_floor is not None]
    space = next(iter(searches.values())).question["search"]["space"]
    return fitted(
        Coordinates.of(space),
        {size: _best(made.results, MOST // len(of_size)) for size, made in of_size.items()},
        goal.threshold,
        all(made.never_negative for made in of_size.values()),
        min(floors, default=None),
    )


def _best(results: Sequence[Result], most: int) -> Sequence[Result]:
    """At most `most` results: those with the fewest steps to the goal, then those that ran longest without it.

    What is left out is bad, which the process expects of a point that it has not seen.
    """
    if len(results) <= most:
        return results

    def rank(position: int) -> tuple[float, int, int]:
        steps = results[position].outcome.result
        return (np.inf if steps is None else steps, -results[position].outcome.end, position)

    return [results[position] for position in sorted(sorted(range(len(results)), key=rank)[:most])]
