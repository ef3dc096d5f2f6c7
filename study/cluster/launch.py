"""Trains the studies of a sweep in jobs that a Hydra launcher starts, and follows the jobs by the files they write."""

import hashlib
import importlib
import logging
import os
import pickle
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.types import HydraContext
from omegaconf import open_dict

from study import shadowing, store, whole_sweep
from study.cluster import job_process, slurm
from study.cluster.waves import Waves, curves, each_shard, log_of, logs_of, sharing
from study.config.composed import compose
from study.config.composed.compose import CONF
from study.config.composed.overrides import quoted
from study.config.jobs import Job
from study.devices import placement
from study.devices.cores import cores
from study.errors import Failed, UsageError
from study.search import stages
from study.store import atomic
from study.terminal.progress import study_name
from study.workers.start import environment

KINDS = {"BasicLauncher": "none", "JoblibLauncher": "local", "SlurmLauncher": "slurm", "RayLauncher": "ray"}
"""Class of the launcher -> kind; the name of a file in cluster/ does not tell, because users may add their own."""
SECONDS = 5.0
"""Time between two looks at the jobs."""
LEAST_MINUTES = 5
"""The shortest time limit of a SLURM job: SLURM signals it two minutes before its end."""
LINES = 5
"""Lines of a log that show why a job failed."""


@dataclass(frozen=True)
class Cluster:
    """The choice of `cluster=`: its kind (`none`, `local`, `slurm` or `ray`), and Hydra's settings for its launcher."""

    kind: str
    launcher: dict[str, Any]


def chosen(arguments: Sequence[str], config_dir: Path | None) -> Cluster:
    """The cluster that the command line asks for.

    Raises:
        UsageError: the cluster cannot be used, or not with these settings.
    """
    if not any(re.match(r"\+*(cluster=|hydra\b)", text) for text in arguments):
        return Cluster("none", {})  # composing takes time, and `compositions` refuses files that choose a cluster
    launcher = compose.launcher(arguments, config_dir)
    kind = KINDS.get(launcher["_target_"].rpartition(".")[2])
    if kind != "none" and "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(f"torchrun starts the processes of one trial, and cluster={kind} many jobs; choose one.")
    if kind is None:
        raise UsageError(f"cluster= takes a joblib, SLURM or Ray launcher, but its file has {launcher['_target_']}.")
    if kind == "local" and launcher["n_jobs"] < 1 and launcher["n_jobs"] != -1:
        raise UsageError(f"hydra.launcher.n_jobs must be 1 or more, or -1 for all cores, but got {launcher['n_jobs']}.")
    if kind == "slurm" and launcher["timeout_min"] < LEAST_MINUTES:
        raise UsageError(
            f"hydra.launcher.timeout_min must be at least {LEAST_MINUTES}, since SLURM warns a job two minutes before "
            f"its end, but got {launcher['timeout_min']}."
        )
    for name in ("nodes", "tasks_per_node"):
        if launcher.get(name, 1) != 1:
            raise UsageError(
                f"hydra.launcher.{name} must be 1, because a job is one task on one node, but got {launcher[name]}; "
                "shards=N trains each study in N jobs."
            )
    return Cluster(kind, launcher)


def jobs_for(
    overrides: Sequence[str], config_dir: Path | None, cluster: Cluster, mix: bool
) -> tuple[list[Job], list[Job]]:
    """(all jobs that the overrides ask for, the jobs with missing trials), for the machines of this cluster.

    Arguments:
        mix: train on beside trials of other code or data.

    Raises:
        Refused: as `whole_sweep.jobs_here` does.
    """
    on_this_machine = cluster.kind in ("none", "local")
    return (whole_sweep.jobs_here if on_this_machine else whole_sweep.jobs_elsewhere)(overrides, config_dir, mix)


class JobsFailed(Failed):
    """Jobs ended before their studies were complete; the message names them with the last lines of their logs."""


def check(cluster: Cluster) -> None:
    """Raise UsageError if jobs cannot be submitted from this machine."""
    if cluster.kind == "slurm":
        slurm.check()


