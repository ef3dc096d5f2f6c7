"""Tables of trials: their outcomes, the median best of n, and where in the search space trials reached the goal.

All tables hold the counted trials only: the first N feasible ones in index order, and every trial before the last of
them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.counting import COMPLETE, EARLY, INFEASIBLE, Goal
from analysis.intervals import known, median_best_of
from analysis.load import ANSWER, CURVE, StudyData
from analysis.tables.steps_to_result import answerable, counted_trials, feasible_steps, row


def trials(studies: Iterable[StudyData], goals: Sequence[Goal | None] = (None,)) -> pd.DataFrame:
    """The outcome and the hyperparameters of every counted trial.

    Arguments:
        goals: the goals to read from the curves; None is each study's own.

    Returns:
        A row for each (workload, optimizer, batch_size, goal, trial): status, end (step), steps_to_goal (NA if it was
        not reached), least_error (of the goal's metric), first_bad_step (NA if the trial stayed finite), train_steps
        (the step budget), stopping (the stopping rule that it ran under), and a column for each tuned parameter (NaN if
        the optimizer or the trial's schedule lacks it). The column `schedule` holds names.

    >>> trials([study])[["trial", "status", "steps_to_goal", "learning_rate"]].head(3)
       trial    status  steps_to_goal  learning_rate
    0      0  COMPLETE            192       0.043631
    1      1  COMPLETE             21       1.033845
    2      2  COMPLETE             56       0.173725
    """
    frames = [_trials(study, goal) for study, goal in answerable(studies, goals)]
    last = ["trial", "status", "end", "steps_to_goal", "least_error", "first_bad_step", "train_steps", "stopping"]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*ANSWER, *last])


def _trials(study: StudyData, goal: Goal) -> pd.DataFrame:
    frame = counted_trials(study, goal)
    known = study.trials.reindex(index=frame.index, columns=["first_bad_step", *study.hyperparameters])
    columns = {
        **study.names,
        **goal.names,
        "trial": frame.index,
        **{name: frame[name] for name in ("status", "end", "steps_to_goal", "least_error")},
        "first_bad_step": known["first_bad_step"],
        "train_steps": study.train_steps,
        "stopping": study.stopped_by,
        **study.with_betas({name: known[name] for name in study.hyperparameters}),
    }
    return pd.DataFrame(columns)


def best_of_n(studies: Iterable[StudyData], goals: Sequence[Goal | None] = (None,)) -> pd.DataFrame:
    """The median best of n trials, n = 1, 2, 4, ... N. If it still falls with n, more trials would find fewer steps.

    Adaptive searches are left out: n of their trials are not the trials that a search of n would have drawn.

    Returns:
        A row for each (workload, optimizer, batch_size, goal, n): steps, the median best of n of the counted trials;
        infinite if it lies beyond the fewest steps at which a trial ended without the goal.

    >>> best_of_n([study])[["n", "steps"]]
        n  steps
    0   1  340.0
    1   2   56.0
    2   4   46.0
    3   8   26.0
    4  16   21.0
    5  20   21.0
    """
    rows = []
    for study, goal in answerable((study for study in studies if study.independent), goals):
        steps = known(feasible_steps(study, goal), row(study, goal)["censored_at"])
        counts = sorted({*(2**k for k in range(len(steps).bit_length())), len(steps)} - {0})
        rows += [study.names | goal.names | {"n": n, "steps": median_best_of(steps, n)} for n in counts]
    return pd.DataFrame(rows, columns=[*ANSWER, "n", "steps"])


def along_axes(table: pd.DataFrame, studies: Iterable[StudyData]) -> pd.DataFrame:
    """The rows of `trials` once for each tuned parameter, with its value and scale.

    Arguments:
        table: from `trials`, for these studies.

    Returns:
        A row for each finished trial and each parameter that it has and that could take more than one value: the
        columns of `trials`, parameter, value, and its search scale (`linear`, `log`, `reverse_log`, or `names` if the
        values are names).

    >>> studies = [load_study(f"{published}/studies/mlp_digits/momentum/64")]
    >>> found = along_axes(trials(studies), studies)
    >>> found.groupby(["parameter", "scale"]).size().to_dict()
    {('learning_rate', 'log'): 20, ('momentum', 'reverse_log'): 20}
    """
    scales: dict[tuple[str, str, str], str] = {}
    for study in studies:
        for name, dimension in study.question["search"]["space"].items():
            choices = dimension.get("choices", (0, 1))
            if len(choices) > 1:
                usual = "names" if isinstance(choices[0], str) else "linear"
                scales[study.workload, study.optimizer, name] = dimension.get("scale", usual)
    ended = table[table["status"].isin([COMPLETE, INFEASIBLE])]
    parts = []
    for (workload, optimizer, name), scale in scales.items():
        rows = ended[(ended["workload"] == workload) & (ended["optimizer"] == optimizer) & ended[name].notna()]
        parts.append(rows.assign(parameter=name, value=rows[name], scale=scale))
    columns = [*table.columns, "parameter", "value", "scale"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def maps(table: pd.DataFrame) -> pd.DataFrame:
    """Which learning rates and momenta reach the goal if all batch sizes have one budget, of examples or of steps.

    The budget is the smallest one within which every batch size that can reach the goal does so, but at most the
    largest one that every batch size was trained for. Needs full budgets: a trial that stopped early does not show
    whether it would have reached the goal.

    Arguments:
        table: from `trials`.

    Returns:
        A row for each (workload, optimizer, goal, unit: `examples` or `steps`, batch_size, trial): budget (in that
        unit), learning_rate, momentum, state (`reached`, `not reached` or `infeasible` within the budget), and fastest
        (True for the fastest trial at its batch size).

    >>> found = maps(pd.read_csv(f"{published}/tables/trials.csv"))
    >>> found[found["fastest"] & (found["unit"] == "examples")][["batch_size", "budget", "trial", "state"]].head(2)
        batch_size   budget  trial    state
    3            1  10000.0      3  reached
    25           2  10000.0      4  reached
    """
    columns = [*ANSWER, "unit", "budget", "trial", "learning_rate", "momentum", "state", "fastest"]
    if not {"learning_rate", "momentum"} <= set(table):
        return pd.DataFrame(columns=columns)
    full = ~table["stopping"].isin(EARLY) & table["learning_rate"].notna() & table["momentum"].notna()
    found = list(_maps(table[full & table["status"].isin([COMPLETE, INFEASIBLE])]))
    return pd.concat(found, ignore_index=True)[columns] if found else pd.DataFrame(columns=columns)


def reaching(table: pd.DataFrame) -> pd.DataFrame:
    """How many trials reach the goal if all batch sizes have one budget, of examples or of steps.

    The budget is the largest one that every batch size was trained for, whichever trials reach the goal within it. A
    curve whose trials all diverged has none, and no rows. Needs full budgets, as `maps` does.

    Arguments:
        table: from `trials`.

    Returns:
        A row for each (workload, optimizer, goal, unit: `examples` or `steps`, batch_size): budget (in that unit),
        trials (their number) and reached (how many of them reach the goal within the budget before they diverge).

    >>> found = reaching(pd.read_csv(f"{published}/tables/trials.csv"))
    >>> found[(found["optimizer"] == "sgd") & (found["unit"] == "steps")].tail(2)[["batch_size", "trials", "reached"]]
        batch_size  trials  reached
    42         512      20        9
    43        1024      20        9
    """
    ended = table[~table["stopping"].isin(EARLY) & table["status"].isin([COMPLETE, INFEASIBLE])]
    rows = []
    for key, curve in ended.groupby(CURVE, sort=False):
        known = _crossings(curve)
        for unit, per_step in UNITS.items():
            budget = known.available(unit)
            if np.isnan(budget):  # every trial diverged
                continue
            reached = known.reached(per_step(curve["batch_size"]), budget)
            counts = reached.groupby(curve["batch_size"]).agg(["size", "sum"])
            rows += [(*key, unit, size, budget, *both) for size, *both in counts.itertuples(name=None)]
    return pd.DataFrame(rows, columns=[*CURVE, "unit", "batch_size", "budget", "trials", "reached"])


UNITS: dict[str, Callable[[Any], Any]] = {"examples": lambda sizes: sizes, "steps": lambda sizes: sizes * 0 + 1}
"""Unit of a budget -> its number in one step at these batch sizes."""


class _Crossings(NamedTuple):
    """When the trials of a curve reached the goal and when they diverged [steps], infinite if never; T trials."""

    crossing: pd.Series
    bad: pd.Series
    complete: pd.Series
    trained: pd.Series

    def available(self, unit: str) -> float:
        """The largest budget that every batch size was trained for."""
        return float((self.trained * UNITS[unit](self.trained.index.to_series())).min())

    def reached(self, each: pd.Series, budget: float) -> pd.Series:
        """Whether each trial [T] reached the goal within a budget; `each`: of a step of each trial [T]."""
        return (self.crossing * each <= budget) & ~(self.bad * each <= budget)


def _crossings(curve: pd.DataFrame) -> _Crossings:
    unknown = np.where(curve["status"] == INFEASIBLE, 0, np.inf)  # imported without the step at which it diverged
    complete = curve["status"] == COMPLETE
    return _Crossings(
        curve["steps_to_goal"].astype("float64").fillna(np.inf),
        curve["first_bad_step"].astype("float64").fillna(pd.Series(unknown, curve.index)),
        complete,
        curve["end"].where(complete).groupby(curve["batch_size"]).max(),
    )


def _maps(table: pd.DataFrame) -> Iterator[pd.DataFrame]:
    for _, curve in table.groupby(CURVE, sort=False):
        known = _crossings(curve)
        for unit, per_step in UNITS.items():
            each = per_step(curve["batch_size"])
            fewest = (known.crossing.where(known.complete, np.inf) * each).groupby(curve["batch_size"]).min()
            if not np.isfinite(fewest).any():
                continue
            budget = min(fewest[np.isfinite(fewest)].max(), known.available(unit))
            reached = known.reached(each, budget)
            state = np.select([known.bad * each <= budget, reached], ["infeasible", "reached"], "not reached")
            fastest = known.crossing.where(reached & known.complete).dropna().groupby(curve["batch_size"]).idxmin()
            yield curve.assign(unit=unit, budget=budget, state=state, fastest=curve.index.isin(fastest))
