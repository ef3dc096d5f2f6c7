"""A results folder -> what a report says of it -> tables, figures and report.html, from files alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import figures
from analysis.counting import COMPLETE, EARLY, STOPPING, Goal
from analysis.load import STUDY, LoadError, StudyData, folders, load_study
from analysis.parallel import spread
from analysis.report import warnings
from analysis.report.page import ReportData, write_report, write_tables
from analysis.tables import (
    answers,
    audits,
    best_errors,
    compare,
    fits,
    relative,
    scaling,
    steps_to_result,
    transfer,
    trials,
)
from analysis.tables.steps_to_result import answerable, refusals

MANY_STUDIES = 100
ONLY_DRAWN = ("axes", "maps", "budgets", "smoothing", "seconds")
"""Other arrangements of what stands in files already; times stand in that of the cost alone."""


@dataclass(frozen=True)
class Asked:
    """How results are to be read.

    Attributes:
        goals: read off after the fact instead of each study's own.
        base_batch_size: of the perfect-scaling limit and `critical_batch_size_zhang`; the smallest measured by default.
        normalise_at: batch size at which workloads are set to 1 where they are compared (`tables.relative.table`).
    """

    goals: Sequence[Goal] = ()
    base_batch_size: float | None = None
    normalise_at: int | None = None

    @property
    def readings(self) -> Sequence[Goal | None]:
        """Each goal once; None, for each study's own, if there is none."""
        return tuple(dict.fromkeys(self.goals)) or (None,)


def build(results: Sequence[Path | str], output: Path | str, asked: Asked = Asked()) -> ReportData:
    """Rebuild `tables/`, `figures/` and `report.html` in a folder; returns what the report says.

    Arguments:
        results: the folders whose curves go into the report.
        output: where it goes.

    Raises:
        LoadError: as `read`, or the report cannot be written.

    >>> from shutil import copytree
    >>> from tempfile import TemporaryDirectory
    >>> study = "studies/mlp_digits/sgd/64"  # one of those published; usually a folder is given whole
    >>> with TemporaryDirectory() as folder:
    ...     _ = copytree(f"results/published/mlp_digits/{study}", f"{folder}/{study}")
    ...     _ = build([folder], folder)
    ...     print(*sorted(path.name for path in Path(folder).iterdir()))
    figures report.html studies tables
    """
    output = Path(output)
    data = read(results, asked)
    try:
        write_tables(output, {name: table for name, table in data.tables.items() if name not in ONLY_DRAWN})
        write_report(output, data, figures.save_all(figures.charts(data.tables), output / "figures"))
    except OSError as error:
        raise LoadError(
            f"cannot write {error.filename or output}: {error.strerror or error}; the measurements are safe. Make room"
            f" or change its permissions, then rebuild the report: python -m study report {' '.join(map(str, results))}"
        ) from error
    return data


def read(results: Sequence[Path | str], asked: Asked = Asked()) -> ReportData:
    """What a report on these folders says: sentences, warnings and every table. Nothing is drawn or written.

    Raises:
        LoadError: a folder holds no studies or a torn file, no trial has ended, two hold the same study, or a batch
            size that is asked for was not measured.

    >>> said = read(["results/published/mlp_digits"])
    >>> said.sentences[1].partition(";")[0]
    'mlp_digits with momentum to val/classification_error < 0.05: perfect scaling up to about 2 (1 to 256)'
    """
    goals = asked.readings
    found = [folder for result in results for folder in folders(result)]
    made = spread(partial(_reduced, goals=goals), found, if_at_least=MANY_STUDIES, size=len(found))
    _refuse_doubles(made)
    studies = answers.answers(made)
    begun = [study for study in studies if study.begun]
    if not begun:
        raise LoadError(f"no trial in {', '.join(map(str, results))} has ended yet; sweep again to go on.")
    _refuse_unmeasured(begun, asked)
    refused = refusals(begun, asked.goals)
    if not any(answerable(begun, goals)):
        raise LoadError(" ".join(refused))
    derived = tables(made, begun, asked)
    steps, limits, pairs = derived["steps_to_result"], derived["scaling"], derived["compare"]
    return ReportData(
        title="Steps to result against batch size",
        sentences=[
            *compare.sentences(pairs, limits),
            *compare.sentences(derived["compare_workloads"], limits, by="workload"),
            *scaling.sentences(steps, limits),
            *transfer.sentences(derived["rules"]),
            *stopping_sentences(begun),
            *grid_sentences(begun, asked.goals),
        ],
        warnings=[
            *refused,
            *warnings.waiting(studies),
            *warnings.unsearched(answers.unsearched_budgets(made)),
            *answers.orphans(made),
            *warnings.sentences(list(answerable(begun, goals)), steps, limits, pairs, asked.base_batch_size or 0.0),
            *transfer.stale(made),
            *imported(begun),
        ],
        tables=derived,
        studies=[provenance(study) for study in made],
        command=_command(made),
    )


