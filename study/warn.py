"""Warnings on the terminal before a sweep trains, about behaviour that a user may not expect."""

from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, requires, version

from packaging.requirements import Requirement
from packaging.version import Version
from rich.console import Console
from rich.markup import escape

from analysis.counting import ADAPTIVE_SAMPLERS
from analysis.labels import counted
from study import store
from study.config import fingerprint
from study.config.jobs import Job
from study.devices.placement import place
from study.engine.cost import Cost

LARGE = 1e9
"""Bytes of all checkpoints together above which they are mentioned."""


def of_checkpoints(costs: Sequence[tuple[Job, Cost]], workers: int, console: Console) -> None:
    """Say how much is written if the checkpoints of the trials under way are large."""
    trials, job = max(
        ((min(job.study.search.trials, workers * cost.lanes), job) for job, cost in costs),
        key=lambda each: each[0] * each[1].checkpoint_bytes,
        default=(0, None),
    )
    if job is None or trials * job.checkpoint_bytes < LARGE or job.placement.checkpoint_minutes is None:
        return
    console.print(
        f"Every {job.placement.checkpoint_minutes:g} minutes the checkpoints of {counted(trials, 'trial')} of "
        f"{job.study.name} take {trials * job.checkpoint_bytes / 1e9:.2g} GB of disk and the time to write them. "
        "checkpoint.minutes=60 writes them less often, checkpoint.minutes=null never.\n",
        markup=False,
    )


def of_order(costs: Sequence[tuple[Job, Cost]], workers: int, console: Console) -> None:
    """Warn that an adaptive sampler with several trials at once is not reproducible: they may finish in any order."""
    adaptive = [job.study.search.sampler for job, _ in costs if job.study.search.sampler in ADAPTIVE_SAMPLERS]
    if adaptive and (workers > 1 or any(cost.lanes > 1 for _, cost in costs)):
        console.print(
            f"search={adaptive[0]} learns from finished trials, and several trials train at once: another run may "
            "propose other trials. engine=serial engine.workers=1 is reproducible.\n"
        )


def of_torch(console: Console) -> None:
    """Warn once if the installed torch is outside of the range with which this package is tested."""
    try:
        required = [Requirement(text) for text in requires("batch-size-study") or ()]
    except PackageNotFoundError:  # a checkout that is not installed
        return
    tested, installed = next(each.specifier for each in required if each.name == "torch"), version("torch")
    if not tested.contains(Version(installed).public, prereleases=True):
        console.print(
            f"[yellow]torch {installed} is outside of the tested range ({tested}): results may differ in more than the "
            "last bits. Install a tested version, or check a few trials.[/]\n"
        )


def of_devices(jobs: Sequence[Job], console: Console) -> None:
    """Warn if recorded trials were trained on another kind or number of devices, which gives other last bits."""
    for job in jobs:
        begun = store.recorded(job.results, job.study)
        runs = begun.runs if begun else []
        mine = place(job.placement.device.partition(":")[0], job.placement.devices or 1)
        kinds = {place(run["device"].partition(":")[0], run.get("devices", 1)) for run in runs if "device" in run}
        if other := kinds - {mine}:
            console.print(
                f"[yellow]{escape(str(job.results))} holds trials that were trained on "
                f"{' and '.join(sorted(other))}; trials on {mine} agree with them only to a tolerance.[/]\n"
            )
            return


def of_changes(jobs: Sequence[Job], console: Console) -> None:
    """Warn of trials that --mix lets train beside trials of other code or data."""
    changed = fingerprint.changes(job for job in jobs if job.mix)
    for (results, name, _), what in {key[:2]: (key, what) for key, what in changed.items()}.values():
        said = f"{results} holds trials of another {name}: {what}. --mix trains on; reports do not separate the trials."
        console.print(f"{said}\n", style="yellow", markup=False)


def of_precision(jobs: Sequence[Job], console: Console) -> None:
    """Warn that TF32 needs a GPU."""
    if any(job.study.precision == "tf32" and job.placement.device == "cpu" for job in jobs):
        console.print(
            "[yellow]precision=tf32 changes nothing on a CPU, which computes in fp32; leave it out, or train on a "
            "GPU.[/]\n"
        )


def of_notes(jobs: Sequence[Job], console: Console) -> None:
    """Say what the authors of the workloads may not have meant (`study.user_code.notes`)."""
    for note in dict.fromkeys(note for job in jobs for note in job.notes):
        console.print(f"{note}\n", style="yellow", markup=False)


def of_lanes(jobs: Sequence[Job], console: Console) -> None:
    """Say which trials train one at a time for a reason that the user may change, and name it: one line for each
    reason."""
    for why in dict.fromkeys(job.alone for job in jobs if job.alone):
        alone = [job.study for job in jobs if job.alone == why]
        names = ", ".join(dict.fromkeys(f"{study.name} with {study.optimizer}" for study in alone))
        sizes = ", ".join(f"{size:,}" for size in sorted({study.batch_size for study in alone}))
        console.print(f"[yellow]{names} at batch size {sizes}: trials train one at a time, because {why}.[/]\n")
