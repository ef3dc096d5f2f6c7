"""The environment variables of commands."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from study.devices.cores import cores
from study.devices.placement import Placement, gpus_apart
from study.user_code import compilers


def search_path(variables: Mapping[str, str]) -> str:
    """Where programs are looked up: beside the Python that runs the sweep, then as `variables` say. So `python` is that
    Python, as in an activated virtual environment."""
    return os.pathsep.join([str(Path(sys.executable).parent), *filter(None, [variables.get("PATH")])])


def environment(variables: Mapping[str, str], placement: Placement, number: int) -> dict[str, str]:
    """The variables of the commands of a worker: those of the sweep, and the worker's share of the machine.

    Arguments:
        variables: of the sweep; they decide the number of threads and the buffering of output, if they name them.
        placement: settled.
        number: the worker's place in its pool, from 0.
    """
    threads = str(max(1, cores() // (placement.workers or 1)))
    found = {"OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", **variables, "PATH": search_path(variables)}
    found.pop("PYTHONSAFEPATH", None)  # cluster jobs have it, and scripts import what lies beside them
    found.pop(compilers.DISABLE, None)  # it is for the sweep: scripts compile for themselves
    if placement.device != "cpu":
        gpu = int(placement.device_of(number).partition(":")[2])
        found["CUDA_VISIBLE_DEVICES"] = gpus_apart(gpu + 1, 1)[gpu]
    return found
