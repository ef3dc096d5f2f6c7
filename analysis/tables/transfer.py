"""Transferred against retuned hyperparameters: the cost of transferring a tuned configuration by a rule.

`study rules` trains both with the same seeds. Shapes: n seeds. Steps are infinite where the goal was missed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import intervals
from analysis.counting import COMPLETE, INCOMPLETE, TUNED, Branch
from analysis.labels import counted, curve_text, listed
from analysis.load import CURVE, StudyData
from analysis.tables import steps_to_result
from analysis.tables.answers import answer, by_study

ORDER = ("constant", "square_root", "linear", "constant_half_life", "square_root_half_life", "linear_half_life")
"""The order of rules in tables and figures; custom rules follow."""
NEAR = 1.5
"""A transferred configuration is near the tuned one if it needs at most this multiple of its steps."""
MOVE = [*CURVE, "base_batch_size", "rule", "batch_size"]
RUNS = [*MOVE, "run", "learning_rate", "status", "steps", "step_before", "steps_to_result"]


def rank(rule: str) -> int:
    """The position of a rule in ORDER, which sets its position in tables and its style in figures.

    >>> rank("square_root"), rank("custom")
    (1, 6)
    """
    return ORDER.index(rule) if rule in ORDER else len(ORDER)


def steps(studies: Sequence[StudyData]) -> pd.DataFrame:
    """Every run of a transferred configuration, and of the tuned ones with the same seeds.

    Arguments:
        studies: all searches.

    Returns:
        A row for each (workload, optimizer, goal, base_batch_size, rule, batch_size, run): learning_rate, status, steps
        (to the goal; infinite if it was missed), step_before (the last measured step before; NaN if it was missed), and
        steps_to_result, the S(B) of the search at batch_size (NaN if no trial reached the goal). Runs with the same
        number have the same seeds. The rule `tuned` transfers nothing: its base is the batch size itself. If a better
        trial was found at a base since, its transfers are left out (`stale`).

    >>> from analysis import load
    >>> steps(list(load.load(published))).empty  # nothing was transferred there
    True
    """
    found = by_study(studies)
    current = _current(found)
    rows: list[dict[str, Any]] = []
    for searches in found:
        for branch, study in searches.items():
            if branch.rule is not None and branch in current.get(study.curve, ()):
                own = steps_to_result.row(answer(searches))
                ran = steps_to_result.outcomes(study)
                for run, outcome in ran[ran["status"] != INCOMPLETE].iterrows():
                    reached = outcome["status"] == COMPLETE and pd.notna(outcome["steps_to_goal"])
                    values = (
                        *study.curve,
                        *(study.goal.metric, study.goal.threshold),
                        *(branch.base, branch.rule, study.batch_size, run, study.trials.at[run, "learning_rate"]),
                        outcome["status"],
                        *(map(float, outcome[["steps_to_goal", "step_before"]]) if reached else (np.inf, np.nan)),
                        float(own["steps_to_result"]) if own["reached"] else np.nan,
                    )
                    rows.append(dict(zip(RUNS, values, strict=True)))
    return pd.DataFrame(rows, columns=RUNS)


def _current(found: Sequence[dict[Branch, StudyData]]) -> dict[tuple[str, str], set[Branch]]:
    """For each curve, the branches that transfer its current tuned configurations."""
    rules = {branch.rule for searches in found for branch in searches if branch.rule is not None}
    current: dict[tuple[str, str], set[Branch]] = {}
    for searches in found:
        best = answer(searches)
        row = steps_to_result.row(best)
        if row["reached"]:
            moved = best.branch._replace(rerun=row["tuned_trial"], base=best.batch_size)
            curve = current.setdefault(best.curve, set())
            curve.update(moved._replace(rule=rule) for rule in rules)
    return current


def stale(studies: Sequence[StudyData]) -> list[str]:
    """A line for each curve with outdated transfers: a better trial was found at their base since.

    >>> from analysis import load
    >>> stale(list(load.load(published)))
    []
    """
    found = by_study(studies)
    current = _current(found)
    old: dict[tuple[str, str], int] = {}
    for searches in found:
        for branch, study in searches.items():
            if branch.rule is not None and branch not in current.get(study.curve, set()):
                old[study.curve] = old.get(study.curve, 0) + 1
    return [
        f"{workload}, {optimizer}: {counted(count, 'moved configuration')} left out, because a better trial was found "
        "since; run study rules again."
        for (workload, optimizer), count in old.items()
    ]


def table(runs: pd.DataFrame) -> pd.DataFrame:
    """The cost of each transfer.

    Arguments:
        runs: from `steps`.

    Returns:
        A row for each (workload, optimizer, goal, base_batch_size, rule, batch_size), without the rule `tuned`:
        learning_rate; seeds (their number); missed (how many missed the goal) and missed_share with its exact 95 %
        interval missed_low, missed_high; steps, the lower median over seeds (infinite if fewer than half reached the
        goal), with its interval low, high between order statistics (infinite where it is open); tuned_learning_rate,
        tuned_missed and tuned_steps, the same for the configuration tuned at batch_size; steps_to_result, the S(B) of
        the search there (NaN if no trial reached the goal); steps_lost, the median over seeds of the ratio of steps to
        the steps of the tuned configuration with the same seed, with its interval lost_low, lost_high, wider by what
        the evaluation grid hides (NaN if the tuned configuration missed the goal with at least half of the seeds).

    >>> runs = pd.DataFrame({"workload": "digits", "optimizer": "sgd", "goal_metric": "val/classification_error",
    ...     "goal_threshold": 0.05, "base_batch_size": [8] * 3 + [64] * 3, "rule": ["linear"] * 3 + ["tuned"] * 3,
    ...     "batch_size": 64, "run": [0, 1, 2] * 2, "learning_rate": [0.8] * 3 + [0.4] * 3, "status": "COMPLETE",
    ...     "steps": [30, 60, np.inf, 20, 30, 25], "steps_to_result": 18.0})
    >>> table(runs)[["base_batch_size", "rule", "batch_size", "missed", "steps", "tuned_steps", "steps_lost"]]
       base_batch_size    rule  batch_size  missed  steps  tuned_steps  steps_lost
    0                8  linear          64       1   60.0         25.0         2.0
    """
    here = [*CURVE, "batch_size"]
    references = {key: part.set_index("run") for key, part in runs[runs["rule"] == TUNED].groupby(here, sort=False)}
    rows = []
    for key, part in runs[runs["rule"] != TUNED].groupby(MOVE, sort=False):
        move = dict(zip(MOVE, key, strict=True))
        tuned = references.get(tuple(move[name] for name in here))
        rows.append({**move, **_row(part.set_index("run"), tuned)})
    columns = [*MOVE, "learning_rate", "seeds", "missed", "missed_share", "missed_low", "missed_high"]
    columns += ["steps", "low", "high", "tuned_learning_rate", "tuned_missed", "tuned_steps", "steps_to_result"]
    columns += ["steps_lost", "lost_low", "lost_high"]
    found = pd.DataFrame(rows, columns=columns)
    order = [*CURVE, "base_batch_size", "rank", "rule", "batch_size"]
    return found.assign(rank=found["rule"].map(rank)).sort_values(order, ignore_index=True).drop(columns="rank")


def _row(moved: pd.DataFrame, tuned: pd.DataFrame | None) -> dict[str, Any]:
    taken = moved["steps"].to_numpy(dtype=float)
    missed, seeds = int(np.isinf(taken).sum()), len(taken)
    row = {
        "learning_rate": moved["learning_rate"].iloc[0],
        "seeds": seeds,
        "missed": missed,
        "missed_share": missed / seeds,
        **dict(zip(("missed_low", "missed_high"), intervals.share(missed, seeds), strict=True)),
        "steps": intervals.median_best_of(taken, 1),  # S_n with n = 1
        **dict(zip(("low", "high"), intervals.interval(taken, 1), strict=True)),
        "steps_to_result": moved["steps_to_result"].iloc[0],
    }
    both = [] if tuned is None else moved.index.intersection(tuned.index)
    if tuned is None or not len(both):
        return row
    reference = tuned.loc[both, "steps"].to_numpy(dtype=float)
    row |= {
        "tuned_learning_rate": tuned["learning_rate"].iloc[0],
        "tuned_missed": int(np.isinf(reference).sum()),
        "tuned_steps": intervals.median_best_of(reference, 1),
    }
    if 2 * row["tuned_missed"] >= len(reference):  # a ratio to a missed goal is meaningless
        return row
    return row | lost(moved.loc[both], tuned.loc[both])


def lost(moved: pd.DataFrame, tuned: pd.DataFrame) -> dict[str, float]:
    """The steps of a transfer over the tuned ones, seed by seed: the median, with its interval.

    An upper bound of either opens the interval to the fewest steps that it can stand for.

    Arguments:
        moved, tuned: the columns steps and step_before of the same seeds, from `steps`.

    >>> moved = pd.DataFrame({"steps": [60.0] * 6, "step_before": 59.0})
    >>> lost(moved, pd.DataFrame({"steps": [30.0] * 6, "step_before": 29.0}))
    {'steps_lost': 2.0, 'lost_low': 2.0, 'lost_high': 2.0}
    """
    ours, theirs = map(intervals.with_before, (moved, tuned))
    with np.errstate(invalid="ignore"):
        ratios = ours[0] / theirs[0], intervals.fewest(*ours) / theirs[0], ours[0] / intervals.fewest(*theirs)
    # If both missed the goal, the transfer gets no credit.
    found, least, most = (np.where(np.isnan(each), np.inf, each) for each in ratios)
    within = float(np.exp(intervals.moved_by_grid(*ours) + intervals.moved_by_grid(*theirs)))
    low, high = intervals.interval(least, 1)[0] / within, intervals.interval(most, 1)[1] * within
    return {"steps_lost": float(intervals.median_best_of(found, 1)), "lost_low": low, "lost_high": high}


def in_words(rule: str) -> str:
    """The name of a rule in sentences.

    >>> in_words("square_root"), in_words("linear_half_life")
    ('square root', 'linear with warmup and half-lives kept')
    """
    rate = rule.removesuffix("_half_life")
    kept = [*(["warmup"] if rate == "linear" else []), *(["half-lives kept"] if rate != rule else [])]
    return rate.replace("_", " ") + (f" with {' and '.join(kept)}" if kept else "")


def briefly(rule: str) -> str:
    """The name of a rule in tables and legends.

    >>> briefly("square_root"), briefly("linear_half_life")
    ('square root', 'linear, half-lives')
    """
    return rule.replace("_half_life", ", half-lives").replace("_", " ")


def sentences(moved: pd.DataFrame) -> list[str]:
    """A sentence for each curve and base: the batch sizes to which each rule transfers well.

    Arguments:
        moved: from `table`.

    >>> moved = pd.DataFrame({"workload": "digits", "optimizer": "sgd", "goal_metric": "val/classification_error",
    ...     "goal_threshold": 0.05, "base_batch_size": 32, "rule": "linear", "batch_size": [16, 64, 128, 256],
    ...     "steps_lost": [1.0, 1.3, 2.5, np.inf], "missed": [0, 0, 1, 7], "seeds": 10})
    >>> print(sentences(moved)[0].replace(": ", ":\\n"))
    digits with sgd to validation error < 0.05:
    transferred from batch size 32, steps stay within 1.5 times the tuned steps:
    linear with warmup from 16 to 64 (at 256 it misses the goal in 7 of 10 trainings).
    """
    found = []
    for key, part in moved.groupby([*CURVE, "base_batch_size"], sort=False):
        *curve, base = key
        if part["steps_lost"].isna().all():
            continue
        rules = [_reach(rule, rows, int(base)) for rule, rows in part.groupby("rule", sort=False)]
        moved_from = f"{curve_text(*curve)}: transferred from batch size {base:,}"
        found.append(f"{moved_from}, steps stay within {NEAR:g} times the tuned steps: {'; '.join(rules)}.")
    return found


def _reach(rule: str, rows: pd.DataFrame, base: int) -> str:
    """`square root from 4 to 64 (3.1 times at 1,024)`: the unbroken range around the base, and the worst case."""
    lost = rows.set_index("batch_size").sort_index()
    # If the tuned configuration misses the goal, no ratio exists: a transfer that meets the goal is near.
    untuned, missed = lost["steps_lost"].isna(), 2 * lost["missed"] > lost["seeds"]
    near = (lost["steps_lost"] <= NEAR) | (untuned & ~missed)
    up = near[near.index > base].cummin()
    down = near[near.index < base][::-1].cummin()
    reached = [base, *up.index[up], *down.index[down]]
    where = f"from {min(reached):,} to {max(reached):,}" if len(reached) > 1 else "not even at the next batch size"
    if near.all():
        return f"{in_words(rule)} {where}"
    gone = lost[np.isinf(lost["steps_lost"]) | (untuned & missed)]
    if len(gone):
        missed_of = f"{gone['missed'].sum():.0f} of {gone['seeds'].sum():.0f}"
        what = f"at {listed(gone.index)} it misses the goal in {missed_of} trainings"
    else:
        what = f"{lost['steps_lost'].max():.2g} times at {lost['steps_lost'].idxmax():,}"
    return f"{in_words(rule)} {where} ({what})"
