"""Finds the best batch size, number of devices and accumulation steps from steps to result and step times.

    global batch size = devices x per-device batch x accumulation steps

A split is one such product. Its time to the goal is S(B) times the time of an update. An update is one step for each
accumulation step, and one exchange of gradients. Only measured batch sizes are advised.

Shapes: A splits of one curve.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.advice.comparisons import Compared, compared
from analysis.advice.step_times import AdviceError, StepTimes
from analysis.counting import Goal
from analysis.estimates import tuned
from analysis.intervals import left_censored
from analysis.load import ANSWER, CURVE, StudyData
from analysis.tables import steps_to_result
from analysis.units import TOKENS

SPLIT = ["devices", "per_device_batch", "accumulation_steps"]
HOUR = 3600.0
ROUNDING = 1e-9
"""Relative differences of times below this are errors of rounding."""
NO_RUNS = pd.DataFrame(columns=[*ANSWER, "steps"])


@dataclass(frozen=True)
class Machine:
    """The devices to train on.

    Arguments:
        devices: possible numbers of devices.
        times: step times on one device.
        largest: the most examples that fit on a device at once; None: any number.
        exchange: seconds of one exchange of gradients; there is one per update, after the last accumulation step.
        gradient_bytes, bandwidth: bytes, and bytes per second; on d devices a ring adds 2 (d - 1) / d x bytes /
            bandwidth to the exchange (Patarasuk and Yuan 2009).
        price: price of a device-hour; None: unknown.
    """

    devices: Sequence[int]
    times: StepTimes
    largest: int | None = None
    exchange: float = 0.0
    gradient_bytes: float = 0.0
    bandwidth: float = np.inf
    price: float | None = None

    def update_seconds(self, splits: pd.DataFrame) -> np.ndarray:
        """Seconds of an update of each split [A].

        >>> machine = Machine([1, 2], StepTimes({8: 0.010, 32: 0.016}), exchange=0.001)
        >>> machine.update_seconds(pd.DataFrame(factorisations(32, [1, 2]), columns=SPLIT))[:3].tolist()
        [0.016, 0.024, 0.04]
        """
        devices, examples, parts = (splits[name].to_numpy() for name in SPLIT)
        return parts * self.times.at(examples) + self.exchange_seconds(devices)

    def least_seconds(self, splits: pd.DataFrame) -> np.ndarray:
        """The least seconds of an update of each split [A]: below the timed sizes, steps may take any time down to that
        in proportion to their examples.

        >>> machine = Machine([1], StepTimes({8: 0.010, 32: 0.016}))
        >>> machine.least_seconds(pd.DataFrame({"devices": 1, "per_device_batch": [2, 32], "accumulation_steps": 1}))
        array([0.0025, 0.016 ])
        """
        devices, examples, parts = (splits[name].to_numpy() for name in SPLIT)
        return parts * self.times.least(examples) + self.exchange_seconds(devices)

    def exchange_seconds(self, devices: np.ndarray) -> np.ndarray:
        """Seconds of the exchange of gradients on these numbers of devices [A].

        >>> machine = Machine([1, 2, 4], StepTimes({8: 0.010}), exchange=0.001, gradient_bytes=4e6, bandwidth=1e9)
        >>> machine.exchange_seconds(np.array([1, 2, 4])).tolist()
        [0.0, 0.005, 0.007]
        """
        ring = 2 * (devices - 1) / devices * self.gradient_bytes / self.bandwidth
        return np.where(devices > 1, self.exchange + ring, 0.0)


def factorisations(batch_size: int, devices: Iterable[int]) -> list[tuple[int, int, int]]:
    """Every (devices, per-device batch, accumulation steps) whose product is the batch size.

    Arguments:
        devices: possible numbers of devices; a number that does not divide the batch size has no split.

    >>> factorisations(6, [1, 2, 4])
    [(1, 6, 1), (1, 3, 2), (1, 2, 3), (1, 1, 6), (2, 3, 1), (2, 1, 3)]
    """
    shares = [(count, batch_size // count) for count in sorted(set(devices)) if batch_size % count == 0]
    parts = {share: [p for p in range(1, share + 1) if share % p == 0] for _, share in shares}
    return [(count, share // part, part) for count, share in shares for part in parts[share]]


def table(
    studies: Sequence[StudyData], machine: Machine, goal: Goal | None = None, runs: pd.DataFrame = NO_RUNS
) -> pd.DataFrame:
    """Every split of every measured batch size of one curve.

    Arguments:
        studies: searches of one workload and optimizer that give S(B) (`analysis.tables.answers.answers`).
        goal: evaluated on the recorded curves; None: the study's own goal.
        runs: fresh seeds of these searches to this goal, from `analysis.tables.answers.rerun_steps`; those of
            configurations that were tuned for another goal are left out.

    Returns:
        A row for each (batch_size, devices, per_device_batch, accumulation_steps), with workload, optimizer and goal
        (and tokens_per_example, if the workload has it): reached, steps (infinite if it was not) with their 95 %
        interval steps_low and steps_high, read_from (`fresh seeds`, if all batch sizes that reached the goal have some,
        or `search`: S(B), and S_n's interval), at_once (the steps are left-censored), seconds_per_step and its
        bound (`<`: an upper bound, below the timed sizes; `>`: a lower bound), seconds to the goal with seconds_low and
        seconds_high, device_hours, cost (NaN without a price), fits (the per-device batch is at most Machine.largest),
        fastest and cheapest (one row each, among those that `able` keeps), shown_slower (than the fastest, by more than
        the error of step times, even by the least ratio of steps and the least time of steps), and comparison
        (`analysis.advice.comparisons`: `known`, or why nothing shows whether the split is slower).

    Raises:
        AdviceError: the curves cannot answer the goal, or no row could be the fastest.

    >>> folder = f"{published}/studies/mlp_digits/sgd"
    >>> studies = [load_study(f"{folder}/{size}") for size in (16, 64, 256)]
    >>> found = table(studies, Machine([1, 2, 4], StepTimes({16: 0.010, 64: 0.013, 256: 0.040})))
    >>> found[found["fastest"] | found["cheapest"]][["batch_size", *SPLIT, "steps", "seconds"]]
        batch_size  devices  per_device_batch  accumulation_steps  steps  seconds
    12          64        1                64                   1   21.0    0.273
    47         256        4                64                   1   16.0    0.208
    """
    if goal is not None and (refused := steps_to_result.refusals(studies, [goal])):
        raise AdviceError(" ".join(refused))
    own = runs[runs["tuned_for"].isna()] if "tuned_for" in runs else runs
    steps = tuned.table(steps_to_result.table(studies, goals=(goal,)), own)
    known = _of_curve(steps)
    if not known["reached"].any():
        raise AdviceError(_unreached(studies, goal))
    found = _timed(_splits(known, machine), machine)
    if able(found).empty:
        raise AdviceError(_impossible(found, machine))
    return _judged(found, machine, lambda best: compared(steps, studies, goal, best))


def _judged(found: pd.DataFrame, machine: Machine, compare: Callable[[int], dict[int, Compared]]) -> pd.DataFrame:
    """Add the columns fastest, cheapest, shown_slower and comparison; `compare`: batch sizes with the fastest one."""
    for name, order in (("fastest", ("seconds", "device_hours")), ("cheapest", ("device_hours", "seconds"))):
        found[name] = found.index == ranked(found, *order).index[0]
    fastest = found[found["fastest"]].iloc[0]
    each = compare(int(fastest["batch_size"]))
    low = found["batch_size"].map({size: one.low for size, one in each.items()})
    ratio = low * machine.least_seconds(found) / fastest["seconds_per_step"]
    return found.assign(
        shown_slower=ratio > 1 + np.nan_to_num(machine.times.error) + ROUNDING,
        comparison=found["batch_size"].map({size: one.comparison for size, one in each.items()}),
    )


def _splits(known: pd.DataFrame, machine: Machine) -> pd.DataFrame:
    """The rows of `_of_curve`, each once for every split of its batch size."""
    shares = [(size, *split) for size in known["batch_size"] for split in factorisations(size, machine.devices)]
    found = known.merge(pd.DataFrame(shares, columns=["batch_size", *SPLIT], dtype="int64"), on="batch_size")
    return found.sort_values(["batch_size", "devices", "accumulation_steps"]).reset_index(drop=True)


def _of_curve(steps: pd.DataFrame) -> pd.DataFrame:
    """Columns shared by all splits of a batch size."""
    by_seeds = tuned.reads_seeds(steps)
    taken = steps["tuned_steps" if by_seeds else "steps_to_result"].astype("Float64").astype(float).fillna(np.inf)
    low, high = tuned.interval(steps) if by_seeds else (steps["low"], steps["high"])
    tokens = [TOKENS] if TOKENS in steps else []
    censored = left_censored(taken, steps.get("first_evaluation"))
    kept = steps[[*CURVE, "batch_size", *tokens, "train_steps", "read_from"]]
    interval = {"steps_low": np.where(pd.isna(low), 0, low), "steps_high": np.where(pd.isna(high), np.inf, high)}
    return kept.assign(reached=np.isfinite(taken), steps=taken, **interval, at_once=censored)


def _timed(found: pd.DataFrame, machine: Machine) -> pd.DataFrame:
    each = machine.update_seconds(found)
    seconds = {f"seconds{end}": found[f"steps{end}"] * each for end in ("", "_low", "_high")}
    hours = found["devices"] * seconds["seconds"] / HOUR
    return found.assign(
        seconds_per_step=each,
        seconds_bound=machine.times.bounds(found["per_device_batch"].to_numpy()),
        **seconds,
        device_hours=hours,
        cost=np.nan if machine.price is None else machine.price * hours,
        fits=machine.largest is None or found["per_device_batch"] <= machine.largest,
    )


def able(found: pd.DataFrame) -> pd.DataFrame:
    """The rows of `table` that can be advised: they reached the goal, fit, and their time is known or bounded above.

    >>> found = pd.DataFrame({"reached": [True, True, False], "fits": [True, False, True], "seconds_bound": "="})
    >>> able(found).index.tolist()
    [0]
    """
    return found[found["reached"] & found["fits"] & (found["seconds_bound"] != ">")]


def ranked(found: pd.DataFrame, first: str, second: str) -> pd.DataFrame:
    """These rows sorted by two columns; ties go to the fewest accumulation steps, then devices.

    >>> found = pd.DataFrame({"reached": True, "fits": True, "seconds_bound": "=", "seconds": [2.0, 2.0, 3.0],
    ...     "device_hours": 1.0, "accumulation_steps": [2, 1, 1], "devices": 1})
    >>> ranked(found, "seconds", "device_hours").index.tolist()
    [1, 0, 2]
    """
    return able(found).sort_values([first, second, "accumulation_steps", "devices"], kind="stable")


def _unreached(studies: Sequence[StudyData], goal: Goal | None) -> str:
    first = studies[0]
    return (
        f"no trial of {first.workload} with {first.optimizer} reached {goal or first.goal}, so no batch size can be "
        "advised; give a looser --goal, or sweep again: `study report` says with what changed."
    )


def _impossible(found: pd.DataFrame, machine: Machine) -> str:
    """The message if no split can be advised. With enough accumulation steps, any batch fits where one example fits."""
    if found["reached"].any():
        return "not even one example fits on a device; give more --memory, or enter --max-per-device-batch."
    counts = " or ".join(f"{count:,}" for count in machine.devices)
    return f"no batch size that reached the goal can be divided evenly among {counts} devices; give other --gpus."
