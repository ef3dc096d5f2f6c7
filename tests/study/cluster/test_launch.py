"""What needs no cluster of its own: refusals, the order of jobs, what a launcher is told, and jobs on this machine."""

import os
import pickle
import re
from dataclasses import replace
from io import BytesIO
from types import SimpleNamespace

import pandas as pd
import pytest
from helpers.fused import partly
from helpers.made_workload import FAILING, own_folder
from helpers.processes import wait_until
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from analysis.measurements import LoadError
from study import store, whole_sweep
from study.__main__ import main
from study.cluster import job_process, launch, slurm
from study.commands import sweep
from study.commands.status import progress
from study.config.composed import compose
from study.config.composed.compose import CONF, EXTRAS
from study.config.jobs import parse_jobs
from study.devices import placement
from study.devices.cores import cores
from study.errors import UsageError
from study.store.atomic import StoreError
from study.terminal.progress import JobsProgress
from study.user_code.compilers import DISABLE

PLUGINS = {"slurm": "hydra_plugins.hydra_submitit_launcher", "ray": "hydra_plugins.hydra_ray_launcher"}
REFUSED = [
    (["cluster=lcal"], ["unknown cluster 'lcal'", "did you mean 'local'"]),
    (["cluster=none,local"], ["cluster=none,local", "cannot be swept"]),
    (["cluster=local", "hydra.launcher.n_jobs=1,2"], ["hydra.launcher.n_jobs=1,2", "cannot be swept"]),
    (["cluster=local", "hydra.launcher.n_job=2"], ["unknown key", "did you mean 'hydra.launcher.n_jobs'"]),
    (["cluster=local", "hydra.launcher.n_jobs=0"], ["hydra.launcher.n_jobs must be", "0"]),
    (["cluster=local", "hydra.launcher.n_jobs=many"], ["hydra.launcher.n_jobs must be a whole number, but got many."]),
    (["cluster=local", "hydra.launcher._target_=x"], ["unknown key 'hydra.launcher._target_'"]),
    (["hydra.launcher.n_jobs=2"], ["unknown key 'hydra.launcher.n_jobs'"]),
    (["hydra.sweep.dir=x"], ["unknown key 'hydra.sweep.dir'"]),
    (["hydra/launcher=joblib"], ["hydra/launcher=joblib cannot be chosen here"]),
    (["cluster=slurm", "hydra.launcher.partiton=gpu"], ["did you mean 'hydra.launcher.partition'"]),
    (["cluster=slurm", "hydra.launcher.timeout_min=4"], ["hydra.launcher.timeout_min must be at least 5", "4"]),
    (["cluster=slurm", "hydra.launcher.timeout_min=soon"], ["timeout_min must be a whole number, but got soon."]),
    (["cluster=slurm", "hydra.launcher.nodes=2"], ["hydra.launcher.nodes must be 1", "shards=N"]),
    (["cluster=slurm", "batch_size=64"], ["needs sbatch, which is not on this PATH"]),
    (["cluster=ray", "hydra.launcher.rya.init.address=x"], ["unknown key 'hydra.launcher.rya.init.address'"]),
]


@pytest.mark.parametrize(
    ("arguments", "words"), partly(REFUSED, 6), ids=[" ".join(arguments) for arguments, _ in REFUSED]
)
def test_a_bad_cluster_is_refused_in_words(tmp_path, monkeypatch, capsys, arguments, words):
    kind = arguments[0].partition("=")[2]
    if kind in PLUGINS:
        pytest.importorskip(PLUGINS[kind], reason=f"the extra {kind} is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["sweep", *arguments]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert captured.err.startswith("study: ")
    assert [word for word in words if word not in captured.err] == []
    assert not captured.out
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "extra"), EXTRAS.items())
def test_a_missing_extra_is_named(tmp_path, monkeypatch, capsys, launcher, extra):
    next(compose.compositions([]))  # the installed ones are known from now on
    monkeypatch.delitem(ConfigStore.instance().repo["hydra"]["launcher"], f"{launcher}.yaml", raising=False)
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", f"cluster={extra}"]) == 2
    said = f"cluster={extra} needs a package that is not installed: pip install 'batch-size-study[{extra}]'"
    assert capsys.readouterr().err == f"study: {said}\n"
    assert not list(tmp_path.iterdir())


