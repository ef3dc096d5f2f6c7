"""Where a sweep runs: on which kind of device, in how many workers, on how many devices each trial."""

from __future__ import annotations

import os

import torch

from study import team
from study.schema import EngineConfig, UsageError
from workloads.suggest import suggest

ENGINES = ("auto", "serial", "lanes")


def placement(engine: EngineConfig) -> tuple[str, int, int]:
    """(device, workers, devices of each): a GPU if there is one and a worker on it, else as many as the CPU has cores.

    Raises:
        UsageError: an engine setting that is impossible, here or at all.
    """
    device, workers = engine.device, engine.workers
    if engine.name not in ENGINES:
        raise UsageError(f"unknown engine.name {engine.name!r}{suggest(engine.name, ENGINES)}")
    if engine.lanes is not None and engine.lanes < 1:
        raise UsageError(f"engine.lanes must be at least 1, but got {engine.lanes}.")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind = torch.device(device).type
        if kind not in ("cpu", "cuda"):
            raise RuntimeError("only cpu and cuda devices can be")
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"engine.device {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    if workers is not None and workers < 1:
        raise UsageError(f"engine.workers must be at least 1, but got {workers}.")
    if engine.data_memory is not None and not engine.data_memory >= 0:
        raise UsageError(f"engine.data_memory must be a number of GiB of at least 0, but got {engine.data_memory}.")
    if engine.loaders < 0:
        raise UsageError(f"engine.loaders must be at least 0, but got {engine.loaders}.")
    started = team.launched()
    devices = _devices(engine, device, started)
    if started is not None and workers not in (None, 1):
        raise UsageError(f"torchrun starts one worker, on {devices} devices, but got engine.workers={workers}.")
    most = 1 if kind == "cuda" or started is not None else max(1, cores() // devices)
    return device, workers or most, devices


def _devices(engine: EngineConfig, device: str, started: team.Seat | None) -> int:
    """On how many devices each trial is trained: as asked for, or as torchrun has started processes."""
    devices = engine.devices or (1 if started is None else started.size)
    if engine.devices is not None and engine.devices < 1:
        raise UsageError(f"engine.devices must be at least 1, but got {engine.devices}.")
    if started is not None and devices != started.size:
        raise UsageError(f"torchrun started {started.size} processes, but got engine.devices={devices}; leave it out.")
    if devices == 1:
        return 1
    if engine.name == "lanes":
        raise UsageError(f"fused lanes train on one device, but got {devices}; leave out engine=lanes.")
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
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
