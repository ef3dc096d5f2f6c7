"""Updates on a device leave the host out: they run on one that has no values, where every look at one is an error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from fused import CASES, FUSING, Queue
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from study.evaluation import Data
from study.lanes import Lanes
from study.optimizers import OPTIMIZERS
from study.serial import Run

META = torch.device("meta")
FREE = [name for name in FUSING if OPTIMIZERS[name].refresh is None]
"""What is done now and then, by factors of matrices, looks at them first."""
OURS = [name for name in FREE if OPTIMIZERS[name].build is None]
"""Fused kernels of `torch.optim` want a device that has values."""


class Transfers(TorchDispatchMode):
    """Counts the tensors that go from one device to another."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        found = function(*arguments, **keywords or {})
        if "copy" in function.name():
            tensors = [leaf for leaf in tree_leaves((arguments, found)) if isinstance(leaf, torch.Tensor)]
            self.count += len({tensor.device.type for tensor in tensors}) > 1
        return found


def transfers(work: Callable[[], object]) -> int:
    with Transfers() as mode:
        work()
    return mode.count


@pytest.mark.parametrize("optimizer", FREE)
@pytest.mark.parametrize("how", ["bmm", "vmap"])
def test_steps_of_lanes_wait_for_nothing(question, optimizer, how):
    study = question(how, optimizer)
    lanes = Lanes(study, CASES[how], Data.of(CASES[how].splits(torch.device("cpu")), META), [4], 4)
    for trial in Queue(study, range(4)).trials:
        lanes.start(trial)
    lanes._segment(2)  # reads the order of the examples
    few, many = (transfers(lambda steps=steps: lanes._segment(steps)) for steps in (2, 9))
    assert few == many  # tables of a segment alone, however long it is


@pytest.mark.parametrize("how", ["bmm", "vmap"])
def test_an_update_of_lanes_is_one_of_all_parameters(question, how):
    """Else each operation of its rule is a launch for every parameter."""
    study = question(how, "adam")
    data = Data.of(CASES[how].splits(torch.device("cpu")), META)
    assert len(Lanes(study, CASES[how], data, [4], 4).stack.step(4).parts) == 1


@pytest.mark.parametrize("optimizer", OURS)
@pytest.mark.parametrize("micro_batch", [None, 4])
def test_steps_of_a_trial_alone_wait_for_nothing(question, optimizer, micro_batch):
    study = question("vmap", optimizer)
    data = Data.of(CASES["vmap"].splits(torch.device("cpu")), META)
    run = Run(study, CASES["vmap"], data, Queue(study, [0]).trials[0], micro_batch)

    def update() -> None:
        assert run.update(0.1).device == META
        run.step += 1

    update()  # reads the order of the examples
    assert transfers(update) == 0
