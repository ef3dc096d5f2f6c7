"""The error at a fixed number of examples (or tokens) against batch size, and the largest batch size that costs little.

Each batch size has its best trial at that budget: tuned for the budget, not for a goal. The largest batch size whose
error is within a tolerance of the best one costs no more than this tolerance.

Shapes: N counted feasible trials of one batch size, K fresh seeds, S batch sizes, R resamples.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis import intervals
from analysis.counting import COMPLETE, Branch
from analysis.estimates import tuned
from analysis.labels import BOUNDS_IN_WORDS, metric_text, number, percent, short_count
from analysis.load import StudyData
from analysis.tables import answers
from analysis.tables.best_errors import BUDGETS, MEASURED
from analysis.tables.steps_to_result import counted_trials
from analysis.units import TOKENS

TOLERANCE = 0.01
"""The share of the best error by which the error at another batch size may be larger."""
FEWEST_SEEDS = 3
LIMIT = ["largest", "largest_low", "largest_high", "largest_bound"]
COLUMNS = ["examples", "batch_size", "error", "low", "high", "read_from", "within", "tolerance", *LIMIT]


class Points(NamedTuple):
    """The errors of all batch sizes at one budget.

    Attributes:
        error, low, high: of each batch size [S] with its 95 % interval; NaN where nothing is known.
        resamples: of each batch size [S, R]; NaN without an interval.
    """

    error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    resamples: np.ndarray


def falling(study: StudyData) -> pd.DataFrame:
    """The steps at which the least error of each counted feasible trial fell: trial, step, error; rising steps.

    >>> falling(study).head(2).round(2)
       trial  step  error
    0      0     8   1.65
    1      0     9   1.57
    """
    return study.once("errors at budgets", lambda: _falling(study))


def _falling(study: StudyData) -> pd.DataFrame:
    metric, counted = study.goal.metric, counted_trials(study)
    rows = study.reader.read([metric]).dropna(subset=metric)
    rows = rows[rows["trial"].isin(counted.index[counted["status"] == COMPLETE]) & (rows["step"] > 0)]
    error = rows.groupby("trial")[metric].cummin()
    fell = ~error.eq(error.groupby(rows["trial"]).shift())
    return rows[["trial", "step"]].assign(error=error)[fell].reset_index(drop=True)


def least(study: StudyData, examples: float) -> np.ndarray:
    """The least error of each trial [N] at its last evaluation within this many examples, or before.

    >>> least(study, 64 * 10)[:2].round(3).tolist()
    [1.494, 1.008]
    """
    found = falling(study)
    return found[found["step"] * study.batch_size <= examples].groupby("trial")["error"].last().to_numpy()


def table(made: Sequence[StudyData], tolerance: float = TOLERANCE) -> pd.DataFrame:
    """The error at fixed budgets of examples.

    Budgets are the largest one that every batch size of a curve was trained for, and its third, ninth and 27th part.

    Arguments:
        made: all searches; those that stopped early are left out, because their trials end at a goal.
        tolerance: a share of the best error.

    Returns:
        A row for each (workload, optimizer, goal_metric, examples, batch_size): error (the least of any trial within
        the budget; for searches that learn, if every batch size has K >= 3 fresh seeds, the mean of the seeds; NaN if
        there is none), low and high (95 % interval of the median best of a quarter of the trials, or of the mean; NaN
        for searches that learn without fresh seeds), read_from (`search` or `fresh seeds`), within (True if the error
        is within the tolerance of the best), tolerance, largest (the largest such batch size) with largest_low and
        largest_high (95 % of resamples) and largest_bound (`>` if it is the largest that was measured); for workloads
        with tokens also tokens and tokens_per_example.

    >>> from analysis import load
    >>> found = table(list(load.load(published)))
    >>> few = found[(found["optimizer"] == "sgd") & (found["examples"] == found["examples"].max())]
    >>> few[["batch_size", "error", "within", "largest", "largest_low", "largest_high"]].head(4).tail(2).round(3)
        batch_size  error  within  largest  largest_low  largest_high
    46           4  0.046   False        8          1.0          32.0
    47           8  0.038    True        8          1.0          32.0
    """
    curves: dict[tuple[str, str, str], list[Mapping[Branch, StudyData]]] = {}
    for searches in answers.by_study(made):
        study = answers.answer(searches)
        if study.begun and not study.stops_early:
            curves.setdefault((*study.curve, study.goal.metric), []).append(searches)
    rows = [each for key, searches in curves.items() for each in _rows(key, searches, tolerance)]
    tokens = ["tokens", TOKENS] if any("tokens" in row for row in rows) else []
    return pd.DataFrame(rows, columns=[*MEASURED, COLUMNS[0], *tokens, *COLUMNS[1:]])


def _rows(
    key: tuple[str, str, str], searches: Sequence[Mapping[Branch, StudyData]], tolerance: float
) -> Iterable[dict[str, Any]]:
    chosen = sorted((answers.answer(each) for each in searches), key=lambda study: study.batch_size)
    seeds = {found[0].batch_size: found[1] for each in searches if (found := answers.fresh_seeds(each))}
    sizes = np.array([study.batch_size for study in chosen])
    ends = [study.batch_size * study.train_steps for study in chosen if len(falling(study))]
    learns = not all(study.independent for study in chosen)
    for budget in [round(min(ends) / 3**k) for k in range(BUDGETS)] if ends else []:
        again = [least(seeds[size], budget) if size in seeds else np.empty(0) for size in sizes]
        by_seeds = learns and all(len(each) >= FEWEST_SEEDS for each in again)
        points = _of_seeds(again) if by_seeds else _of_searches(chosen, budget)
        limit, inside = _largest(sizes, points, tolerance)
        tokens = chosen[0].tokens_per_example
        for place, study in enumerate(chosen):
            yield {
                **dict(zip(MEASURED, key, strict=True)),
                "examples": budget,
                **({} if tokens is None else {"tokens": budget * tokens, TOKENS: tokens}),
                "batch_size": study.batch_size,
                **{name: getattr(points, name)[place] for name in ("error", "low", "high")},
                "read_from": tuned.SEEDS if by_seeds else tuned.SEARCH,
                "within": bool(inside[place]),
                "tolerance": tolerance,
                **limit,
            }


def _of_searches(studies: Sequence[StudyData], budget: float) -> Points:
    """The best trial of each search at a budget, with the interval and the resamples of S_n's counterpart."""
    best, ends, drawn = [], [], []
    for study in studies:
        errors = least(study, budget)
        sure = study.independent and len(errors) >= intervals.PART
        n = intervals.draws(len(errors))
        best.append(errors.min(initial=np.inf))
        ends.append(intervals.interval(errors, n) if sure else (np.nan, np.nan))
        drawn.append(
            intervals.resampled(errors, n, (0, study.batch_size)) if sure else np.full(intervals.RESAMPLES, np.nan)
        )
    error, (low, high) = np.array(best), np.array(ends).T
    return Points(np.where(np.isfinite(error), error, np.nan), low, high, np.array(drawn))


