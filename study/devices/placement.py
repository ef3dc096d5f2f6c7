"""Where a sweep runs: the device, the number of workers, and the devices of each trial."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

import torch

from study.devices import distributed, precision
from study.devices.cores import cores
from study.errors import UsageError
from workloads.suggest import suggest

ENGINES = ("auto", "serial", "lanes", "command")


@dataclass(frozen=True)
class Placement:
    """How trials run: as configured, or with the choices of this machine filled in (`settled`).

    Attributes:
        name: `auto`, `serial`, `lanes` or `command`.
        device: such as `cpu` or `cuda:1`; `auto`: a GPU if there is one.
        workers: training processes; None: one per core, or one per GPU. They take the GPUs in turn.
        devices: devices per trial; above 1, a worker is a team with one process per device. None: one, or the
            number of processes that torchrun started.
        lanes: trials that a worker trains at once; None: the fastest number found by timing.
        data_memory: GiB of data that a process may hold on its device; None: a share of the device's memory.
        loaders: reader processes per worker for data that do not fit.
        compile: whether updates of lanes are compiled; `auto`: on a GPU, if the study is much longer than compiling.
        timeout: seconds without new metrics after which a command counts as failed; None: no limit.
        checkpoint_minutes: minutes between checkpoints of running trials; None: no checkpoints.

    Raises:
        UsageError: a value that no machine can satisfy.
    """

    name: str = "auto"
    device: str = "auto"
    workers: int | None = None
    devices: int | None = None
    lanes: int | None = None
    data_memory: float | None = None
    loaders: int = 2
    compile: str | bool = "auto"
    timeout: float | None = None
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
        if self.compile != "auto" and not isinstance(self.compile, bool):
            raise UsageError(f"engine.compile must be auto, true or false, but got {self.compile!r}.")
        if self.timeout is not None and not (math.isfinite(self.timeout) and self.timeout > 0):
            raise UsageError(
                f"engine.timeout must be a number of seconds above 0, or null for no limit, but got {self.timeout:g}."
            )
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
        """The devices of a trial as text, such as `2 x cuda`."""
        return place(self.device, self.devices or 1)

    def settled(self) -> Placement:
        """The same with device, workers and devices filled in.

        Raises:
            UsageError: this machine lacks a requested device, or the request contradicts torchrun or the device.
        """
        device, started = usable(self.device), distributed.launched()
        if device == "cpu" and self.compile is True:
            raise UsageError(
                "engine.compile=true needs a GPU, but got engine.device=cpu, where the bits of a trial depend on its "
                "configuration alone, and a compiled update has other last bits; leave out engine.compile."
            )
        devices = _devices(device, self.devices, started)
        if started is not None and self.workers not in (None, 1):
            raise UsageError(
                f"torchrun starts one worker, on {devices} devices, but got engine.workers={self.workers}."
            )
        most = 1 if started is not None else max(1, slots(device) // devices)
        return replace(self, device=device, workers=self.workers or most, devices=devices)

    def device_of(self, number: int) -> str:
        """The device of process `number` on this machine (settled placement): processes take the GPUs in turn."""
        if self.device != "cuda":
            return self.device
        return f"cuda:{number % torch.cuda.device_count()}"


def place(device: str, devices: int) -> str:
    """A number of devices as text, such as `2 x cuda`."""
    return device if devices == 1 else f"{devices} x {device}"


def usable(device: str, key: str = "engine.device") -> str:
    """The requested device, checked on this machine; `auto` is a GPU if there is one.

    It opens no GPU: where a GPU serves one process at a time, that is the worker's.

    Raises:
        UsageError: the device cannot be used; the message names the configuration `key`.
    """
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    device = ("cuda" if gpus else "cpu") if device == "auto" else device
    try:
        asked = torch.device(device)
    except RuntimeError as error:
        raise UsageError(f"{key} {device!r} cannot be used: {str(error).splitlines()[0]}") from error
    if asked.type == "cpu":
        return "cpu"  # a CPU has no number
    if asked.type != "cuda" or (asked.index or 0) >= gpus:
        built = torch.backends.cuda.is_built()
        found = f"finds {gpus} GPUs (see CUDA_VISIBLE_DEVICES and nvidia-smi)" if built else "was built without CUDA"
        raise UsageError(f"{key} {device!r} cannot be used: torch {found}; choose cpu or auto.")
    return device


def _devices(device: str, asked: int | None, started: distributed.Rank | None) -> int:
    """The number of devices per trial: as configured, or the number of processes that torchrun started."""
    devices = asked or (1 if started is None else started.size)
    if started is not None and devices != started.size:
        raise UsageError(f"torchrun started {started.size} processes, but got engine.devices={devices}; leave it out.")
    if devices == 1:
        return 1
    if device not in ("cpu", "cuda"):
        raise UsageError(
            f"engine.devices={devices} takes the first {devices} devices of a kind, but got engine.device={device}; "
            f"use engine.device={device.partition(':')[0]}."
        )
    here = devices if started is None else int(os.environ.get("LOCAL_WORLD_SIZE", devices))
    if device == "cuda" and here > torch.cuda.device_count():
        raise UsageError(
            f"engine.devices must be at most the {torch.cuda.device_count()} GPUs there are, but got {here}; "
            "engine.device=cpu takes processes instead."
        )
    return devices


def gpus_apart(processes: int, each: int) -> list[str]:
    """CUDA_VISIBLE_DEVICES for each of `processes` processes that take `each` of the visible GPUs, in turn."""
    count = torch.cuda.device_count()
    names = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(count)))).split(",")
    taken = (range(process * each, (process + 1) * each) for process in range(processes))
    return [",".join(dict.fromkeys(names[gpu % count] for gpu in gpus)) for gpus in taken]


def settle_arithmetic() -> None:
    """Set this process to the arithmetic of every worker: one thread, no TF32, denormals flushed to zero.

    On GPUs, cuDNN tries its kernels at the first call with new shapes, which are the same in all steps of a study.
    """
    precision.settle("fp32")
    torch.backends.cudnn.benchmark = True
    torch.set_flush_denormal(True)  # dead units' velocities decay into denormals, which are very slow


def slots(device: str) -> int:
    """How many training processes a device takes: one per core of the CPU, one per GPU."""
    if device == "cpu":
        return cores()
    return torch.cuda.device_count() if device == "cuda" else 1
