"""Derives every table of a report from studies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis import figures
from analysis.batch_schedules import table as batch_schedules
from analysis.batch_schedules import verified
from analysis.branched import table as branched
from analysis.certificates import table as certificates
from analysis.claims import registry
from analysis.claims.evidence import Evidence, about
from analysis.counting import Branch, Goal
from analysis.estimates import at_budget, by_goal, landscape, limits, pairs, split, tuned
from analysis.load import STUDY, StudyData
from analysis.noise_scale import table as noise_scale
from analysis.one_step import table as one_step
from analysis.proxies import table as proxies
from analysis.rises import shown
from analysis.sizes import table as sizes
from analysis.tables import (
    answers,
    best_errors,
    compare,
    learning_curves,
    relative,
    scaling,
    steps_to_result,
    transfer,
    trials,
)

PAIRS = {"compare": "optimizer", "compare_workloads": "workload"}
"""Table of comparisons -> the column in which a pair differs."""


@dataclass(frozen=True)
class Asked:
    """The options of a report.

    Attributes:
        goals: evaluate the recorded curves at these goals instead of each study's own.
        base_batch_size: base of the perfect-scaling limit and of `critical_batch_size_zhang`; None: the smallest.
        normalise_at: batch size at which workloads are set to 1 where they are compared (`tables.relative.table`).
        tolerance: share of the best error that a larger batch size may cost (`estimates.at_budget.table`).
        files: the formats of the figures, and the width of PDFs; None: `analysis.figures.usual`.
        static: leave the explorer out of the page.
        refresh: the sweep still runs, and browsers load the page again after this number of seconds; None: it ended.
    """

    goals: Sequence[Goal] = ()
    base_batch_size: float | None = None
    normalise_at: int | None = None
    tolerance: float = at_budget.TOLERANCE
    files: figures.Files | None = None
    static: bool = False
    refresh: int | None = None

    @property
    def readings(self) -> Sequence[Goal | None]:
        """Each goal once; if there are none, (None,), which stands for each study's own goal."""
        return tuple(dict.fromkeys(self.goals)) or (None,)


def tables(made: Sequence[StudyData], studies: Sequence[StudyData], asked: Asked) -> dict[str, pd.DataFrame]:
    """Every table by its name.

    Arguments:
        made, studies: all searches, and the answering search of each study (`analysis.tables.answers.answers`).

    >>> made = [load_study(f"{published}/studies/mlp_digits/sgd/{size}") for size in (32, 64, 128)]
    >>> found = tables(made, answers.answers(made), Asked())
    >>> found["scaling"][["definition", "value", "bound"]].head(2)
                      definition  value bound
    0      perfect_scaling_limit   64.0     =
    1  maximum_useful_batch_size   32.0     <
    """
    spaces = landscape.modelled(studies, asked.readings)  # other processes work at them meanwhile
    goals, reruns = asked.readings, answers.rerun_steps(made, asked.readings)
    steps = tuned.table(steps_to_result.table(studies, goals=goals), reruns)
    fixed, points = of_s(studies), steps_to_result.points(steps)
    ends = _limits(fixed, points, asked)
    cost, every_trial = steps_to_result.cost_table([each for each in made if each.begun]), trials.trials(studies, goals)
    falling, moved = best_errors.best_errors(fixed), transfer.steps(made)
    found = {
        "steps_to_result": steps,
        "scaling": ends,
        "fits": limits.fitted(points),
        **_of_searches(made, studies, steps, ends, asked),
        **{name: pairs.table(compare.table(fixed, goals, by), points, ends, reruns, by) for name, by in PAIRS.items()},
        "relative": relative.table(points, relative.workloads(studies), asked.normalise_at),
        "reruns": answers.reruns(reruns),
        "trials": every_trial,
        "best_of_n": trials.best_of_n(studies, goals),
        "best_errors": falling,
        "at_budget": at_budget.table(of_s(made), asked.tolerance),
        "cost": cost,
        "rerun_steps": reruns,
        "rules": transfer.table(moved),
        "rule_steps": moved,
        "axes": trials.along_axes(every_trial, studies),
        "maps": trials.maps(trials.trials(fixed, goals) if len(fixed) < len(studies) else every_trial),
        "budgets": best_errors.by_budget(falling),
        "smoothing": best_errors.by_label_smoothing(every_trial),
        "seconds": points.merge(cost[[*STUDY, "device", "seconds_per_step"]], on=STUDY, how="left"),
        "tunability": landscape.table(spaces),
    }
    compared = proxies.table(found)
    return found if compared.empty else found | {"proxies": compared}


def _limits(fixed: Sequence[StudyData], points: pd.DataFrame, asked: Asked) -> pd.DataFrame:
    """The limits of scaling with their estimates; `points`: the steps of these studies."""
    base = asked.base_batch_size
    return shown.withheld(limits.table(scaling.table(fixed, asked.readings, base), points, base), points)


def of_s(studies: Sequence[StudyData]) -> list[StudyData]:
    """The studies that are points of S(B): their batch size is constant.

    >>> len(of_s([study]))
    1
    """
    return [study for study in studies if not study.batch_schedule]


def points_of_s(tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables without the curves whose batch size grows.

    >>> len(points_of_s(tables([study], [study], Asked()))["steps_to_result"])
    1
    """
    return {**tables, "steps_to_result": steps_to_result.points(tables["steps_to_result"])}


def claims(found: Mapping[str, pd.DataFrame], studies: Sequence[StudyData]) -> dict[str, pd.DataFrame]:
    """The verdicts on the claims that these tables test; without any, no table.

    >>> claims(tables([study], [study], Asked()), [study])  # one batch size tests none
    {}
    """
    judged = registry.table(registry.judge(Evidence(found, about(studies))))
    return {} if judged.empty else {"claims": judged}


def _of_searches(
    made: Sequence[StudyData], studies: Sequence[StudyData], steps: pd.DataFrame, ends: pd.DataFrame, asked: Asked
) -> dict[str, pd.DataFrame]:
    """How well the searches did, and what they say beyond the goal.

    Other goals than the studies' own have no critical batch sizes by goal, and other tuned runs than those along which
    gradient noise and branches were measured.
    """
    noise = noise_scale.table([] if asked.goals else made)
    roots = dict.fromkeys(study.folder.parents[3] for study in made if study.branch == Branch())
    tested = certificates.table(made, asked.readings)
    fits, rates = one_step.tables([] if asked.goals else made)
    checked = verified.table([] if asked.goals else dict.fromkeys(study.results for study in made))
    return {
        "split": split.table(steps_to_result.points(steps)),
        "searches": answers.table(made),
        "repeats": answers.repeats(made),
        "critical_by_goal": by_goal.table([] if asked.goals else of_s(studies)),
        "learning_curves": learning_curves.learning_curves(studies, asked.readings),
        **({} if noise.empty else {"noise_scale": noise}),
        **branched.tables([] if asked.goals else roots),
        **({} if tested.empty else {"certificates": tested}),
        **_of_sizes(studies, ends),
        **({} if rates.empty else {"one_step": fits, "one_step_rates": rates}),
        **batch_schedules.tables(studies, steps),
        **({} if checked.empty else {"verified": checked}),
    }


def _of_sizes(studies: Sequence[StudyData], ends: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Critical batch sizes across sizes and the laws through them, if workloads differ in one number only."""
    found = sizes.sizes(studies, ends)
    return {} if found.empty else {"sizes": found, "size_laws": sizes.laws(found)}
