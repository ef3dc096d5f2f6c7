"""Warnings about the curves, the most serious first. Definitions: docs/methods.md, "Warnings"."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from analysis.counting import Goal
from analysis.estimates import convex, tuned
from analysis.estimates.pairs import SEARCHES
from analysis.intervals import PART
from analysis.labels import batch_sizes, goal_text, listed, metric_text, number
from analysis.load import CURVE, StudyData
from analysis.question.stages import REFINE
from analysis.report.answer.infeasible import failed, happened
from analysis.rises import shown
from analysis.rises.causes import causes
from analysis.tables import audits, scaling, steps_to_result

KINDS = (
    *("waiting", "edge", "rising", "inclusion", "unequal", "adaptive", "unfinished", "few near"),
    *("noise", "never", "at once", "coarse", "doubling", "late", "base", "end"),
)
"""Kinds of warnings, the most serious first."""

EQUAL = (
    *("workload", "budget", "evaluation", "precision", "search.trials", "search.budgets", "search.sampler"),
    *("search.refine", "search.candidates", "search.screens", "search.fresh_data"),
)
"""Settings that two optimizers must share for a fair comparison."""
FEWEST_NEAR = 5
"""Fewer trials near the best raise a warning."""
MISSED_AGAIN = 0.5
LEAST_DESCENT = 0.25
COARSEST = 0.75
"""The evaluation before the goal was met must be at this fraction of S(B) or later; the usual grid gives 0.91."""
GAIN = 1.2
LATE = 0.8

MORE_TRIALS = "raise search.trials, narrow the search space, or use search=refine in another results=DIR"
FEW_TRIALS = "raise search.trials"
MORE_ROUNDS = "add rounds (search.added=1) or narrow the search space"
TYPICAL = "; search.reruns=4 shows what the best trial typically needs"
STRICTER = "choose a stricter goal: an untrained model may nearly meet this one"
CONTINUE = "sweep again to continue"
OF_IMPORTED = {
    "edge": "a wider search may find fewer steps",
    "unfinished": "import with a lower --trials, or all",
    "few": "import more runs",
    "few near": "choose a looser goal",
    "rising": "choose a goal that the curves cross steeply",
    "noise": "choose a goal that the curves cross steeply",
    "at once": STRICTER,
    "never": "choose a looser goal or leave out the batch size",
}
"""Kind -> the cure for imported studies, which cannot be measured again; other kinds have none."""

Row = Mapping[str, Any]
Answered = Sequence[tuple[StudyData, Goal]]


class Caution(NamedTuple):
    """A warning about one study or, without a batch size, one curve.

    Attributes:
        text: the broken rule, with {} for each value and no full stop.
        cure: the change to the sweep; may have {} too.
        values: fill the {} of the text, then of the cure; they may differ between batch sizes.
    """

    kind: str
    curve: tuple[str, str, Goal]
    batch_size: int | None
    text: str
    cure: str
    values: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The text, and the cure if there is one."""
        return "; ".join(filter(None, (self.text, self.cure)))


def sentences(
    answered: Answered, steps: pd.DataFrame, limits: pd.DataFrame, pairs: pd.DataFrame, base: float = 0.0
) -> list[str]:
    """The warnings, a line for each (kind, workload, optimizer, goal).

    Arguments:
        answered: study and goal of each row of `steps` (`analysis.tables.steps_to_result.table`).
        limits, pairs: tables of `analysis.estimates.limits` and `analysis.estimates.pairs`.
        base: see `analysis.tables.scaling.perfect_scaling_limit`.

    >>> from analysis.report.build import Asked, tables
    >>> made = tables([study], [study], Asked())
    >>> steps, limits, pairs = (made[name] for name in ("steps_to_result", "scaling", "compare"))
    >>> (found,) = sentences(list(steps_to_result.answerable([study])), steps, limits, pairs)
    >>> for part in found.split("; "):
    ...     print(part)
    mlp_digits, sgd, batch size 64: only 3 of 20 trials reached the goal within 2 times the fewest steps
    raise search.trials, narrow the search space, or use search=refine in another results=DIR
    search.reruns=4 shows what the best trial typically needs.
    """
    found = []
    for (study, goal), row in zip(answered, steps.to_dict("records"), strict=True):
        # An import cannot be searched again: without a trial that reached the goal, only a looser goal helps.
        found += [*(_edges(study, goal) if row["reached"] or not study.imported else ()), *_adaptive(study, goal)]
        found += [caution for check in (_commands, _trials, _noise, _budget) for caution in check(study, goal, row)]
    found += [*_inclusions(answered, pairs), *_unequal(answered, pairs), *_uneven(answered)]
    found += [*_rises(answered, steps), *_bases(steps, base), *_ends(answered, limits)]
    imported = {s.curve for s, _ in answered if s.imported}
    found = [_cured(caution, imported=caution.curve[:2] in imported) for caution in found]
    return _lines(found, several_goals=len({goal for _, goal in answered}) > 1)


