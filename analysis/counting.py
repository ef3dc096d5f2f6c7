"""The rules of counting: goals, first crossings, statuses, stopping rules and the counted trials of a study.

Each rule is defined once, here. Training uses the rules to stop trials and to detect that a study is complete. Analysis
uses the same rules to read curves, so both agree. If a curve runs beyond its stopping rule, reading cuts it.

Shapes: E evaluations of one trial, T trials of one study.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from analysis.question import stages
from analysis.question.branches import TUNED as TUNED
from analysis.question.branches import Branch as Branch
from analysis.question.goals import AS_ERRORS as AS_ERRORS
from analysis.question.goals import NUMBER as NUMBER
from analysis.question.goals import Goal as Goal

COMPLETE, INFEASIBLE, INCOMPLETE = "COMPLETE", "INFEASIBLE", "INCOMPLETE"
RACE, RECORDED = "race", "recorded"
"""Names of two stopping rules: the one that skips the most steps, and the one of imported studies."""


class Stopping(NamedTuple):
    """A stopping rule: when a trial ends.

    Attributes:
        in_words: a sentence that names the trials that stop before the end of the budget; empty if none does.
        runs_whole_budget: every trial that stays finite runs all steps of the budget.
        ends_at_goal: a trial ends at its first measurement below the goal.
        races: a trial also ends where it falls behind the best trial of its stage and the stages before.
    """

    in_words: str
    runs_whole_budget: bool = False
    ends_at_goal: bool = False
    races: bool = False


STOPPING = {
    "budget": Stopping("", runs_whole_budget=True),
    "goal": Stopping("Trials that reach the goal or diverge stop early.", ends_at_goal=True),
    RACE: Stopping("Trials that reach the goal, fall behind or diverge stop early.", ends_at_goal=True, races=True),
    RECORDED: Stopping("Imported trials end where their curves end, with the statuses that came with them."),
}
STOPPING_RULES = tuple(name for name in STOPPING if name != RECORDED)
"""The stopping rules that a sweep can train under."""
EARLY = tuple(name for name, rule in STOPPING.items() if rule.ends_at_goal)
"""The stopping rules that end a trial at its goal."""
ADAPTIVE_SAMPLERS = ("tpe", "gp", "cmaes")
"""Samplers that learn from finished trials."""
BEST = 5
"""The most trials that `best_trials` returns."""


class TrialCurve(NamedTuple):
    """The curve of one trial: the goal's metric at each evaluation.

    Attributes:
        steps, errors: [E], by increasing step; NaN where the metric was not measured.
        first_bad_step: the step at which the trial diverged, or None.
        recorded: the status that an imported trial came with; None for other trials.
        ended: how the run of an imported log ended, whatever the goal (`judged`); None for other trials.
        grid: the steps at which it is measured, the last of them its budget; None: those of the rule. Trials that tune
            their batch sizes have budgets of their own.
    """

    steps: ArrayLike
    errors: ArrayLike
    first_bad_step: int | None
    recorded: str | None = None
    grid: Sequence[int] | None = None
    ended: str | None = None


class Rule(NamedTuple):
    """When the trials of a study end.

    Attributes:
        stopping: a name in STOPPING. `budget`: at the step budget. `goal`: at the first measurement below the
            threshold, if sooner. `race`: also at the last grid point within `race_factor` times the fewest steps to the
            goal among trials that `rivals` counts. `recorded`: imported trials end where their curves end.
        threshold: the threshold of the goal.
        grid: the steps at which every trial is measured, the last of them the step budget; empty for `recorded`.
        stages: the first trial index after each stage (`analysis.question.stages.ends`).
    """

    stopping: str
    threshold: float
    grid: Sequence[int]
    race_factor: float = 2.0
    stages: Sequence[int] = ()

    def rivals(self, index: int) -> int:
        """The number of leading trials that trial `index` races against: all up to the end of its stage. A trial beyond
        all stages races against those of lower index.

        >>> rule = Rule("race", threshold=0.05, grid=[10, 20], stages=(6, 10))
        >>> [rule.rivals(index) for index in (0, 5, 6, 10)]
        [6, 6, 10, 10]
        """
        return next((end for end in self.stages if index < end), index)

    def bound(self, best: int | None) -> int:
        """The step at which a trial ends if it has not met the goal.

        Arguments:
            best: fewest steps to the goal among its rivals; None if none of them reached it.

        >>> rule = Rule("race", threshold=0.05, grid=[10, 20, 40, 80], race_factor=2.0)
        >>> rule.bound(None), rule.bound(25)
        (80, 40)
        """
        if best is None or not STOPPING[self.stopping].races:
            return self.grid[-1]
        return self.grid[max(0, bisect_right(self.grid, self.race_factor * best) - 1)]


class Outcome(NamedTuple):
    """How one trial ended, derived from its curve.

    Attributes:
        status: COMPLETE, INFEASIBLE or INCOMPLETE.
        end: the step at which the trial ends under its stopping rule; later measurements do not count. If INFEASIBLE,
            the step at which it diverged; if INCOMPLETE, the last measured step.
        steps_to_goal: the first measured step below the goal; None if there is none up to the bound of the stopping
            rule. A trial that runs its whole budget may still diverge after this step.
    """

    status: str
    end: int
    steps_to_goal: int | None

    @property
    def result(self) -> int | None:
        """Steps to the goal if the trial reached it and is feasible, else None. Only this value counts.

        >>> Outcome(COMPLETE, 40, 20).result, Outcome(INFEASIBLE, 30, 20).result
        (20, None)
        """
        return self.steps_to_goal if self.status == COMPLETE else None


def first_crossing(steps: ArrayLike, errors: ArrayLike, threshold: float) -> int | None:
    """The first step whose error is below the threshold; None if there is none. NaN (not measured) is never below.

    Step 0, which some imported studies measured, does not count: a goal met there was not reached by training.

    Arguments:
        steps, errors: [E], by increasing step.

    >>> first_crossing([10, 20, 30], [0.3, math.nan, 0.04], threshold=0.05)
    30
    """
    below = np.flatnonzero((np.asarray(errors, dtype=float) < threshold) & (np.asarray(steps) > 0))
    return int(np.asarray(steps)[below[0]]) if below.size else None


def least_error(trial: TrialCurve, end: int) -> float:
    """The least error measured up to the end of a trial; infinite if none was measured.

    >>> least_error(TrialCurve(steps=[10, 20, 30], errors=[0.3, 0.1, 0.05], first_bad_step=None), end=20)
    0.1
    """
    errors = np.asarray(trial.errors, dtype=float)[np.asarray(trial.steps) <= end]
    return float(np.nanmin(errors)) if np.isfinite(errors).any() else math.inf


def best_trials(outcomes: Sequence[Outcome], trials: Sequence[TrialCurve]) -> list[int]:
    """Positions of the best feasible trials, at most BEST, the best first.

    Fewer steps to the goal are better. If no trial reached the goal, each ran its whole budget, and a smaller least
    error is better.

    Arguments:
        outcomes, trials: [T], all counted trials in the same order.

    >>> trials = [TrialCurve([10, 20], [0.3, error], None) for error in (0.08, 0.2, 0.04)]
    >>> rule = Rule("budget", threshold=0.1, grid=[10, 20])
    >>> ended = outcomes(rule, dict(enumerate(trials)))
    >>> best_trials(list(ended.values()), trials)  # ties go to the lower index
    [0, 2]
    >>> ended = outcomes(rule._replace(threshold=0.01), dict(enumerate(trials)))
    >>> best_trials(list(ended.values()), trials)  # not reached: by least error
    [2, 0, 1]
    """
    complete = [position for position, outcome in enumerate(outcomes) if outcome.status == COMPLETE]
    reached = [(steps, i) for i in complete if (steps := outcomes[i].result) is not None]
    missed = [(least_error(trials[i], outcomes[i].end), i) for i in complete] if not reached else []
    return [position for _, position in sorted([*reached, *missed])[:BEST]]


def evaluation_grid(train_steps: int, first: float, ratio: float, end: int | None = None) -> list[int]:
    """The steps at which a trial is evaluated, increasing up to the budget of `train_steps`, or up to `end` if given.

    Arguments:
        first: the first step as a share of the budget.
        ratio: each later step is about `ratio` times the one before.

    >>> evaluation_grid(100, first=0.1, ratio=1.5)
    [10, 15, 22, 34, 51, 76, 100]
    >>> evaluation_grid(100, first=0.1, ratio=1.5, end=40)
    [10, 15, 22, 34, 40]
    """
    last = train_steps if end is None else end
    steps = []
    step = max(1.0, first * train_steps)
    while round(step) < last:
        steps.append(round(step))
        step = max(step * ratio, round(step) + 1)
    return [*steps, last]


def outcomes(rule: Rule, trials: Mapping[int, TrialCurve]) -> dict[int, Outcome]:
    """Derive how trials ended, from their curves alone; only imported trials keep a recorded status.

    A trial is feasible if it is finite up to its end; a later divergence does not count. Missing trials may be left
    out: when they are found, they can only lower a race's bound, so the curves stay long enough.

    Arguments:
        trials: trial index -> curve, by increasing index.

    >>> rule = Rule("goal", threshold=0.1, grid=[10, 20, 40])
    >>> reaches, diverges = TrialCurve([10, 20], [0.5, 0.09], None), TrialCurve([10], [0.5], first_bad_step=12)
    >>> for outcome in outcomes(rule, {0: reaches, 1: diverges, 3: TrialCurve([10, 20], [0.5, 0.4], None)}).values():
    ...     print(*outcome)
    COMPLETE 20 20
    INFEASIBLE 12 None
    INCOMPLETE 20 None
    """
    found = {index: finite_crossing(rule, trial) for index, trial in trials.items()}
    indices, fewest = list(found), [*accumulate((steps or math.inf for steps in found.values()), min, initial=math.inf)]
    bests = (fewest[bisect_left(indices, rule.rivals(index))] for index in indices)
    return {
        index: outcome(rule, trial, int(best) if best < math.inf else None)
        for (index, trial), best in zip(trials.items(), bests, strict=True)
    }


def finite_crossing(rule: Rule, trial: TrialCurve) -> int | None:
    """The first step at which a trial met the goal, if it was finite until then: what its rivals are bounded by.

    >>> finite_crossing(Rule("race", 0.1, [10, 20]), TrialCurve([10, 20], [0.5, 0.09], first_bad_step=15))
    """
    crossing = first_crossing(trial.steps, trial.errors, rule.threshold)
    bad = trial.first_bad_step
    return None if crossing is None or (bad is not None and bad <= crossing) else crossing


def outcome(rule: Rule, trial: TrialCurve, best: int | None) -> Outcome:
    """Derive how one trial ended. `best`: the fewest steps to the goal among its rivals; None if none reached it.

    >>> outcome(Rule("race", 0.1, [10, 20, 40]), TrialCurve([10, 20], [0.5, 0.4], None), best=10)
    Outcome(status='COMPLETE', end=20, steps_to_goal=None)
    """
    steps = np.asarray(trial.steps)
    last = int(steps[-1]) if steps.size else 0
    crossing = first_crossing(steps, trial.errors, rule.threshold)
    if trial.recorded:
        status = judged(trial.ended, trial.first_bad_step, trial.errors, crossing) if trial.ended else trial.recorded
        return Outcome(status, trial.first_bad_step or last, crossing)
    bound = (rule if trial.grid is None else rule._replace(grid=trial.grid)).bound(best)
    crossing = None if crossing is None or crossing > bound else crossing
    end = crossing if crossing is not None and STOPPING[rule.stopping].ends_at_goal else bound
    if trial.first_bad_step is not None and trial.first_bad_step <= end:
        return Outcome(INFEASIBLE, trial.first_bad_step, crossing)
    return Outcome(COMPLETE, end, crossing) if last >= end else Outcome(INCOMPLETE, last, crossing)


def judged(ended: str, first_bad_step: int | None, errors: ArrayLike, crossing: int | None) -> str:
    """The status of a run of an imported log: COMPLETE if it met the goal (at `crossing`) while it was finite; else as
    it `ended`, but INCOMPLETE if it never measured the metric (`errors` [E]).

    >>> judged("INCOMPLETE", None, [0.5, 0.1], crossing=20), judged("INFEASIBLE", 15, [0.5], crossing=None)
    ('COMPLETE', 'INFEASIBLE')
    """
    if crossing is not None and (first_bad_step is None or crossing < first_bad_step):
        return COMPLETE
    return ended if ended == INFEASIBLE or np.isfinite(np.asarray(errors, dtype=float)).any() else INCOMPLETE


def all_runs(gathered: Sequence[dict[str, Any]], apart: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of all runs of a study, each once.

    Arguments:
        gathered: the records in the study's file; they come first.
        apart: the records in separate files; the ones not gathered yet follow in the order of their start.

    >>> all_runs([{"run": "a", "started": 1}], [{"run": "c", "started": 3}, {"run": "a"}, {"run": "b", "started": 2}])
    [{'run': 'a', 'started': 1}, {'run': 'b', 'started': 2}, {'run': 'c', 'started': 3}]
    """
    there = {run.get("run") for run in gathered}
    new = [run for run in apart if run["run"] not in there]
    return [*gathered, *sorted(new, key=lambda run: run.get("started", ""))]