@contextmanager
def launched(
    jobs: Sequence[Job], cluster: Cluster, config_dir: Path | None, command: str
) -> Iterator[Iterator[dict[Path, str]]]:
    """Train incomplete studies, each shard of a study, or of a curve that shares a model, in a job of its own.

    Yields:
        An iterator that ends with the last job. Every few seconds it yields a dictionary: log of a job (`log_of`) ->
        `queued` (with SLURM's reason), `running`, `ended` or `failed`.

    Raises:
        UsageError: the cluster cannot be reached, or refuses the jobs.
    """
    check(cluster)
    if cluster.kind == "ray":
        ray = _ray(cluster.launcher["ray"]["init"])
    folder = jobs[0].results.absolute() / job_process.FOLDER / cluster.kind
    try:
        yield _states(jobs, cluster, folder, config_dir, command)
    except KeyboardInterrupt as error:
        if left := {number for each in _launches(jobs, folder) for number in slurm.submitted(each)}:
            numbers = " ".join(sorted(left))
            advice = f"its jobs continue, and the same command waits for them; scancel {numbers} ends them"
            raise KeyboardInterrupt(advice) from error
        raise
    finally:
        if cluster.kind == "ray":
            ray.shutdown()


def with_workers(job: Job, count: int | None) -> Job:
    """The job with `count` workers."""
    return replace(job, placement=replace(job.placement, workers=count))


def states_of(job: Job, states: dict[Path, str]) -> list[str]:
    """The states of a study's jobs; a job that was not needed counts as ended."""
    return [states.get(log, "ended") for log in logs_of(job)]


def failures(jobs: Sequence[Job]) -> list[str]:
    """For each ended job of an incomplete study, the last lines of its log; removes the logs if all are complete."""
    found = []
    for logs, held in curves(whole_sweep.missing(jobs)).items():
        names = "; ".join(study_name(job.study) for job in held)
        for log in [log for log in logs if job_process.status(log) != 0] or logs:
            said = "".join(f"\n    {line}" for line in _last_lines(log))
            found.append(f"{names} {_how(job_process.status(log))}:{said}\n    log: {log}")
    if not found:
        for folder in {job.results / job_process.FOLDER for job in jobs}:
            shutil.rmtree(folder, ignore_errors=True)
    return found


def _how(status: int | None) -> str:
    """How a job of an incomplete study ended."""
    if status == 0:
        return "ended without a new trial, although trials are missing"
    return "was killed" if status is None or status < 0 else f"ended with exit status {status}"


def _states(
    jobs: Sequence[Job], cluster: Cluster, folder: Path, config_dir: Path | None, command: str
) -> Iterator[dict[Path, str]]:
    """The iterator that `launched` yields; the launcher writes its own files to `folder`."""
    if cluster.kind == "slurm":
        while any(map(slurm.queued, _launches(jobs, folder))):  # submitted by an interrupted command
            yield {log_of(job): _state(job) for job in each_shard(jobs)}
            time.sleep(SECONDS)
        jobs = whole_sweep.missing(jobs)
    waves = Waves(jobs)
    while jobs:
        yield from _wave(jobs, cluster, folder, config_dir, command)
        while waves.busy():
            yield {log_of(job): _state(job) for job in each_shard(jobs)}
            time.sleep(SECONDS)
        jobs = waves.following()


