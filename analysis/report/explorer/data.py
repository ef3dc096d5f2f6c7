"""The data of the explorer: trials and learning curves of every study, rounded and thinned to the size of a page.

Shapes: T trials of a study, best first; G steps at which any of them has a point; P tuned parameters.
"""

from collections.abc import Hashable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from analysis.labels import goal_text, metric_text
from analysis.load import ANSWER, TASK
from analysis.tables.learning_curves import MOST_TRIALS as MOST_CURVES
from analysis.tables.learning_curves import STATES, ranks, spaced, states

MOST_TRIALS, MOST_POINTS = 10_000, 200_000
"""About the most trials, and points of learning curves, on a page (about 2 MB)."""
LEAST_TRIALS, LEAST_POINTS = 10, 12
"""However many studies there are, each has as many trials, and each trial as many points, if they were measured."""
DIGITS, PARAMETER_DIGITS = 3, 6
Tables = Mapping[str, pd.DataFrame]
Groups = dict[Hashable, pd.DataFrame]


def payload(tables: Tables) -> dict[str, Any]:
    """What the explorer shows: panels (workload and goal) of optimizers, of studies.

    Returns:
        panels, and counts of trials: `shown` and `all`. For the entries of a study see `of_study`.

    >>> from analysis.report.build import Asked, tables
    >>> data = payload(tables([study], [study], Asked()))
    >>> data["counts"], [(panel["goal"], panel["optimizers"][0]["name"]) for panel in data["panels"]]
    ({'shown': 20, 'all': 20}, [('validation cross entropy < 0.2', 'sgd')])
    """
    curves = tables.get("learning_curves")
    if curves is None or curves.empty:
        return {"panels": [], "counts": {"shown": 0, "all": 0}}
    by_study: Groups = dict(iter(curves.groupby(ANSWER, sort=False)))
    trials: Groups = dict(iter(tables["trials"].groupby(ANSWER, sort=False)))
    most = share(len(trials), min(MOST_CURVES, max(map(len, trials.values()))))
    panels = []
    for key, steps in tables["steps_to_result"].groupby(TASK, sort=False):
        optimizers = []
        for name, rows in steps.groupby("optimizer", sort=False):
            parameters = _parameters(tables, str(key[0]), str(name))
            found = []
            for row in rows.to_dict("records"):
                at = key[0], name, row["batch_size"], *key[1:]
                if at in trials:
                    found.append(of_study(row, trials[at], by_study.get(at, curves.iloc[:0]), parameters, most))
            if found:
                optimizers.append({"name": name, "parameters": parameters, "studies": found})
        if optimizers:
            about = {"workload": key[0], "metric": metric_text(key[1]), "threshold": key[2]}
            panels.append({**about, "goal": goal_text(key[1], key[2]), "optimizers": optimizers})
    studies = [each for panel in panels for optimizer in panel["optimizers"] for each in optimizer["studies"]]
    counts = {"shown": sum(len(each["trial"]) for each in studies), "all": sum(each["trials"] for each in studies)}
    return {"panels": panels, "counts": counts}


