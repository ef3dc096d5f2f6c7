"""Golden curves: the errors after a few updates of every model family when NUMERICS_VERSION was last raised.

    python tests/helpers/golden.py     rewrites golden.json; refuses if numbers changed but the version did not

The data are made from the raw output of PCG64, which numpy guarantees across releases, in the shape of the data set of
the published family. A case trains two trials side by side if its arithmetic has lanes, otherwise in turn.
"""

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from analysis.counting import Goal
from study import records
from study.data.resident import Data
from study.engine import lanes, serial
from study.engine.trial.proposals import Proposals
from study.records import Study, Trial
from study.settings import Budget, Evaluation, Search, Seeds
from study.space import parse_space
from workloads.base import Splits
from workloads.data.datasets import DATASETS
from workloads.user_code.importing import build

FILE = Path(__file__).parents[1] / "data" / "golden.json"
TOLERANCE = 1e-4
"""Relative, of every cross entropy. SSE4, AVX2 and AVX-512 kernels were found to agree within 1e-6 and, where a ReLU's
sign flips, 1e-5; a learning rate that is 0.1 % larger alters 4e-4 or more of each case."""
CURE = (
    "the numbers changed. If on purpose, raise NUMERICS_VERSION in study/records.py and write new golden curves: "
    "python tests/helpers/golden.py"
)

SOFTMAX = {"_target_": "workloads.fully_connected.FullyConnected", "dataset": "mnist", "widths": []}
MLP = SOFTMAX | {"widths": [32, 16]}
WIDE = SOFTMAX | {"widths": [128]}
CNN = {"_target_": "workloads.simple_cnn.SimpleCNN", "dataset": "mnist", "size": "narrow"}
RESNET = {"_target_": "workloads.resnet_cifar.ResNetCifar", "dataset": "cifar10"}
GHOSTS = {
    "_target_": "workloads.images.resnet.ResNet",
    "dataset": "digits",
    "depth": 8,
    "width": 8,
    "stem": "cifar",
    "ghost_batch": 4,
}
VGG = {
    "_target_": "workloads.images.vgg.Vgg",
    "dataset": "digits",
    "convolutions": [1, 2],
    "filters": [8, 16],
    "units": [32],
}
VIT = {
    "_target_": "workloads.images.vit.Vit",
    "dataset": "digits",
    "width": 16,
    "depth": 2,
    "heads": 2,
    "mlp_width": 32,
    "patch": 4,
}


@dataclass(frozen=True)
class Case:
    """A family, its optimizer and its hyperparameters; the second trial has half the learning rate."""

    workload: Mapping[str, Any]
    arithmetic: str
    learning_rate: float
    batch_size: int = 8
    steps: int = 12
    optimizer: str = "momentum"
    schedule: str = "constant"
    hyperparameters: Mapping[str, float] = field(default_factory=lambda: {"momentum": 0.9})


ADAM = {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6}
DECAY = {"learning_rate_decay_fraction": 0.7, "end_learning_rate_factor": 0.1, "label_smoothing": 0.1}
CASES = {
    "softmax linear_chain": Case(SOFTMAX, "linear_chain", 0.0005),
    "softmax plain": Case(SOFTMAX, "plain", 0.0005),
    "mlp linear_chain": Case(MLP, "linear_chain", 0.01),
    "mlp linear_blocks": Case(MLP, "linear_blocks", 0.01),
    "mlp linear_blocks_onednn": Case(MLP, "linear_blocks_onednn", 0.01),
    "wide linear_chain_onednn": Case(WIDE, "linear_chain_onednn", 0.01, batch_size=32),
    "mlp plain": Case(MLP, "plain", 0.01),
    "mlp linear_chain decay": Case(
        MLP, "linear_chain", 0.05, schedule="linear_decay", hyperparameters={"momentum": 0.5, **DECAY}
    ),
    "simple_cnn plain": Case(CNN, "plain", 0.01),
    "simple_cnn vmap": Case(CNN, "vmap", 0.01, batch_size=2),
    "simple_cnn plain adam": Case(CNN, "plain", 0.0005, optimizer="adam", hyperparameters=ADAM),
    "resnet_8 plain": Case(RESNET, "plain", 0.05, steps=6),
    "resnet_8 vmap": Case(RESNET, "vmap", 0.02, batch_size=2, steps=6, hyperparameters={"momentum": 0.5}),
    "ghosts plain": Case(GHOSTS, "plain", 0.1),
    "ghosts vmap": Case(GHOSTS, "vmap", 0.2, hyperparameters={"momentum": 0.5}),
    "vgg plain": Case(VGG, "plain", 0.02),
    "vit vmap adam": Case(VIT, "vmap", 0.02, optimizer="adam", hyperparameters=ADAM),
}