def launch_limit(wanted: int, most: int | None) -> int:
    """The most trials to launch for `wanted` feasible ones: `most` if given, else ten times `wanted`.

    >>> launch_limit(20, None)
    200
    """
    return 10 * wanted if most is None else most


def counted_prefix(statuses: Sequence[str], wanted: int) -> int:
    """The number of leading trials that contain the first `wanted` feasible ones; T if there are fewer.

    Arguments:
        statuses: [T] in index order.

    >>> counted_prefix([COMPLETE, INFEASIBLE, COMPLETE, COMPLETE], wanted=2)
    3
    """
    feasible = 0
    for position, status in enumerate(statuses):
        feasible += status == COMPLETE
        if feasible == wanted:
            return position + 1
    return len(statuses)


def is_complete(statuses: Sequence[str], wanted: int, most: int) -> bool:
    """True if no counted trial is missing and there are `wanted` feasible trials, or `most` were launched.

    Arguments:
        statuses: [T] in index order, INCOMPLETE where one is missing.

    >>> is_complete([COMPLETE, INFEASIBLE, COMPLETE], 2, 20), is_complete([COMPLETE, INCOMPLETE, COMPLETE], 2, 20)
    (True, False)
    """
    counted = statuses[: counted_prefix(statuses, wanted)]
    enough = list(counted).count(COMPLETE) == wanted or len(statuses) >= most
    return len(statuses) > 0 and enough and INCOMPLETE not in counted


