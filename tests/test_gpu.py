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
TAME = ["search.space.learning_rate=[0.01,0.02]", "search.space.momentum=[0.0,0.5]"]


def losses(folder: Path) -> np.ndarray:
    [path] = folder.glob("studies/*/*/*/curves.parquet")
    return pq.read_table(path)["val/cross_entropy_error"].to_numpy()


@pytest.mark.parametrize("engine", ["serial", "lanes"])
def test_the_gpu_agrees_with_the_cpus_serial_engine(tmp_path: Path, engine: str) -> None:
    for folder, how in (("cpu", ["engine=serial", "engine.device=cpu"]), ("gpu", [f"engine={engine}"])):
        assert main(["sweep", *SMALL, *TAME, *how, f"results={tmp_path / folder}"]) == 0
    np.testing.assert_allclose(losses(tmp_path / "gpu"), losses(tmp_path / "cpu"), rtol=TOLERANCE)


def test_a_gpu_is_used_without_being_told() -> None:
    [job] = config.jobs(["batch_size=32"])
    assert job.device == "cuda"
