"""What a step of the plain engine spends its time on: each kind of operation, in one process with one thread.

    python -m benchmarks.steps [--json FILE] [--models resnet8,cnn,mlp1024] [--batch-sizes 1024,2048] [--steps 5]
        [--made-up-data]

Processor time, which other work on the machine changes less than the time on the clock; what is left of a step is
Python. The first steps are not counted: memory that the process uses for the first time costs up to half a step. Takes
about three minutes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.engine import RATE, loaded, study_of
from study.data.resident import Data
from study.devices.machine import processor
from study.devices.placement import settle_arithmetic
from study.engine.run import Run
from study.engine.timing import usual_trial
from study.records import Study
from study.workers.start import one_thread_environment

UNCOUNTED = 4
"""Steps before the profile."""
KINDS = {
    "convolutions": ("convolution",),
    "products": ("mm",),
    "ReLU": ("relu", "threshold", "clamp"),
    "pooling": ("pool", "mean"),
    "loss": ("softmax", "nll", "cross_entropy"),
    "update": ("sgd", "adam"),
    "batch": ("index", "gather"),
    "additions": ("add",),
    "copies": ("copy", "clone", "fill", "zero", "empty", "resize"),
}
"""Kind of operation -> parts of the names of its operations; the first that matches counts."""
REST = "rest"


def kind(operation: str) -> str:
    """The kind of an operation.

    >>> kind("aten::mkldnn_convolution"), kind("aten::addmm"), kind("aten::detach")
    ('convolutions', 'products', 'rest')
    """
    name = operation.partition("::")[2].lower()
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), REST)


class Timed(TorchDispatchMode):
    """A block that adds up the processor time of each kind of operation, backward passes included."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = dict.fromkeys((*KINDS, REST), 0.0)

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        start = time.process_time()
        outputs = operation(*args, **(kwargs or {}))
        self.seconds[kind(operation.name())] += time.process_time() - start
        return outputs


def measured(study: Study, steps: int) -> tuple[float, dict[str, float]]:
    """(seconds a step, share of each kind of operation)."""
    settle_arithmetic()
    workload, splits = loaded(json.dumps(study.workload))
    run = Run(study, workload, Data.of(splits, torch.device("cpu")), usual_trial(study, 0))

    def update() -> None:
        run.update(RATE)
        run.step += 1

    for _ in range(UNCOUNTED):
        update()
    start = time.process_time()
    with Timed() as timed:
        for _ in range(steps):
            update()
    whole = time.process_time() - start
    timed.seconds[REST] += whole - sum(timed.seconds.values())
    return whole / steps, {name: seconds / whole for name, seconds in timed.seconds.items()}


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", default="resnet8,cnn,mlp1024")
    parser.add_argument("--batch-sizes", default="1024,2048")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--made-up-data", action="store_true")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print("model      batch  ms a step" + "".join(f"{name:>13}" for name in (*KINDS, REST)))
    for model in chosen.models.split(","):
        for batch_size in map(int, chosen.batch_sizes.split(",")):
            study, _ = study_of(model, batch_size, "momentum", "cpu", chosen.made_up_data)
            with one_thread_environment(), ProcessPoolExecutor(1, mp.get_context("spawn")) as worker:
                asked = replace(study, arithmetic="plain")
                seconds, shares = worker.submit(measured, asked, chosen.steps).result()
            rows.append({"model": model, "batch_size": batch_size, "seconds": seconds, "shares": shares})
            told = "".join(f"{share:13.1%}" for share in shares.values())
            print(f"{model:10} {batch_size:5} {1000 * seconds:10,.0f}{told}", flush=True)
    if chosen.json:
        machine = {"processor": processor(), "torch": torch.__version__, "platform": platform.platform()}
        chosen.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