def counted_trials(search: Mapping[str, Any], statuses: Sequence[str]) -> int:
    """The number of leading trials that count: up to the N-th feasible one; all with `refine`, or of a log without N.

    Arguments:
        search: the `search` of a recorded question.
        statuses: [T] in index order.

    >>> counted_trials({"sampler": "sobol", "trials": 1}, ["INFEASIBLE", "COMPLETE", "COMPLETE"])
    2
    """
    every = search.get("sampler") == stages.REFINE or search.get("all_count")
    return len(statuses) if every else counted_prefix(statuses, search["trials"])


def search_is_complete(search: Mapping[str, Any], statuses: Sequence[str], met: Sequence[bool]) -> bool:
    """True if no trial that counts is missing. Without a trial that met the goal, `refine` screens nothing.

    Arguments:
        search: the `search` of a recorded question.
        statuses: [T] in index order, INCOMPLETE where one is missing.
        met: [T] whether each trial met the goal.

    >>> search = {"sampler": "refine", "scouts": 2, "refine": [1], "candidates": 1, "screens": 1}
    >>> [search_is_complete(search, ["COMPLETE"] * 3, [met, False, False]) for met in (False, True)]
    [True, False]
    """
    if search.get("sampler") != stages.REFINE:
        launches = launch_limit(search["trials"], search["max_launches"])
        return is_complete(statuses, search["trials"], launches)
    ends = stages.ends(search, stages.STAGE)
    rounds = ends[len(search["refine"])]
    wanted = ends[-1] if any(met[:rounds]) else rounds
    return len(statuses) >= wanted and INCOMPLETE not in statuses[:wanted]


def can_answer(goal: Goal, own: Goal, stopping: str | None) -> bool:
    """True if trials that trained towards their own goal can answer another goal.

    Arguments:
        goal: the goal to answer.
        own: the goal that the trials trained towards.
        stopping: the stopping rule that they ran under.

    >>> own = Goal("val/loss", 0.1)
    >>> can_answer(Goal("val/loss", 0.2), own, "race"), can_answer(Goal("val/loss", 0.05), own, "race")
    (True, False)
    """
    return stopping not in EARLY or (goal.metric == own.metric and goal.threshold >= own.threshold)
