"""Builds tables, figures and report.html from the files of results folders."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from analysis import figures
from analysis.batch_schedules import table as batch_schedules
from analysis.batch_schedules import verified
from analysis.counting import RACE, Goal
from analysis.errors import Unwritten, cure_of
from analysis.estimates import at_budget, by_goal, landscape, tuned
from analysis.labels import goal_text, listed
from analysis.load import GOAL, LoadError, StudyData, folders, load_study
from analysis.parallel import spread
from analysis.report import answer, explorer, findings, other_goals, warnings
from analysis.report.derived import Asked, claims, of_s, points_of_s, tables
from analysis.report.html_tables import sections
from analysis.report.page import Files, ReportData, link_section, write_latex, write_report, write_tables
from analysis.report.take import citation
from analysis.tables import answers, audits, best_errors, learning_curves, steps_to_result, transfer
from analysis.tables.steps_to_result import answerable, refusals

MANY_STUDIES = 100
ONLY_DRAWN = ("axes", "maps", "budgets", "smoothing", "seconds", "learning_curves")
"""Tables that are drawn but not written: they rearrange others, or hold times, which are written to cost.csv alone."""


def build(results: Sequence[Path | str], output: Path | str, asked: Asked = Asked()) -> ReportData:
    """Rebuild `tables/`, `figures/` and `report.html` in a folder; returns the content of the report.

    A report on `asked.goals` never replaces the report of a results folder: it goes to `goals/` in that folder, and the
    two pages link to each other.

    Arguments:
        results, output: the folders with the studies, and the one to write to.

    Raises:
        LoadError, Unwritten: as `read` does, or the report cannot be written.

    >>> from shutil import copytree
    >>> from tempfile import TemporaryDirectory
    >>> study = "studies/mlp_digits/sgd/64"  # one published study; usually a whole folder is given
    >>> with TemporaryDirectory() as folder:
    ...     _ = copytree(f"{published}/{study}", f"{folder}/{study}")
    ...     _ = build([folder], folder)
    ...     print(*sorted(path.name for path in Path(folder).iterdir()))
    figures report.html studies tables
    """
    output = place(results, output, asked)
    again = shlex.join(["python", "-m", "study", "report", *map(str, results)])
    data = read(results, asked)
    charts = figures.charts(data.tables)
    try:
        write_tables(output, {name: table for name, table in data.tables.items() if name not in ONLY_DRAWN})
        citation.record(output, _own_hash(results, output, asked, data))
        main = other_goals.main_folder(output, asked.goals)
        files = asked.files or figures.usual(charts)
        links = [other_goals.BACK] if main else other_goals.links(output)
        there = _files(files.formats, asked.goals, again, None if main else output, results)
        block = "" if asked.static else explorer.block(points_of_s(data.tables))
        data = replace(data, links=links, files=there, explorer=block, refresh=asked.refresh)
        shown = sections(data.tables)
        write_latex(output, shown)
        write_report(output, data, figures.save_all(charts, output / "figures", files), shown)
        if main is not None:
            _link_from_main(results, main, asked.static)
    except OSError as error:
        raise Unwritten(
            f"cannot write {error.filename or output}: {error.strerror or error}; the measurements are safe. "
            f"{cure_of(error)}, then rebuild the report: {again}; or add --output DIR to write it elsewhere."
        ) from error
    return data


def _own_hash(results: Sequence[Path | str], output: Path, asked: Asked, data: ReportData) -> str | None:
    """The hash of the measurements, if a report on one folder is written there with its usual tables."""
    usual = replace(asked, files=None, static=False, refresh=None) == Asked()
    own = [Path(result).resolve() for result in results] == [output.resolve()]
    return data.citation.hashes[0][1] if usual and own and data.citation else None


def _files(
    formats: Sequence[str], goals: Sequence[Goal], again: str, output: Path | None, results: Sequence[Path | str]
) -> Files:
    """The files that the page links: their formats, and the command that writes PDFs if there are none.

    Arguments:
        output: the folder of a main report; None for one on other goals.
    """
    if "pdf" in formats:
        return Files(formats)
    read_at = [word for goal in goals for word in ("--goal", str(goal))]
    elsewhere = output is not None and [output.resolve()] != [Path(result).resolve() for result in results]
    to = ["--output", str(output)] if elsewhere else []
    return Files(formats, f"{again} {shlex.join([*read_at, *to, '--figures', 'svg,png,pdf', '--width', '3.25'])}")


def place(results: Sequence[Path | str], output: Path | str, asked: Asked) -> Path:
    """The folder that `build` writes to: `output`, or one below it if `output` is a results folder and goals are asked.

    >>> place(["results/digits"], "results/digits", Asked([Goal("val/loss", 0.5)])).name
    'val_loss_below_0.5'
    """
    output = Path(output)
    own = output.resolve() in {Path(result).resolve() for result in results}
    return other_goals.folder(output, asked.goals) if own and asked.goals else output


def _link_from_main(results: Sequence[Path | str], main: Path, static: bool) -> None:
    """Link reports on other goals from the page of the main report; build that one if it is not there or too old."""
    if not other_goals.relink(main / "report.html", link_section(other_goals.links(main))):
        build(results, main, Asked(static=static))


def read(results: Sequence[Path | str], asked: Asked = Asked()) -> ReportData:
    """Read results folders and derive sentences, warnings and tables. Draws and writes nothing.

    Raises:
        LoadError: a folder holds no studies or a torn file, no trial has ended, two folders hold the same study, or a
            batch size in `asked` was not measured.

    >>> said = read([published])
    >>> said.sentences[3].partition(":")[0]
    'mlp_digits with momentum to validation cross entropy < 0.2'
    """
    goals = asked.readings
    found = list({each.resolve(): each for result in results for each in folders(result)}.values())
    made = answers.each_once(spread(partial(_reduced, goals=goals), found, if_at_least=MANY_STUDIES, size=len(found)))
    studies = answers.answers(made)
    begun = answers.counted(made)
    if not begun:
        raise LoadError(f"no trial in {', '.join(map(str, results))} has finished yet; sweep again to continue.")
    _refuse_unmeasured(begun, asked)
    refused = _refused(begun, asked)
    derived = tables(made, begun, asked)
    fixed, points = of_s(begun), points_of_s(derived)
    judged = points["steps_to_result"], points["scaling"], points["compare"]
    answered, title = answer.answers(of_s(studies), points), _title(derived["steps_to_result"])
    return ReportData(
        title=title,
        sentences=_sentences(fixed, points, asked),
        warnings=[
            *refused,
            *warnings.waiting(studies, begun),
            *warnings.unsearched(answers.unsearched_budgets(made)),
            *answers.orphans(made),
            *warnings.sentences(list(answerable(fixed, goals)), *judged, asked.base_batch_size or 0.0),
            *transfer.stale(made),
            *warnings.imported(begun),
        ],
        tables=derived | claims(points, fixed),
        studies=[provenance(study) for study in made],
        command=_command(made),
        answers=answered,
        compared=findings.compared(fixed, points),
        citation=citation.citation(title, results, made, _command(made)),
    )


def _refused(studies: Sequence[StudyData], asked: Asked) -> list[str]:
    """Why some of the goals cannot be answered. Raises LoadError if none can."""
    refused = refusals(studies, asked.goals)
    if not any(answerable(studies, asked.readings)):
        raise LoadError(" ".join(refused))
    return refused


def _sentences(fixed: Sequence[StudyData], points: Mapping[str, pd.DataFrame], asked: Asked) -> list[str]:
    """The findings on S(B), followed by those on batch-size schedules."""
    return [
        *(findings.sentences(fixed, points, asked.goals, asked.base_batch_size or 0.0) if fixed else ()),
        *batch_schedules.sentences(points.get("batch_schedules")),
        *(verified.sentences(points["verified"]) if "verified" in points else ()),
    ]


def _title(steps: pd.DataFrame) -> str:
    """The title of a report: its workloads and, if they share one, the goal."""
    goals = {goal_text(str(metric), float(threshold)) for metric, threshold in steps[GOAL].itertuples(index=False)}
    goal = goals.pop() if len(goals) == 1 else f"{len(goals)} goals"
    return f"{listed(dict.fromkeys(steps['workload']))}: steps to {goal} against batch size"


def estimates(results: Path) -> pd.DataFrame | None:
    """The table `steps_to_result` of one results folder alone, at each study's own goal; None if no trial has ended.

    >>> print(estimates(Path(published))[["optimizer", "batch_size", "tuned_steps"]].head(1))
      optimizer  batch_size  tuned_steps
    0  momentum           1        628.0
    """
    made = [load_study(folder) for folder in folders(results)]
    studies = answers.counted(made)
    return tuned.table(steps_to_result.table(studies), answers.rerun_steps(made)) if studies else None


def _reduced(folder: Path, goals: Sequence[Goal | None]) -> StudyData:
    """Load a study and cache all results that need its curves, so that only one study's curves are in memory."""
    study = load_study(folder)
    citation.digests(study)
    with study.reader.held():
        for goal in {study.goal, *(goal for _, goal in answerable([study], goals))}:
            steps_to_result.row(study, goal)
            audits.edges(study, goal)
            audits.noise(study, goal)
            if study.branch.rerun is None:
                landscape.trials(study, goal)
                learning_curves.curves(study, goal)
        if study.branch.rerun is None:
            by_goal.errors(study)
        if not study.imported and study.ran_under.runs_whole_budget:
            steps_to_result.row(study, stopping=RACE)
        steps_to_result.last_steps(study)
        best_errors.best_errors([study])
        if study.begun and not study.stops_early:
            at_budget.falling(study)
    return study


