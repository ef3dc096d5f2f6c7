"""What a step of the plain engine spends its time on: processor time of each operation, one process, one thread.

    python -m benchmarks.steps [--json FILE] [--models resnet8,cnn,mlp1024] [--batch-sizes 1024,2048] [--steps 3]
        [--made-up-data]

The `torch.profiler` counts the time of each operation without those that it calls; Python between them is the rest of
the processor time of the process. All models take about two minutes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import platform
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.engine import RATE, loaded, study_of
from study.data.resident import Data
from study.devices.placement import settle_arithmetic
from study.engine.serial import Run
from study.records import Study
from study.run import _processor
from study.search.tuner import point
from study.space import values
from study.workers.start import one_thread_environment

KINDS = {
    "products": ("convolution", "mm", "addmm", "bmm", "linear"),
    "ReLU": ("relu", "threshold", "clamp"),
    "pooling": ("pool",),
    "normalisation": ("norm",),
    "loss": ("softmax", "nll", "cross_entropy", "scatter", "one_hot"),
    "update": ("fused_sgd", "fused_adam", "foreach"),
    "batch": ("index", "gather", "randperm"),
    "copies": ("copy", "clone", "contiguous", "cat", "pad", "fill", "zero", "empty", "slice"),
    "sums": ("add", "sum", "mean", "mul", "div", "sub"),
}
"""Kind of work -> parts of the names of its operations; the first that matches counts."""
OTHER, PYTHON = "other operations", "Python"


def kind(operation: str) -> str:
    """The kind of work of an operation such as `aten::mkldnn_convolution`."""
    name = operation.rpartition("::")[2].lower()
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), OTHER)


def measured(study: Study, steps: int) -> tuple[dict[str, float], dict[str, float]]:
    """(seconds a step of each kind of work, seconds a step of each operation)."""
    workload, splits = loaded(json.dumps(study.workload))
    study = replace(study, arithmetic="plain")
    run = Run(study, workload, Data.of(splits, torch.device("cpu")), _trial(study))

    def update() -> None:
        run.update(RATE)
        run.step += 1

    update()
    update()
    start = time.process_time()
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        for _ in range(steps):
            update()
    whole = (time.process_time() - start) / steps
    operations = Counter[str]()
    for each in recorded.key_averages():
        operations[each.key] += each.self_cpu_time_total * 1e-6 / steps
    kinds = Counter[str]()
    for name, seconds in operations.items():
        kinds[kind(name)] += seconds
    kinds[PYTHON] = max(0.0, whole - sum(kinds.values()))
    return dict(kinds), dict(operations)


def _trial(study: Study):
    return study.trial(0, values(study.search.space, point(study, 0)))