def test_no_other_file_chooses_a_cluster(tmp_path):
    (tmp_path / "preset").mkdir()
    (tmp_path / "preset/mine.yaml").write_text("# @package _global_\ndefaults:\n  - override /cluster: local\n")
    with pytest.raises(UsageError, match="on the command line, cluster=NAME"):
        parse_jobs(["preset=mine"], tmp_path)


def test_a_file_of_ones_own_can_build_on_a_cluster(tmp_path):
    (tmp_path / "cluster").mkdir()
    text = "# @package _global_\ndefaults: [local, _self_]\nhydra: {launcher: {n_jobs: 3}}\n"
    (tmp_path / "cluster/mine.yaml").write_text(text)
    chosen = launch.chosen(["cluster=mine"], tmp_path)
    assert (chosen.kind, chosen.launcher["n_jobs"]) == ("local", 3)


def test_what_is_asked_reaches_the_launcher():
    pytest.importorskip(PLUGINS["slurm"], reason="the extra slurm is not installed")
    asked = ["hydra.launcher.partition=gpu", "hydra.launcher.additional_parameters.mail-type=END"]
    launcher = launch.chosen(["cluster=slurm", *asked], None).launcher
    assert launcher["partition"] == "gpu"
    assert launcher["additional_parameters"] == {"mail-type": "END"}
    assert launcher["timeout_min"] >= launch.LEAST_MINUTES


@pytest.mark.parametrize(
    ("launcher", "cure"),
    [
        ({}, None),
        ({"cpus_per_task": 1}, None),
        ({"gpus_per_node": 0, "cpus_per_task": 1}, None),
        ({"gpus_per_node": 1, "cpus_per_task": 2}, None),
        ({"gpus_per_node": 1}, "1 CPU core for 1 GPU, .*hydra.launcher.cpus_per_task=2"),
        ({"gpus_per_task": 2, "cpus_per_task": 2}, "2 CPU cores for 2 GPUs, .*hydra.launcher.cpus_per_task=4"),
        ({"gpus_per_node": "a100:4", "cpus_per_task": 7}, "7 CPU cores for 4 GPUs, .*cpus_per_task=8"),
        ({"gres": "gpu", "cpus_per_task": 1}, "cpus_per_task=2"),
        ({"gres": "shard:1,gpu:a100:2(S:0-1)", "cpus_per_task": 3}, "3 CPU cores for 2 GPUs, .*cpus_per_task=4"),
        ({"gres": "shard:1", "cpus_per_task": 1}, None),
        ({"gpus_per_node": 2, "cpus_per_task": 1, "cpus_per_gpu": 2}, None),
        ({"gpus_per_node": 2, "cpus_per_task": 4, "cpus_per_gpu": 1}, "2 CPU cores for 2 GPUs, .*cpus_per_gpu=2"),
        ({"additional_parameters": {"gpus": 1}, "cpus_per_task": 1}, "hydra.launcher.cpus_per_task=2"),
    ],
)
def test_jobs_with_gpus_need_cores(launcher, cure):
    said = slurm.few_cores(launcher)
    assert said is None if cure is None else re.search(cure, said)


def test_the_default_of_slurm_gives_a_gpu_its_cores():
    launcher = OmegaConf.load(CONF / "cluster/slurm.yaml").hydra.launcher
    assert slurm.few_cores({**launcher, "gpus_per_node": 1}) is None
    assert slurm.few_cores({**launcher, "gpus_per_node": 2}) is not None


def test_as_yaml_lists_what_a_cluster_can_be_told():
    assert "n_jobs: -1" in compose.as_yaml(["cluster=local"])
    assert "hydra" not in compose.as_yaml([])