def _reduced(folder: Path, goals: Sequence[Goal | None]) -> StudyData:
    """Derive what is needed of a study's measurements while they are read, so that no two studies are in memory."""
    study = load_study(folder)
    with study.reader.held():
        for goal in {study.goal, *(goal for _, goal in answerable([study], goals))}:
            steps_to_result.row(study, goal)
            audits.edges(study, goal)
            audits.noise(study, goal)
        if not study.imported and study.ran_under.runs_whole_budget:
            steps_to_result.row(study, stopping="race")
        steps_to_result.last_steps(study)
        best_errors.best_errors([study])
    return study


def tables(made: Sequence[StudyData], studies: Sequence[StudyData], asked: Asked) -> dict[str, pd.DataFrame]:
    """Every table by its name.

    Arguments:
        made, studies: all searches, and those that answer (`analysis.tables.answers.answers`).

    >>> from analysis.load import load_study
    >>> made = [load_study(f"results/published/mlp_digits/studies/mlp_digits/sgd/{size}") for size in (32, 64, 128)]
    >>> found = tables(made, answers.answers(made), Asked())
    >>> found["scaling"][["definition", "value", "bound"]].head(2)
                      definition  value bound
    0      perfect_scaling_limit   32.0     <
    1  maximum_useful_batch_size   32.0     <
    """
    goals = asked.readings
    steps = steps_to_result.table(studies, goals=goals)
    cost = steps_to_result.cost_table([study for study in made if study.begun])
    every_trial = trials.trials(studies, goals)
    falling = best_errors.best_errors(studies)
    reruns = answers.rerun_steps(made)
    moved = transfer.steps(made)
    each = cost[[*STUDY, "device", "seconds_per_step"]]
    return {
        "steps_to_result": steps,
        "scaling": scaling.table(studies, goals, asked.base_batch_size),
        "fits": fits.table(steps),
        "compare": compare.table(studies, goals),
        "compare_workloads": compare.table(studies, goals, by="workload"),
        "relative": relative.table(steps, relative.workloads(studies), asked.normalise_at),
        "searches": answers.table(made),
        "reruns": answers.reruns(reruns),
        "repeats": answers.repeats(made),
        "trials": every_trial,
        "best_of_n": trials.best_of_n(studies, goals),
        "best_errors": falling,
        "cost": cost,
        "rerun_steps": reruns,
        "rules": transfer.table(moved),
        "rule_steps": moved,
        "axes": trials.along_axes(every_trial, studies),
        "maps": trials.maps(every_trial),
        "budgets": best_errors.by_budget(falling),
        "smoothing": best_errors.by_label_smoothing(every_trial),
        "seconds": steps.merge(each, on=STUDY, how="left"),
    }


def imported(studies: Sequence[StudyData]) -> list[str]:
    """What was odd about studies when they were imported.

    >>> from analysis.load import load_study
    >>> imported([load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")])
    []
    """
    return [text for study in studies for run in study.provenance for text in run.get("warnings", [])]


def _refuse_doubles(studies: Sequence[StudyData]) -> None:
    """One study in two folders would be one point of a curve measured twice."""
    seen: dict[tuple[object, ...], Path] = {}
    for study in studies:
        key = (*study.key, study.branch)
        if key in seen:
            name = f"{study.workload}, {study.optimizer}, batch size {study.batch_size}"
            raise LoadError(
                f"{seen[key]} and {study.folder} both hold {name}; report on one of them, or sweep under another "
                "workload.name."
            )
        seen[key] = study.folder


def _refuse_unmeasured(studies: Sequence[StudyData], asked: Asked) -> None:
    """No curve can begin, or be set to 1, at a batch size that nobody measured."""
    measured = sorted({study.batch_size for study in studies})
    for option, size in (("base-batch-size", asked.base_batch_size), ("normalise-at", asked.normalise_at)):
        if size is not None and size not in measured:
            known = ", ".join(f"{each:,}" for each in measured)
            raise LoadError(f"--{option}: batch size {size:,.12g} was not measured; choose among {known}.")


