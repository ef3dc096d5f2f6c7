"""On a CUDA device: lanes agree with the CPU's serial engine to a tolerance, and a sweep finds the GPU itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from study import config
from study.__main__ import main

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")]

TOLERANCE = 1e-2  # relative, of the validation cross entropy after 60 updates
SMALL = ["batch_size=32", "search.trials=6", "budget.epochs=0", "budget.steps=60", "stopping=budget"]
TAME = {
    "momentum": ["search.space.learning_rate=[0.01,0.02]", "search.space.momentum=[0.0,0.5]"],
    "folded_momentum": ["search.space.learning_rate=[0.01,0.02]", "search.space.momentum=0.5"],
    "rmsprop": ["search.space.learning_rate=[0.0005,0.001]", "search.space.beta2=0.99"],
    "adam": ["search.space.learning_rate=[0.001,0.002]", "search.space.beta1=0.9"],
    "nadam": ["search.space.learning_rate=[0.001,0.002]", "search.space.beta1=0.9"],
    "lars": ["search.space.learning_rate=[1.0,2.0]", "search.space.momentum=0.5"],
    "lamb": ["search.space.learning_rate=[0.005,0.01]", "search.space.beta1=0.9"],
    "muon": ["search.space.learning_rate=[0.001,0.002]", "search.space.momentum=0.9"],
}
"""Configurations that rounding leaves alone; signs and null spaces (Lion, SOAP) it does not."""


def losses(folder: Path) -> np.ndarray:
    [path] = folder.glob("studies/*/*/*/curves.parquet")
    return pq.read_table(path)["val/cross_entropy_error"].to_numpy()


@pytest.mark.parametrize("optimizer", TAME)
@pytest.mark.parametrize("engine", ["serial", "lanes"])
def test_the_gpu_agrees_with_the_cpus_serial_engine(tmp_path: Path, engine: str, optimizer: str) -> None:
    for folder, how in (("cpu", ["engine=serial", "engine.device=cpu"]), ("gpu", [f"engine={engine}"])):
        asked = [f"optimizer={optimizer}", *TAME[optimizer], *how]
        assert main(["sweep", *SMALL, *asked, f"results={tmp_path / folder}"]) == 0
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=TOLERANCE)


def test_a_gpu_is_used_without_being_told() -> None:
    [job] = config.materialise(config.jobs(["batch_size=32"]))
    assert job.engine.device == "cuda"