def share(studies: int, trials: int) -> tuple[int, int]:
    """(the most trials of each study, the most points of each trial) on a page.

    Arguments:
        trials: the most that any study has.

    >>> share(22, 20), share(454, 60)
    ((20, 454), (22, 20))
    """
    each = min(trials, max(LEAST_TRIALS, MOST_TRIALS // studies))
    return each, max(LEAST_POINTS, MOST_POINTS // (studies * each))


def _parameters(tables: Tables, workload: str, optimizer: str) -> list[dict[str, str]]:
    """Name and scale of each parameter that trials of an optimizer have, the learning rate first."""
    trials, axes = tables["trials"], tables["axes"]
    mine = trials[(trials["workload"] == workload) & (trials["optimizer"] == optimizer)]
    names = [name for name in list(mine.columns[mine.columns.get_loc("stopping") + 1 :]) if mine[name].notna().any()]
    here = axes[(axes["workload"] == workload) & (axes["optimizer"] == optimizer)].drop_duplicates("parameter")
    scales = dict(zip(here["parameter"], here["scale"], strict=True))
    usual = {name: "names" if isinstance(mine[name].dropna().iloc[0], str) else "linear" for name in names}
    return [{"name": name, "scale": scales.get(name, usual[name])} for name in names]


def of_study(
    row: Mapping[str, Any], trials: pd.DataFrame, curves: pd.DataFrame, parameters: list[dict[str, str]], most: tuple
) -> dict[str, Any]:
    """One study: its answer, its trials as columns, and their learning curves.

    Arguments:
        row: of `steps_to_result`.
        trials, curves: its rows of `trials` and `learning_curves`.
        most: (trials, points of a trial), from `share`.

    Returns:
        batch_size; steps (None if the goal was not reached); budget (steps); best (trial, or None); trials (the number
        of counted ones); every (k, if curves have every k-th evaluation); columns [T]: trial, state (position in
        `analysis.tables.learning_curves.STATES`), end, steps_to_goal, error (the least); values [P][T]; grid [G]: the
        steps at which curves have points, each as the difference from the one before; curves [T]: positions in the grid
        (None for 0, 1, ...) and errors.

    >>> from analysis.tables import learning_curves, steps_to_result, trials
    >>> curves, rate = learning_curves.learning_curves([study]), [{"name": "learning_rate", "scale": "log"}]
    >>> found = of_study(steps_to_result.row(study), trials.trials([study]), curves, rate, (3, 12))
    >>> {name: found[name] for name in ("steps", "best", "trials", "trial", "state", "error")}
    {'steps': 21, 'best': 1, 'trials': 20, 'trial': [1, 7, 9], 'state': [0, 1, 1], 'error': [0.0593, 0.289, 2.3]}
    """
    order = ranks(trials)[spaced(len(trials), MOST_CURVES)]  # the trials that have curves
    order = order[spaced(len(order), most[0])]
    columns = {name: trials[name].to_numpy()[order] for name in trials}
    steps, errors, lengths = _points(curves, columns["trial"])
    grid, every = thinned(steps, lengths, most[1], whole(row["steps_to_result"]))
    return {
        "batch_size": int(row["batch_size"]),
        "steps": whole(row["steps_to_result"]),
        "budget": int(row["train_steps"]),
        "best": whole(row["trial"]),
        "trials": len(trials),
        "every": int(curves["every"].max()) * every if len(curves) else 1,
        "trial": columns["trial"].tolist(),
        "state": [STATES.index(state) for state in states(pd.DataFrame(columns))],
        "end": columns["end"].tolist(),
        "steps_to_goal": [whole(steps) for steps in columns["steps_to_goal"]],
        "error": rounded(columns["least_error"]),
        "values": [rounded(columns[each["name"]], PARAMETER_DIGITS) for each in parameters],
        "grid": np.diff(grid, prepend=0).tolist(),
        "curves": _on(grid, steps, errors, lengths),
    }


def _points(curves: pd.DataFrame, order: np.ndarray) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The steps and errors of the curves of these trials, one after the other, and the number of points of each."""
    trials = curves["trial"].to_numpy()
    firsts = np.flatnonzero(np.diff(trials, prepend=-1)).tolist()  # the rows of a trial are together
    runs = {trials[first]: np.arange(first, end) for first, end in pairwise([*firsts, len(trials)])}
    mine = [runs.get(trial, np.arange(0)) for trial in order]
    inside = np.concatenate(mine)
    return curves["step"].to_numpy()[inside], curves["error"].to_numpy()[inside], [len(rows) for rows in mine]


def thinned(steps: np.ndarray, lengths: Sequence[int], most: int, goal: int | None) -> tuple[np.ndarray, int]:
    """(the steps to show, k): every k-th step, so that no curve has many more than `most`; also its last, and `goal`.

    Arguments:
        steps, lengths: of the points of all curves, one after the other, and the number of points of each.
        goal: the step at which the best trial reached the goal.

    >>> grid, every = thinned(np.array([1, 2, 3, 4, 5, 6, 1, 2]), [6, 2], most=2, goal=4)
    >>> grid.tolist(), every
    ([1, 2, 4, 6], 3)
    """
    grid = np.unique(steps)
    every = max(1, -(-max(lengths, default=0) // most))
    last = steps[np.cumsum(lengths)[np.asarray(lengths) > 0] - 1]
    kept = (np.arange(len(grid)) % every == 0) | np.isin(grid, [*last, -1 if goal is None else goal])
    return grid[kept], every


def _on(grid: np.ndarray, steps: np.ndarray, errors: np.ndarray, lengths: Sequence[int]) -> list[list]:
    """[positions in the grid, errors] of each curve; None for the positions 0, 1, 2, ..."""
    at = np.searchsorted(grid, steps)
    kept = np.isin(steps, grid)
    counts = np.append(0, np.cumsum(kept))[np.append(0, np.cumsum(lengths))].tolist()
    places, values = at[kept].tolist(), rounded(errors[kept])
    curves = []
    for first, end in pairwise(counts):
        gapless = end == first or places[end - 1] == end - first - 1
        curves.append([None if gapless else places[first:end], values[first:end]])
    return curves


def rounded(values: Any, digits: int = DIGITS) -> list:
    """Numbers rounded to these significant digits; None for missing and infinite ones; names as they are.

    >>> rounded([0.123456, 12.0, float("inf"), 123456, 0.0]), rounded(np.array(["cosine", None]))
    ([0.123, 12.0, None, 123000.0, 0.0], ['cosine', None])
    """
    values = np.asarray(values)
    if values.dtype == object and any(isinstance(value, str) for value in values):
        return [value if isinstance(value, str) else None for value in values]
    values = np.array(pd.to_numeric(pd.Series(values)), dtype=float)
    known = np.isfinite(values)
    size = np.abs(np.where(known & (values != 0), values, 1.0))
    place = digits - 1 - np.floor(np.log10(size))
    scale = 10.0 ** np.abs(place)
    found = np.where(place >= 0, np.round(values * scale) / scale, np.round(values / scale) * scale).tolist()
    return found if known.all() else [value if good else None for value, good in zip(found, known, strict=True)]


def whole(value: Any) -> int | None:
    """A whole number; None for a missing one.

    >>> whole(21.0), whole(pd.NA)
    (21, None)
    """
    return None if pd.isna(value) else int(value)
