"""The fewest steps to the goal, S(B), of each study: the table that most others build on."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import counting, intervals
from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, Goal, TrialCurve
from analysis.load import ANSWER, STUDY, StudyData
from analysis.question import stages
from analysis.question.batch_schedules import COLUMN
from analysis.surrogate import confirmed
from analysis.units import TOKENS

COLUMNS = [*ANSWER, "reached", "steps_to_result", "examples_to_result", "trial", "tuned_trial"]
OF_TOKENS = ["tokens_to_result", TOKENS]
"""Columns between the examples and the trial; only where a workload has tokens."""


def measured(study: StudyData, goal: Goal) -> dict[int, TrialCurve]:
    """The curve of a goal's metric for each trial on file, by trial index.

    >>> trial = measured(study, study.goal)[0]
    >>> trial.steps[:3].tolist(), trial.errors[:3].round(3).tolist()
    ([8, 9, 10], [1.65, 1.572, 1.494])
    """
    return study.reader.once(("curves", goal.metric), lambda: _measured(study, goal))


def _measured(study: StudyData, goal: Goal) -> dict[int, TrialCurve]:
    read = study.reader.read([goal.metric])
    steps, errors = read["step"].to_numpy(dtype=np.int64), read[goal.metric].to_numpy(dtype=float)
    indices = study.trials.index.to_numpy()
    first, last = (np.searchsorted(read["trial"].to_numpy(), indices, side=side) for side in ("left", "right"))
    columns = (study.trials[name] for name in ("first_bad_step", "recorded", "ended"))
    rows = zip(indices.tolist(), first, last, *columns, strict=True)
    return {
        index: TrialCurve(
            steps[a:b],
            errors[a:b],
            None if pd.isna(bad) else int(bad),
            None if pd.isna(kept) else kept,
            study.grid_of(index),
            None if pd.isna(ended) else ended,
        )
        for index, a, b, bad, kept, ended in rows
    }


def outcomes(study: StudyData, goal: Goal | None = None, stopping: str | None = None) -> pd.DataFrame:
    """How every trial of a study ended under a goal and a stopping rule (default: the study's own).

    Returns:
        A row for each trial index from 0 to the highest on file: status, end (step), steps_to_goal (NA if the goal was
        not reached), step_before (the last measured step before steps_to_goal; 0 if none), least_error (of the goal's
        metric up to the end; infinite if none is known), and counted (True for the first N feasible trials and every
        trial before the last of them). A missing trial is INCOMPLETE.

    >>> outcomes(study).loc[1, ["status", "end", "steps_to_goal", "counted"]].to_dict()
    {'status': 'COMPLETE', 'end': 375, 'steps_to_goal': 21, 'counted': True}
    """
    goal, stopping = goal or study.goal, stopping or study.question["stopping"]
    return study.once(("outcomes", goal, stopping), lambda: _outcomes(study, goal, stopping))


def counted_trials(study: StudyData, goal: Goal | None = None, stopping: str | None = None) -> pd.DataFrame:
    """The rows of `outcomes` for the first N feasible trials and every trial before the last of them.

    >>> study = load_study(f"{published}/studies/mlp_digits/momentum/1")
    >>> counted_trials(study)["status"].value_counts().to_dict()
    {'COMPLETE': 20, 'INFEASIBLE': 1}
    """
    frame = outcomes(study, goal, stopping)
    return frame[frame["counted"]]


def _outcomes(study: StudyData, goal: Goal, stopping: str) -> pd.DataFrame:
    trials = measured(study, goal)
    found = counting.outcomes(study.rule(goal, stopping), trials)
    frame = pd.DataFrame(list(found.values()), columns=["status", "end", "steps_to_goal"], index=study.trials.index)
    pairs = list(zip(trials.values(), found.values(), strict=True))
    frame["step_before"] = [_last_before(trial, outcome.steps_to_goal, study.exact) for trial, outcome in pairs]
    frame["least_error"] = [counting.least_error(trial, outcome.end) for trial, outcome in pairs]
    frame = frame.reindex(range(max(study.trials.index, default=-1) + 1))
    frame = frame.fillna({"status": INCOMPLETE, "end": 0, "least_error": np.inf})
    frame = frame.astype({"end": "int64", "steps_to_goal": "Int64", "step_before": "Int64"})
    frame.index.name = "trial"
    prefix = counting.counted_trials(study.question["search"], list(frame["status"]))
    return frame.assign(counted=frame.index < prefix)


def _last_before(trial: TrialCurve, crossing: int | None, exact: bool = True) -> int | None:
    """The last step before a crossing at which the metric was measured; 0 if there is none.

    Arguments:
        exact: False: a missing error was measured, too, and missed the goal.
    """
    if crossing is None:
        return None
    steps = np.asarray(trial.steps)
    steps = steps[np.isfinite(np.asarray(trial.errors, dtype=float))] if exact else steps[steps > 0]
    earlier = int(np.searchsorted(steps, crossing))
    return int(steps[earlier - 1]) if earlier else 0


def unanswerable(study: StudyData, goal: Goal) -> str | None:
    """Why a study's curves cannot answer another goal; None if they can.

    Trials that stopped at their own goal can answer only looser thresholds of the same metric, and evaluations that
    ended when they missed it, no other goal.

    >>> unanswerable(study, Goal("val/cross_entropy_error", 0.1))  # trials ran their whole budgets
    >>> unanswerable(study, Goal("val/perplexity", 0.01))  # doctest: +ELLIPSIS
    'val/perplexity is not measured; there are: test/classification_error, ...'
    """
    if study.metrics and goal.metric not in study.metrics:
        return f"{goal.metric} is not measured; there are: {', '.join(sorted(study.metrics))}."
    if not study.exact and goal != study.goal:
        return f"{goal} needs evaluation.exact=true, since evaluations ended when they missed {study.goal}."
    if not counting.can_answer(goal, study.goal, study.stopped_by):
        return f"{goal} needs stopping=budget, since trials stopped at {study.goal}; give a looser goal of that metric."
    return None


def refusals(studies: Iterable[StudyData], goals: Iterable[Goal]) -> list[str]:
    """A line for each reason why a goal cannot be answered; all optimizers of a workload share the line.

    >>> folder = f"{published}/studies/mlp_digits"
    >>> studies = [load_study(f"{folder}/{optimizer}/64") for optimizer in ("sgd", "momentum")]
    >>> refusals(studies, [Goal("val/perplexity", 0.01)])  # doctest: +ELLIPSIS
    ['mlp_digits, sgd, momentum: val/perplexity is not measured; there are: test/classification_error, ...']
    """
    goals = list(goals)
    found: dict[tuple[str, str], dict[str, None]] = {}
    for study in studies:
        for goal in goals:
            if reason := unanswerable(study, goal):
                found.setdefault((study.workload, reason), {})[study.optimizer] = None
    return [f"{', '.join((workload, *optimizers))}: {reason}" for (workload, reason), optimizers in found.items()]


def answerable(
    studies: Iterable[StudyData], goals: Sequence[Goal | None] = (None,)
) -> Iterator[tuple[StudyData, Goal]]:
    """Every study with every goal that its curves can answer; None stands for the study's own goal.

    >>> goals = [None, Goal("val/cross_entropy_error", 0.3), Goal("val/perplexity", 20)]
    >>> [str(goal) for _, goal in answerable([study], goals)]
    ['val/cross_entropy_error < 0.2', 'val/cross_entropy_error < 0.3']
    """
    for study in studies:
        for goal in goals:
            if goal is None or unanswerable(study, goal) is None:
                yield study, goal or study.goal


def is_complete(study: StudyData) -> bool:
    """True if a search has its N feasible trials, or launched its limit, without a gap; or if it was imported.

    >>> is_complete(study)
    True
    """

    def known() -> bool:
        frame = outcomes(study)
        met = frame["steps_to_goal"].notna() & (frame["status"] == COMPLETE)
        return counting.search_is_complete(study.question["search"], list(frame["status"]), list(met))

    return study.imported or study.once("complete", known)


def feasible_steps(study: StudyData, goal: Goal | None = None, stopping: str | None = None) -> np.ndarray:
    """Steps to the goal of the counted feasible trials [N] in index order, infinite if not reached.

    >>> feasible_steps(study)[:6].tolist()
    [192.0, 21.0, 56.0, inf, inf, 26.0]
    """
    counted = counted_trials(study, goal, stopping)
    return counted[counted["status"] == COMPLETE]["steps_to_goal"].astype("float64").fillna(np.inf).to_numpy()


def is_left_censored(study: StudyData, goal: Goal) -> bool:
    """True if S(B) is only an upper bound (`analysis.intervals.left_censored`).

    >>> is_left_censored(study, study.goal), is_left_censored(study, Goal("val/cross_entropy_error", 2.0))
    (False, True)
    """
    found = row(study, goal)
    return bool(intervals.left_censored(found["steps_to_result"], found["first_evaluation"]))


def _first_evaluation(study: StudyData, goal: Goal, trial: int) -> int:
    """The first step after step 0 at which a trial that reached the goal was measured."""
    steps = np.asarray(measured(study, goal)[trial].steps)
    return int(steps[steps > 0][0])


def _confirmed(study: StudyData) -> int | None:
    """The first trial with the configuration that the last complete screens of `refine` chose for the study's own goal;
    None before that."""
    found = outcomes(study)["status"]
    finished = next((i for i in range(len(found) + 1) if found.get(i, INCOMPLETE) == INCOMPLETE), 0)
    search, rule = study.question["search"], study.rule(study.goal)
    ends = [end for n, end in enumerate(rule.stages) if stages.screens(search, n) and end <= finished]
    if not ends:
        return None
    rule = rule._replace(stages=rule.stages[: rule.stages.index(ends[-1]) + 1])
    screened = confirmed.tuned(search, study.goal, rule, measured(study, study.goal))
    points = study.trials[study.hyperparameters]
    alike = (points == points.loc[screened]) | (points.isna() & points.loc[screened].isna())
    return int(alike.index[alike.all(axis=1)][0])


def _fewest(counted: pd.DataFrame) -> tuple[int | None, int | None]:
    """(the first trial with the fewest steps to the goal, these steps) among the complete ones of these trials."""
    met = counted["steps_to_goal"][counted["status"] == COMPLETE].dropna()
    return (None, None) if met.empty else (int(met.idxmin()), int(met.min()))


def row(study: StudyData, goal: Goal | None = None, stopping: str | None = None) -> dict[str, Any]:
    """The row of one study in `table`.

    >>> answer = row(study)
    >>> answer["steps_to_result"], answer["trial"], answer["steps_n"]
    (21, 1, 26.0)
    """
    goal, stopping = goal or study.goal, stopping or study.question["stopping"]
    return study.once(("row", goal, stopping), lambda: _row(study, goal, stopping))


def _row(study: StudyData, goal: Goal, stopping: str) -> dict[str, Any]:
    counted = counted_trials(study, goal, stopping)
    complete = counted[counted["status"] == COMPLETE]
    steps = feasible_steps(study, goal, stopping)
    trial, fewest = _fewest(counted)
    missed = complete["end"][complete["steps_to_goal"].isna()]
    censored_at = np.nan if missed.empty else float(missed.min())
    known = intervals.known(steps, censored_at)
    n = intervals.draws(len(steps))
    s_n, low, high = np.nan, np.nan, np.nan
    if len(steps) >= intervals.PART and study.independent:
        s_n, (low, high) = float(intervals.median_best_of(known, n)), intervals.interval(known, n)
    tuned = trial
    if study.refines:
        chosen = study.once("confirmed", lambda: _confirmed(study))
        tuned = trial if chosen is None else chosen  # the fastest so far, until screens have chosen
    examples = None if trial is None or fewest is None else study.phases(trial).examples(fewest)
    values = {name: np.nan if tuned is None else study.trials.at[tuned, name] for name in study.hyperparameters}
    return {
        **study.names,
        **goal.names,
        "reached": fewest is not None,
        "steps_to_result": fewest,
        "examples_to_result": examples,
        **_in_tokens(study, examples),
        **({COLUMN: study.batch_schedule.label} if study.batch_schedule else {}),
        "trial": trial,
        "tuned_trial": tuned,
        **study.with_betas(values),
        "steps_n": s_n,
        "low": low,
        "high": high,
        "censored_at": censored_at,
        "first_evaluation": None if trial is None else _first_evaluation(study, goal, trial),
        "step_before": None if trial is None else int(counted["step_before"][trial]),
        "complete": len(complete),
        "incomplete": int((counted["status"] == INCOMPLETE).sum()),
        "infeasible": int((counted["status"] == INFEASIBLE).sum()),
        "train_steps": study.train_steps,
        "budget_multiple": study.branch.budget,
        "stage": study.branch.stage,
        "stopping": stopping,
        "steps_trained": int(counted["end"].sum()),
    }


def _in_tokens(study: StudyData, examples: int | None) -> dict[str, int | None]:
    """The columns OF_TOKENS of a row; none for a workload without tokens."""
    each = study.tokens_per_example
    if each is None:
        return {}
    return dict(zip(OF_TOKENS, (None if examples is None else examples * each, each), strict=True))


def table(
    studies: Iterable[StudyData], stopping: str | None = None, goals: Sequence[Goal | None] = (None,)
) -> pd.DataFrame:
    """Steps-to-result of many studies.

    Arguments:
        stopping: read the curves under this stopping rule instead of each study's own.
        goals: the goals to read from the curves, where they can answer them; None is each study's own.

    Returns:
        A row for each (workload, optimizer, batch_size, goal): reached, steps_to_result and examples_to_result (NA if
        not reached), for workloads with tokens also tokens_to_result and tokens_per_example, where a batch size grows
        also batch_schedule (NaN if it is constant), the trial that gave them, tuned_trial and its tuned parameters
        (that trial; with `refine`, the first one with the configuration that its screens chose; NaN if the optimizer
        lacks a parameter), steps_n (S_n, the median best of n = N/4 trials) with its 95 % interval low and high
        (infinite if the trials do not bound it, NaN with fewer than 4 trials; for adaptive searches all three are NaN),
        censored_at (the fewest steps at which a counted feasible trial ended without the goal, a lower bound of
        infinite values; NaN if all reached it), first_evaluation (steps; of that trial: a goal that is met there may
        have been met earlier) and step_before (its last measured step before steps_to_result), the numbers of counted
        trials that are complete, incomplete and infeasible, train_steps (the step budget), budget_multiple (its
        multiple of the study's own budget), stage (how many times the search space was widened), stopping (the stopping
        rule), and steps_trained (by all counted trials, each up to its end).

    >>> from analysis import load
    >>> from analysis.tables import answers, steps_to_result
    >>> studies = answers.answers(load.load(published))
    >>> steps_to_result.table(studies)[["optimizer", "batch_size", "steps_to_result", "learning_rate"]].head(3)
      optimizer  batch_size  steps_to_result  learning_rate
    0  momentum           1              759       0.005690
    1  momentum           2              293       0.002044
    2  momentum           4              175       0.002044
    """
    rows = [row(study, goal, stopping) for study, goal in answerable(studies, goals)]
    counts = ("complete", "incomplete", "infeasible")
    interval = ("steps_n", "low", "high", "censored_at", "first_evaluation", "step_before")
    last = (*interval, *counts, "train_steps", "budget_multiple", "stage", "stopping", "steps_trained")
    tokens = OF_TOKENS if any(TOKENS in r for r in rows) else []
    grows = [COLUMN] if any(COLUMN in r for r in rows) else []
    first = [*COLUMNS[:-2], *tokens, *grows, *COLUMNS[-2:]]
    columns = list(dict.fromkeys([*first, *(key for r in rows for key in r if key not in last)])) + list(last)
    counted = ("steps_to_result", "examples_to_result", *tokens, "trial", "tuned_trial", *interval[-2:])
    integers = dict.fromkeys(counted, "Int64")
    frame = pd.DataFrame(rows, columns=columns) if rows else pd.DataFrame(columns=[*COLUMNS, *last])
    return frame.astype(integers)


def points(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `table` that are points of S(B): their batch size is constant.

    >>> points(pd.DataFrame({"batch_size": [8, 8], "batch_schedule": [None, "ramp"]}))["batch_size"].tolist()
    [8]
    """
    return table[table[COLUMN].isna()].drop(columns=COLUMN) if COLUMN in table else table


def last_steps(study: StudyData) -> pd.Series:
    """The last measured step of each trial, by trial; NaN if there is none.

    >>> last_steps(study).head(3).to_dict()
    {0: 375, 1: 375, 2: 375}
    """
    return study.once(
        "last steps",
        lambda: study.reader.read([study.goal.metric]).groupby("trial")["step"].max().reindex(study.trials.index),
    )


def cost_table(studies: Iterable[StudyData]) -> pd.DataFrame:
    """The cost of each study, over all its searches.

    All timings are in this table, so that all others can be compared byte for byte.

    Returns:
        A row for each (workload, optimizer, batch_size): device, trials and steps (all that ran, counted or not),
        seconds_training, seconds_evaluation, seconds_per_step, evaluation_share (of the time). Times are NaN if they
        were not measured.

    >>> cost = cost_table([study])
    >>> cost[["batch_size", "device", "trials", "steps"]]
       batch_size device  trials  steps
    0          64    cpu      20   7500
    """
    rows = [_cost(study) for study in studies]
    frame = pd.DataFrame(rows).groupby(STUDY, as_index=False, sort=False)
    counts, times = ("trials", "steps"), ("seconds_training", "seconds_evaluation")
    cost = frame.agg({"device": "first", **dict.fromkeys(counts, "sum"), **dict.fromkeys(times, _known_sum)})
    seconds = cost["seconds_training"] + cost["seconds_evaluation"]
    return cost.assign(
        seconds_per_step=cost["seconds_training"] / cost["steps"].replace(0, np.nan),
        evaluation_share=cost["seconds_evaluation"] / seconds.replace(0.0, np.nan),
    )


def _cost(study: StudyData) -> dict[str, Any]:
    steps = study.trials["first_bad_step"].astype("float64").fillna(last_steps(study)).fillna(0)
    return {
        **study.names,
        "device": study.provenance[-1].get("device", "") if study.provenance else "",
        "trials": len(study.trials),
        "steps": int(steps.sum()),
        "seconds_training": float(_known_sum(study.trials["seconds_training"])),
        "seconds_evaluation": float(_known_sum(study.trials["seconds_evaluation"])),
    }


def _known_sum(seconds: pd.Series) -> float:
    """The sum of the known seconds; NaN, not 0, if none are known."""
    return seconds.sum(min_count=1)
