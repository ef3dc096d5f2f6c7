"""What to make of the splits of a curve in words: the fastest, the cheapest, what accumulation does, what to doubt."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.advice.splits import HOUR, Machine, able, ranked
from analysis.advice.step_times import StepTimes
from analysis.counting import Goal
from analysis.labels import curve_text, duration, number
from analysis.load import CURVE, GOAL, StudyData
from analysis.tables import steps_to_result

NEARLY = 1.05
"""Times the least time that are called nearly as fast."""
TOLD_APART = 0.005
"""Relative differences below this are none to a reader."""


def sentences(found: pd.DataFrame) -> list[str]:
    """What is advised, and why (frame of `analysis.advice.splits.table`).

    >>> from analysis.load import load_study
    >>> from analysis.advice import splits, step_times
    >>> folder = "results/published/mlp_digits/studies/mlp_digits/sgd"
    >>> studies = [load_study(f"{folder}/{size}") for size in (16, 64, 256)]
    >>> machine = Machine([1, 2, 4], step_times.StepTimes({16: 0.010, 64: 0.013, 256: 0.040}), largest=64)
    >>> found = splits.table(studies, machine)
    >>> print(sentences(found)[0].replace(": ", ":\\n"))
    mlp_digits with sgd to val/classification_error < 0.05:
    fastest is batch size 256 = 4 x 64 x 1, 18 steps of 13 ms:
    234 ms (up to 962 ms by the trials), 936 ms of device time.
    >>> print(sentences(found)[1].replace(". ", ".\\n"))
    Cheapest is batch size 64 = 1 x 64 x 1: 312 ms, 312 ms of device time.
    The fastest is 1.33 times as fast and takes 3.00 times the device time.
    """
    fastest, cheapest = (found[found[which]].iloc[0] for which in ("fastest", "cheapest"))
    texts = [
        _fastest(fastest),
        _cheapest(fastest, cheapest),
        _nearly(found, fastest, cheapest),
        _rivals(found, fastest, cheapest),
        _accumulation(found, fastest),
    ]
    return [text for text in texts if text]


def devices_in_words(count: int) -> str:
    """How many devices.

    >>> devices_in_words(1), devices_in_words(8)
    ('1 device', '8 devices')
    """
    return f"{count:,} device{'' if count == 1 else 's'}"


def split_in_words(row: pd.Series) -> str:
    """A split as the formula writes it.

    >>> split_in_words(pd.Series({"batch_size": 64, "devices": 4, "per_device_batch": 8, "accumulation_steps": 2}))
    '64 = 4 x 8 x 2'
    """
    return f"{row['batch_size']:,} = {row['devices']:,} x {row['per_device_batch']:,} x {row['accumulation_steps']:,}"


def _fastest(row: pd.Series) -> str:
    high = f"up to {duration(row['seconds_high'])}" if np.isfinite(row["seconds_high"]) else "not bounded above"
    each = f"{number(row['steps'])} steps of {_at_most(row)}{duration(row['seconds_per_step'])}"
    split = f"{curve_text(*row[CURVE])}: fastest is batch size {split_in_words(row)}"
    return f"{split}, {each}: {_time(row)} ({high} by the trials), {_spent(row)}."


def _cheapest(fastest: pd.Series, cheapest: pd.Series) -> str:
    if cheapest.name == fastest.name:
        return "It is the cheapest, too."
    faster = cheapest["seconds"] / fastest["seconds"]
    dearer = fastest["device_hours"] / cheapest["device_hours"]
    return (
        f"Cheapest is batch size {split_in_words(cheapest)}: {_time(cheapest)}, {_spent(cheapest)}. The fastest is "
        f"{number(faster)} times as fast and takes {number(dearer)} times the device time."
    )


def _nearly(found: pd.DataFrame, fastest: pd.Series, cheapest: pd.Series) -> str:
    """The cheapest split that is nearly as fast."""
    near = able(found)[lambda rows: rows["seconds"] <= NEARLY * fastest["seconds"]]
    least = near.loc[near["device_hours"].idxmin()]
    longer, spent = (least[name] / fastest[name] for name in ("seconds", "device_hours"))
    if least.name == cheapest.name or spent > 1 / NEARLY:
        return ""
    return f"{split_in_words(least)} takes {_times(longer)} as long for {_times(spent)} the device time."


def _rivals(found: pd.DataFrame, fastest: pd.Series, cheapest: pd.Series) -> str:
    """What is not shown to be slower, and the cheapest of it."""
    if found.loc[found["reached"], "batch_size"].nunique() == 1:
        return ""
    near = able(found)[lambda rows: ~rows["shown_slower"]]
    others = sorted({*near["batch_size"]} - {fastest["batch_size"]})
    if not others:
        return "Every other batch size is shown to be slower."
    text = f"By these trials batch size {_listed(others)} cannot be told from it in time"
    if not cheapest["shown_slower"]:
        return f"{text}, the cheapest split included."
    useful = near[near["seconds"] < cheapest["seconds"]]  # what is slower than the cheapest is no choice
    least = useful.loc[useful["device_hours"].idxmin()]
    if least["device_hours"] < (1 - TOLD_APART) * fastest["device_hours"]:
        return f"{text}; the cheapest split that cannot is {split_in_words(least)}: {_time(least)}, {_spent(least)}."
    return f"{text}."


def _accumulation(found: pd.DataFrame, fastest: pd.Series) -> str:
    """What accumulation does to steps and to their time on the devices of the fastest split, at its best."""
    here = ranked(found[found["devices"] == fastest["devices"]], "seconds", "device_hours")
    alone, parts = here[here["accumulation_steps"] == 1], here[here["accumulation_steps"] > 1]
    on = f"on {devices_in_words(fastest['devices'])}"
    if parts.empty:
        return ""
    if alone.empty:
        return f"Accumulation cannot be avoided {on}: no batch size that reached the goal fits without."
    one, several = alone.iloc[0], parts.iloc[0]
    pays = several["seconds"] < (1 - TOLD_APART) * one["seconds"]
    larger = parts[parts["batch_size"] > one["batch_size"]]
    if not pays and len(larger):  # which is what people accumulate for
        several = larger.iloc[0]
    longer, more = (several[name] / one[name] for name in ("seconds_per_step", "steps"))
    steps = "as many steps as" if more == 1 else f"{_times(more)} the steps of"
    numbers = (
        f"{split_in_words(several)} needs {steps} {split_in_words(one)}, each {_times(longer)} as long, and so "
        f"{_times(longer * more)} its time"
    )
    if pays and one["shown_slower"]:
        return f"Accumulation pays {on}: {numbers}."
    if pays:
        return f"Accumulation may pay {on}, which these trials do not show: {numbers}."
    return f"Accumulation buys nothing {on}: {numbers}. It pays only where steps fall faster than their time grows."


def notes(found: pd.DataFrame, machine: Machine, studies: Sequence[StudyData]) -> list[str]:
    """What the advice rests on and what it leaves out.

    Arguments:
        found: of `analysis.advice.splits.table`, for this machine and these studies.

    >>> from analysis.load import load_study
    >>> from analysis.advice import splits, step_times
    >>> studies = [load_study("results/published/mlp_digits/studies/mlp_digits/sgd/64")]
    >>> machine = Machine([1], step_times.StepTimes({32: 0.010, 64: 0.013}), largest=64)
    >>> print(notes(splits.table(studies, machine), machine, studies)[0].replace("; ", ";\\n"))
    Step times: as entered, of per-device batches of 32, 64, linear between;
    accumulation takes as many of them.
    """
    return [*_on_times(found, machine), *_on_machine(found, machine), *_on_steps(found, studies)]


def _on_times(found: pd.DataFrame, machine: Machine) -> Iterable[str]:
    times = machine.times
    text = f"Step times: {times.source}, of per-device batches of {_sizes(times)}, linear between"
    if np.isfinite(times.error):
        text += f" (up to {times.error:.0%} off where one is left out)"
    yield f"{text}; accumulation takes as many of them."
    if times.fused > 1:
        yield (
            f"Up to {times.fused} trials were fused in these steps, each charged an equal part: one training alone "
            f"takes 1 to {times.fused} times as long. Time it with --measure, or enter --step-ms."
        )
    bounds = set(found["seconds_bound"][found["fits"]])
    if "<" in bounds:
        least = f"{times.sizes[0]:,}"
        yield f"<: steps of fewer than {least} examples were not timed, and take at most as long as those of {least}."
    if ">" in bounds:
        yield f"Splits with more than {times.sizes[-1]:,} examples on a device were not timed and are left out."


def _on_machine(found: pd.DataFrame, machine: Machine) -> Iterable[str]:
    if machine.largest is None:
        yield "Every per-device batch is taken to fit: --memory or --max-per-device-batch bounds it."
    most = found["devices"].max()
    if most > 1:
        seconds = machine.exchange_seconds(np.array([most]))[0]
        if seconds == 0:
            yield "Devices are taken to exchange gradients in no time: give --allreduce-ms or --bandwidth."
        else:
            on = devices_in_words(most)
            yield f"{on} exchange gradients in {duration(seconds)} after each update, not hidden behind computation."


def _on_steps(found: pd.DataFrame, studies: Sequence[StudyData]) -> Iterable[str]:
    each = found.drop_duplicates("batch_size")
    if uneven := sorted({study.batch_size for study in studies} - {*each["batch_size"]}):
        yield f"Batch size {_listed(uneven)} cannot be shared evenly by so many devices, and is left out."
    if unfinished := [study.batch_size for study in studies if not steps_to_result.is_complete(study)]:
        yield f"The search at batch size {_listed(unfinished)} is not complete: it may find fewer steps."
    missed = each[~each["reached"]]
    if len(missed):
        yield f"No trial reached the goal at batch size {_listed(missed['batch_size'])}: never advised."
    if learned := [study.batch_size for study in studies if not study.independent]:
        yield f"Searches that learned from their trials, at batch size {_listed(learned)}, show nothing of their luck."
    goal = Goal(*found[GOAL].iloc[0])
    if early := [study.batch_size for study in studies if steps_to_result.met_at_once(study, goal)]:
        yield f"At batch size {_listed(early)} the goal was met at the first evaluation: steps are at most these."
    open_above = each[each["reached"] & np.isinf(each["steps_high"]) & ~each["batch_size"].isin(learned)]
    if len(open_above):
        sizes = _listed(open_above["batch_size"])
        yield f"Too few trials, or too few that reached the goal, to bound the steps above at batch size {sizes}."
    fastest = found[found["fastest"]].iloc[0]
    if fastest["batch_size"] == each["batch_size"].max():
        yield "The fastest is the largest batch size that was measured: a larger one may be faster."
    yield (
        "Steps are S(B), the fewest of any trial; up to: by the 95 % interval of the median best of a quarter of them; "
        "alike: not shown to be slower than the fastest. Only batch sizes that were tuned are advised. Evaluating, "
        "loading and starting take time of their own."
    )


def _sizes(times: StepTimes) -> str:
    sizes = times.sizes
    return _listed(sizes) if len(sizes) <= 4 else f"{sizes[0]:,} to {sizes[-1]:,} ({len(sizes)} timed)"


def _time(row: pd.Series) -> str:
    return f"{_at_most(row)}{duration(row['seconds'])}"


def _spent(row: pd.Series) -> str:
    """Device time and, with a price, what it costs."""
    cost = "" if np.isnan(row["cost"]) else f", which costs {number(row['cost'])}"
    return f"{_at_most(row)}{duration(row['device_hours'] * HOUR)} of device time{cost}"


def _at_most(row: pd.Series) -> str:
    return "at most " if row["seconds_bound"] == "<" else ""


def _times(ratio: float) -> str:
    return f"{number(ratio)} times"


def _listed(sizes: Iterable[int]) -> str:
    return ", ".join(f"{size:,}" for size in sizes)