def _wave(
    jobs: Sequence[Job], cluster: Cluster, folder: Path, config_dir: Path | None, command: str
) -> Iterator[dict[Path, str]]:
    """Start a job for each shard of these studies; ends when all of the jobs have ended."""
    settings, shards = _divided(each_shard(jobs), cluster)
    gpus = _gpus(cluster, settings, shards[0].placement)
    tasks = [_task(sharing(job, jobs), config_dir, command, cluster, gpus) for job in shards]
    for task in tasks:
        task.log.unlink(missing_ok=True)
        job_process.status_file(task.log).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for note in _notes(jobs) if cluster.kind == "slurm" else ():
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(str(folder))
    ends: list[Exception | None] = []
    launcher = threading.Thread(target=_hand_over, args=(tasks, settings, folder, ends), daemon=True)
    launcher.start()
    if by_slurm := cluster.kind == "slurm":
        while launcher.is_alive() and not slurm.submitted(folder):
            launcher.join(0.1)
        if not slurm.submitted(folder):
            _remove_traces(folder, _notes(jobs))
            raise UsageError(f"cluster=slurm refused the jobs: {str(ends[0]).strip().splitlines()[-1]}")
    _announce(jobs)
    idle = 0
    queue: dict[int, str] = {}
    # submitit never learns of jobs that are killed hard, and it stops waiting for the others when one fails.
    while idle < 2 and (launcher.is_alive() or (by_slurm and ends[0])):
        yield {log_of(job): queue.get(number) or _state(job) for number, job in enumerate(shards)}
        launcher.join(SECONDS)
        queue = slurm.queued(folder) if by_slurm else {}
        idle = idle + 1 if by_slurm and not queue else 0
    for number, task in enumerate(tasks):
        if job_process.status(task.log) is None:
            _blame(task.log, ends, [*folder.glob(f"*_{number}_0_log.out" if len(tasks) > 1 else "*_0_log.out")])
    yield {log_of(job): _state(job) for job in shards}


def _announce(jobs: Sequence[Job]) -> None:
    """Put studies on file before their jobs begin, so that `study status` shows them while they are queued."""
    for job in jobs:
        for search in stages.planned(job.study):
            store.announce(job.results, search)


def _notes(jobs: Sequence[Job]) -> list[Path]:
    """In each results folder, the file with the path of the launcher's own files."""
    return [results / job_process.FOLDER / "launched" for results in {job.results.absolute(): None for job in jobs}]


def _launches(jobs: Sequence[Job], folder: Path) -> list[Path]:
    """The folders of launchers that hold these jobs: `folder`, and the folders that earlier commands noted."""
    noted = [Path(note.read_text()) for note in _notes(jobs) if note.exists()]
    return list(dict.fromkeys([folder, *noted]))


def _remove_traces(folder: Path, notes: Sequence[Path]) -> None:
    """Remove the files of jobs that were refused, and results folders that are empty without them."""
    shutil.rmtree(folder)
    for note in notes:
        note.unlink()
        with suppress(OSError):
            for path in (note.parent, note.parent.parent):
                path.rmdir()


