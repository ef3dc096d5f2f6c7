"""Where a sweep runs: on which kind of device, in how many workers, on how many devices each trial."""

from __future__ import annotations

import os

import torch

from study import team
from study.schema import EngineConfig, UsageError
from workloads.suggest import suggest

ENGINES = ("auto", "serial", "lanes")
GRANTED = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")
"""Environment variables with the cores that a job was given, which not every SLURM enforces."""


def judge(engine: EngineConfig) -> None:
    """Refuse what no machine could do.

    Raises:
        UsageError: of the engine's name, or of how many of something there are to be.
    """
    if engine.name not in ENGINES:
        raise UsageError(f"unknown engine.name {engine.name!r}{suggest(engine.name, ENGINES)}")
    for name in ("lanes", "workers", "devices"):
        count = getattr(engine, name)
        if count is not None and count < 1:
            raise UsageError(f"engine.{name} must be at least 1, but got {count}.")
    if engine.device.partition(":")[0] not in ("auto", "cpu", "cuda"):
        raise UsageError(f"engine.device must be auto, cpu, cuda or one such as cuda:1, but got {engine.device!r}.")
    if engine.data_memory is not None and not engine.data_memory >= 0:
        raise UsageError(f"engine.data_memory must be a number of GiB of at least 0, but got {engine.data_memory}.")
    if engine.loaders < 0:
        raise UsageError(f"engine.loaders must be at least 0, but got {engine.loaders}.")
    started = team.launched()
    devices = engine.devices or (started.size if started else 1)
    if devices > 1 and engine.name == "lanes":
        raise UsageError(f"fused lanes train on one device, but got {devices}; leave out engine=lanes.")


def usable(device: str) -> str:
    """The device of this machine that is asked for; `auto` is a GPU if there is one.

    Raises:
        UsageError: it cannot be used.
    """
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"engine.device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def settled(device: str, workers: int | None, devices: int | None) -> tuple[str, int, int]:
    """(device, workers, devices of each) on this machine: a worker on its GPU, else as many as the CPU has cores.

    Raises:
        UsageError: this machine has not what is asked for.
    """
    device, started = usable(device), team.launched()
    devices = _devices(device, devices, started)
    if started is not None and workers not in (None, 1):
        raise UsageError(f"torchrun starts one worker, on {devices} devices, but got engine.workers={workers}.")
    most = 1 if device.startswith("cuda") or started is not None else max(1, cores() // devices)
    return device, workers or most, devices


def _devices(device: str, asked: int | None, started: team.Seat | None) -> int:
    """On how many devices each trial is trained: as asked for, or as torchrun has started processes."""
    devices = asked or (1 if started is None else started.size)
    if started is not None and devices != started.size:
        raise UsageError(f"torchrun started {started.size} processes, but got engine.devices={devices}; leave it out.")
    if devices == 1:
        return 1
    if device not in ("cpu", "cuda"):
        raise UsageError(f"{devices} devices are the first ones of their kind, but got engine.device={device}.")
    here = devices if started is None else int(os.environ.get("LOCAL_WORLD_SIZE", devices))
    if device == "cuda" and here > torch.cuda.device_count():
        raise UsageError(
            f"engine.devices must be at most the {torch.cuda.device_count()} GPUs there are, but got {here}; "
            "engine.device=cpu takes processes instead."
        )
    return devices


def cores() -> int:
    """Cores this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = [os.environ[name] for name in GRANTED if os.environ.get(name, "").isdecimal()]
    return max(1, min(allowed, *map(int, granted))) if granted else allowed
