"""`study --version`: the versions that settle results, the device and the folders of data. Imports no torch."""

import argparse
import ctypes
import os
import platform
import re
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from study.devices.cores import cores

PACKAGE = "batch-size-study"
NAME_BYTES = 100
"""The longest name of a GPU."""


class Version(argparse.Action):
    """Print the versions and stop."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print("\n".join(lines()))
        parser.exit()

    def __init__(self, option_strings: Sequence[str], dest: str, **more: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, **more)


def lines() -> list[str]:
    """The versions, the device that `engine.device=auto` trains on, and the folders of data sets."""
    from workloads.data.fetching import cache_folder

    own, build = os.environ.get("STUDY_DATA"), _build()
    return [
        f"study {ours()}",
        f"python {platform.python_version()}, torch {version('torch')} ({build})",
        f"device: {_device(build)}",
        f"data:   {f'$STUDY_DATA = {own}, then ' if own else ''}{cache_folder('')}",
    ]


def ours() -> str:
    """The version of this package; `unknown` for a checkout that is not installed."""
    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        return "unknown"


def _build() -> str:
    """The kind of device that the installed torch is built for, as its file `version.py` says."""
    spec = find_spec("torch")
    text = (Path(spec.origin).parent / "version.py").read_text() if spec and spec.origin else ""
    for name, kind in (("cuda", "CUDA"), ("hip", "ROCm")):
        if found := re.search(rf"^{name}(?:: [^=]+)? = ['\"]([\w.-]+)['\"]", text, re.MULTILINE):
            return f"{kind} {found[1]}"
    return "CPU"


def _device(build: str) -> str:
    if build.startswith("ROCm"):
        return "a GPU if torch finds one"
    gpus = _gpus() if build != "CPU" else []
    return ", ".join(gpus) if gpus else f"cpu, {cores()} cores"


def _gpus() -> list[str]:
    """The visible GPUs by name, as the driver counts them; empty without a driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return []
    count, name = ctypes.c_int(), ctypes.create_string_buffer(NAME_BYTES)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = []
    for number in range(count.value):
        device = ctypes.c_int()
        if not driver.cuDeviceGet(ctypes.byref(device), number) and not driver.cuDeviceGetName(
            name, NAME_BYTES, device
        ):
            found.append(f"cuda:{number} {name.value.decode(errors='replace')}")
    return found
