"""Each benchmark runs from start to end, on as little work as it allows. What it measures is not tested."""

import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from helpers.fused import seldom

from benchmarks import engine
from study.workers.pool import TrialTooLarge

ROOT = Path(__file__).parents[2]
SMALLEST = {
    "engine": "--models softmax --batch-sizes 2 --rounds 1 --seconds 0.05 --made-up-data",
    "analysis": "--rows 40_000 --trials 5",
    "store": "--trials 5",
    "sweep": "--rounds 1 search=sobol search.trials=3 search.reruns=0 batch_size=64",
    "gpu.lanes": "--device cpu --models softmax --batch-sizes 2 --minutes 0.01 --made-up-data --precision fp32",
    "steps": "--models mlp1024 --batch-sizes 64 --steps 1 --made-up-data",
    "updates": "--optimizers adam --rounds 1",
}
"""Module in `benchmarks` -> the arguments of its smallest run. Others need data, clusters, a GPU or an hour."""


@pytest.mark.parametrize("name", seldom(SMALLEST))
def test_it_runs(name: str) -> None:
    program = [sys.executable, "-m", f"benchmarks.{name}", *SMALLEST[name].split()]
    ran = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=False)
    assert "Traceback" not in ran.stderr, ran.stderr
    assert ran.returncode == 0 or "imit" in ran.stdout + ran.stderr, ran.stdout + ran.stderr
    assert ran.stdout


@pytest.mark.slow
def test_they_are_imported_without_the_dev_extra():
    program = """
import sys
from importlib import import_module
sys.modules |= dict.fromkeys(["pytorch_optimizer", "pytest", "hypothesis", "tokenizers", "PIL", "setuptools"])
for module in sys.argv[1:]:
    import_module(f"benchmarks.{module}")
"""
    modules = sorted(file.stem for file in (ROOT / "benchmarks").glob("[a-z]*.py"))
    assert len(modules) > 9
    subprocess.run([sys.executable, "-c", program, *modules], cwd=ROOT, check=True)


def test_a_study_that_fits_on_no_worker_ends_with_the_message_of_the_pool():
    with mock.patch.object(engine, "Workers") as workers:
        workers.return_value.__enter__.return_value.measure.return_value = [TrialTooLarge("needs 20 GiB")]
        with pytest.raises(TrialTooLarge, match="20 GiB"):
            engine.measured(mock.Mock(), mock.Mock(), mock.Mock(), mock.MagicMock(), "cpu", 1, 0.1)