def uniform(seed: int, *shape: int) -> Tensor:
    """Numbers in [0, 1) [*shape], multiples of 2^-24 and so exact in float32."""
    raw = np.random.PCG64(seed).random_raw(math.prod(shape))
    return torch.from_numpy((raw >> np.uint64(40)).astype(np.float32) / np.float32(2**24)).view(shape)


def data(dataset: str) -> Data:
    """Noise on ten smooth pictures, with the classes in turn."""
    shape = DATASETS[dataset].shape
    pictures = torch.nn.functional.interpolate(uniform(0, 10, shape[0], 4, 4), size=shape[1:], mode="nearest")

    def split(seed: int, count: int) -> tuple[Tensor, Tensor]:
        targets = torch.arange(count) % 10
        return 4 * pictures[targets] + uniform(seed, count, *shape) - 2.5, targets

    return Data.of(Splits(split(1, 60), split(2, 30), split(3, 20)))


def study_of(case: Case) -> Study:
    """The study of both trials of a case."""
    values = {"learning_rate": [case.learning_rate, case.learning_rate / 2]}
    values |= {name: [value] for name, value in case.hyperparameters.items()}
    return Study(
        workload={"name": "golden", "train_examples": 60, "validation_examples": 30, **case.workload},
        optimizer=case.optimizer,
        schedule=case.schedule,
        batch_size=case.batch_size,
        goal=Goal("val/classification_error", 0.01),
        budget=Budget(epochs=0, steps=case.steps),
        search=Search("sobol", 2, parse_space({name: {"choices": choices} for name, choices in values.items()})),
        stopping="budget",
        evaluation=Evaluation(first=1 / case.steps, ratio=2.0, every=2),
        arithmetic=case.arithmetic,
        seeds=Seeds(shared=True),
    )


class Both(Proposals):
    """Both trials of a case, one after the other."""

    def __init__(self, study: Study, case: Case) -> None:
        self.limit = study.train_steps
        rates = (case.learning_rate, case.learning_rate / 2)
        self.trials = [study.trial(i, {"learning_rate": r, **case.hyperparameters}) for i, r in enumerate(rates)]

    def ask(self, wait: bool) -> Trial | None:
        return self.trials.pop(0) if self.trials else None

    def step_limit(self, index: int) -> int:
        return self.limit


def measured(case: Case) -> dict[str, list[float | None]]:
    """Trial and metric -> the value at each evaluation, None where it was not measured."""
    study = study_of(case)
    workload, examples = build(study.workload), data(case.workload["dataset"])
    question = study, workload, examples, Both(study, case)
    curves = serial.train(*question) if case.arithmetic == "plain" else lanes.train(*question, heights=(4,), most=4)
    return {
        f"trial {curve.trial.index} {metric}": [
            None if math.isnan(value) else float(f"{value:.8g}") for value in values
        ]
        for curve in sorted(curves, key=lambda curve: curve.trial.index)
        for metric, values in curve.errors.items()
        if metric.endswith("cross_entropy_error")
    }


def departure(old: Mapping[str, list[float | None]], new: Mapping[str, list[float | None]]) -> float:
    """The largest relative difference between two curves; infinite if they have different evaluations."""
    known = [{k: [v is None for v in values] for k, values in curve.items()} for curve in (old, new)]
    if known[0] != known[1]:
        return math.inf
    pairs = [(a, b) for key in old for a, b in zip(old[key], new[key], strict=True) if a is not None and b is not None]
    return max(abs(b - a) / abs(a) if math.isfinite(b) else math.inf for a, b in pairs)


def write(path: Path = FILE) -> str:
    """Write the curves of every case; returns a summary.

    Raises:
        ValueError: numbers changed, but the version in the file did not.
    """
    new = {name: measured(case) for name, case in CASES.items()}
    held = json.loads(path.read_text()) if path.exists() else {"numerics_version": None, "curves": {}}
    if held["numerics_version"] == records.NUMERICS_VERSION:
        old = held["curves"]
        changed = [name for name in old if name in new and departure(old[name], new[name]) > TOLERANCE]
        if changed:
            raise ValueError(f"{', '.join(changed)}: {CURE}")
        new = {name: old.get(name, curve) for name, curve in new.items()}  # ignore the last bits of another CPU
    lines = [f"  {json.dumps(name)}: {_lines(curve)}" for name, curve in new.items()]
    text = ",\n".join(lines)
    path.write_text(f'{{\n "numerics_version": {records.NUMERICS_VERSION},\n "curves": {{\n{text}\n }}\n}}\n')
    return f"{path.name}: {len(new)} curves of version {records.NUMERICS_VERSION}"


def _lines(curve: Mapping[str, list[float | None]]) -> str:
    """One metric a line, so that a diff shows the changes."""
    return "{\n" + ",\n".join(f"   {json.dumps(key)}: {json.dumps(values)}" for key, values in curve.items()) + "\n  }"


if __name__ == "__main__":
    torch.set_num_threads(1)
    try:
        print(write())
    except ValueError as refusal:
        sys.exit(f"golden: {refusal}")
