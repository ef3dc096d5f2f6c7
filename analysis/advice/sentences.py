"""The advice in sentences: the fastest and the cheapest split, the effect of accumulation, and the assumptions."""

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from analysis.advice.comparisons import ADAPTIVE, FEW_RUNS, FEW_SEEDS, FEW_TRIALS, KNOWN, LEFT_CENSORED
from analysis.advice.splits import HOUR, Machine, able, ranked
from analysis.advice.step_times import StepTimes
from analysis.estimates.tuned import SEEDS, reads_seeds
from analysis.intervals import PART, median
from analysis.labels import batch_sizes, counted, curve_text, duration, listed, number
from analysis.load import CURVE, StudyData
from analysis.question.stages import FRESH_SEEDS
from analysis.tables import steps_to_result

NEARLY = 1.05
"""A split that takes at most this multiple of the least time counts as nearly as fast."""
TOLD_APART = 0.005
"""Relative differences below this are not mentioned."""
LUCKY = 1.25
"""Fresh seeds that need at least this multiple of S(B) are mentioned."""
NOT_KNOWN = {
    FEW_TRIALS: (f"fewer than {PART} trials have no interval", "sweep again with search.trials=20"),
    FEW_RUNS: (f"fewer than {PART} runs have no interval", "import more runs"),
    ADAPTIVE: ("adaptive searches have no interval", f"sweep again with fresh seeds ({FRESH_SEEDS})"),
    FEW_SEEDS: ("one fresh seed has no interval", f"sweep again with more ({FRESH_SEEDS})"),
    LEFT_CENSORED: ("steps to the first evaluation are upper bounds", "lower evaluation.first in another results=DIR"),
}
"""Why nothing shows whether a batch size is slower than the fastest, and what to run."""


def sentences(found: pd.DataFrame) -> list[str]:
    """The advice and its reasons, as sentences; `found`: from `analysis.advice.splits.table`.

    >>> from analysis.advice import splits, step_times
    >>> folder = f"{published}/studies/mlp_digits/sgd"
    >>> studies = [load_study(f"{folder}/{size}") for size in (16, 64, 256)]
    >>> machine = Machine([1, 2, 4], step_times.StepTimes({16: 0.010, 64: 0.013, 256: 0.040}), largest=64)
    >>> found = splits.table(studies, machine)
    >>> print(sentences(found)[0].replace(": ", ":\\n"))
    mlp_digits with sgd to validation cross entropy < 0.2:
    the fastest is batch size 256 = 4 x 64 x 1, 16 steps of 13 ms:
    208 ms (up to 1.17 s, given the spread of trials), 832 ms of device time.
    >>> print(sentences(found)[1].replace(". ", ".\\n"))
    The cheapest is batch size 64 = 1 x 64 x 1: 273 ms, 273 ms of device time.
    The fastest is 1.31 times as fast and takes 3.05 times the device time.
    """
    fastest, cheapest = (found[found[which]].iloc[0] for which in ("fastest", "cheapest"))
    texts = [_fastest(fastest), _cheapest(fastest, cheapest), _nearly(found, fastest, cheapest)]
    return [text for text in (*texts, _rivals(found, fastest, cheapest), _accumulation(found, fastest)) if text]


