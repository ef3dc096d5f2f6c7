"""Time and memory of a report on millions of measurements.

    python -m benchmarks.analysis [--rows 10_000_000] [--trials 100] [--keep DIR]

Creates a results folder with that many rows (400 measurements a trial, 17 batch sizes a curve, three optimizers a
workload, and enough workloads), then runs `python -m study report` on it. Limits on two cores: 10 million rows in 30 s
and 2 GB, 71 million in 4 minutes and 8 GB. `--rows 71_000_000 --trials 391` has the shape of the published database of
454 studies.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

EVALUATIONS, TRAIN_STEPS, BATCH_SIZES = 400, 40_000, 17
OPTIMIZERS = ["sgd", "momentum", "nesterov"]
ERRORS = [
    f"{split}/{error}"
    for split in ("train", "val", "test")
    for error in ("classification_error", "cross_entropy_error")
]
SPACE = {
    "learning_rate": {"low": 1e-4, "high": 10.0, "scale": "log", "hard": [], "integer": False},
    "momentum": {"low": 0.0, "high": 0.999, "scale": "reverse_log", "hard": ["low"], "integer": False},
}


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


def question_of(workload: str, optimizer: str, batch_size: int, wanted: int) -> dict[str, Any]:
    """The question of a study, as `study.json` records it."""
    return {
        "workload": {"name": workload, "dataset": "made_up", "train_examples": 50_000, "model": workload},
        "optimizer": optimizer,
        "schedule": "constant",
        "batch_size": batch_size,
        "goal": {"metric": "val/classification_error", "threshold": 0.1},
        "budget": {"epochs": 0, "steps": TRAIN_STEPS, "max_steps": None},
        "stopping": "budget",
        "race_factor": 2.0,
        "evaluation": {"first": 1 / EVALUATIONS, "ratio": 1.01, "every": 1},
        "seeds": {"search": 0, "trial": 0, "data_order": 0},
        "branch": {"repeat": 0, "budget": 1.0, "widened": [], "rerun": None},
        "search": {
            "sampler": "sobol",
            "trials": wanted,
            "space": SPACE,
            "max_launches": None,
            "extend": False,
            "extend_factor": 1.5,
            "extend_limit": 0,
            "budgets": [1.0],
            "repeats": 0,
            "reruns": 0,
        },
        "train_steps": TRAIN_STEPS,
    }


def write(results: Path, number: int, wanted: int) -> None:
    """One complete study, as the store writes it."""
    curve, position = divmod(number, BATCH_SIZES)
    workload, optimizer = f"model_{curve // len(OPTIMIZERS)}", OPTIMIZERS[curve % len(OPTIMIZERS)]
    batch_size = 2**position
    folder = results / "studies" / workload / optimizer / str(batch_size)
    (folder / "trials").mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(number)
    question = question_of(workload, optimizer, batch_size, wanted)
    run = {"command": "made up", "device": "cpu", "workers": 2, "ended": "now"}
    (folder / "study.json").write_text(json.dumps({"format": 1, "question": question, "provenance": [run]}))
    steps = np.linspace(TRAIN_STEPS / EVALUATIONS, TRAIN_STEPS, EVALUATIONS).astype(np.int64)
    half_life = 1500 * (1 / batch_size + 1 / 512) * 64 * rng.lognormal(0.7, 0.8, wanted)
    error = 0.9 * 0.5 ** (steps / half_life[:, None]) + 0.02 + 0.003 * rng.random((wanted, EVALUATIONS))
    columns = {"trial": np.repeat(np.arange(wanted, dtype=np.int32), EVALUATIONS), "step": np.tile(steps, wanted)}
    columns |= {name: (error * (1 + 0.1 * i)).ravel() for i, name in enumerate(ERRORS[::-1])}
    trials = [
        {
            "index": i,
            "seed": i,
            "order_seed": i,
            "hyperparameters": {"learning_rate": 10 ** rng.uniform(-4, 1), "momentum": 1 - 10 ** rng.uniform(-3, 0)},
            "first_bad_step": None,
            "seconds": {"training": 30.0, "evaluation": 3.0},
            "micro_batch": None,
        }
        for i in range(wanted)
    ]
    table = pa.table(columns).replace_schema_metadata({"trials": json.dumps(trials)})
    pq.write_table(table, folder / "curves.parquet", compression="zstd")


if __name__ == "__main__":
    main()
