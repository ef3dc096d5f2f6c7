"""Where a sweep runs: on which kind of device, in how many workers, on how many devices each trial."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

import torch

from study.devices import distributed
from study.errors import UsageError
from workloads.suggest import suggest

ENGINES = ("auto", "serial", "lanes")
GRANTED = ("SLURM_CPUS_PER_TASK", "SLURM_CPUS_ON_NODE")
"""Environment variables with the cores that a job was given, which not every SLURM enforces."""


@dataclass(frozen=True)
class Placement:
    """How trials are run, as asked for or as a machine has `settled` it.

    Attributes:
        name: `auto`, `serial` or `lanes`.
        device: such as `cpu` or `cuda:1`; `auto`: a GPU if there is one.
        workers: processes that train; None: as many as there are cores or GPUs for. Each takes the next GPU.
        devices: on which each trial is trained; above 1 a worker is a team of as many processes. None: one,
            or as many as torchrun has started processes.
        lanes: trials that a worker trains at once; None: as many as pay.
        data_memory: GiB of data that a process may hold on its device; None: a share of the device's memory.
        loaders: processes with which each reads data that do not fit.
        checkpoint_minutes: from one checkpoint of the trials under way to the next; None: never.

    Raises:
        UsageError: no machine could do what is asked.
    """

    name: str = "auto"
    device: str = "auto"
    workers: int | None = None
    devices: int | None = None
    lanes: int | None = None
    data_memory: float | None = None
    loaders: int = 2
    checkpoint_minutes: float | None = 10.0

    def __post_init__(self) -> None:
        if self.name not in ENGINES:
            raise UsageError(f"unknown engine.name {self.name!r}{suggest(self.name, ENGINES)}")
        for name in ("lanes", "workers", "devices"):
            count = getattr(self, name)
            if count is not None and count < 1:
                raise UsageError(f"engine.{name} must be at least 1, but got {count}.")
        if self.device.partition(":")[0] not in ("auto", "cpu", "cuda"):
            raise UsageError(f"engine.device must be auto, cpu, cuda or one such as cuda:1, but got {self.device!r}.")
        if self.data_memory is not None and not self.data_memory >= 0:
            raise UsageError(f"engine.data_memory must be a number of GiB of at least 0, but got {self.data_memory}.")
        if self.loaders < 0:
            raise UsageError(f"engine.loaders must be at least 0, but got {self.loaders}.")
        minutes = self.checkpoint_minutes
        if minutes is not None and not (math.isfinite(minutes) and minutes >= 0):
            raise UsageError(
                f"checkpoint.minutes must be a number of at least 0, or null for never, but got {minutes:g}."
            )
        started = distributed.launched()
        devices = self.devices or (started.size if started else 1)
        if devices > 1 and self.name == "lanes":
            raise UsageError(f"fused lanes train on one device, but got {devices}; leave out engine=lanes.")

    @property
    def place(self) -> str:
        """On what a trial is trained, for people."""
        return place(self.device, self.devices or 1)

    def settled(self) -> Placement:
        """On this machine, with device, workers and devices known.

        Raises:
            UsageError: this machine has not what is asked for.
        """
        device, started = usable(self.device), distributed.launched()
        devices = _devices(device, self.devices, started)
        if started is not None and self.workers not in (None, 1):
            raise UsageError(
                f"torchrun starts one worker, on {devices} devices, but got engine.workers={self.workers}."
            )
        most = 1 if started is not None else max(1, slots(device) // devices)
        return replace(self, device=device, workers=self.workers or most, devices=devices)

    def device_of(self, number: int) -> str:
        """The device of process `number` of this machine, of settled workers: of several GPUs each takes the next."""
        if self.device != "cuda":
            return self.device
        return f"cuda:{number % torch.cuda.device_count()}"


def place(device: str, devices: int) -> str:
    """So many devices, for people."""
    return device if devices == 1 else f"{devices} x {device}"


def usable(device: str, key: str = "engine.device") -> str:
    """The device of this machine that is asked for under this key; `auto` is a GPU if there is one.

    Raises:
        UsageError: it cannot be used.
    """
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        if torch.device(device).type == "cpu":
            return "cpu"  # which has no number
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"{key} {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    return device


def _devices(device: str, asked: int | None, started: distributed.Rank | None) -> int:
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


def gpus_apart(processes: int, each: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is to be for processes that take so many GPUs each, in turn, of those seen here."""
    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    taken = (range(process * each, (process + 1) * each) for process in range(processes))
    return [",".join(dict.fromkeys(names[gpu % count] for gpu in gpus)) for gpus in taken]


def settle_arithmetic() -> None:
    """Let this process compute as every worker does: on one thread, in fp32 that means fp32, without denormals."""
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.set_flush_denormal(True)  # dead units' velocities decay into denormals, which are very slow


def slots(device: str) -> int:
    """How many processes this device has room for: as many as it has cores, or as there are GPUs."""
    if device == "cpu":
        return cores()
    return torch.cuda.device_count() if device == "cuda" else 1


def cores() -> int:
    """Cores this process may use."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    granted = [os.environ[name] for name in GRANTED if os.environ.get(name, "").isdecimal()]
    return max(1, min(allowed, *map(int, granted))) if granted else allowed
