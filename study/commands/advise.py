"""`study advise`: which batch size to train with, and how to split it over devices.

`analysis.advice` computes the answer from files; `study.engine.footprint` estimates the memory of the model.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from analysis.counting import Goal
from analysis.units import TOKENS, tokens_in
from study.command_line import as_json, settings
from study.config.composed.paths import path
from study.errors import UsageError

if TYPE_CHECKING:
    from analysis.load import StudyData

GIB = 2**30


@dataclass(frozen=True)
class Tokens:
    """A number of tokens."""

    count: int


MOST_DEVICES = 100_000


def advise_arguments(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("results", type=path)
    verb.add_argument(
        "--gpus", default="1", metavar="N", help="8: any number up to 8; 1,2,4,8: one of these numbers; default: 1"
    )
    room = verb.add_mutually_exclusive_group()
    room.add_argument("--memory", type=float, metavar="GIB", help="of each device; the model is built to see what fits")
    room.add_argument(
        "--max-per-device-batch",
        type=_largest,
        metavar="N",
        help="examples that fit on a device at once, or '8k tokens' for workloads with tokens",
    )
    times = verb.add_mutually_exclusive_group()
    times.add_argument(
        "--step-ms",
        metavar="b:ms,...",
        help="milliseconds of steps on b examples, such as 32:12.5,64:20; default: as recorded",
    )
    times.add_argument("--measure", action="store_true", help="time the steps of one training on this machine now")
    exchange = verb.add_mutually_exclusive_group()
    exchange.add_argument("--allreduce-ms", type=float, metavar="MS", help="time to exchange gradients after an update")
    exchange.add_argument("--bandwidth", type=float, metavar="GB/S", help="between devices, to estimate that time")
    verb.add_argument("--price", type=float, metavar="P", help="of a device-hour, in any currency")
    verb.add_argument("--goal", metavar="GOAL", help="'val/classification_error < 0.1'; default: the study's own")
    settings.curve_arguments(verb)
    verb.add_argument("--device", help="to --measure on: cpu, cuda, cuda:1; default: a GPU if there is one")
    settings.config_dir_argument(verb)
    verb.add_argument("--json", action="store_true", help="every split in one object, see docs/reference/json.md")


def _largest(text: str) -> Tokens | int:
    """A number of examples, or of tokens."""
    tokens = tokens_in(text)
    try:
        return int(text) if tokens is None else Tokens(tokens)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number of examples, or '8k tokens', but got {text!r}.") from None


def advise(options: argparse.Namespace, console: Console) -> None:
    """`study advise`: the batch size and its split over devices that reach the goal first, and at the lowest cost."""
    from analysis.advice import splits, step_times, tables
    from analysis.advice.sentences import notes, on_seeds, sentences
    from analysis.report import warnings
    from analysis.tables import answers
    from study.terminal import show

    request = AdviceRequest.of(options)
    advised, refused = [], []
    for made in _curves(options):
        studies = answers.counted(made)
        waiting = [*warnings.waiting(answers.answers(made), studies), *answers.orphans(made)]
        if not studies:
            refused += waiting
            continue
        known = facts(request, studies[0].question, max(study.batch_size for study in studies))
        given = known.step_seconds
        try:
            machine = splits.Machine(
                devices=request.devices,
                times=step_times.recorded(made) if given is None else step_times.StepTimes(given, known.source),
                largest=known.largest,
                exchange=request.exchange,
                gradient_bytes=known.gradient_bytes,
                bandwidth=request.bandwidth,
                price=request.price,
            )
            runs = answers.rerun_steps(made, (request.goal,))
            found = splits.table(studies, machine, request.goal, runs)
        except splits.AdviceError as error:
            refused += [str(error), *waiting]
        else:
            said = [*sentences(found), *on_seeds(found, runs)]
            advised.append((found, said, [*notes(found, machine, studies), *known.notes, *waiting]))
    if not advised:
        raise splits.AdviceError(" Also: ".join(dict.fromkeys(refused)))
    if options.json:
        as_json.show("advise", [tables.plain(*each) for each in advised], warnings=refused)
        return
    for found, said, doubts in advised:
        show.advice(console, tables.overview(found), tables.alternatives(found), said, doubts)
    for text in refused:
        console.print(text, style="yellow", markup=False)


def _curves(options: argparse.Namespace) -> list[list[StudyData]]:
    """The searches of each requested curve."""
    from analysis.load import load
    from analysis.tables import answers
    from workloads.suggest import suggest

    curves: dict[tuple[str, str], list[StudyData]] = {}
    for study in (each for each in answers.each_once(load(options.results)) if not each.batch_schedule):
        curves.setdefault(study.curve, []).append(study)
    for place, what in enumerate(("workload", "optimizer")):
        name, there = getattr(options, what), {curve[place] for curve in curves}
        if name is not None and name not in there:
            raise UsageError(f"no {what} {name!r} in {options.results}{suggest(name, there)}")
        curves = {curve: made for curve, made in curves.items() if name in (None, curve[place])}
    return list(curves.values())


@dataclass(frozen=True)
class AdviceRequest:
    """The checked command line.

    Attributes:
        devices: numbers of devices to choose from.
        step_seconds: per-device batch -> seconds as entered; None: as recorded, or measured on the device `measure`.
        memory: memory of a device [bytes]; None: `largest` examples fit, or any number if that is None too.
        exchange: seconds of an exchange of gradients between devices.
        bandwidth: bandwidth between devices [bytes/s].
        price: price of a device-hour.
        goal: None: the study's own goal.
    """

    devices: Sequence[int]
    step_seconds: Mapping[int, float] | None
    measure: str | None
    memory: float | None
    largest: int | Tokens | None
    exchange: float
    bandwidth: float
    price: float | None
    goal: Goal | None
    config_dir: Path | None

    @classmethod
    def of(cls, options: argparse.Namespace) -> AdviceRequest:
        """Check the arguments of `study advise`. Raises UsageError if a value is out of range or malformed."""
        least = {"memory": "GiB", "max_per_device_batch": "examples", "bandwidth": "GB/s", "price": "per device-hour"}
        for name, unit in least.items():
            value = getattr(options, name)
            value = value.count if isinstance(value, Tokens) else value
            if value is not None and not 0 < value < math.inf:
                raise UsageError(f"--{name.replace('_', '-')} must be above 0 ({unit}), but got {value:g}.")
        if options.allreduce_ms is not None and not 0 <= options.allreduce_ms < math.inf:
            raise UsageError(f"--allreduce-ms must be at least 0 milliseconds, but got {options.allreduce_ms:g}.")
        from study.devices.placement import usable

        if options.device and not options.measure:
            raise UsageError("--device is the one to --measure on; give both.")
        devices = device_counts(options.gpus)
        for name in ("bandwidth", "allreduce_ms"):
            if getattr(options, name) is not None and max(devices) == 1:
                raise UsageError(
                    f"--{name.replace('_', '-')} is of several devices, and --gpus is 1; give --gpus, or leave it out."
                )

        goal = None if options.goal is None else settings.goal(options.goal)
        return cls(
            devices=devices,
            step_seconds=None if options.step_ms is None else entered_times(options.step_ms),
            measure=usable(options.device or "auto", "--device") if options.measure else None,
            memory=None if options.memory is None else GIB * options.memory,
            largest=options.max_per_device_batch,
            exchange=(options.allreduce_ms or 0.0) / 1000,
            bandwidth=math.inf if options.bandwidth is None else 1e9 * options.bandwidth,
            price=options.price,
            goal=goal,
            config_dir=options.config_dir,
        )


@dataclass(frozen=True)
class Facts:
    """Numbers of one curve that follow from the request.

    Attributes:
        step_seconds: per-device batch -> seconds; None: as recorded.
        largest: examples that fit on a device at once; None: any number.
        gradient_bytes: exchanged after each update; 0 if the request does not need it.
        source: origin of step_seconds, as text.
        notes: how the other numbers were estimated.
    """

    step_seconds: Mapping[int, float] | None
    largest: int | None
    gradient_bytes: float = 0.0
    source: str = "as entered"
    notes: Sequence[str] = ()


def facts(request: AdviceRequest, question: Mapping[str, Any], largest: int) -> Facts:
    """The facts of a curve; builds its model only if the request needs it.

    Arguments:
        question: of any study of the curve.
        largest: the largest batch size of the curve.

    Raises:
        UsageError: the model cannot be built, or one example does not fit on the device to measure on.
    """
    from study.devices.memory import too_large
    from study.engine.footprint import footprint, rebuilt, step_seconds
    from workloads.user_code.importing import importable

    importable(request.config_dir)
    found = Facts(request.step_seconds, _in_examples(request.largest, question))
    if request.memory is not None or math.isfinite(request.bandwidth):
        takes = footprint(rebuilt(question, "cpu"))
        found = replace(found, gradient_bytes=takes.gradient)
        if request.memory is not None:
            found = replace(found, largest=takes.largest(request.memory), notes=[takes.in_words(request.memory)])
    if request.measure is not None:
        run = rebuilt(question, request.measure)
        sizes = {2**power for power in range(largest.bit_length())} | {largest}
        seconds = step_seconds(run, sorted(sizes))
        if not seconds:
            raise UsageError(too_large(run.study, request.measure))
        source = f"measured now on {request.measure}, with one training at a time"
        found = replace(found, step_seconds=seconds, source=source)
    return found


def _in_examples(most: int | Tokens | None, question: Mapping[str, Any]) -> int | None:
    """The most examples that fit on a device, from the most tokens.

    Raises:
        UsageError: the workload has no tokens, or not one example fits.
    """
    if not isinstance(most, Tokens):
        return most
    name, each = question["workload"]["name"], question.get(TOKENS)
    if each is None or most.count < each:
        why = f"has no {TOKENS}" if each is None else f"has {each:,} tokens in each example"
        raise UsageError(f"--max-per-device-batch is {most.count:,} tokens, but {name} {why}; give it in examples.")
    return int(most.count // each)


def device_counts(text: str) -> Sequence[int]:
    """The numbers of devices in `8` (any number up to 8) or `1,2,4` (these numbers).

    >>> list(device_counts("4")), device_counts("1,8")
    ([1, 2, 3, 4], [1, 8])

    Raises:
        UsageError: the text is neither.
    """
    words = text.split(",")
    if not all(word.strip().isdecimal() and 1 <= int(word) <= MOST_DEVICES for word in words):
        raise UsageError(
            "--gpus takes the largest number of devices, such as 8, or numbers to choose from, such as 1,2,4,8, each "
            f"from 1 to {MOST_DEVICES:,}, but got {text!r}."
        )
    return range(1, int(text) + 1) if len(words) == 1 else sorted({int(word) for word in words})


def entered_times(text: str) -> dict[int, float]:
    """`32:12.5,64:20`: per-device batch -> seconds, from milliseconds.

    >>> entered_times("32:12.5,64:20")
    {32: 0.0125, 64: 0.02}

    Raises:
        UsageError: the text is malformed, or gives a batch twice.
    """
    found: dict[int, float] = {}
    try:
        for pair in text.split(","):
            size, milliseconds = pair.split(":")
            if int(size) < 1 or int(size) in found or not 0 < float(milliseconds) < math.inf:
                raise ValueError(pair)
            found[int(size)] = float(milliseconds) / 1000
    except ValueError as error:
        raise UsageError(
            "--step-ms takes the milliseconds of a step for per-device batches, each once, such as 32:12.5,64:20, "
            f"but got {text!r}."
        ) from error
    return found