def on_seeds(found: pd.DataFrame, runs: pd.DataFrame) -> list[str]:
    """Says where fresh seeds of the configuration behind S(B) missed the goal or, where steps are S(B), took far more.

    Arguments:
        found: from `analysis.advice.splits.table`.
        runs: from `analysis.tables.answers.rerun_steps`, for the same curve and goal.

    >>> found = pd.DataFrame({"batch_size": [8, 64, 512], "reached": True, "steps": [400.0, 90, 50]})
    >>> found = found.assign(read_from="search")
    >>> ends = {8: [410.0, 430], 64: [200.0, 180], 512: [55, np.inf]}
    >>> runs = pd.DataFrame([(size, end, None) for size in ends for end in ends[size]])
    >>> print(*on_seeds(found, runs.set_axis(["batch_size", "steps", "tuned_for"], axis=1)), sep="\\n")
    At batch size 512, 1 of 2 fresh seeds with the same hyperparameters missed the goal: S(B) may be luck.
    Expect more steps at batch size 64: the median of fresh seeds is 190 instead of 90.
    """
    fewest = found[found["reached"]].drop_duplicates("batch_size").set_index("batch_size")["steps"]
    own = runs[runs["tuned_for"].isna() & runs["batch_size"].isin(fewest.index)]
    ends = {size: part.to_numpy(dtype=float) for size, part in own.groupby("batch_size")["steps"]}
    missed = {size: each for size, each in ends.items() if np.isinf(each).any()}
    medians = {size: median(each) for size, each in ends.items() if size not in missed}
    more = {size: steps for size, steps in medians.items() if steps >= LUCKY * fewest[size]}
    texts, by_seeds = [], reads_seeds(found)
    if missed:
        shares = listed([f"{np.isinf(each).sum()} of {len(each)}" for each in missed.values()])
        risk = "a training may miss it, too" if by_seeds else "S(B) may be luck"
        texts.append(
            f"At {batch_sizes(missed)}, {shares} fresh seeds with the same hyperparameters missed the goal: {risk}."
        )
    if more and not by_seeds:
        needed, least = (listed([number(steps) for steps in each]) for each in (more.values(), fewest[[*more]]))
        texts.append(
            f"Expect more steps at {batch_sizes(more)}: the median of fresh seeds is {needed} instead of {least}."
        )
    return texts


def split_in_words(row: pd.Series) -> str:
    """A split as text: batch size = devices x per-device batch x accumulation steps.

    >>> split_in_words(pd.Series({"batch_size": 64, "devices": 4, "per_device_batch": 8, "accumulation_steps": 2}))
    '64 = 4 x 8 x 2'
    """
    return f"{row['batch_size']:,} = {row['devices']:,} x {row['per_device_batch']:,} x {row['accumulation_steps']:,}"


def _fastest(row: pd.Series) -> str:
    high = f"up to {duration(row['seconds_high'])}" if np.isfinite(row["seconds_high"]) else "no upper bound"
    each = f"{number(row['steps'])} steps of {_at_most(row)}{duration(row['seconds_per_step'])}"
    split = f"{curve_text(*row[CURVE])}: the fastest is batch size {split_in_words(row)}"
    spread = "fresh seeds" if row["read_from"] == SEEDS else "trials"
    return f"{split}, {each}: {_time(row)} ({high}, given the spread of {spread}), {_spent(row)}."


def _cheapest(fastest: pd.Series, cheapest: pd.Series) -> str:
    if cheapest.name == fastest.name:
        return "It is also the cheapest."
    faster = cheapest["seconds"] / fastest["seconds"]
    costlier = fastest["device_hours"] / cheapest["device_hours"]
    return (
        f"The cheapest is batch size {split_in_words(cheapest)}: {_time(cheapest)}, {_spent(cheapest)}. The fastest is "
        f"{number(faster)} times as fast and takes {number(costlier)} times the device time."
    )


def _nearly(found: pd.DataFrame, fastest: pd.Series, cheapest: pd.Series) -> str:
    """Names the least expensive split that is nearly as fast as the fastest.

    Empty if that is the cheapest split of all, or if it saves hardly any device time.
    """
    near = able(found)[lambda rows: rows["seconds"] <= NEARLY * fastest["seconds"]]
    least = near.loc[near["device_hours"].idxmin()]
    longer, spent = (least[name] / fastest[name] for name in ("seconds", "device_hours"))
    if least.name == cheapest.name or spent > 1 / NEARLY:
        return ""
    return f"{split_in_words(least)} takes {_times(longer)} as long for {_times(spent)} the device time."


def _rivals(found: pd.DataFrame, fastest: pd.Series, cheapest: pd.Series) -> str:
    """Names the batch sizes that are tied with the fastest, and the cheapest of their splits."""
    if found.loc[found["reached"], "batch_size"].nunique() == 1:
        return ""
    near = able(found)[lambda rows: ~rows["shown_slower"]]
    unknown, near = _not_known(near), near[near["comparison"] == KNOWN]
    timed = {*near.loc[near["seconds_bound"] == "=", "batch_size"]}
    others = sorted(timed - {fastest["batch_size"]})
    untimed = sorted({*near["batch_size"]} - timed - {fastest["batch_size"]})
    open_ends = f"{batch_sizes(untimed).capitalize()} may be faster or cheaper: times of such steps are upper bounds."
    ends = " ".join([*([open_ends] if untimed else []), *unknown])
    if not others:
        return ends or "Every other batch size is shown to be slower."
    text = f"{batch_sizes(others).capitalize()} {'is' if len(others) == 1 else 'are'} tied with it"
    return f"{_with_cheapest(text, near, fastest, cheapest)} {ends}".strip()


