"""`study schedule` and `study verify`: batch-size schedules for other trainers, and against constant batch sizes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console

from study.command_line import as_json, settings
from study.config.composed.paths import path

if TYPE_CHECKING:
    import pandas as pd

    from study.exchange.batch_schedules import Written

FORMATS = ("csv", "megatron", "olmo", "torchtitan")


def schedule_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path, help="of a sweep with batch_schedule=..., or of `study branch`")
    verb.add_argument("--format", choices=FORMATS, default="csv", help="default: csv")
    verb.add_argument("--output", type=path, metavar="FOLDER", help="write files there; default: print them")
    _curve_arguments(verb)
    verb.add_argument("--batch-size", type=int, metavar="B", help="the first one; default: the only one")
    verb.add_argument("--rule", metavar="NAME", help="of the learning rate, for results of `study branch` with several")
    verb.add_argument("--examples", type=int, metavar="E", help="the budget, for results of `study branch`")
    verb.add_argument("--tokens", type=int, metavar="N", help="tokens in an example, if the workload does not say it")
    settings.json_argument(verb)


def verify_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path, help="of a finished sweep with batch_schedule=...")
    verb.add_argument("--seeds", type=int, default=8, metavar="N", help="trainings of each arm; default: 8")
    verb.add_argument(
        "--large", type=int, metavar="B", help="the large constant batch size; default: the last one of the schedule"
    )
    verb.add_argument(
        "--rule",
        metavar="NAME",
        help="moves the learning rate to the large batch size if that has no search of its own: constant, linear "
        "(default for SGD and momentum) or square_root (default for all others)",
    )
    _curve_arguments(verb)
    settings.training_arguments(verb)
    settings.mix_argument(verb)
    settings.plan_or_json_arguments(verb)


def _curve_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--workload", metavar="NAME", help="only this one")
    verb.add_argument("--optimizer", metavar="NAME", help="only this curve, such as momentum+doubling")


def schedule(options: argparse.Namespace, console: Console) -> None:
    """`study schedule`: write the schedule of a curve for other trainers."""
    from study.exchange.batch_schedules import FORMATS as WRITERS

    written = schedule_of(options)
    files = WRITERS[options.format](written)
    paths = {} if options.output is None else {name: options.output / name for name in files}
    for name, place in paths.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(files[name])
    if options.json:
        as_json.show("schedule", written.rows, [written.name], files=paths)
        return
    for place in paths.values():
        console.print(f"{place}", markup=False, soft_wrap=True)
    for name, text in files.items() if not paths else ():
        print(f"# {name}\n{text}" if len(files) > 1 else text, end="\n" if len(files) > 1 else "")


def schedule_of(options: argparse.Namespace) -> Written:
    """The schedule that the options choose. Raises Refused."""
    from analysis.question.measured import TABLE
    from study.errors import UsageError

    for name in ("batch_size", "examples", "tokens"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be at least 1, but got {value}.")
    if (options.results / TABLE).exists():
        return _measured(options)
    for name in ("rule", "examples"):
        if getattr(options, name) is not None:
            raise UsageError(
                f"--{name} is for results of `study branch`, but {options.results} is of a sweep, which has its own; "
                "leave it out."
            )
    return _swept(options)


def _measured(options: argparse.Namespace) -> Written:
    """The schedule of critical batch sizes that `study branch` measured."""
    import pandas as pd

    from analysis.question import measured
    from analysis.question.batch_schedules import BatchSchedule
    from analysis.question.phases import LISTED
    from study.errors import UsageError
    from study.exchange.batch_schedules import Written

    table = pd.read_csv(options.results / measured.TABLE)
    curves = list(dict.fromkeys(zip(table["workload"], table["optimizer"], strict=True)))
    workload, optimizer = _only(options, curves)
    mine = table[(table["workload"] == workload) & (table["optimizer"] == optimizer)]
    rule = _choice(mine, "rule", options.rule, "--rule")
    mine = mine[mine["rule"] == rule] if rule is not None else mine
    several = "batch_size" in mine and mine["batch_size"].nunique() > 1
    trunk = _choice(mine, "batch_size", options.batch_size if several else None, "--batch-size")
    found = measured.read(options.results, workload, optimizer, rule, trunk)
    if options.examples is None:
        raise UsageError("critical batch sizes have no end of their own; give the budget with --examples.")
    first = options.batch_size or trunk or found.sizes[0]
    coupling = "none" if rule in (None, "constant") else rule  # what a branch trained with is what it measured
    declared = BatchSchedule(LISTED, coupling, switches=found.switches, sizes=found.sizes)
    given: tuple[int, int, int, dict[str, float]] = first, options.examples, max(first, *found.sizes), {}
    name = f"{workload} with {optimizer}, by its critical batch sizes"
    return Written(name, declared.points(*given), declared.phases(*given), declared, options.tokens)


def _choice(rows: pd.DataFrame, column: str, asked: Any, option: str) -> Any:
    """The only value of a column of `study branch`, or the one that was asked for; None in tables without it.

    Raises UsageError.
    """
    from study.errors import UsageError

    there = [] if column not in rows else rows[column].drop_duplicates().tolist()
    found = [value for value in there if asked in (None, value)]
    if len(found) > 1 or (asked is not None and not found):
        names = ", ".join(str(value) for value in there) or "none"
        raise UsageError(f"choose one {column.replace('_', ' ')} of the branches with {option}, among {names}.")
    return found[0] if found else None


def _swept(options: argparse.Namespace) -> Written:
    """The schedule of the tuned trial of a sweep."""
    from analysis.load import load
    from analysis.question.batch_schedules import tuned
    from analysis.tables import answers, steps_to_result
    from study.errors import UsageError
    from study.exchange.batch_schedules import Written

    swept = answers.answers(answers.each_once(load(options.results)))
    studies = [study for study in swept if study.batch_schedule and study.begun]
    key = _only(options, list(dict.fromkeys(study.curve for study in studies)))
    mine = [study for study in studies if study.curve == key and options.batch_size in (None, study.batch_size)]
    if len(mine) != 1:
        sizes = ", ".join(f"{study.batch_size}" for study in studies if study.curve == key)
        raise UsageError(f"choose one first batch size with --batch-size among {sizes}.")
    study, trial = mine[0], steps_to_result.row(mine[0])["tuned_trial"]
    if trial is None and tuned(study.question):
        raise UsageError(f"{' with '.join(key)} reached no goal, so no schedule is tuned; finish the sweep.")
    index = int(study.trials.index[0] if trial is None else trial)
    question, values = study.question, dict(study.trials.loc[index, study.hyperparameters])
    given = study.batch_size, question["budget_examples"], question["workload"]["train_examples"], values
    points, tokens = study.batch_schedule.points(*given), options.tokens or study.tokens_per_example
    name = f"{' with '.join(key)}, trial {index}"
    return Written(name, points, study.phases(index), study.batch_schedule, tokens)


def _only(options: argparse.Namespace, curves: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """The only curve that the options allow. Raises UsageError if there is none, or several."""
    from study.errors import UsageError

    asked = (options.workload, options.optimizer)
    found = [curve for curve in curves if all(one in (None, got) for one, got in zip(asked, curve, strict=True))]
    if len(found) == 1:
        return found[0]
    there = ", ".join(" with ".join(curve) for curve in curves) or "none"
    cure = "choose one with --workload and --optimizer" if found else "sweep with batch_schedule=step, ramp or doubling"
    raise UsageError(f"{options.results} must have one curve to write, but got {there}; {cure}.")


def verify(options: argparse.Namespace, console: Console) -> None:
    """`study verify`: train the missing seeds of each arm, then write the report with table and figure."""
    from analysis.batch_schedules.verified import overview, sentences
    from analysis.load import STUDY
    from analysis.report.build import build
    from study import transfer
    from study.devices.placement import Placement
    from study.terminal import show
    from study.verification.arms import VerifyRequest, arms

    request = VerifyRequest(options.seeds, options.rule, options.large, options.workload, options.optimizer)
    placement = Placement(device=options.device, workers=options.workers)
    told = Console(stderr=True, highlight=False) if options.json else console
    found, left_out = arms(options.results, request, placement, options.config_dir, options.mix)
    transfer.train(found, options.config_dir, options.command, told, "fewer --seeds", options.plan)
    if options.plan:
        return
    data = build([options.results], options.results)
    rows, page = data.tables["verified"], options.results / "report.html"
    if options.json:
        as_json.show("verify", rows, sentences(rows), left_out, files={"report": page})
        return
    curves = {_title(key): overview(part) for key, part in rows.groupby(STUDY, sort=False)}
    show.along_runs(console, curves, "a schedule against constant batch sizes", sentences(rows), left_out)
    show.link(console, page)


def _title(key: Sequence[object]) -> str:
    return f"{key[0]}, {key[1]}, first batch size {key[2]:,}"