def waiting(studies: Iterable[StudyData]) -> list[str]:
    """The studies without a finished trial.

    >>> from dataclasses import replace
    >>> ended = load_study(f"{published}/studies/mlp_digits/sgd/32")
    >>> waiting([ended, replace(ended, trials=ended.trials[:0])])
    ['mlp_digits, sgd, batch size 32: no trial has finished yet; sweep again to continue.']
    """
    empty = [study for study in studies if not study.begun]
    found = [_cured(_about("waiting", s, s.goal, "no trial has finished yet", CONTINUE), s.imported) for s in empty]
    return _lines(found, several_goals=False)


def unsearched(found: Iterable[tuple[StudyData, Sequence[float]]]) -> list[str]:
    """The studies that miss a search with another step budget (from `analysis.tables.answers.unsearched_budgets`).

    >>> print(*unsearched([(load_study(f"{published}/studies/mlp_digits/sgd/32"), [2.0])]))
    mlp_digits, sgd, batch size 32: the search with 2 times the step budget is not complete; sweep again to continue.
    """
    cautions = []
    for study, multiples in found:
        times = listed(f"{multiple:g}" for multiple in multiples)
        text = f"the search with {times} times the step budget is not complete"
        cautions.append(_about("unfinished", study, study.goal, text, CONTINUE))
    return _lines(cautions, several_goals=False)


def _cured(caution: Caution, imported: bool) -> Caution:
    """Give imported studies a cure that needs no new measurements."""
    if not imported:
        return caution
    return caution._replace(cure=OF_IMPORTED.get("few" if caution.cure == FEW_TRIALS else caution.kind, ""))


def _about(kind: str, study: StudyData, goal: Goal, text: str, cure: str, *values: str) -> Caution:
    return Caution(kind, (*study.curve, goal), study.batch_size, text, cure, values)


def _edges(study: StudyData, goal: Goal) -> Iterator[Caution]:
    """The best trials lie at an open side of the search space."""
    for edge in audits.edges(study, goal):
        side = f"search.space.{edge.parameter}.{edge.side}"
        text = f"the best trials have {edge.parameter} {{}}, at the edge of the search space ({{}})"
        values = [f"{edge.value:.3g}", f"{edge.limit:g}"]
        cure = f"search again in a wider space: set search.extend=true or widen {side}"
        declared = study.question["search"]["space"][edge.parameter][edge.side]
        if _refines(study):
            cure = f"search again in a wider space: widen {side}"
            if edge.limit != declared:
                text += ", which the rounds extended from {}"
                values.append(f"{declared:g}")
        elif study.question["search"]["extend"]:
            cure = f"widen {side}"  # extensions follow the study's own goal
            if goal == study.goal and study.branch.stage >= study.question["search"]["extend_limit"]:
                cure = f"raise search.extend_limit or {cure} (after {{}} extensions)"
                values.append(str(study.branch.stage))
            elif goal == study.goal:
                cure = f"{CONTINUE}, or {cure}"
        yield _about("edge", study, goal, text, cure, *values)


def _adaptive(study: StudyData, goal: Goal) -> Iterator[Caution]:
    """The search is adaptive: some of its trials do not stand for a smaller search, so S_n is undefined."""
    if not study.independent and not _refines(study):
        text = f"{study.question['search']['sampler']} learns from earlier trials, so there is no S_n and no interval"
        yield _about("adaptive", study, goal, text, "add search.reruns=4, or use search=refine")