def _not_known(near: pd.DataFrame) -> list[str]:
    """A sentence for each reason why nothing shows whether batch sizes are slower than the fastest."""
    found = []
    for reason, (why, cure) in NOT_KNOWN.items():
        sizes = sorted({*near.loc[near["comparison"] == reason, "batch_size"]})
        if sizes:
            are = f"{batch_sizes(sizes)} {'is' if len(sizes) == 1 else 'are'}"
            found.append(f"Whether {are} slower is not known yet: {why}. Next: {cure}.")
    return found


def _with_cheapest(text: str, near: pd.DataFrame, fastest: pd.Series, cheapest: pd.Series) -> str:
    """The sentence on tied batch sizes, with the cheapest of the splits `near` that are not shown to be slower."""
    if cheapest.name == fastest.name:
        return f"{text}."
    if not cheapest["shown_slower"] and cheapest["comparison"] == KNOWN:
        return f"{text}, the cheapest split included."
    useful = near[near["seconds"] < cheapest["seconds"]]  # a slower split also costs more: never a good choice
    least = useful.loc[useful["device_hours"].idxmin()]
    if least["device_hours"] < (1 - TOLD_APART) * fastest["device_hours"]:
        return f"{text}; the cheapest tied split is {split_in_words(least)}: {_time(least)}, {_spent(least)}."
    return f"{text}."


def _accumulation(found: pd.DataFrame, fastest: pd.Series) -> str:
    """Compares the best split with accumulation to the best without, on as many devices as the fastest split uses."""
    here = ranked(found[found["devices"] == fastest["devices"]], "seconds", "device_hours")
    alone, parts = here[here["accumulation_steps"] == 1], here[here["accumulation_steps"] > 1]
    on = f"on {counted(fastest['devices'], 'device')}"
    if parts.empty:
        return ""
    if alone.empty:
        return f"Accumulation is necessary {on}: no batch size that reached the goal fits without it."
    one, several = alone.iloc[0], parts.iloc[0]
    pays = several["seconds"] < (1 - TOLD_APART) * one["seconds"]
    larger = parts[parts["batch_size"] > one["batch_size"]]
    if not pays and len(larger):  # then judge the usual purpose of accumulation: a larger batch size
        several = larger.iloc[0]
    longer, more = (several[name] / one[name] for name in ("seconds_per_step", "steps"))
    steps = "as many steps as" if more == 1 else f"{_times(more)} the steps of"
    numbers = (
        f"{split_in_words(several)} needs {steps} {split_in_words(one)}, each {_times(longer)} as long, and so "
        f"{_times(longer * more)} its time"
    )
    if pays and one["shown_slower"]:
        return f"Accumulation saves time {on}: {numbers}."
    if pays:
        return f"Accumulation may save time {on}, but these trials do not show it: {numbers}."
    return f"Accumulation saves no time {on}: {numbers}. It does so only if steps fall faster than their time grows."


def notes(found: pd.DataFrame, machine: Machine, studies: Sequence[StudyData]) -> list[str]:
    """The assumptions of the advice, and the batch sizes and costs that it leaves out.

    Arguments:
        found: from `analysis.advice.splits.table`, for this machine and these studies.

    >>> from analysis.advice import splits, step_times
    >>> studies = [study]
    >>> machine = Machine([1], step_times.StepTimes({32: 0.010, 64: 0.013}), largest=64)
    >>> print(notes(splits.table(studies, machine), machine, studies)[0].replace("; ", ";\\n"))
    Step times: as entered, for per-device batches of 32 and 64, linear in between;
    with accumulation, one such time per accumulation step.
    """
    return [*_on_times(found, machine), *_on_machine(found, machine), *_on_steps(found, studies)]


