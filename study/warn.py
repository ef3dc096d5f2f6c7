"""Warnings on the terminal before a sweep trains, about behaviour that a user may not expect."""

import math
from collections.abc import Sequence

from rich.console import Console

from analysis.counting import ADAPTIVE_SAMPLERS
from study import store
from study.config.jobs import Job
from study.devices.placement import place
from study.engine.cost import Cost

FINGERPRINT_TOLERANCE = 1e-3
"""Relative. Fingerprints of the same code differ by rounding between machines."""


def of_order(costs: Sequence[tuple[Job, Cost]], workers: int, console: Console) -> None:
    """Warn that an adaptive sampler with several trials at once is not reproducible: they may finish in any order."""
    adaptive = [job.study.search.sampler for job, _ in costs if job.study.search.sampler in ADAPTIVE_SAMPLERS]
    if adaptive and (workers > 1 or any(cost.lanes > 1 for _, cost in costs)):
        console.print(
            f"search={adaptive[0]} learns from finished trials, and several trials train at once: another run may "
            "propose other trials. engine=serial engine.workers=1 is reproducible.\n"
        )


def of_devices(jobs: Sequence[Job], console: Console) -> None:
    """Warn if recorded trials were trained on another kind or number of devices, which gives other last bits."""
    for job in jobs:
        begun = store.held(job.results, job.study)
        runs = begun[1] if begun else []
        mine = place(job.placement.device.partition(":")[0], job.placement.devices or 1)
        kinds = {place(run["device"].partition(":")[0], run.get("devices", 1)) for run in runs if "device" in run}
        if other := kinds - {mine}:
            console.print(
                f"[yellow]{job.results} holds trials that were trained on {' and '.join(sorted(other))}; trials on "
                f"{mine} agree with them only to a tolerance.[/]\n"
            )
            return


def of_changes(jobs: Sequence[Job], console: Console) -> None:
    """Warn if the code or data of a workload changed: a study records only the import path of its class."""
    for (results, name), known in {(job.results, job.study.name): job.fingerprint for job in jobs}.items():
        held = store.fingerprint(results, name)
        changed = [key for key in held.keys() & known.keys() if not _alike(held[key], known[key])]
        if changed:
            details = ", ".join(f"{key} {held[key]:.6g}, now {known[key]:.6g}" for key in sorted(changed))
            console.print(
                f"[yellow]{results} holds trials of another {name} ({details}): its code or data changed. Choose "
                "another results=DIR, or undo the change.[/]\n"
            )


def _alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=FINGERPRINT_TOLERANCE) or (math.isnan(one) and math.isnan(other))


def of_lanes(jobs: Sequence[Job], console: Console) -> None:
    """Say which trials train one at a time for a reason that the user may change, and name it: one line for each
    reason."""
    for why in dict.fromkeys(job.alone for job in jobs if job.alone):
        alone = [job.study for job in jobs if job.alone == why]
        names = ", ".join(dict.fromkeys(f"{study.name} with {study.optimizer}" for study in alone))
        sizes = ", ".join(f"{size:,}" for size in sorted({study.batch_size for study in alone}))
        console.print(f"[yellow]{names} at batch size {sizes}: trials train one at a time, because {why}.[/]\n")