@pytest.fixture(scope="module")
def parsed():
    return parse_jobs(["optimizer=sgd,momentum", "batch_size=16,64", "shards=2", "engine.workers=6", "search=sobol"])


@pytest.fixture
def jobs(parsed, tmp_path):
    return [replace(job, results=tmp_path / "results") for job in parsed]


@pytest.mark.slow
def test_a_job_for_each_study_and_shard_in_order(jobs, tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(job_process, "run", lambda tasks, told: ran.append(tasks[told.job].log.stem) or 0)
    shards = launch.each_shard(jobs)
    elsewhere = launch.Cluster("ray", {})
    tasks = [launch._task([job], None, "command", elsewhere) for job in shards]
    ends = []
    in_this_process = {"_target_": compose.BASIC}  # it shows what any launcher would do
    launch._hand_over(tasks, in_this_process, tmp_path / "it's here", ends)
    assert ends == [None]
    curves = [f"mlp_digits-{optimizer}-{size}" for optimizer in ("sgd", "momentum") for size in (16, 64)]
    assert ran == [f"{curve}-{shard}" for curve in curves for shard in (0, 1)]
    assert [path.name for path in tmp_path.iterdir()] == ["it's here"]
    assert not list((tmp_path / "it's here").iterdir())


@pytest.mark.parametrize(
    ("workers", "n_jobs", "at_once", "each"),
    [
        (6, -1, 6, [1] * 6 + [3] * 2),
        (6, 2, 2, [3] * 8),
        (6, 3, 3, [2] * 6 + [3] * 2),
        (6, 4, 4, [1] * 8),
        (6, 5, 5, [1] * 5 + [2] * 3),
        (6, 50, 8, [1] * 8),
        (1, -1, 6, [1] * 8),
        (2, -1, 3, [2] * 8),
        (2, 1, 1, [2] * 8),
    ],
)
def test_jobs_on_one_machine_share_its_cores(jobs, monkeypatch, workers, n_jobs, at_once, each):
    """All of them where the user did not ask for fewer workers than there are cores, and in the last round, too."""
    monkeypatch.setattr(launch, "cores", lambda: 6)
    shards = [launch.with_workers(job, workers) for job in launch.each_shard(jobs)]
    settings, divided = launch._divided(shards, launch.Cluster("local", {"n_jobs": n_jobs}))
    assert settings["n_jobs"] == at_once
    assert [job.placement.workers for job in divided] == each
    assert [launch.with_workers(job, workers) for job in divided] == shards


@pytest.mark.parametrize(
    ("device", "devices", "workers", "at_once"),
    [("cuda", 1, 1, 1), ("cuda:1", 1, 4, 4), ("cpu", 4, 2, 2), ("cpu", 4, 1, 2), ("cpu", 16, 1, 1)],
)
def test_jobs_share_a_gpu_and_teams_the_cores(jobs, monkeypatch, device, devices, workers, at_once):
    monkeypatch.setattr(launch, "cores", lambda: 8)
    engine = placement.Placement(device=device, devices=devices, workers=workers)
    asked = [replace(job, placement=engine) for job in jobs]
    settings, divided = launch._divided(asked, launch.Cluster("local", {"n_jobs": -1}))
    assert (settings["n_jobs"], {job.placement.workers for job in divided}) == (at_once, {1})


def test_a_ray_task_has_a_worker_for_each_core_it_was_given(jobs):
    job = launch.with_workers(jobs[0], None)
    for remote, expected in (({"num_cpus": 3}, 3), ({"num_cpus": 3, "num_gpus": 1}, None)):
        _, [divided] = launch._divided([job], launch.Cluster("ray", {"ray": {"remote": remote}}))
        assert divided.placement.workers == expected


def test_slurm_grants_cores(monkeypatch):
    monkeypatch.delenv("SLURM_CPUS_PER_TASK", raising=False)
    allowed = cores()
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "1")
    assert cores() == 1
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "4096")
    assert cores() == allowed


