"""Warnings about a curve, or about curves that are compared."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from analysis.counting import Goal
from analysis.estimates import tuned
from analysis.estimates.pairs import SEARCHES
from analysis.labels import listed, number
from analysis.load import CURVE
from analysis.report.warnings.caution import MORE_ROUNDS, MORE_TRIALS, Answered, Caution, about
from analysis.rises import shown
from analysis.rises.causes import causes
from analysis.tables import audits, scaling

EQUAL = (
    *("workload", "budget", "evaluation", "precision", "search.trials", "search.budgets", "search.sampler"),
    *("search.refine", "search.candidates", "search.screens", "search.fresh_data"),
)
"""Settings that two optimizers must share for a fair comparison."""


def cautions(
    answered: Answered, steps: pd.DataFrame, limits: pd.DataFrame, pairs: pd.DataFrame, base: float
) -> Iterator[Caution]:
    """Every warning about a curve or a pair of curves; the arguments are those of `analysis.report.warnings.sentences`.

    >>> from analysis.report.build import Asked, tables
    >>> from analysis.tables.steps_to_result import answerable
    >>> made = tables([study], [study], Asked())
    >>> steps, limits, pairs = (made[name] for name in ("steps_to_result", "scaling", "compare"))
    >>> list(cautions(list(answerable([study])), steps, limits, pairs, 0.0))  # one batch size is no curve
    []
    """
    yield from _inclusions(answered, pairs)
    yield from _unequal(answered, pairs)
    yield from _uneven(answered)
    yield from _rises(answered, steps)
    yield from _bases(steps, base)
    yield from _ends(answered, limits)


def _inclusions(answered: Answered, pairs: pd.DataFrame) -> Iterator[Caution]:
    """A general optimizer is slower than a special case of it."""
    for found in audits.inclusions(answered, pairs):
        if found.under_tuned:
            contained = f"{found.special}, which the search space contains"
            text = f"needed {{}} times the steps of {contained}, so tuning fell short"
            values = [f"{found.ratio:.2g}"]
            if np.isinf(found.ratio):
                text = f"missed the goal that {contained}, met, so tuning fell short"
                values = []
            cure = MORE_ROUNDS if found.study.refines else MORE_TRIALS
            yield about("inclusion", found.study, found.goal, text, cure, *values)


def _unequal(answered: Answered, pairs: pd.DataFrame) -> Iterator[Caution]:
    """Two optimizers had different settings."""
    studies = {(s.workload, goal, s.batch_size, s.optimizer): s for s, goal in answered}
    differing: dict[tuple[str, str, Goal], dict[str, set[str]]] = {}
    for row in pairs[pairs["kind"] == SEARCHES].itertuples():
        goal = Goal(row.goal_metric, row.goal_threshold)
        one, other = (studies[row.workload, goal, row.smallest_batch_size, name] for name in (row.a, row.b))
        keys = audits.differing(one, other, EQUAL)
        differing.setdefault((row.workload, row.a, goal), {}).setdefault(row.b, set()).update(keys)
    for curve, against in differing.items():
        for name, keys in against.items():
            if keys:
                text = f"compared with {name}, which had a different {listed(sorted(keys))}"
                yield Caution("unequal", curve, None, text, "sweep all with the same settings")


def _uneven(answered: Answered) -> Iterator[Caution]:
    """Some batch sizes of a curve had more trials than others, and the best of more trials is luckier.

    The fresh seeds of `refine` are not lucky, and its searches end early where no trial met the goal.
    """
    wanted: dict[tuple[str, str, Goal], set[int]] = {}
    for study, goal in answered:
        if not study.refines:
            wanted.setdefault((*study.curve, goal), set()).add(study.question["search"]["trials"])
    for curve, trials in wanted.items():
        if len(trials) > 1:
            text = f"batch sizes had {min(trials):,} to {max(trials):,} trials, and more trials find fewer steps"
            yield Caution("unequal", curve, None, text, "sweep all with the same number")


def _rises(answered: Answered, steps: pd.DataFrame) -> Iterator[Caution]:
    """Steps rise with the batch size. The constrained curve takes such a rise for scatter of tuning."""
    for (workload, optimizer, metric, threshold), curve in steps.groupby(CURVE):
        goal = Goal(metric, threshold)
        mine = [study for study, asked in answered if study.curve == (workload, optimizer) and asked == goal]
        if (rise := shown.rise(curve)) is not None:
            found = causes(mine, goal, rise)
            text = (
                f"steps rise from {number(rise.fewer)} at batch size {rise.smaller:,} to {number(rise.more)} at "
                f"{rise.larger:,}, by more than noise explains, although a well-tuned larger batch needs no more "
                f"steps, so no limits of scaling are read; likely: {listed((each.text for each in found), 'or')}"
            )
            cure = listed((each.cure for each in found), "or")
            yield Caution("rising", (workload, optimizer, goal), None, text, cure)


def _bases(steps: pd.DataFrame, base: float) -> Iterator[Caution]:
    """The base of perfect scaling is not the cheapest in examples.

    Nothing is said if the curve has fewer batch sizes than show a limit, or if the fresh seeds of the base missed the
    goal: then no limit is read from it."""
    for (workload, optimizer, metric, threshold), curve in steps[steps["reached"]].groupby(CURVE):
        examples = curve["batch_size"] * list(tuned.points(curve).values())
        based = curve.assign(examples=examples)[curve["batch_size"] >= base].sort_values("batch_size")
        ratios = based["examples"].dropna() / examples.min()
        known = ratios.iloc[:1].between(scaling.PERFECT_SCALING_TOLERANCE, np.inf, inclusive="neither").any()
        if len(examples.dropna()) >= scaling.FEWEST and known:
            size, ratio = based["batch_size"][ratios.index[0]], ratios.iloc[0]
            text = f"batch size {size:,}, the base of perfect scaling, took {ratio:.2g} times the examples of the best"
            text += " batch size, so the limit may be too large"
            cure = "tune the smallest batch sizes further"
            yield Caution("base", (workload, optimizer, Goal(metric, threshold)), None, text, cure)


def _ends(answered: Answered, limits: pd.DataFrame) -> Iterator[Caution]:
    """Steps still fall at the largest batch size, and the training set allows larger ones."""
    sizes: dict[tuple[str, str, Goal], dict[int, float]] = {}
    for study, goal in answered:
        curve = sizes.setdefault((*study.curve, goal), {})
        curve[study.batch_size] = study.question["workload"].get("train_examples") or np.inf
    open_ends = limits[(limits["definition"] == scaling.USEFUL) & (limits["estimate_bound"] == ">")]
    for row in open_ends.itertuples():
        curve = sizes[row.workload, row.optimizer, Goal(row.goal_metric, row.goal_threshold)]
        if len(curve) > 1 and row.estimate == max(curve) and row.estimate < curve[int(row.estimate)]:
            text = f"steps still fall at the largest batch size, {row.estimate:,.0f}, so scaling ends beyond it"
            about = row.workload, row.optimizer, Goal(row.goal_metric, row.goal_threshold)
            yield Caution("end", about, None, text, "sweep larger batch sizes")
