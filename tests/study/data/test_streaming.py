"""Data that are streamed make the same curves as data on the device, and leave no process behind."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.blobs import Blobs
from helpers.checkpointed import Desk
from helpers.made_workload import MappedFile
from helpers.processes import alive, children, started, tables, wait_until
from torch.utils.data import Dataset, TensorDataset

from study.__main__ import main
from study.data import streaming
from study.data.order import Batches
from study.data.resident import Data
from study.data.streaming import Streamed
from study.devices.memory import device_bytes
from study.engine import serial
from study.records import Budget, Evaluation, Study, Trial
from workloads.base import Splits

STEPS = 12
CPU = torch.device("cpu")


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
    def make(**fields: Any) -> Study:
        defaults: dict[str, Any] = {
            "space": {"learning_rate": 0.1, "momentum": 0.9},
            "batch_size": 10,
            "stopping": "budget",
            "budget": Budget(epochs=0, steps=STEPS),  # of 64 examples: batches straddle epochs
            "evaluation": Evaluation(first=0.25, ratio=1.5),
        }
        return make_study(**defaults | fields)

    return make


def trial_of(study: Study) -> Trial:
    return study.trial(0, {"learning_rate": 0.1, "momentum": 0.9})


def trained(study: Study, workload: Any, data: Any, desk: Desk | None = None) -> Any:
    [curve] = serial.train(
        study, workload, data, desk or Desk([study.trial(0, {"learning_rate": 0.1, "momentum": 0.9})])
    )
    return curve


def streamed(workload: Any, kind: str = "tensors", loaders: int = 1) -> Streamed:
    splits = Splits(*map(KINDS[kind], workload.splits(CPU)))
    found = streaming.source(splits, "cpu", 0.0, loaders)
    assert isinstance(found, Streamed)
    return found


def assert_same_bits(one: Any, other: Any) -> None:
    assert one.steps.tolist() == other.steps.tolist()
    for metric, errors in one.errors.items():
        assert errors.tobytes() == other.errors[metric].tobytes(), metric


@pytest.mark.parametrize(
    ("kind", "loaders", "images", "micro_batch"),
    # Each pair of kind, images and micro-batch once.
    [
        (kind, loaders, images, 4 if (row + images) % 2 else None)
        for row, (kind, loaders) in enumerate([("tensors", 0), ("tensors", 2), ("data set", 1), (list(KINDS)[2], 0)])
        for images in (False, True)
    ],
)
def test_curves_are_those_of_resident_data_bit_for_bit(question, kind, loaders, images, micro_batch):
    workload, study = Blobs(images=images), question(micro_batch=micro_batch)
    resident = trained(study, workload, Data.of(workload.splits(CPU)))
    data = streamed(workload, kind, loaders)
    for _ in range(2):  # trials follow each other
        assert_same_bits(trained(study, workload, data), resident)


def test_batches_are_asked_for_in_any_order(question):
    workload = Blobs()
    resident = Data.of(workload.splits(CPU))
    order, parts = Batches(3, 64, 10, CPU), [slice(0, 6), slice(6, 10)]
    reading = [data.reader(order, parts) for data in (resident, streamed(workload))]
    for asked in ((0, 0), (0, 1), (0, 0), (0, 0), (1, 0), (7, 1), (8, 0), (8, 1), (2, 0), (11, 1)):
        for one, other in zip(*(read(*asked) for read in reading), strict=True):
            assert torch.equal(one, other), asked


@pytest.mark.parametrize("loaders", [0, 1])
def test_a_trial_goes_on_from_a_checkpoint_with_the_same_batches(question, loaders):
    workload, study = Blobs(images=True), question(micro_batch=4)
    data = streamed(workload, loaders=loaders)
    trial = trial_of(study)
    resident = trained(study, workload, Data.of(workload.splits(CPU)))
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


YAML = """\
# @package _global_
workload:
  _target_: helpers.made_workload.Mapped
  name: mapped
  train_examples: 4000
  folder: {folder}
goal: val/classification_error < 0.2
batch_sizes: [32]
budget: {{epochs: 0, steps: {steps}}}
search: {{trials: {trials}}}
stopping: budget
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Words of a sweep of Mapped, and its results folder."""

    def make(trials: int = 2, steps: int = 40) -> tuple[list[str], Path]:
        (tmp_path / "workload").mkdir()
        (tmp_path / "workload" / "mapped.yaml").write_text(YAML.format(folder=tmp_path, steps=steps, trials=trials))
        MappedFile.write(tmp_path, 4000)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parents[2]), *sys.path]))
        words = ["sweep", "--config-dir", str(tmp_path), "workload=mapped", "engine.workers=1"]
        return words, tmp_path / "results"

    return make


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 2])
def test_a_sweep_of_a_mapped_file(mine, devices, capsys):
    words, results = mine()
    assert main([*words, f"engine.devices={devices}", "engine.loaders=1", f"results={results}"]) == 0
    assert (results / "report.html").exists()
    [path] = results.glob("studies/*/*/*/study.json")
    assert json.loads(path.read_text())["question"]["arithmetic"] == "plain"
    wait_until(lambda: not alive(children(os.getpid())), seconds=10)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_loaders_die_with_their_worker_and_that_with_its_parent(mine):
    words, results = mine(trials=5, steps=100_000)
    process = started(results, words)
    workers = children(process.pid)
    wait_until(lambda: any(offspring(worker) for worker in workers))
    wait_until(lambda: all(len(offspring(worker)) >= 4 for worker in workers))  # training and evaluating, two each
    loaders = {loader for worker in workers for loader in offspring(worker)}
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(workers | loaders), seconds=15)


def offspring(pid: int) -> set[int]:
    """Processes started by `pid`."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            if f"PPid:\t{pid}\n" in status.read_text():
                found.add(int(status.parent.name))
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_sweep_of_more_than_the_memory_given_is_the_same(tmp_path):
    small = ["sweep", "batch_size=256", "search.trials=2", "budget.epochs=2", "engine=serial", "engine.workers=1"]
    for folder, asked in (("resident", []), ("streamed", ["engine.data_memory=1e-6", "engine.loaders=1"])):
        assert main([*small, *asked, f"results={tmp_path / folder}"]) == 0
    assert tables(tmp_path / "resident") == tables(tmp_path / "streamed")