def _of_seeds(seeds: Sequence[np.ndarray]) -> Points:
    """The mean over fresh seeds of each batch size, with their pooled standard deviation."""
    mean, count = (np.array([pick(each) for each in seeds]) for pick in (np.mean, len))
    free = int((count - 1).sum())
    deviation = np.sqrt(sum(((each - each.mean()) ** 2).sum() for each in seeds) / free)
    half = tuned.half_width(deviation / np.sqrt(count), free)
    noise = np.random.default_rng(0).standard_t(free, (len(seeds), intervals.RESAMPLES))
    return Points(mean, mean - half, mean + half, mean[:, None] + (deviation / np.sqrt(count))[:, None] * noise)


def _largest(sizes: np.ndarray, found: Points, tolerance: float) -> tuple[dict[str, Any], np.ndarray]:
    """(the columns LIMIT, whether the error of each batch size [S] is within the tolerance)."""
    inside = _within(found.error[:, None], tolerance)[:, 0]
    if not inside.any():
        return dict(zip(LIMIT, (np.nan, np.nan, np.nan, "="), strict=True)), inside
    largest = int(sizes[inside].max())
    low = high = np.nan
    if np.isfinite(found.resamples).all() and len(sizes) > 1:
        each = np.where(_within(found.resamples, tolerance), sizes[:, None], 0).max(0)
        low, high = np.quantile(each, (0.025, 0.975), method="nearest").tolist()
    bound = ">" if largest == sizes[np.isfinite(found.error)].max() else "="
    return dict(zip(LIMIT, (largest, low, high, bound), strict=True)), inside


def _within(errors: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether each error [S, R] is within the tolerance of the best of its column."""
    best = np.fmin.reduce(errors, axis=0)
    return errors <= best + tolerance * np.abs(best)


def sentences(table: pd.DataFrame) -> list[str]:
    """The largest batch size within the tolerance at the largest budget, for each curve of a workload with tokens.

    Arguments:
        table: from `table`.

    >>> rows = {"workload": "mine", "optimizer": "adam", "goal_metric": "val/cross_entropy_error", "examples": 1000,
    ...     "tokens": 64000, "tokens_per_example": 64, "batch_size": [8, 16], "error": [2.0, 2.01], "within": True,
    ...     "tolerance": 0.01, "largest": 16, "largest_low": 8, "largest_high": 16, "largest_bound": ">"}
    >>> sentences(pd.DataFrame(rows))[0].partition("the largest")[2]
    ' batch size whose validation cross entropy is within 1% of the best is at least 16 (1,024 tokens; 95%: 8 to 16).'
    """
    said = []
    curves = table.dropna(subset="tokens").groupby(MEASURED, sort=False) if "tokens" in table else ()
    for (workload, optimizer, metric), curve in curves:
        last = curve[curve["examples"] == curve["examples"].max()].iloc[0]
        if pd.isna(last["largest"]) or curve["batch_size"].nunique() < 2:
            continue
        tokens = f"{number(last['largest'] * last[TOKENS])} tokens"
        if pd.notna(last["largest_low"]):
            tokens += f"; 95%: {number(last['largest_low'])} to {number(last['largest_high'])}"
        said.append(
            f"{workload} with {optimizer} after {short_count(last['tokens'])} tokens: the largest batch size whose "
            f"{metric_text(metric)} is within {percent(last['tolerance'])} of the best is "
            f"{BOUNDS_IN_WORDS[last['largest_bound']]}{number(last['largest'])} ({tokens})."
        )
    return said
