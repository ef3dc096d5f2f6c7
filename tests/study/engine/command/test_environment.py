"""The environment of commands: the Python of the sweep, a share of the cores, and the GPU of the worker."""

import os
import sys
from pathlib import Path

import pytest
import torch

from study.devices.placement import Placement
from study.engine.command import environment as commands
from study.engine.command.environment import environment
from study.user_code.compilers import DISABLE, uncompiled


def test_python_is_that_of_the_sweep_and_threads_are_shared(monkeypatch):
    monkeypatch.setattr(commands, "cores", lambda: 8)
    found = environment({"PATH": "/usr/bin", "HOME": "/home"}, Placement(device="cpu", workers=2), 0)
    assert found["PATH"] == f"{Path(sys.executable).parent}:/usr/bin"
    assert (found["HOME"], found["OMP_NUM_THREADS"]) == ("/home", "4")
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert environment({"OMP_NUM_THREADS": "3"}, Placement(device="cpu"), 0)["OMP_NUM_THREADS"] == "3"


def test_scripts_compile_although_the_workloads_of_a_sweep_do_not():
    with uncompiled():
        found = environment(dict(os.environ), Placement(device="cpu"), 0)
    assert DISABLE not in found


@pytest.mark.parametrize(
    ("device", "visible", "given"),
    [("cuda", None, ["0", "1", "0"]), ("cuda", "4,6", ["4", "6", "4"]), ("cuda:1", "4,6", ["6", "6", "6"])],
)
def test_workers_take_the_gpus_in_turn(monkeypatch, device, visible, given):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    placement = Placement(device=device, workers=3)
    assert [environment({}, placement, number)["CUDA_VISIBLE_DEVICES"] for number in range(3)] == given