def test_elsewhere_no_device_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setattr(placement.Placement, "settled", lambda engine: pytest.fail("looked at this machine"))
    asked = ["batch_size=64", "engine.device=cuda:3", f"results={tmp_path}"]
    [job], _ = whole_sweep.jobs_elsewhere(asked, None)
    assert (job.placement.device, job.placement.workers) == ("cuda:3", None)
    with pytest.raises(UsageError, match=r"search\.space\.beta9"):
        whole_sweep.jobs_elsewhere([*asked, "search.space.beta9=1"], None)


@pytest.fixture
def squeue(tmp_path, monkeypatch):
    """Put a squeue on the PATH that does what it is told; returns the folder of two jobs, 12 and 13."""
    for name in ("squeue", "sbatch", "srun"):
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for name in ("12_submission.sh", "13_submission.sh", "12_0_submitted.pkl"):
        (tmp_path / name).touch()

    def told(what):
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{what}\n")
        return tmp_path

    return told


def test_what_is_in_the_queue(squeue):
    both = "cat <<END\n12 0 RUNNING None\n12 2 PENDING Priority\n99 1 RUNNING None\nEND"
    assert slurm.queued(squeue(both)) == {0: "running", 2: "queued: Priority"}
    assert slurm.queued(squeue("echo '13 N/A COMPLETING None'")) == {0: "completing"}
    assert slurm.queued(squeue("true")) == {}
    assert slurm.queued(squeue("exit 1"))  # no answer is no end


def test_jobs_of_one_command_are_found_from_any_of_its_results_folders(jobs, squeue, tmp_path):
    """What is missing when it is given again may lie in another folder than what was missing first."""
    folder = squeue("echo '12 0 RUNNING None'")
    other = [replace(job, results=tmp_path / "other") for job in jobs]
    assert launch._launches(other, tmp_path / "none") == [tmp_path / "none"]
    for note in launch._notes([*jobs, *other]):
        note.parent.mkdir(parents=True)
        note.write_text(str(folder))
    assert launch._launches(other, tmp_path / "none") == [tmp_path / "none", folder]
    looks = launch._states(other, launch.Cluster("slurm", {}), tmp_path / "none", None, "")
    assert set(next(looks).values()) == {"queued"}  # waits


