"""Data that are streamed make the same curves as data on the device, and leave no process behind."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers import desks
from helpers.blobs import CPU, Blobs
from helpers.desks import Desk, assert_same_bits, fixed_trial
from helpers.fused import partly
from helpers.processes import alive, children, started, tables, wait_until, workers
from torch.utils.data import Dataset, TensorDataset

from study.__main__ import main
from study.data import streaming
from study.data.order import Batches
from study.data.resident import Data
from study.data.streaming import Streamed
from study.devices.memory import device_bytes
from study.records import Study
from study.settings import Evaluation
from workloads.base import Splits

STEPS = 12


class Pairs(Dataset):
    """(input, target) of tensors one by one, as a user would read files."""

    def __init__(self, split: Any) -> None:
        self.split = split

    def __len__(self) -> int:
        return len(self.split[1])

    def __getitem__(self, number: int) -> tuple[np.ndarray, int]:
        return self.split[0][number].numpy(), int(self.split[1][number])


KINDS = {
    "tensors": lambda split: split,
    "data set": Pairs,
    "data set that reads many at once": lambda split: TensorDataset(*split),
}


@pytest.fixture
def question(make_study: Any) -> Any:
    """Of 64 examples: batches straddle epochs."""
    space, grid = {"learning_rate": 0.1, "momentum": 0.9}, Evaluation(first=0.25, ratio=1.5)
    return partial(make_study, space, batch_size=10, steps=STEPS, evaluation=grid)


def trained(study: Study, workload: Any, data: Any = None, desk: Desk | None = None) -> Any:
    return desks.trained(study, desk or Desk([fixed_trial(study)]), workload=workload, data=data)


def streamed(workload: Any, kind: str = "tensors", loaders: int = 1) -> Streamed:
    splits = Splits(*map(KINDS[kind], workload.splits(CPU)))
    found = streaming.source(splits, "cpu", 0.0, loaders)
    assert isinstance(found, Streamed)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "loaders", "images", "micro_batch"),
    # Each pair of kind, images and micro-batch once.
    partly(
        [
            (kind, loaders, (row + second) % 2 == 1, 4 if (row // 2 + second) % 2 else None)
            for row, (kind, loaders) in enumerate(
                [("tensors", 0), ("tensors", 2), ("data set", 1), (list(KINDS)[2], 0)]
            )
            for second in (0, 1)
        ],
        2,
    ),
)
def test_curves_are_those_of_resident_data_bit_for_bit(question, kind, loaders, images, micro_batch):
    workload, study = Blobs(images=images), question(micro_batch=micro_batch)
    resident = trained(study, workload)
    data = streamed(workload, kind, loaders)
    for _ in range(2):  # trials follow each other
        assert_same_bits(trained(study, workload, data), resident)


def test_batches_are_asked_for_in_any_order(question):
    workload = Blobs()
    resident = workload.data()
    order, parts = Batches(3, 64, 10, CPU), [slice(0, 6), slice(6, 10)]
    reading = [data.reader(order, parts) for data in (resident, streamed(workload))]
    for asked in ((0, 0), (0, 1), (0, 0), (0, 0), (1, 0), (7, 1), (8, 0), (8, 1), (2, 0), (11, 1)):
        for one, other in zip(*(read(*asked) for read in reading), strict=True):
            assert torch.equal(one, other), asked


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_trial_goes_on_from_a_checkpoint_with_the_same_batches(question, loaders):
    workload, study = Blobs(images=True), question(micro_batch=4)
    data = streamed(workload, loaders=loaders)
    trial = fixed_trial(study)
    resident = trained(study, workload)
    desk = Desk([trial], minutes=0)
    assert_same_bits(trained(study, workload, data, desk), resident)
    for _, kept in desk.taken[1::4]:
        assert_same_bits(trained(study, workload, data, Desk([trial], kept={0: kept})), resident)


def test_reading_leaves_the_global_generator_alone(question):
    state = torch.get_rng_state()
    trained(question(), Blobs(), streamed(Blobs(), loaders=0))
    assert torch.equal(torch.get_rng_state(), state)


def test_what_fits_stays_on_the_device():
    splits = Blobs().splits(CPU)
    held = sum(tensor.nbytes for split in splits for tensor in split)
    assert not streaming.needed(splits, "cpu", None)
    assert not streaming.needed(splits, "cpu", held / 2**30)
    assert streaming.needed(splits, "cpu", (held - 1) / 2**30)
    assert streaming.needed(splits._replace(test=TensorDataset(*splits.test)), "cpu", None)
    assert isinstance(streaming.source(splits, "cpu", None, 2), Data)
    assert held < streaming.DATA_SHARE * device_bytes("cpu")


@pytest.mark.slow
@pytest.mark.parametrize("devices", [pytest.param(1, marks=pytest.mark.release), 2])
def test_a_sweep_of_a_mapped_file(mapped, devices, capsys):
    words, results = mapped("Mapped")
    assert main([*words, f"engine.devices={devices}", "engine.loaders=1", f"results={results}"]) == 0
    assert (results / "report.html").exists()
    [path] = results.glob("studies/*/*/*/study.json")
    assert json.loads(path.read_text())["question"]["arithmetic"] == "plain"
    wait_until(lambda: not alive(workers(os.getpid())), seconds=10)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_loaders_die_with_their_worker_and_that_with_its_parent(mapped):
    words, results = mapped("Mapped", trials=5, steps=100_000)
    process = started(results, words)
    theirs = workers(process.pid)
    # Loaders for training and for evaluating, two each.
    wait_until(lambda: all(len(children(worker)) >= 4 for worker in theirs))
    loaders = {loader for worker in theirs for loader in children(worker)}
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(theirs | loaders), seconds=15)


@pytest.mark.slow
def test_a_sweep_of_more_than_the_memory_given_is_the_same(tmp_path):
    small = [
        "sweep",
        "batch_size=256",
        "search.trials=2",
        "search.reruns=0",
        "budget.epochs=2",
        "engine=serial",
        "engine.workers=1",
    ]
    for folder, asked in (("resident", []), ("streamed", ["engine.data_memory=1e-6", "engine.loaders=1"])):
        assert main([*small, *asked, f"results={tmp_path / folder}"]) == 0
    assert tables(tmp_path / "resident") == tables(tmp_path / "streamed")


@pytest.mark.parametrize("loaders", [1, 2])
def test_loaders_start_with_the_data_before_training_starts_threads(loaders):
    before = children(os.getpid())
    data = streamed(Blobs(), loaders=loaders)
    assert len(children(os.getpid()) - before) == 2 * loaders
    there = children(os.getpid())
    list(data.chunks("val", range(8), 4))
    assert children(os.getpid()) == there