def _commands(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """Some commands failed, maybe for want of memory or by a fault of the machine. `_trials` names most of them."""
    if study.failures and not failed([study]) and not tuned.nothing_feasible(row):
        cure = "if it was not for their hyperparameters, mend the command and sweep again in another results=DIR"
        yield _about("unfinished", study, goal, f"{happened([study])}, and count as diverged", cure)


def _refines(study: StudyData) -> bool:
    return bool(study.question["search"].get("sampler") == REFINE)


def _trials(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """Too few trials: feasible, near the best, or by the best-of-n curve. Only the first of these is reported.

    Every trial of `refine` counts, feasible or not, and fresh seeds say how good its tuned configuration is.
    """
    ended = steps_to_result.is_complete(study)
    by_commands = failed([study])
    if ended and (tuned.nothing_feasible(row) or by_commands) and not study.imported:
        cure = "mend the command" if by_commands else "lower search.space.learning_rate.low and .high"
        yield _about("unfinished", study, goal, happened([study]), cure)
        return
    if ended and _refines(study):
        return
    wanted, complete = study.question["search"]["trials"], row["complete"]
    more = MORE_TRIALS if row.get("seeds") else f"{MORE_TRIALS}{TYPICAL}"
    if complete < wanted and study.imported:
        text = f"only {{}} of the {wanted:,} trials that count are COMPLETE"
        yield _about("unfinished", study, goal, text, "", f"{complete:,}")
    elif complete < wanted and ended:
        text = f"only {{}} of {wanted:,} trials were feasible after {{}} launches"
        cure = "raise search.max_launches or narrow the search space"
        yield _about("unfinished", study, goal, text, cure, f"{complete:,}", f"{complete + row['infeasible']:,}")
    elif complete < wanted:
        text = f"only {{}} of {wanted:,} feasible trials have finished"
        yield _about("unfinished", study, goal, text, CONTINUE, f"{complete:,}")
    elif row["reached"] and complete < PART:
        text = "fewer than {} trials do not show how close the best one is to the optimum"
        yield _about("few near", study, goal, text, FEW_TRIALS, str(PART))
    elif row["reached"]:
        near, factor = audits.near_best(study, goal)
        gain = np.nan
        if study.independent:
            gain = audits.gain_of_doubling(steps_to_result.feasible_steps(study, goal), row["censored_at"])
        if near < min(FEWEST_NEAR, wanted):  # a search of fewer trials passes if all are near
            text = f"only {{}} of {wanted:,} trials reached the goal within {factor:g} times the fewest steps"
            yield _about("few near", study, goal, text, more, f"{near:,}")
        elif gain > GAIN:
            text = f"each doubling of the number of trials, up to {wanted:,}, divided the steps by {{}}"
            yield _about("doubling", study, goal, text, more, f"{gain:.3g}")


def _noise(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """The metric is noisy at the goal. Judged on evaluations after the goal was met; if there are none, before it."""
    noise = audits.noise(study, goal) if row["reached"] else audits.Noise(np.nan, np.nan)
    such_as = "" if goal.metric.endswith("/cross_entropy_error") else ", such as a cross entropy"
    settable = "validation_examples" in study.question["workload"]
    more = "raise workload.validation_examples" if settable else "validate on more examples"
    cure = f"choose a goal that the curves cross steeply{such_as}, or {more}"
    noisy = f"the {metric_text(goal.metric)} is noisy at the goal"
    if noise.missed_again >= MISSED_AGAIN:
        text = f"{noisy}: after the goal was first met, {{}} of the next evaluations missed it"
        yield _about("noise", study, goal, text, cure, f"{noise.missed_again:.0%}")
    elif np.isnan(noise.missed_again) and noise.descent < LEAST_DESCENT:
        text = f"{noisy}: over the last {audits.AROUND} evaluations its net descent is {{}} of its total movement"
        yield _about("noise", study, goal, text, cure, f"{noise.descent:.0%}")


def _budget(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """The step budget or the evaluation grid limits the steps."""
    if tuned.nothing_feasible(row):  # a larger budget is no cure
        return
    if not row["reached"]:
        text, cure = "no trial reached the goal within {} steps", "raise the budget or choose a looser goal"
        values = [f"{row['train_steps']:,}"]
        least = steps_to_result.counted_trials(study, goal)["least_error"].min()
        if np.isfinite(least):
            text += "; the least error was {}" if study.exact else "; the least error at the end was {}"
            values.append(f"{least:.3g}")
        yield _about("never", study, goal, text, cure, *values)
        return
    steps = row["steps_to_result"]
    before = int(steps_to_result.outcomes(study, goal)["step_before"][row["trial"]])
    if steps_to_result.met_at_once(study, goal):
        text = "the goal was met at the first evaluation, perhaps earlier"
        cure = "have the script write its first metrics earlier" if study.is_command else "lower evaluation.first"
        yield _about("coarse", study, goal, text, f"{cure} to see when")
    elif steps <= 1:
        yield _about("at once", study, goal, "the goal was met after a single step, the fewest there can be", STRICTER)
    elif before < COARSEST * steps and steps - before > 1:
        text = "the goal was met at step {}, and the evaluation before it was at step {}"
        cure = "lower evaluation.ratio" + ("" if goal.metric.startswith("val/") else " or evaluation.every")
        cure = "have the script write its metrics more often" if study.is_command else cure
        yield _about("coarse", study, goal, text, cure, f"{steps:,}", f"{before:,}")
    longer = max(study.question["search"].get("budgets", [1.0])) > study.branch.budget
    if before and steps > LATE * row["train_steps"] and not longer:
        text = f"the goal was met after {100 * LATE:.0f} % of the budget"
        yield _about("late", study, goal, text, "a larger budget may find fewer steps")


def _inclusions(answered: Answered, pairs: pd.DataFrame) -> Iterator[Caution]:
    """A general optimizer is slower than a special case of it."""
    for found in audits.inclusions(answered, pairs):
        if found.under_tuned:
            contained = f"{found.special}, which its search space contains"
            text = f"it needed {{}} times the steps of {contained}, so it is under-tuned"
            values = [f"{found.ratio:.2g}"]
            if np.isinf(found.ratio):
                text = f"it missed the goal that {contained}, met, so it is under-tuned"
                values = []
            cure = MORE_ROUNDS if _refines(found.study) else MORE_TRIALS
            yield _about("inclusion", found.study, found.goal, text, cure, *values)


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
                text = f"{name}, which it is compared with, had a different {listed(sorted(keys))}"
                yield Caution("unequal", curve, None, text, "sweep both with the same settings")


def _uneven(answered: Answered) -> Iterator[Caution]:
    """Some batch sizes of a curve had more trials than others, and the best of more trials is luckier.

    The fresh seeds of `refine` are not lucky, and its searches end early where no trial met the goal.
    """
    wanted: dict[tuple[str, str, Goal], set[int]] = {}
    for study, goal in answered:
        if not _refines(study):
            wanted.setdefault((*study.curve, goal), set()).add(study.question["search"]["trials"])
    for curve, trials in wanted.items():
        if len(trials) > 1:
            text = f"its batch sizes had {min(trials):,} to {max(trials):,} trials, and more trials find fewer steps"
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
                f"{rise.larger:,}, beyond their intervals, although a well-tuned larger batch needs no more steps, so "
                f"do not trust the limits of scaling; likely: {listed((each.text for each in found), 'or')}"
            )
            cure = listed((each.cure for each in found), "or")
            yield Caution("rising", (workload, optimizer, goal), None, text, cure)


def _bases(steps: pd.DataFrame, base: float) -> Iterator[Caution]:
    """The base of perfect scaling is not the cheapest in examples; of fewer batch sizes than show a limit, nothing."""
    for (workload, optimizer, metric, threshold), curve in steps[steps["reached"]].groupby(CURVE):
        examples = curve["batch_size"] * list(tuned.points(curve).values())
        based = curve.assign(examples=examples)[curve["batch_size"] >= base].sort_values("batch_size")
        ratios = based["examples"].dropna() / examples.min()
        if len(examples.dropna()) >= convex.FEWEST and ratios.iloc[:1].gt(scaling.PERFECT_SCALING_TOLERANCE).any():
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
    open_ends = limits[(limits["definition"] == "maximum_useful_batch_size") & (limits["estimate_bound"] == ">")]
    for row in open_ends.itertuples():
        curve = sizes[row.workload, row.optimizer, Goal(row.goal_metric, row.goal_threshold)]
        if len(curve) > 1 and row.estimate == max(curve) and row.estimate < curve[int(row.estimate)]:
            text = f"steps still fall at the largest batch size, {row.estimate:,.0f}, so scaling ends beyond it"
            about = row.workload, row.optimizer, Goal(row.goal_metric, row.goal_threshold)
            yield Caution("end", about, None, text, "sweep larger batch sizes")


def _lines(found: Iterable[Caution], several_goals: bool) -> list[str]:
    grouped: dict[tuple[str, tuple[str, str, Goal]], dict[str, list[Caution]]] = {}
    for caution in sorted(found, key=lambda caution: KINDS.index(caution.kind)):
        grouped.setdefault((caution.kind, caution.curve), {}).setdefault(caution.sentence, []).append(caution)
    lines = []
    for (_, (workload, optimizer, goal)), by_text in grouped.items():
        to_goal = f" to {goal_text(goal.metric, goal.threshold)}" if several_goals else ""
        parts = [_part(text, cautions) for text, cautions in by_text.items()]
        others = [part[2].upper() + part[3:] for part in parts[1:]]
        lines.append(" ".join([f"{workload}, {optimizer}{to_goal}{parts[0]}", *others]))
    return lines


def _part(text: str, cautions: Sequence[Caution]) -> str:
    """One sentence for all batch sizes that share a text; differing values are listed in the order of the sizes."""
    columns = zip(*(caution.values for caution in cautions), strict=True)
    said = text.format(*(listed(column if len(set(column)) > 1 else column[:1]) for column in columns))
    sizes = [caution.batch_size for caution in cautions if caution.batch_size is not None]
    return f", {batch_sizes(sizes)}: {said}." if sizes else f": {said}."


def imported(studies: Iterable[StudyData]) -> list[str]:
    """The warnings that the import of studies recorded.

    >>> imported([study])
    []
    """
    found = (text for study in studies for run in study.provenance for text in run.get("warnings", []))
    return list(dict.fromkeys(found))  # what holds for a whole log is recorded in each of its studies