def test_a_slurm_that_does_not_answer_is_refused(squeue):
    squeue("echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(UsageError, match="SLURM does not answer: slurm_load_jobs error: Unable"):
        slurm.check()


def test_a_job_compiles_no_code_of_users_wherever_it_runs(monkeypatch):
    seen = []
    monkeypatch.delenv(DISABLE, raising=False)  # as on a machine that does not get the variables of the sweep
    monkeypatch.setattr(job_process, "die_with", lambda parent: None)
    monkeypatch.setattr(job_process.signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(job_process.sys, "stdin", SimpleNamespace(buffer=BytesIO(pickle.dumps(([], None, "")))))
    monkeypatch.setattr(whole_sweep, "settled", lambda jobs: seen.append(os.environ.get(DISABLE)) or [])
    job_process.main()
    assert seen == ["1"]


def test_a_job_leaves_its_log_and_status(tmp_path):
    log = tmp_path / "here/job.log"
    task = job_process.Task(log, b"no job")
    assert job_process.status(log) is None
    assert job_process.run([task], SimpleNamespace(job=0)) == 1
    assert job_process.status(log) == 1
    assert "UnpicklingError" in log.read_text()


@pytest.mark.parametrize("reports", partly([True, False], 2), ids=["no trial", "no room"])
def test_why_jobs_failed_is_said_if_there_is_no_report(tmp_path, monkeypatch, capsys, reports):
    """Of a search without a trial no report can be written; a full disk that ends jobs ends the report, too."""

    def train(jobs, *_):
        store.announce(jobs[0].results, jobs[0].study)
        raise launch.JobsFailed("digits was killed: memory ran out")

    def no_room(*_):
        raise LoadError("cannot write tables/trials.csv: No space left on device")

    monkeypatch.setattr(sweep, "train", train)
    if not reports:
        monkeypatch.setattr(sweep, "write_report", no_room)
    assert main(["sweep", "batch_size=64", "cluster=local", f"results={tmp_path / 'results'}"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("study: digits was killed: memory ran out\n")
    assert ("has finished yet" if reports else "No space left on device") in said


def test_a_results_folder_that_was_moved_is_named(jobs, tmp_path, monkeypatch):
    """The jobs end without a status, and there is no log to which the launcher's messages could be added."""

    def hand_over(tasks, settings, folder, ends):
        jobs[0].results.rename(tmp_path / "moved")
        ends.append(FileNotFoundError("no such folder"))

    monkeypatch.setattr(launch, "_hand_over", hand_over)
    monkeypatch.setattr(launch, "_announce", lambda jobs: None)  # would write to the folder while it is moved
    local = launch.Cluster("local", {"n_jobs": 1})
    folder = jobs[0].results.absolute() / job_process.FOLDER / "local"
    with pytest.raises(StoreError, match=f"{jobs[0].results.absolute()} is no longer there: it was moved"):
        list(launch._wave(jobs, local, folder, None, ""))


@pytest.mark.parametrize(
    ("kind", "status"),
    partly([("local", None), ("local", -9), ("slurm", 1), ("ray", 1)], 2),
    ids=["killed at once", "killed", "failed on SLURM", "failed on Ray"],
)
def test_a_study_is_on_file_before_its_job_begins(tmp_path, monkeypatch, kind, status):
    """Else `study status` would say that all is done, while it is queued and after its job failed."""
    results = tmp_path / "results"
    looks = []

    def hand_over(tasks, settings, folder, ends):
        (folder / "17_submission.sh").touch()  # as submitit does when SLURM has taken the jobs
        wait_until(lambda: looks)
        for task in tasks:
            task.log.write_text("its log")
            if status is not None:
                job_process.status_file(task.log).write_text(str(status))
        ends.append(None)

    def looked(self, shown):
        looks.append([*progress(results)["state"]])

    launcher = {"n_jobs": 1, "ray": {"init": {}, "remote": {}}}
    monkeypatch.setattr(launch, "chosen", lambda *_: launch.Cluster(kind, launcher))
    monkeypatch.setattr(launch, "check", lambda cluster: None)
    monkeypatch.setattr(launch, "_ray", lambda init: SimpleNamespace(shutdown=lambda: None))
    monkeypatch.setattr(launch, "_hand_over", hand_over)
    monkeypatch.setattr(slurm, "queued", lambda folder: {})
    monkeypatch.setattr(JobsProgress, "watch", looked)
    assert main(["sweep", "batch_size=64,128", f"results={results}"]) == 1
    assert looks[0] == ["waiting"] * 2
    assert [*progress(results)["state"]] == ["waiting"] * 2


@pytest.mark.slow
def test_a_job_that_fails_leaves_the_others_alone(tmp_path, monkeypatch, capsys):
    """On this machine, two jobs at once."""
    monkeypatch.setattr(launch, "SECONDS", 0.5)
    source = FAILING.replace("{error}", "RuntimeError('no such luck')")
    mine = own_folder(tmp_path / "mine", "broken", source, "made_broken.Failing")
    results = tmp_path / "results"
    command = ["sweep", "--config-dir", str(mine), "workload=broken,images", "batch_size=8", "cluster=local"]
    assert main([*command, "hydra.launcher.n_jobs=2", f"results={results}"]) == 1
    captured = capsys.readouterr()
    assert "images, momentum, batch size 8: done" in captured.out
    assert "broken, momentum, batch size 8 ended with exit status 1:" in captured.err
    assert "no such luck" in captured.err
    log = results / ".cluster/broken-momentum.log"
    assert f"log: {log}" in captured.err
    assert "no such luck" in log.read_text()
    assert list(pd.read_csv(results / "tables/steps_to_result.csv")["workload"]) == ["images"]