def _refuse_unmeasured(studies: Sequence[StudyData], asked: Asked) -> None:
    """Refuse options that name a batch size without measurements, or --normalise-at if there is only one workload."""
    measured = sorted({study.batch_size for study in studies})
    for option, size in (("base-batch-size", asked.base_batch_size), ("normalise-at", asked.normalise_at)):
        if size is not None and size not in measured:
            known = ", ".join(f"{each:,}" for each in measured)
            raise LoadError(f"--{option}: batch size {size:,.12g} was not measured; choose among {known}.")
    if asked.normalise_at is not None and len(names := {study.workload for study in studies}) == 1:
        raise LoadError(
            f"--normalise-at is of workloads that are compared, but there is only {names.pop()}; leave it out, or give "
            "results of another workload, too."
        )


def provenance(study: StudyData) -> dict[str, Any]:
    """The provenance of a study: its seeds and its latest run.

    >>> made = provenance(study)
    >>> made["stopping"], made["seeds"], made["device"]
    ('budget', {'shared': True, 'search': 0, 'trial': 0, 'data_order': 0}, 'cpu')
    """
    last = study.provenance[-1] if study.provenance else {}
    return {
        **study.names,
        **({"search": str(study.branch)} if str(study.branch) else {}),
        "stopping": study.question["stopping"],
        "sampler": study.question["search"].get("sampler"),
        "seeds": study.question["seeds"],
        "runs": len(study.provenance),
        **{key: value for key, value in last.items() if key not in ("command", "warnings", "fingerprint")},
    }


def _command(studies: list[StudyData]) -> str:
    """The commands that trained these studies, each once, the latest last."""
    commands = {run.get("command"): None for study in studies for run in study.provenance}
    return "\n".join(command for command in commands if command)
