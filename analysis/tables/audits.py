"""Possible faults of a search that would otherwise go unnoticed. Definitions and error rates: docs/methods.md.

Shapes: E evaluations of one trial, N feasible trials of one study. Steps are infinite where a goal was not reached.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import counting, intervals
from analysis.counting import Goal, Outcome, TrialCurve
from analysis.edges import FEWEST, Edge, open_edges
from analysis.load import TASK, StudyData
from analysis.tables.steps_to_result import counted_trials, feasible_steps, is_complete, measured

NEAR = 2.0
"""Trials within this multiple of the fewest steps are near the best; a race with the default factor keeps them."""
AROUND = 10
"""The most evaluations before, and after, the first crossing of the goal that noise is measured from."""
ENOUGH_AROUND = 3
"""The fewest of these evaluations that are enough."""
MISSED_AGAIN = 0.5
"""A goal lies inside the noise if this share of the evaluations after it was met, or more, miss it again."""
LEAST_DESCENT = 0.25
"""Without such evaluations, a goal lies inside the noise if the net fall of the error is a smaller share."""
SLOWER = 1.2
"""A general optimizer that needs more than this multiple of the steps of its special case may be under-tuned."""

SPECIAL_CASES: dict[tuple[str, str], dict[str, float]] = {
    ("momentum", "sgd"): {"momentum": 0.0},
    ("nesterov", "sgd"): {"momentum": 0.0},
}
"""(general, special) optimizer -> the parameter values with which the general one equals the special one."""
AT_ONE = ["two configurations", "two searches"]
"""Kinds of statements of `analysis.estimates.pairs` about one batch size, the one to believe first."""
ALIKE = (
    *("workload", "schedule", "batch_size", "budget", "evaluation", "precision", "no_decay"),
    *("search.trials", "search.budgets", "search.sampler"),
    *("search.refine", "search.candidates", "search.screens"),
)
"""Settings that two searches must share for one to contain the best trial of the other."""


def edges(study: StudyData, goal: Goal | None = None) -> list[Edge]:
    """Open sides of the search space at which the best trials lie (`analysis.edges.open_edges`). Ranges that rounds of
    `refine` extended end where the latest one ended.

    >>> study.question["search"]["space"]["learning_rate"]["high"] = 1.0  # as if the search had ended there
    >>> [(edge.parameter, edge.side, edge.limit) for edge in edges(study)]
    [('learning_rate', 'high', 1.0)]
    """
    return study.once(("edges", goal or study.goal), lambda: open_edges(study.searched, _best_points(study, goal)))


def _best_points(study: StudyData, goal: Goal | None) -> list[dict[str, Any]]:
    """The hyperparameters that each of the best of the counted trials has, the best first."""

    def found() -> list[dict[str, Any]]:
        return [study.trials.loc[index, study.hyperparameters].dropna().to_dict() for index, *_ in _best(study, goal)]

    return study.once(("best points", goal or study.goal), found)


def _best(study: StudyData, goal: Goal | None) -> list[tuple[int, Outcome, TrialCurve]]:
    """The best of the counted trials, the best first: index, how it ended, and its curve."""
    counted = counted_trials(study, goal)
    known = counted.index.intersection(study.trials.index)
    trials = measured(study, goal or study.goal)
    rows = zip(*(counted.loc[known, column] for column in ("status", "end", "steps_to_goal")), strict=True)
    ends = [Outcome(status, end, None if pd.isna(steps) else int(steps)) for status, end, steps in rows]
    best = counting.best_trials(ends, [trials[index] for index in known])
    return [(known[position], ends[position], trials[known[position]]) for position in best]


def near_best(study: StudyData, goal: Goal | None = None) -> tuple[int, float]:
    """(how many counted feasible trials reached the goal within a factor of the fewest steps, this factor).

    A race stops no trial before `race_factor` times S(B), so the count is the same under every stopping rule.

    >>> near_best(study)
    (3, 2.0)
    """
    factor = min(NEAR, study.race_factor or NEAR)
    steps = feasible_steps(study, goal)
    fewest = np.min(steps, initial=np.inf)
    return int((steps <= factor * fewest).sum()) if np.isfinite(fewest) else 0, factor


def gain_of_doubling(steps: np.ndarray, censored_at: float = math.nan) -> float:
    """The least factor by which each doubling of the trials cut the steps: (S_n / S)^(1 / log2(N / n)), n = N / 4.

    S_n is the median best of n trials, S the best of all N. NaN if no trial reached the goal, or if n = N.

    Arguments:
        steps: steps to the goal [N].
        censored_at: the fewest steps at which a trial ended without the goal; replaces a larger S_n.

    >>> round(gain_of_doubling(np.array([100.0, 121.0, 144.0, 400.0, 500.0, 600.0, 700.0, 800.0])), 2)
    1.2
    """
    n = intervals.draws(len(steps))
    if len(steps) == n or not np.isfinite(steps).any():
        return math.nan
    s_n = np.fmin(intervals.median_best_of(steps, n), censored_at)
    return float((s_n / np.min(steps)) ** (1 / math.log2(len(steps) / n)))


class Noise(NamedTuple):
    """The noise of the best trials at a goal, as medians over trials; NaN with too few trials.

    Attributes:
        missed_again: the share of the evaluations after the goal was first met that are not below it.
        descent: the net fall of the error up to the goal as a share of its total movement.
    """

    missed_again: float
    descent: float

    @property
    def hides_goal(self) -> bool:
        """Whether the metric is noisy at the goal. Judged on evaluations after the goal was met; if there are none,
        before it.

        >>> [Noise(*noise).hides_goal for noise in ((0.5, 1.0), (0.4, 0.1), (math.nan, 0.1), (math.nan, math.nan))]
        [True, False, True, False]
        """
        return self.descent < LEAST_DESCENT if math.isnan(self.missed_again) else self.missed_again >= MISSED_AGAIN


def noise(study: StudyData, goal: Goal | None = None) -> Noise:
    """Measure whether the best trials crossed the goal once or fluctuated around it.

    >>> found = noise(load_study(f"{published}/studies/mlp_digits/momentum/8"))
    >>> f"{found.missed_again:.0%}, {found.descent:.0%}"
    '20%, 85%'
    """
    goal = goal or study.goal
    return study.once(("noise", goal), lambda: _noise(study, goal))


def _noise(study: StudyData, goal: Goal) -> Noise:
    found = []
    for _, outcome, trial in _best(study, goal):
        if outcome.steps_to_goal is not None:
            steps, errors = np.asarray(trial.steps), np.asarray(trial.errors, dtype=float)
            steps, errors = steps[np.isfinite(errors)], errors[np.isfinite(errors)]
            crossing = int(np.searchsorted(steps, outcome.steps_to_goal))
            after = errors[crossing + 1 : np.searchsorted(steps, outcome.end, side="right")]
            found.append((missed_again(after, goal.threshold), descent(errors[: crossing + 1])))
    return Noise(*(_median([row[column] for row in found]) for column in (0, 1)))


def missed_again(errors: np.ndarray, threshold: float) -> float:
    """The share of the first evaluations after the goal was met [E] that are not below it.

    >>> missed_again(np.array([0.11, 0.09, 0.12, 0.08]), 0.1)
    0.5
    """
    errors = errors[:AROUND]
    return float(np.mean(errors >= threshold)) if len(errors) >= ENOUGH_AROUND else math.nan


def descent(errors: np.ndarray) -> float:
    """The net fall of the error over the last evaluations [E] as a share of its total movement: 1 if it only fell.

    >>> round(descent(np.array([0.5, 0.4, 0.5, 0.4])), 2)
    0.33
    """
    moves = np.diff(errors[-AROUND - 1 :])
    way = np.abs(moves).sum()
    return float(-moves.sum() / way) if len(moves) >= ENOUGH_AROUND and way else math.nan


def _median(values: list[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return float(np.median(known)) if len(known) >= FEWEST else math.nan


class Inclusion(NamedTuple):
    """A general optimizer compared with a special case that its search space contains.

    Attributes:
        study: the search of the general optimizer.
        special: the name of the special case.
        ratio: steps of the general optimizer over those of the special case; at most 1 if it is tuned as well. Of the
            tuned configurations with fresh seeds, else of S(B).
        low, high: 95 % interval of this ratio, or of the same ratio of S_n.
    """

    study: StudyData
    goal: Goal
    special: str
    ratio: float
    low: float
    high: float

    @property
    def under_tuned(self) -> bool:
        """True if the general optimizer needs over 20 % more steps, and the interval shows that it needs more."""
        return self.ratio > SLOWER and self.low > 1


def inclusions(answered: Iterable[tuple[StudyData, Goal]], pairs: pd.DataFrame) -> list[Inclusion]:
    """Compare every general optimizer with every special case that was tuned at the same batch size.

    Only complete searches count, and only if the general one `contains` the special one. Fresh seeds of the tuned
    configurations decide where there are any: a space that contains the other's configuration may not choose a slower
    one. A search of few trials alone can show next to nothing.

    Arguments:
        answered: studies and goals.
        pairs: from `analysis.estimates.pairs.table`, for the same studies and goals.

    >>> folder = f"{published}/studies/mlp_digits"
    >>> momentum, sgd = (load_study(f"{folder}/{optimizer}/256") for optimizer in ("momentum", "sgd"))
    >>> pairs = pd.read_csv(f"{published}/tables/compare.csv")
    >>> (found,) = inclusions([(momentum, momentum.goal), (sgd, sgd.goal)], pairs)
    >>> found.special, round(found.ratio, 2), found.under_tuned
    ('sgd', 0.98, False)
    """
    studies = {(s.workload, goal, s.batch_size, s.optimizer): s for s, goal in answered}
    found = []
    for row in _at_each_batch_size(pairs):
        goal = Goal(row.goal_metric, row.goal_threshold)
        for general, special, ratio in _both_ways(row):
            key = (row.workload, goal, row.smallest_batch_size)
            one, other = studies.get((*key, general)), studies.get((*key, special))
            if one and other and contains(one, other, goal) and is_complete(one) and is_complete(other):
                found.append(Inclusion(one, goal, special, *ratio))
    return found


def _at_each_batch_size(pairs: pd.DataFrame) -> Iterator[Any]:
    """The row of each pair and batch size that compares their configurations, else the one of their searches."""
    single = pairs[pairs["kind"].isin(AT_ONE)]
    ranked = single.assign(rank=single["kind"].map(AT_ONE.index)).sort_values("rank", kind="stable")
    yield from ranked.drop_duplicates([*TASK, "a", "b", "smallest_batch_size"]).sort_index().itertuples()


def _both_ways(row: Any) -> Iterator[tuple[str, str, tuple[float, float, float]]]:
    """(optimizer, other, steps of the optimizer over those of the other as (value, low, high)), in both orders."""
    value, low, high = (1 / ratio if ratio else math.inf for ratio in (row.ratio, row.high, row.low))
    yield row.a, row.b, (value, low, high)
    yield row.b, row.a, (row.ratio, row.low, row.high)


def contains(general: StudyData, special: StudyData, goal: Goal | None = None) -> bool:
    """True if the general search could draw the best trials of the special one.

    >>> folder = f"{published}/studies/mlp_digits"
    >>> momentum, sgd = (load_study(f"{folder}/{optimizer}/64") for optimizer in ("momentum", "sgd"))
    >>> contains(momentum, sgd)
    True
    >>> momentum.question["search"]["space"]["momentum"]["low"] = 0.5
    >>> contains(momentum, sgd)
    False
    """
    further = SPECIAL_CASES.get((general.optimizer, special.optimizer))
    # Imported studies record the length of their budget, not how it was set.
    alike = (*ALIKE, "train_steps") if general.imported else ALIKE
    if further is None or differing(general, special, alike):
        return False
    space = general.searched
    if space.keys() != special.question["search"]["space"].keys() | further.keys():
        return False
    points = [point | further for point in _best_points(special, goal)]
    return bool(points) and all(_holds(space[name], value) for point in points for name, value in point.items())


def differing(one: StudyData, other: StudyData, keys: Iterable[str]) -> set[str]:
    """The keys that the questions of two studies answer differently.

    Two searches by `refine` may differ in `search.trials`: more tuned parameters get more scouts.

    >>> folder = f"{published}/studies/mlp_digits"
    >>> sorted(differing(study, load_study(f"{folder}/momentum/32"), ["optimizer", "batch_size", "search.trials"]))
    ['batch_size', 'optimizer']
    """
    passed = {"search.trials"} if one.refines and other.refines else set()
    both = one, other
    # These change no steps to the goal.
    left_out = {"exact", "every"} if any(study.stops_early for study in both) else {"exact"}

    def answer(study: StudyData, key: str) -> Any:
        found = asked(study, key)
        if key != "evaluation" or found is None:
            return found
        return {name: value for name, value in found.items() if name not in left_out}

    return {key for key in keys if key not in passed and answer(one, key) != answer(other, key)}


def asked(study: StudyData, key: str) -> Any:
    """The value in a study's question under a key such as `search.trials`.

    >>> asked(study, "search.trials")
    20
    """
    section, _, name = key.partition(".")
    return study.question[section].get(name) if name else study.question.get(key)


def _holds(dimension: Mapping[str, Any], value: Any) -> bool:
    if "choices" in dimension:
        return value in dimension["choices"]
    return bool(dimension["low"] <= value <= dimension["high"])
