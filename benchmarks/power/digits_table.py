"""Train the digits MLP thousands of times; the table is the surface on which `benchmarks.power` simulates searches.

    python -m benchmarks.power.digits_table [--file FILE] [--optimizers momentum,adam] [--batch-sizes 1,2] [--scale 1]

Each pair of an optimizer and a batch size trains in four rounds with the fused engine, over the search space that a
sweep would use: a Sobol sequence over the whole box; points where a smooth fit predicts at most twice the fewest steps
to a goal; points within 1.3 times; and repetitions of the best point for each goal. Every trial has seeds of its own
and is evaluated on the usual grid. It ends at a cross entropy below ENDS, or at FACTOR times the fewest steps to both
goals: no searched trial that matters runs longer. A trial that meets only one goal by ENDS trains again without this
end. Takes about ten minutes of one core. An interrupted run continues with the pairs that its file lacks.

The table has a row a trial. Errors are stored up to the later of the first evaluations that meet the two goals, in
whole units: misclassified validation images, and thousandths of the natural logarithm of the cross entropy.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.interpolate import RBFInterpolator
from scipy.stats import qmc

from analysis.counting import first_crossing
from study.config import preflight
from study.config.jobs import Job, parse_jobs
from study.data.examples import splits_of
from study.data.resident import Data
from study.engine.lane_count import admitted
from study.engine.lanes import train
from study.engine.trial.proposals import Proposals
from study.records import Curve, Study, Trial
from study.space import values
from workloads.user_code.importing import build

FILE = Path(__file__).parents[1] / "measured/digits.parquet"
GOALS = {"val/classification_error": 0.05, "val/cross_entropy_error": 0.2}
OPTIMIZERS = ("momentum", "adam", "sgd")
EXAMPLES = 300
"""Of the validation set."""
BATCH_SIZES = (1, 4, 16, 64, 256, 1024, 32, 8, 128, 2, 512)
WORST = np.log(6)
"""Log steps above the fewest that a trial counts as if it missed a goal or diverged."""
LANES = 32
ENDS = 0.15
"""A cross entropy at which training ends: most curves have met both goals there."""
FACTOR = 5
"""A trial ends at this multiple of the fewest steps to both goals."""


class Listed(Proposals):
    """Proposes the trials of a list, and ends each at FACTOR times the fewest steps to both goals."""

    def __init__(self, study: Study, trials: Sequence[Trial], finished: Sequence[Curve]) -> None:
        self.trials, self.limit = list(trials), float(study.train_steps)
        for curve in finished:
            self.tell(curve)

    def tell(self, curve: Curve) -> Curve:
        """Lower the limit by a finished trial."""
        met = [step for step in crossings(curve) if step is not None]
        if len(met) == len(GOALS):
            self.limit = min(self.limit, FACTOR * max(met))
        return curve

    def ask(self, wait: bool) -> Trial | None:
        return self.trials.pop(0) if self.trials else None

    def step_limit(self, index: int) -> int:
        return int(self.limit)


def rounds(dimensions: int, scale: float) -> Mapping[str, int]:
    """Trials of each round: over a box of one parameter fewer are enough."""
    whole = {"box": 96, "twice": 48, "near": 48} if dimensions > 1 else {"box": 32, "twice": 32, "near": 24}
    return {name: max(8, round(scale * count)) for name, count in {**whole, "best": 32}.items()}


def trained(study: Study, scale: float) -> pd.DataFrame:
    """The rows of one optimizer and batch size."""
    workload = build(study.workload)
    data = Data.of(splits_of(workload), torch.device("cpu"))
    heights = list(admitted(study, workload, data, LANES))
    names = sorted(study.search.space)
    curves: list[Curve] = []
    units = np.empty((0, len(names)))
    counts = rounds(sum(d.choices is None for d in study.search.space.values()), scale)
    for name, count in counts.items():
        points = proposed(name, count, units, curves, len(names), study.batch_size)
        found = (values(study.search.space, point) for point in points)
        trials = [study.trial(len(units) + index, each) for index, each in enumerate(found)]
        new: dict[int, Curve] = {}
        for stopping in ("goal", "budget"):  # to ENDS, and again without it if a goal was not met there
            proposals = Listed(
                study, [trial for trial in trials if early(new.get(trial.index))], [*curves, *new.values()]
            )
            for curve in train(replace(study, stopping=stopping), workload, data, proposals, heights, LANES):
                new[curve.trial.index] = proposals.tell(curve)
        curves += [new[trial.index] for trial in trials]
        units = np.concatenate([units, points])
    return pd.DataFrame([row(study, unit, curve) for unit, curve in zip(units, curves, strict=True)])


def crossings(curve: Curve) -> list[int | None]:
    """The first steps that meet the goals; None for a goal that was not met."""
    return [first_crossing(curve.steps, curve.errors[metric], goal) for metric, goal in GOALS.items()]


def early(curve: Curve | None) -> bool:
    """Whether a trial has not trained yet, or ended at ENDS before it met both goals."""
    if curve is None:
        return True
    ended = first_crossing(curve.steps, curve.errors["val/cross_entropy_error"], ENDS) is not None
    return ended and None in crossings(curve)


def proposed(
    round_: str, count: int, units: np.ndarray, curves: Sequence[Curve], dimensions: int, batch_size: int
) -> np.ndarray:
    """The points [count, D] of a round in the unit cube; half of them serve each goal."""
    rng = np.random.default_rng((batch_size, len(units)))
    box = qmc.Sobol(dimensions, rng=rng).random_base2(max(1, int(np.ceil(np.log2(count)))))
    if round_ == "box":
        return box[:count]
    found = []
    for share, (metric, threshold) in zip((count - count // 2, count // 2), GOALS.items(), strict=True):
        y = responses(curves, metric, threshold)
        varying = np.ptp(units, axis=0) > 0
        candidates = qmc.Sobol(dimensions, rng=rng).random_base2(13)
        fit = RBFInterpolator(units[:, varying], y, neighbors=min(48, len(y)), smoothing=0.05, kernel="linear")
        order = np.argsort(fit(candidates[:, varying]), kind="stable")
        above = np.sort(fit(candidates[:, varying])) - fit(candidates[:, varying]).min()
        if round_ == "best":
            found.append(np.repeat(candidates[order[:1]], share, axis=0))
        else:
            within = order[: max(share, np.searchsorted(above, np.log(2.0 if round_ == "twice" else 1.3)))]
            found.append(candidates[rng.choice(within, share, replace=False)])
    return np.concatenate(found)


def responses(curves: Sequence[Curve], metric: str, threshold: float) -> np.ndarray:
    """Log steps to the goal above the fewest, at most WORST."""
    crossed = [first_crossing(curve.steps, curve.errors[metric], threshold) for curve in curves]
    failed = [step is None or curve.first_bad_step is not None for step, curve in zip(crossed, curves, strict=True)]
    steps = np.where(failed, np.inf, np.array(crossed, dtype=float))
    if not np.isfinite(steps).any():
        return np.zeros(len(steps))
    return np.minimum(np.log(steps / steps.min()), WORST)


def row(study: Study, unit: np.ndarray, curve: Curve) -> dict[str, object]:
    """One trial as plain data."""
    crossed = crossings(curve)
    met = [step for step in crossed if step is not None]
    kept = int(np.searchsorted(curve.steps, max(met))) + 1 if len(met) == len(crossed) else len(curve.steps)
    wrong, entropy = (np.asarray(curve.errors[metric][:kept], float) for metric in GOALS)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = np.clip(np.nan_to_num(1000 * np.log(entropy), nan=32767, posinf=32767), -32767, 32767)
    return {
        "optimizer": study.optimizer,
        "batch_size": np.int16(study.batch_size),
        **{f"unit_{i}": np.float32(u) for i, u in enumerate(varying(study, unit))},
        "first_bad_step": np.int32(curve.first_bad_step or 0),
        "wrong": np.nan_to_num(wrong * EXAMPLES, nan=EXAMPLES).round().astype(np.int16),
        "log_entropy": entropy.round().astype(np.int16),
    }


def varying(study: Study, unit: np.ndarray) -> list[float]:
    """The coordinates of the tuned parameters, the learning rate first."""
    tuned = {name: u for (name, d), u in zip(sorted(study.search.space.items()), unit, strict=True) if not d.choices}
    return [tuned.pop("learning_rate"), *tuned.values()]


@cache
def asked(optimizer: str) -> Job:
    """The sweep of one optimizer; its batch size is a placeholder."""
    goal = f"goal=val/cross_entropy_error < {ENDS}"
    words = ["workload=mlp_digits", goal, "stopping=goal", "evaluation.every=1000000", "engine=lanes"]
    [job] = parse_jobs([*words, f"optimizer={optimizer}", "batch_size=64"])
    return job


def main() -> int:
    """Train, and write the table after each batch size; a line for each says what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--file", type=Path, default=FILE)
    parser.add_argument("--optimizers", default=",".join(OPTIMIZERS))
    parser.add_argument("--batch-sizes", default=",".join(map(str, BATCH_SIZES)))
    parser.add_argument("--scale", type=float, default=1.0, help="trials as a multiple of the usual number")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sizes = [int(size) for size in options.batch_sizes.split(",")]
    done = pd.read_parquet(options.file) if options.file.exists() else pd.DataFrame(columns=["optimizer", "batch_size"])
    there = set(zip(done["optimizer"], done["batch_size"], strict=True))
    for size, optimizer in itertools.product(sizes, options.optimizers.split(",")):
        if (optimizer, size) in there:
            continue
        start = time.process_time()
        job = asked(optimizer)
        [settled] = preflight.settle([replace(job, study=replace(job.study, batch_size=size))])
        new = trained(settled.study, options.scale)
        done = pd.concat([done, new], ignore_index=True) if there else new
        there.add((optimizer, size))
        done.to_parquet(options.file, compression="zstd", index=False)
        print(f"{optimizer:10} B = {size:5} {len(new):5} trials {time.process_time() - start:7.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