def stopping_sentences(studies: list[StudyData]) -> list[str]:
    """What stopping early saved or, after full budgets, would have saved and changed; for each study's own goal.

    >>> from analysis.load import load_study
    >>> stopping_sentences([load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")])
    ['Under stopping=race 86% of the steps would have been left out, with the same steps throughout.']
    """
    found, steps = [], steps_to_result.table(studies)
    stopped = [study for study in studies if study.stops_early and not study.imported]
    budget = [study for study in studies if not study.imported and study.ran_under.runs_whole_budget]
    both = bool(stopped and budget)
    ends, full = 0, 0
    for study in stopped:
        counted = steps_to_result.counted_trials(study)
        complete = counted[counted["status"] == COMPLETE]
        ends, full = ends + int(complete["end"].sum()), full + len(complete) * study.train_steps
    if full:
        rules = " and ".join(sorted(set(steps["stopping"][steps["stopping"].isin(EARLY)])))
        of = f"{_curves(stopped)}: s" if both else "S"
        found.append(f"{of}topping early ({rules}) left out {1 - ends / full:.0%} of the steps of full budgets.")
    if budget:
        raced = steps_to_result.table(budget, stopping="race")
        whole = [name for name, rule in STOPPING.items() if rule.runs_whole_budget]
        ran = steps[steps["stopping"].isin(whole)].reset_index(drop=True)
        share = 1 - raced["steps_trained"].sum() / max(1, ran["steps_trained"].sum())
        other = raced["batch_size"][raced["steps_to_result"].fillna(0) != ran["steps_to_result"].fillna(0)]
        differing = (
            f"other steps at batch size {', '.join(f'{size:,}' for size in sorted(set(other)))}"
            if len(other)
            else "the same steps throughout"
        )
        of = f"{_curves(budget)}: u" if both else "U"
        found.append(f"{of}nder stopping=race {share:.0%} of the steps would have been left out, with {differing}.")
    return found


def _curves(studies: Sequence[StudyData]) -> str:
    """What they are of, each once."""
    return ", ".join(
        dict.fromkeys(f"{workload} with {optimizer}" for workload, optimizer in (s.curve for s in studies))
    )


def grid_sentences(studies: list[StudyData], goals: Sequence[Goal] = ()) -> list[str]:
    """How long trials may run, and how finely their steps are known.

    Arguments:
        goals: that are read off instead of each study's own.

    >>> from analysis.load import load_study
    >>> (found,) = grid_sentences([load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")])
    >>> found.split(". ")[0]
    'Step budget: the larger of 20 epochs and 200 steps, at most 10,000'
    """
    curves: dict[str, dict[tuple[str, str], None]] = {}
    for study in studies:
        curves.setdefault(_grid_sentence(study, goals or [study.goal]), {})[study.curve] = None
    if len(curves) == 1:
        return list(curves)
    alike = Counter(workload for found in curves.values() for workload in {workload for workload, _ in found})
    return [
        f"{', '.join({w if alike[w] == 1 else f'{w} with {o}': None for w, o in found})}: {text}"
        for text, found in curves.items()
    ]


def _grid_sentence(study: StudyData, goals: Sequence[Goal]) -> str:
    if study.imported:
        return "Imported: trials ended, and errors were measured, where they were recorded."
    budget, grid = study.question["budget"], study.question["evaluation"]
    capped = "" if budget["max_steps"] is None else f", at most {budget['max_steps']:,}"
    multiples = study.question["search"]["budgets"]
    each = "" if len(multiples) == 1 else f", searched under {', '.join(f'{m:g}' for m in multiples)} times that"
    rarely = ""
    if not all(goal.metric.startswith("val/") for goal in goals):
        apart = grid["ratio"] ** grid["every"] - 1
        rarely = (
            f" Training and test errors are measured every {apart:.0%} more steps, and goals on them are as coarse."
        )
    return (
        f"Step budget: the larger of {budget['epochs']:g} epochs and {budget['steps']:,} steps{capped}{each}. "
        f"Validation errors are measured first at {grid['first']:.0%} of it, then every {grid['ratio'] - 1:.0%} more "
        f"steps: a steps-to-result may be too large by as much.{rarely}"
    )


def provenance(study: StudyData) -> dict[str, Any]:
    """What the report shows of how one study was made: the question's seeds, and its latest run.

    >>> from analysis.load import load_study
    >>> made = provenance(load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64"))
    >>> made["stopping"], made["seeds"], made["device"]
    ('budget', {'search': 0, 'trial': 0, 'data_order': 0}, 'cpu')
    """
    last = study.provenance[-1] if study.provenance else {}
    return {
        "workload": study.workload,
        "optimizer": study.optimizer,
        "batch_size": study.batch_size,
        **({"search": str(study.branch)} if str(study.branch) else {}),
        "stopping": study.question["stopping"],
        "sampler": study.question["search"].get("sampler"),
        "seeds": study.question["seeds"],
        "runs": len(study.provenance),
        **{key: value for key, value in last.items() if key not in ("command", "warnings", "fingerprint")},
    }


def _command(studies: list[StudyData]) -> str:
    """The commands that made these studies, each once, the latest last."""
    commands = {run.get("command"): None for study in studies for run in study.provenance}
    return "\n".join(command for command in commands if command)
