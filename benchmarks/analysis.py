"""Time and memory of a report on millions of measurements.

    python -m benchmarks.analysis [--rows 10_000_000] [--trials 100] [--keep DIR]

Creates a results folder with that many rows (400 measurements a trial, 17 batch sizes a curve, three optimizers a
workload, and enough workloads), then runs `python -m study report` on it. Limits on two cores: 10 million rows in 30 s
and 2 GB, 71 million in 4 minutes and 8 GB. `--rows 71_000_000 --trials 391` has the shape of the published database of
454 studies.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np

from analysis.counting import Goal
from study import store
from study.records import Study
from study.settings import Budget, Evaluation, Search
from study.space import parse_space
from study.store.curves import write_table

EVALUATIONS, TRAIN_STEPS, BATCH_SIZES = 400, 40_000, 17
SPLITS = ("train", "val", "test")
OPTIMIZERS = ["sgd", "momentum", "nesterov"]
ERRORS = [f"{split}/{error}" for split in SPLITS for error in ("classification_error", "cross_entropy_error")]
SPACE = parse_space(
    {
        "learning_rate": {"low": 1e-4, "high": 10.0, "scale": "log"},
        "momentum": {"low": 0.0, "high": 0.999, "scale": "reverse_log", "hard": ["low"]},
    }
)


def main() -> None:
    """Create the data, run the report in a separate process, and print its time and memory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=lambda text: int(text.replace("_", "")), default=10_000_000)
    parser.add_argument("--trials", type=int, default=100, help="of each study")
    parser.add_argument("--keep", type=Path, help="make the data here and leave it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        results = options.keep or Path(scratch)
        studies = max(1, round(options.rows / (options.trials * EVALUATIONS)))
        for number in range(studies):
            write(results, number, options.trials)
        trials = studies * options.trials
        print(f"{trials * EVALUATIONS:,} measurements of {trials:,} trials in {studies} studies")
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "study", "report", str(results)], check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        page = (results / "report.html").stat().st_size / 1e6
        print(f"report: {seconds:.1f} s, at most {peak:.2f} GB a process, page {page:.1f} MB")


def write(results: Path, number: int, wanted: int) -> None:
    """Write one complete study; `store.save` of one trial at a time would take hours."""
    curve, position = divmod(number, BATCH_SIZES)
    model = f"model_{curve // len(OPTIMIZERS)}"
    study = Study(
        {"_target_": "made.Up", "name": model, "dataset": "made_up", "train_examples": 100_000, "model": model},
        optimizer=OPTIMIZERS[curve % len(OPTIMIZERS)],
        schedule="constant",
        batch_size=2**position,
        goal=Goal("val/classification_error", 0.1),
        budget=Budget(epochs=0, steps=TRAIN_STEPS),
        search=Search("sobol", wanted, SPACE),
        stopping="budget",
        evaluation=Evaluation(first=1 / EVALUATIONS, ratio=1.01, every=1),
    )
    store.open_study(results, study, {"command": "made up", "device": "cpu", "workers": 2, "ended": "now"})
    rng = np.random.default_rng(number)
    steps = np.linspace(TRAIN_STEPS / EVALUATIONS, TRAIN_STEPS, EVALUATIONS).astype(np.int64)
    half_life = 1500 * (1 / study.batch_size + 1 / 512) * 64 * rng.lognormal(0.7, 0.8, wanted)
    error = 0.9 * 0.5 ** (steps / half_life[:, None]) + 0.02 + 0.003 * rng.random((wanted, EVALUATIONS))
    trial, step = np.repeat(np.arange(wanted, dtype=np.int32), EVALUATIONS), np.tile(steps, wanted)
    columns: dict[str, np.ndarray] = {"trial": trial, "step": step}
    columns |= {name: (error * (1 + 0.1 * i)).ravel() for i, name in enumerate(ERRORS[::-1])}
    rates, momenta = 10 ** rng.uniform(-4, 1, wanted), 1 - 10 ** rng.uniform(-3, 0, wanted)
    points = [{"learning_rate": float(a), "momentum": float(b)} for a, b in zip(rates, momenta, strict=True)]
    ends = {"first_bad_step": None, "seconds": {"training": 30.0, "evaluation": 3.0}, "micro_batch": None}
    trials = [asdict(study.trial(index, point)) | ends for index, point in enumerate(points)]
    write_table(columns, trials, store.study_folder(results, study) / store.COMPACTED)


if __name__ == "__main__":
    main()
