"""Divides a sweep into jobs, and decides which jobs follow when those of one wave have ended.

A job trains one shard of a study. The batch sizes of a curve that share a model (`search=refine`) are one queue: a job
trains one shard of each of them.

With `search=refine` and several shards, a stage waits for the trials of all jobs. So a job that finds no trial to train
ends, and the waiting command submits the next wave of jobs. Each of them first closes the stages that are complete.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from study import store, whole_sweep
from study.cluster import job_process
from study.config.jobs import Job
from study.search import stages

IDLE = 2
"""Waves in a row without a new trial after which the jobs of a curve are not submitted again."""


def log_of(job: Job) -> Path:
    """The path of a job's log; the same on every machine, and the same for all batch sizes that share a job."""
    size = "" if job.pooled else f"-{job.study.batch_size}"
    shard = f"-{job.shard}" if job.shards > 1 else ""
    return job.results.absolute() / job_process.FOLDER / f"{job.study.name}-{job.study.series}{size}{shard}.log"


def logs_of(job: Job) -> tuple[Path, ...]:
    """The logs of all jobs that train a study."""
    return tuple(log_of(replace(job, shard=shard)) for shard in range(job.shards))


def each_shard(jobs: Sequence[Job]) -> list[Job]:
    """A job for each study and shard, in the order of their launch. The first study represents those that share it."""
    found: dict[Path, Job] = {}
    for job in jobs:
        for shard, log in enumerate(logs_of(job)):
            found.setdefault(log, replace(job, shard=shard))
    return list(found.values())


def sharing(shard: Job, jobs: Sequence[Job]) -> list[Job]:
    """All studies of `jobs` that the job `shard` trains, with its shard and placement."""
    mine = log_of(shard)
    alike = (replace(job, shard=shard.shard, placement=shard.placement) for job in jobs)
    return [job for job in alike if log_of(job) == mine]


def curves(jobs: Sequence[Job]) -> dict[tuple[Path, ...], list[Job]]:
    """Logs -> the studies that the jobs with these logs train."""
    found: dict[tuple[Path, ...], list[Job]] = {}
    for job in jobs:
        found.setdefault(logs_of(job), []).append(job)
    return found


class Waves:
    """The waves of jobs that train these studies.

    Arguments:
        jobs: the studies of the first wave.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._last = list(jobs)
        self._trials = {logs: _trials(held) for logs, held in curves(jobs).items()}
        self._idle: Counter[tuple[Path, ...]] = Counter()

    def busy(self) -> bool:
        """True if a process that lives, or that ended too recently to be sure, trains a study of the next wave."""
        return any(
            store.busy(store.study_folder(job.results, search))
            for job in self._last
            if job.in_waves and (search := stages.next_search(job.study, whole_sweep.on_file(job))) is not None
        )

    def following(self) -> list[Job]:
        """The studies of the next wave, after all jobs of the last one have ended; empty if none follows.

        A curve is left out if its jobs finished no trial in IDLE waves in a row: the next ones would not, either.
        """
        self._last, ended = [], self._last
        for logs, held in curves(whole_sweep.missing(ended)).items():
            before, self._trials[logs] = self._trials[logs], _trials(held)
            self._idle[logs] = 0 if self._trials[logs] != before else self._idle[logs] + 1
            if held[0].in_waves and self._idle[logs] < IDLE:
                self._last += held
        return self._last


def _trials(jobs: Sequence[Job]) -> list[tuple[Path, int]]:
    """The first incomplete search of each study, and the number of its trials on file."""
    found = []
    for job in jobs:
        search = stages.next_search(job.study, whole_sweep.on_file(job))
        if search is not None:
            folder = store.study_folder(job.results, search)
            found.append((folder, len(store.load(folder))))
    return found
