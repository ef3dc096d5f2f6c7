"""Learning curves: the errors of trials at each evaluation, thinned to the number that a reader can look at."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.counting import COMPLETE, INFEASIBLE, Goal, TrialCurve, first_crossing
from analysis.load import ANSWER, StudyData
from analysis.tables.steps_to_result import answerable, counted_trials, measured, row

REACHED, MISSED, DIVERGED, UNFINISHED = "reached", "not reached", "infeasible", "incomplete"
STATES = (REACHED, MISSED, DIVERGED, UNFINISHED)
MOST_TRIALS, MOST_EVALUATIONS = 60, 60
"""The most trials of a study, and about the most evaluations of a trial, in the table."""


def learning_curves(studies: Iterable[StudyData], goals: Sequence[Goal | None] = (None,)) -> pd.DataFrame:
    """The learning curves of counted trials in the goal's metric, each up to the end of its trial.

    Of more than MOST_TRIALS trials of a study, the table has the best, the worst, and evenly spaced ranks between. Of
    longer curves it has every k-th evaluation, the one that met the goal, and the last.

    Arguments:
        goals: the goals to read from the curves; None is each study's own.

    Returns:
        A row for each (workload, optimizer, batch_size, goal, trial, step): error, state of the trial (STATES), best
        (True for the trial with the fewest steps to the goal), trials (the number of counted trials), every (k). Trials
        are ordered by rank. Errors that are only known to miss the goal (`evaluation.exact=false`) are left out.

    >>> learning_curves([study])[["batch_size", "trial", "step", "error", "state", "best"]].head(2)
       batch_size  trial  step     error    state  best
    0          64      1     8  1.411321  reached  True
    1          64      1     9  1.514674  reached  True
    """
    frames = []
    for study, goal in answerable(studies, goals):
        frames.append(curves(study, goal).assign(**study.names, **goal.names))
    columns = [*ANSWER, "trial", "step", "error", "state", "best", "trials", "every"]
    return pd.concat(frames, ignore_index=True)[columns] if frames else pd.DataFrame(columns=columns)


def curves(study: StudyData, goal: Goal) -> pd.DataFrame:
    """The rows of one study in `learning_curves`, without the columns that name study and goal.

    >>> curves(study, study.goal)["trial"].nunique()
    20
    """
    return study.once(("learning curves", goal), lambda: _curves(study, goal))


def ranks(trials: pd.DataFrame) -> np.ndarray:
    """Positions of trials from the best to the worst: by steps to the goal; those that missed it by least error; then
    the infeasible ones, then the incomplete ones. Ties go to the lower index, as in S(B).

    Arguments:
        trials: by increasing index: status, steps_to_goal, least_error.

    >>> steps = pd.array([None, 30, None], dtype="Int64")
    >>> ranks(pd.DataFrame({"status": "COMPLETE", "steps_to_goal": steps, "least_error": [0.3, 0.1, 0.2]})).tolist()
    [1, 2, 0]
    """
    status = trials["status"].to_numpy()
    place = np.where(status == COMPLETE, 0, np.where(status == INFEASIBLE, 1, 2))
    steps = trials["steps_to_goal"].to_numpy(dtype=float, na_value=np.inf)
    error = np.where(np.isfinite(steps), 0.0, trials["least_error"].to_numpy(dtype=float))
    return np.lexsort((error, steps, place))


def states(trials: pd.DataFrame) -> np.ndarray:
    """The state of each trial (STATES), from its status and its steps to the goal.

    >>> status, steps = ["COMPLETE", "COMPLETE", "INFEASIBLE"], pd.array([30, None, None], dtype="Int64")
    >>> states(pd.DataFrame({"status": status, "steps_to_goal": steps})).tolist()
    ['reached', 'not reached', 'infeasible']
    """
    complete, met = trials["status"] == COMPLETE, trials["steps_to_goal"].notna()
    conditions = [complete & met, complete, trials["status"] == INFEASIBLE]
    return np.select([np.asarray(condition, dtype=bool) for condition in conditions], STATES[:3], UNFINISHED)


def spaced(count: int, most: int) -> np.ndarray:
    """At most `most` of the positions 0 to count - 1, evenly spaced, the first and the last included.

    >>> spaced(10, 4).tolist(), spaced(3, 4).tolist()
    ([0, 3, 6, 9], [0, 1, 2])
    """
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(int)


def _curves(study: StudyData, goal: Goal) -> pd.DataFrame:
    counted, found = counted_trials(study, goal), measured(study, goal)
    chosen = counted.iloc[ranks(counted)[spaced(len(counted), MOST_TRIALS)]]
    longest = max((len(np.asarray(found[trial].steps)) for trial in chosen.index if trial in found), default=1)
    every, best = -(-longest // MOST_EVALUATIONS), row(study, goal)["trial"]
    columns: dict[str, list] = {name: [] for name in ("trial", "step", "error", "state")}
    for trial, state, end in zip(chosen.index, states(chosen), chosen["end"], strict=True):
        if trial in found:
            steps, errors = _thinned(found[trial], int(end), goal.threshold, every)
            values = [trial] * len(steps), steps.tolist(), errors.tolist(), [state] * len(steps)
            for name, mine in zip(columns, values, strict=True):
                columns[name].extend(mine)
    types = {"trial": "int64", "step": "int64", "error": "float64", "state": pd.CategoricalDtype(STATES)}
    table = pd.DataFrame(columns).astype(types)
    return table.assign(best=table["trial"] == (-1 if best is None else best), trials=len(counted), every=every)


def _thinned(trial: TrialCurve, end: int, threshold: float, every: int) -> tuple[np.ndarray, np.ndarray]:
    """(steps, errors) of every k-th evaluation up to the end of a trial, of the first that met the goal, and of the
    last; without errors that are not known."""
    within = np.asarray(trial.steps) <= end
    steps, errors = np.asarray(trial.steps)[within], np.asarray(trial.errors, dtype=float)[within]
    known = np.isfinite(errors)
    kept = (np.arange(len(steps)) % every == 0) | (steps == (first_crossing(steps, errors, threshold) or -1))
    kept[np.flatnonzero(known)[-1:]] = True
    return steps[kept & known], errors[kept & known]