def _divided(jobs: list[Job], cluster: Cluster) -> tuple[dict[str, Any], list[Job]]:
    """(the launcher's settings, the jobs with their workers): concurrent jobs on one machine share its workers. The
    jobs of a last round that is not full share them, too, so that no core idles beside the last job.

    Ray does not limit the cores of a process, so each of its jobs takes as many workers as Ray grants it cores.
    """
    settings = cluster.launcher
    if cluster.kind == "local" and jobs:
        workers, asked = min(job.placement.workers or 1 for job in jobs), settings["n_jobs"]
        devices = jobs[0].placement.devices or 1
        on_gpu = jobs[0].placement.device.startswith("cuda")
        most = workers if on_gpu else cores() // devices
        room = most // workers if workers < most else max(1, most)  # the user asked for fewer: this many per job
        at_once = min(len(jobs), room if asked == -1 else asked)
        last = len(jobs) % at_once  # those of the last round, if it is not full
        beside = [at_once] * (len(jobs) - last) + [at_once if on_gpu else last] * last
        shared = [max(1, min(workers, most // count)) for count in beside]
        return settings | {"n_jobs": at_once}, list(map(with_workers, jobs, shared))
    if cluster.kind == "ray" and not settings["ray"]["remote"].get("num_gpus"):
        granted = max(1, int(settings["ray"]["remote"].get("num_cpus", 1)))
        return settings, [with_workers(job, job.placement.workers or granted) for job in jobs]
    return settings, jobs


def _gpus(cluster: Cluster, settings: dict[str, Any], shared: placement.Placement) -> dict[Path, str]:
    """Lock file -> GPUs, one entry for each concurrent job; other commands use the same files (`job_process.Task`)."""
    if cluster.kind != "local" or shared.device != "cuda":
        return {}
    apart = placement.gpus_apart(settings["n_jobs"], (shared.workers or 1) * (shared.devices or 1))
    folder = Path(tempfile.gettempdir()) / f"batch-size-study-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    names = [hashlib.sha256(seen.encode()).hexdigest()[:16] for seen in apart]  # GPUs may have long ones, or with a /
    return {folder / f"gpus-{name}-{n}-of-{len(apart)}": apart[n] for n, name in enumerate(names)}


def _task(
    jobs: Sequence[Job],
    config_dir: Path | None,
    command: str,
    cluster: Cluster,
    gpus: Mapping[Path, str] | None = None,
) -> job_process.Task:
    """The task that trains one shard of these studies, which share it."""
    moved = [replace(job, results=job.results.absolute()) for job in jobs]
    content = pickle.dumps((moved, config_dir and config_dir.resolve(), command))
    return job_process.Task(log_of(jobs[0]), content, os.getpid() if cluster.kind == "local" else None, gpus or {})


def _hand_over(
    tasks: Sequence[job_process.Task], settings: dict[str, Any], folder: Path, ends: list[Exception | None]
) -> None:
    """Have the launcher start all tasks and wait for them; appends the error it raised, or None, to `ends`."""
    # Without these, Hydra writes a folder with its configuration for each job, and lines to the terminal.
    quiet = ["hydra.sweep.subdir=.", "hydra.output_subdir=null", "hydra/hydra_logging=none", "hydra/job_logging=none"]
    if "submitit_folder" in settings:
        settings = settings | {"submitit_folder": str(folder)}
        submitit = importlib.import_module("submitit")
        submitit.SlurmJob.watcher._make_command = lambda: None  # would call `sacct`; `slurm.queued` reads `squeue`
        logging.getLogger("submitit").setLevel(logging.CRITICAL)
    try:
        with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
            config = hydra.compose(
                overrides=[f"hydra.sweep.dir={quoted(str(folder))}", *quiet], return_hydra_config=True
            )
            with open_dict(config):
                config.hydra.launcher = settings
            context = HydraContext(GlobalHydra.instance().config_loader(), Callbacks())
            launcher = Plugins.instance().instantiate_launcher(context, partial(job_process.run, tasks), config)
            numbers = [[f"+job={number}"] for number in range(len(tasks))]
            with environment(shadowing.environment()):
                for each in launcher.launch(numbers, initial_job_idx=0):
                    _ = each.return_value  # raises the error that kept a job from starting
        ends.append(None)
    except Exception as error:
        ends.append(error)


def _state(job: Job) -> str:
    """The state of a job, from its files alone."""
    status = job_process.status(log_of(job))
    if status is not None:
        return "failed" if status else "ended"
    return "running" if log_of(job).exists() else "queued"


def _blame(log: Path, ends: Sequence[Exception | None], launchers: Sequence[Path]) -> None:
    """Add the launcher's own messages to the log of a job that was killed. Raises StoreError if its results folder is
    no longer there."""
    if not os.path.isdir(log.parent):
        raise atomic.gone(log.parent.parent)
    said = [str(error) for error in ends if error] + [line for path in launchers[:1] for line in _last_lines(path)]
    with log.open("a") as file:
        file.writelines(f"{line}\n" for line in said)


def _last_lines(log: Path) -> list[str]:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return [line for line in lines if line.strip()][-LINES:]


def _ray(init: dict[str, Any]) -> Any:
    """The connected Ray module; the launcher uses this connection. Raises UsageError if Ray cannot be reached."""
    ray = importlib.import_module("ray")
    try:
        ray.init(**init)
    except Exception as error:  # Ray raises many kinds
        raise UsageError(
            f"cluster=ray found no Ray at hydra.launcher.ray.init.address={init.get('address')}: "
            f"{str(error).strip().splitlines()[0]} Start one with `ray start --head`."
        ) from error
    return ray
