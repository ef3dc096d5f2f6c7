"""Which jobs train which studies, and which follow when those of a wave have ended; no job here trains anything."""

import functools
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.fused import partly

from study import store, whole_sweep
from study.cluster import job_process, launch, waves
from study.config.jobs import parse_jobs
from study.records import Study


@functools.cache  # composing takes most of the time of these tests
def parsed(sampler):
    return parse_jobs(["optimizer=sgd,momentum", "batch_size=16,64", f"search={sampler}", "engine.workers=1"])


def asked(tmp_path, sampler="refine", shards=1, pool=True, optimizers=("momentum",)):
    found = []
    for job in parsed(sampler):
        study = replace(job.study, search=replace(job.study.search, pool=pool))
        found.append(replace(job, study=study, shards=shards, results=tmp_path / "results"))
    return [job for job in found if job.study.optimizer in optimizers]


BOTH = ("sgd", "momentum")


@pytest.mark.parametrize(
    ("more", "logs"),
    partly(
        [
            ({"sampler": "sobol", "shards": 2}, ["{}-16-0", "{}-16-1", "{}-64-0", "{}-64-1"]),
            ({}, ["{}"]),
            ({"shards": 2}, ["{}-0", "{}-1"]),
            ({"pool": False}, ["{}-16", "{}-64"]),
        ],
        2,
    ),
    ids=["sobol in shards", "refine", "refine in shards", "refine without pool"],
)
def test_batch_sizes_that_share_a_model_share_their_jobs(tmp_path, more, logs):
    jobs = asked(tmp_path, optimizers=BOTH, **more)
    shards = launch.each_shard(jobs)
    curves = [f"mlp_digits-{optimizer}" for optimizer in BOTH]
    assert [waves.log_of(shard).stem for shard in shards] == [log.format(curve) for curve in curves for log in logs]
    trained = [(shard.shard, job) for shard in shards for job in waves.sharing(shard, jobs)]
    assert sorted((job.study.optimizer, job.study.batch_size, job.shard) for _, job in trained) == sorted(
        (job.study.optimizer, job.study.batch_size, shard) for job in jobs for shard in range(job.shards)
    )
    assert all(number == job.shard for number, job in trained)


class Launcher:
    """A launcher whose jobs train nothing: a list says how many trials each wave finishes, and how its jobs end."""

    def __init__(self, monkeypatch, wanted):
        self.wanted, self.trials = wanted, dict[str, int]()
        self.script, self.waves, self.busy = [], [], []
        monkeypatch.setattr(launch, "_hand_over", self.hand_over)
        monkeypatch.setattr(launch, "SECONDS", 0.001)
        monkeypatch.setattr(whole_sweep, "missing", lambda jobs: [job for job in jobs if self.left(job.study)])
        monkeypatch.setattr(waves.stages, "next_search", lambda study, load: study if self.left(study) else None)
        monkeypatch.setattr(waves.store, "load", lambda folder: range(self.trials.get(Path(folder).parent.name, 0)))
        monkeypatch.setattr(waves.store, "busy", lambda folder: bool(self.busy) and self.busy.pop())

    def left(self, study: Study) -> bool:
        return self.trials.get(study.optimizer, 0) < self.wanted

    def hand_over(self, tasks, settings, folder, ends):
        self.waves.append({task.log.stem for task in tasks})
        finished, statuses = self.script.pop(0)
        held = [job for task in tasks for job in pickle.loads(task.content)[0]]
        for optimizer in {job.study.optimizer for job in held}:
            self.trials[optimizer] = self.trials.get(optimizer, 0) + finished
        for task, status in zip(tasks, statuses * len(tasks), strict=False):
            task.log.parent.mkdir(parents=True, exist_ok=True)
            task.log.write_text("the last line\n")
            if status is not None:
                job_process.status_file(task.log).write_text(f"{status}\n")
        ends.append(None)


@pytest.fixture
def launcher(monkeypatch):
    return Launcher(monkeypatch, wanted=3)


def train(jobs, tmp_path):
    """The states of all looks at the jobs, and the failures."""
    cluster = launch.Cluster("local", {"n_jobs": 2})
    seen = list(launch._states(jobs, cluster, tmp_path / "results/.cluster/local", None, "command"))
    return seen, launch.failures(jobs)


def test_jobs_follow_until_all_searches_are_complete(launcher, tmp_path):
    """Also after a wave in which all jobs were killed, if a trial ended before."""
    launcher.script = [(1, [0]), (1, [None]), (0, [0]), (1, [0])]
    jobs = asked(tmp_path, shards=2)
    _, failures = train(jobs, tmp_path)
    assert launcher.waves == [{"mlp_digits-momentum-0", "mlp_digits-momentum-1"}] * 4
    assert failures == []
    assert not (tmp_path / "results/.cluster").exists()


def test_two_waves_without_a_new_trial_are_an_error(launcher, tmp_path):
    launcher.script = [(1, [0]), (0, [0]), (1, [0]), (0, [0]), (0, [0, -9])]
    launcher.wanted = 9
    _, [killed] = train(asked(tmp_path, shards=2), tmp_path)
    assert not launcher.script
    assert killed.startswith("mlp_digits, momentum, batch size 16; mlp_digits, momentum, batch size 64 was killed:")
    assert killed.endswith(f"log: {tmp_path / 'results/.cluster/mlp_digits-momentum-1.log'}")
    launcher.script = [(0, [0]), (0, [0])]
    _, [first, second] = train(asked(tmp_path, shards=2), tmp_path)
    for number, failure in enumerate((first, second)):
        assert "ended without a new trial, although trials are missing:\n    the last line\n" in failure
        assert failure.endswith(f"log: {tmp_path / f'results/.cluster/mlp_digits-momentum-{number}.log'}")


@pytest.mark.parametrize("more", [{"sampler": "sobol", "shards": 2}, {}, {"pool": False}])
def test_jobs_that_wait_for_no_others_are_not_submitted_again(launcher, tmp_path, more):
    launcher.script = [(1, [1])]
    jobs = asked(tmp_path, **more)
    _, failures = train(jobs, tmp_path)
    assert len(launcher.waves) == 1
    assert all(" ended with exit status 1:" in failure for failure in failures)
    assert len(failures) == len(launcher.waves[0])


def test_no_jobs_follow_while_a_claim_may_be_of_a_living_process(launcher, tmp_path):
    launcher.script, launcher.busy = [(1, [None]), (2, [0])], [True] * 5
    seen, failures = train(asked(tmp_path, shards=2), tmp_path)
    assert failures == []
    assert len(launcher.waves) == 2
    assert not launcher.busy
    assert len(seen) >= 5


def test_a_curve_that_is_complete_or_stuck_holds_up_no_other(launcher, tmp_path):
    launcher.script = [(1, [0]), (1, [0]), (1, [0])]
    jobs = asked(tmp_path, shards=2, optimizers=BOTH)
    launcher.trials["sgd"] = 2
    _, failures = train(jobs, tmp_path)
    both = {f"mlp_digits-{optimizer}-{shard}" for optimizer in BOTH for shard in (0, 1)}
    assert launcher.waves == [both] + [{each for each in both if "momentum" in each}] * 2
    assert failures == []


def test_a_folder_is_busy_while_a_claim_is_held(tmp_path):
    assert not store.busy(tmp_path)
    with store.claimed(tmp_path):
        assert store.busy(tmp_path)
    assert not store.busy(tmp_path)
