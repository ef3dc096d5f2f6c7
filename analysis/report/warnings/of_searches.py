"""Warnings about one search: its edges, its trials, its noise, its grid of evaluations and its budget."""

from collections.abc import Iterator

import numpy as np

from analysis.counting import Goal
from analysis.estimates import tuned
from analysis.intervals import PART
from analysis.labels import metric_text, percent
from analysis.load import StudyData
from analysis.report.answer.infeasible import failed, happened, never_improved
from analysis.report.warnings.caution import CONTINUE, FEW_TRIALS, MORE_TRIALS, STRICTER, TYPICAL, Caution, Row, about
from analysis.tables import audits, steps_to_result

FEWEST_NEAR = 5
"""Fewer trials near the best raise a warning."""
COARSEST = 0.75
"""The evaluation before the goal was met must be at this fraction of S(B) or later; the usual grid gives 0.91."""
GAIN = 1.2
LATE = 0.8


def cautions(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """Every warning about one search.

    Arguments:
        row: of `analysis.estimates.tuned.table`, or of `analysis.tables.steps_to_result.table`.

    >>> [(caution.kind, caution.values) for caution in cautions(study, study.goal, steps_to_result.row(study))]
    [('few near', ('3',))]
    """
    # An import cannot be searched again: without a trial that reached the goal, only a looser goal helps.
    if row["reached"] or not study.imported:
        yield from _edges(study, goal)
    yield from _adaptive(study, goal)
    for check in (_commands, _trials, _noise, _grid, _budget):
        yield from check(study, goal, row)


def _edges(study: StudyData, goal: Goal) -> Iterator[Caution]:
    """The best trials lie at an open side of the search space."""
    for edge in audits.edges(study, goal):
        side = f"search.space.{edge.parameter}.{edge.side}"
        text = f"the best trials have {edge.parameter} {{}}, at the edge of the search space ({{}})"
        values = [f"{edge.value:.3g}", f"{edge.limit:g}"]
        cure = f"search again in a wider space: set search.extend=true or widen {side}"
        declared = study.question["search"]["space"][edge.parameter][edge.side]
        if study.refines:
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
        yield about("edge", study, goal, text, cure, *values)


def _adaptive(study: StudyData, goal: Goal) -> Iterator[Caution]:
    """The search is adaptive: some of its trials do not stand for a smaller search, so S_n is undefined."""
    if not study.independent and not study.refines:
        text = f"{study.question['search']['sampler']} learns from earlier trials, so there is no S_n and no interval"
        yield about("adaptive", study, goal, text, "add search.reruns=4, or use search=refine")


def _commands(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """Some commands failed, maybe for want of memory or by a fault of the machine. `_trials` names most of them."""
    if study.failures and not failed([study]) and not tuned.nothing_feasible(row):
        cure = "if it was not for their hyperparameters, mend the command and sweep again in another results=DIR"
        yield about("unfinished", study, goal, f"{happened([study])}, and count as diverged", cure)


def _trials(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """Too few trials: feasible, finished or near the best. Only the first of these is reported.

    Every trial of `refine` counts, feasible or not, and fresh seeds say how good its tuned configuration is.
    """
    ended = steps_to_result.is_complete(study)
    if ended and (tuned.nothing_feasible(row) or failed([study])) and not study.imported:
        cure = "mend the command" if failed([study]) else "lower search.space.learning_rate.low and .high"
        yield about("unfinished", study, goal, happened([study]), cure)
    elif ended and study.refines:
        return
    elif row["complete"] < study.question["search"]["trials"]:
        yield _unfinished(study, goal, row, ended)
    elif row["reached"]:
        yield from _few(study, goal, row)


def _unfinished(study: StudyData, goal: Goal, row: Row, ended: bool) -> Caution:
    """Fewer trials count than the search asks for."""
    wanted, complete = study.question["search"]["trials"], f"{row['complete']:,}"
    if study.imported:
        text = f"only {{}} of the {wanted:,} trials that count are COMPLETE"
        return about("unfinished", study, goal, text, "", complete)
    if ended:
        text = f"only {{}} of {wanted:,} trials were feasible after {{}} launches"
        cure = "raise search.max_launches or narrow the search space"
        return about("unfinished", study, goal, text, cure, complete, f"{row['complete'] + row['infeasible']:,}")
    text = f"only {{}} of {wanted:,} feasible trials have finished"
    return about("unfinished", study, goal, text, CONTINUE, complete)


def _few(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """Few trials near the best, or a best-of-n curve that still falls."""
    if row["complete"] < PART:
        text = "fewer than {} trials do not show how close the best one is to the optimum"
        yield about("few near", study, goal, text, FEW_TRIALS, str(PART))
        return
    wanted = study.question["search"]["trials"]
    more = MORE_TRIALS if row.get("seeds") else f"{MORE_TRIALS}{TYPICAL}"
    near, factor = audits.near_best(study, goal)
    gain = np.nan
    if study.independent:
        gain = audits.gain_of_doubling(steps_to_result.feasible_steps(study, goal), row["censored_at"])
    if near < min(FEWEST_NEAR, wanted):  # a search of fewer trials passes if all are near
        text = f"only {{}} of {wanted:,} trials reached the goal within {factor:g} times the fewest steps"
        yield about("few near", study, goal, text, more, f"{near:,}")
    elif gain > GAIN:
        text = f"each doubling of the number of trials, up to {wanted:,}, divided the steps by {{}}"
        yield about("doubling", study, goal, text, more, f"{gain:.3g}")


def _noise(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """The metric is noisy at the goal."""
    noise = audits.noise(study, goal) if row["reached"] else audits.Noise(np.nan, np.nan)
    such_as = "" if goal.metric.endswith("/cross_entropy_error") else ", such as a cross entropy"
    settable = "validation_examples" in study.question["workload"]
    more = "raise workload.validation_examples" if settable else "validate on more examples"
    cure = f"choose a goal that the curves cross steeply{such_as}, or {more}"
    noisy = f"the {metric_text(goal.metric)} is noisy at the goal"
    if noise.hides_goal and not np.isnan(noise.missed_again):
        text = f"{noisy}: after the goal was first met, {{}} of the next evaluations missed it"
        yield about("noise", study, goal, text, cure, percent(noise.missed_again))
    elif noise.hides_goal:
        text = f"{noisy}: over the last {audits.AROUND} evaluations its net descent is {{}} of its total movement"
        yield about("noise", study, goal, text, cure, percent(noise.descent))


def _budget(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """The step budget limits the steps: the goal was missed, or met late."""
    if tuned.nothing_feasible(row):  # a larger budget is no cure
        return
    if not row["reached"]:
        yield _never(study, goal, row)
        return
    longer = max(study.question["search"].get("budgets", [1.0])) > study.branch.budget
    if row["step_before"] and row["steps_to_result"] > LATE * row["train_steps"] and not longer:
        text = f"the goal was met after {100 * LATE:.0f} % of the budget"
        yield about("late", study, goal, text, "a larger budget may find fewer steps")


def _never(study: StudyData, goal: Goal, row: Row) -> Caution:
    """No trial reached the goal."""
    text, cure = "no trial reached the goal within {} steps", "raise the budget or choose a looser goal"
    values = [f"{row['train_steps']:,}"]
    least = steps_to_result.counted_trials(study, goal)["least_error"].min()
    if np.isfinite(least):
        text += "; the least error was {}" if study.exact else "; the least error at the end was {}"
        values.append(f"{least:.3g}")
    if not np.isnan(untrained := never_improved(study, goal)):
        text, cure = f"{text}, above that of the untrained model, {{}}", "search lower learning rates"
        values.append(f"{untrained:.3g}")
    return about("never", study, goal, text, cure, *values)


def _grid(study: StudyData, goal: Goal, row: Row) -> Iterator[Caution]:
    """The goal was met so early, or between evaluations so far apart, that the grid decides the steps."""
    if not row["reached"]:
        return
    steps, before = row["steps_to_result"], row["step_before"]
    if steps_to_result.is_left_censored(study, goal):
        text = "the goal was met at the first evaluation"
        if (untrained := study.untrained(goal.metric)) < goal.threshold:
            text += ", and the error of the untrained model was {}"
            yield about("at once", study, goal, text, STRICTER, f"{untrained:.3g}")
        else:
            cure = "have the script write its first metrics earlier" if study.is_command else "lower evaluation.first"
            yield about("coarse", study, goal, f"{text}, perhaps earlier", f"{cure} to see when")
    elif steps <= 1:
        yield about("at once", study, goal, "the goal was met after a single step, the fewest there can be", STRICTER)
    elif before < COARSEST * steps and steps - before > 1:
        text = "the goal was met at step {}, and the evaluation before it was at step {}"
        cure = "lower evaluation.ratio" + ("" if goal.metric.startswith("val/") else " or evaluation.every")
        cure = "have the script write its metrics more often" if study.is_command else cure
        yield about("coarse", study, goal, text, cure, f"{steps:,}", f"{before:,}")