def _on_times(found: pd.DataFrame, machine: Machine) -> Iterable[str]:
    times = machine.times
    text = f"Step times: {times.source}, for per-device batches of {_sizes(times)}, linear in between"
    if np.isfinite(times.error):
        text += f" (up to {times.error:.0%} off if one is left out)"
    yield f"{text}; with accumulation, one such time per accumulation step."
    if times.fused > 1:
        yield (
            f"Up to {times.fused} trials shared these steps, and each is charged an equal part: one training alone "
            f"takes 1 to {times.fused} times as long. Time it with --measure, or enter --step-ms."
        )
    bounds = set(found["seconds_bound"][found["fits"]])
    if "<" in bounds:
        least = f"{times.sizes[0]:,}"
        yield f"<: steps of fewer than {least} examples were not timed; they take at most as long as steps of {least}."
    if ">" in bounds:
        yield f"Splits with more than {times.sizes[-1]:,} examples on a device were not timed and are left out."


def _on_machine(found: pd.DataFrame, machine: Machine) -> Iterable[str]:
    if machine.largest is None:
        yield "Every per-device batch is assumed to fit; set a limit with --memory or --max-per-device-batch."
    most = found["devices"].max()
    if most > 1:
        seconds = machine.exchange_seconds(np.array([most]))[0]
        if seconds == 0:
            yield "The exchange of gradients is assumed to take no time; give --allreduce-ms or --bandwidth."
        else:
            on = counted(most, "device")
            yield f"{on} exchange gradients in {duration(seconds)} after each update, without overlap with computation."


def _on_steps(found: pd.DataFrame, studies: Sequence[StudyData]) -> Iterable[str]:
    each = found.drop_duplicates("batch_size")
    if uneven := sorted({study.batch_size for study in studies} - {*each["batch_size"]}):
        yield f"Left out, because it cannot be divided evenly among these devices: {batch_sizes(uneven)}."
    if unfinished := [study.batch_size for study in studies if not steps_to_result.is_complete(study)]:
        yield f"The search at {batch_sizes(unfinished)} is not complete: it may find fewer steps."
    missed, by_seeds = each[~each["reached"]], reads_seeds(found)
    if len(missed):
        who = "At least half of the fresh seeds, or all trials, missed" if by_seeds else "No trial reached"
        yield f"{who} the goal at {batch_sizes(missed['batch_size'])}: never advised."
    learned = [study.batch_size for study in studies if not study.independent and not by_seeds]
    if learned:
        yield f"Adaptive searches, at {batch_sizes(learned)}, give no confidence interval."
    censored = each.loc[each["at_once"], "batch_size"]
    if len(censored):
        yield f"At {batch_sizes(censored)} the goal was met at the first evaluation: the steps are upper bounds."
    open_above = each[each["reached"] & np.isinf(each["steps_high"]) & ~each["batch_size"].isin([*learned, *censored])]
    if len(open_above):
        few = "Too few fresh seeds" if by_seeds else "Too few trials, or too few that reached the goal,"
        yield f"{few} for an upper bound of the steps at {batch_sizes(open_above['batch_size'])}."
    fastest = found[found["fastest"]].iloc[0]
    if fastest["batch_size"] == each["batch_size"].max():
        yield "The fastest is the largest measured batch size: a larger one may be faster."
    steps = (
        "Steps are those of the tuned configuration, the median over fresh seeds. Up to: the upper end of their 95 % "
        "interval."
        if by_seeds
        else "Steps are S(B), the fewest of any trial. Up to: the upper end of the 95 % interval of the median best of "
        "a quarter of the trials."
    )
    yield (
        f"{steps} Tied: not shown to be slower than the fastest. Only tuned batch sizes are advised. "
        "Evaluation, data loading and startup are not counted."
    )


def _sizes(times: StepTimes) -> str:
    sizes = times.sizes
    return listed(sizes) if len(sizes) <= 4 else f"{sizes[0]:,} to {sizes[-1]:,} ({len(sizes)} timed)"


def _time(row: pd.Series) -> str:
    return f"{_at_most(row)}{duration(row['seconds'])}"


def _spent(row: pd.Series) -> str:
    """Device time and, with a price, its cost."""
    cost = "" if np.isnan(row["cost"]) else f", which costs {number(row['cost'])}"
    return f"{_at_most(row)}{duration(row['device_hours'] * HOUR)} of device time{cost}"


def _at_most(row: pd.Series) -> str:
    return "at most " if row["seconds_bound"] == "<" else ""


def _times(ratio: float) -> str:
    return f"{number(ratio)} times"
