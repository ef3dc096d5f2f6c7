"""Share of a training step taken by each optimizer's update: lanes of the MLP 784-128-10, one process, one thread.

    python -m benchmarks.updates [--json FILE] [--optimizers adam,lamb] [--batch-size 32] [--lanes 8] [--rounds 5]

Whole steps and gradients alone are timed in turn; each figure is the median difference over rounds. Limit: at batch
size 32 the update of SGD, momentum, Nesterov, Adam and AdamW takes at most a third of a step. Takes about a minute.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import platform
import statistics
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from study.devices.machine import processor
from study.engine.cost import least_seconds
from study.engine.fused.linear_chain import LinearChain
from study.engine.fused.stack import Stack, Step
from study.optimizers import OPTIMIZERS
from study.workers.start import one_thread_environment
from workloads.base import cross_entropy_error
from workloads.fully_connected import FullyConnected

LIMIT = 1 / 3
LIMITED = ("sgd", "momentum", "nesterov", "adam", "adamw")
VALUES = {"learning_rate": 0.001, "momentum": 0.9, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
VALUES |= {"weight_decay": 0.01, "trust_coefficient": 0.01, "momentum_correction": 1.0, "precondition_frequency": 10.0}


def measured(name: str, batch_size: int, lanes: int, rounds: int) -> tuple[float, float]:
    """(seconds of one lane's step, the share of the update in it)."""
    workload = FullyConnected(name="mlp", dataset="mnist", train_examples=1, validation_examples=1, widths=(128,))
    optimizer, model = OPTIMIZERS[name], workload.model()
    stack = Stack(model, optimizer, lanes, LinearChain)
    for row in range(lanes):
        stack.load(row, model)
    step = stack.step(lanes)
    assert isinstance(step, Step)  # it has `form`, whose gradient is timed alone
    inputs, targets = torch.randn(lanes, batch_size, 784), torch.randint(10, (lanes * batch_size,))

    def loss(outputs: Tensor) -> Tensor:
        return cross_entropy_error(outputs.flatten(0, 1), targets)

    h = {key: torch.full((lanes, 1), VALUES[key]) for key in optimizer.hyperparameters}
    keys, counts = torch.zeros(lanes, 0, dtype=torch.int32), torch.full((lanes, 1), 5.0)
    made = 0

    def whole() -> None:
        nonlocal made
        made += 1
        step(inputs, loss, keys, h, counts)
        for row in range(lanes) if optimizer.refresh else ():
            stack.refresh(row, {key: VALUES[key] for key in h}, made)

    gradient = partial(step.form.backward, inputs, loss, keys)
    with torch.no_grad():
        pairs = [(average_seconds(whole), average_seconds(gradient)) for _ in range(rounds)]
    return statistics.median(a for a, _ in pairs) / lanes, statistics.median(1 - b / a for a, b in pairs)


def average_seconds(call: Callable[[], object], calls: int = 10) -> float:
    """Mean seconds of ten calls in a row, so that work done at every tenth call counts."""
    return least_seconds(lambda: [call() for _ in range(calls)], budget=0.1) / calls


def main() -> None:
    """Measure and print the table."""
    fusing = [name for name, optimizer in OPTIMIZERS.items() if optimizer.update is not None]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--optimizers", default=",".join(fusing))
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lanes", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = []
    with one_thread_environment():  # workers start in it, at their first call
        worker = ProcessPoolExecutor(1, mp.get_context("spawn"), torch.set_num_threads, (1,))
        worker.submit(int).result()
    print("optimizer         us a lane-step   update share   limit")
    with worker:
        for name in options.optimizers.split(","):
            asked = (name, options.batch_size, options.lanes, options.rounds)
            seconds, share = worker.submit(measured, *asked).result()
            rows.append({"optimizer": name, "seconds": seconds, "share": share})
            limit = "" if name not in LIMITED else "met" if share <= LIMIT else "MISSED"
            print(f"{name:16}{1e6 * seconds:15,.0f}{share:15.0%}   {limit}", flush=True)
    if options.json:
        machine = {"processor": processor(), "torch": torch.__version__, "platform": platform.platform()}
        what = {"batch_size": options.batch_size, "lanes": options.lanes}
        options.json.write_text(json.dumps({"machine": machine, **what, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
