"""Sweeps on real clusters of one node: jobs that are killed hard, and the tables of a sweep that knew no cluster."""

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from helpers import one_node_slurm
from helpers.processes import alive, heed_interrupts, tables, wait_until

from study.__main__ import main
from study.cluster import launch

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")]

SWEEP = ["sweep", "batch_size=16,256", "search.trials=40", "search.reruns=0", "budget.epochs=5", "stopping=budget"]
REFINED = ["sweep", "batch_size=16,256", "search=refine", "search.scouts=4", "search.refine=[2]", "search.confirm=2"]


@pytest.fixture(scope="module")
def slurm():
    for module in ("submitit", "hydra_plugins.hydra_submitit_launcher"):
        pytest.importorskip(module, reason="the extra slurm is not installed")
    if why := one_node_slurm.lacking():
        pytest.skip(why)
    with one_node_slurm.one_node_slurm():
        yield


@pytest.fixture(scope="module")
def ray(tmp_path_factory):
    if importlib.util.find_spec("ray") is None or shutil.which("ray", path=Path(sys.executable).parent) is None:
        pytest.skip("the extra ray is not installed")
    log = tmp_path_factory.mktemp("ray") / "log"
    command = [Path(sys.executable).parent / "ray", "start", "--head", "--block", "--num-cpus=2", "--port=0"]
    with log.open("wb") as file:
        head = subprocess.Popen([*command, "--include-dashboard=false"], stdout=file, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: "--block" in log.read_text() or head.poll() is not None)
        assert head.poll() is None, log.read_text()
        yield
    finally:
        head.terminate()
        head.wait(timeout=60)


def started(results, *more, sweep=SWEEP):
    """A sweep in a process of its own, once a job of it has finished a trial."""
    before = {*results.rglob("*.parquet")}
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "preexec_fn": heed_interrupts}
    process = subprocess.Popen([sys.executable, "-m", "study", *sweep, *more, f"results={results}"], **piped)
    wait_until(lambda: {*results.glob("studies/*/*/*/trials/[0-9]*")} - before, seconds=120)
    return process


def training(results):
    """Process -> log, of the jobs under way in a results folder."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if "study.cluster.job_process" in (folder / "cmdline").read_text():
                log = os.readlink(folder / "fd/1")
                if log.startswith(str(results)):
                    found[int(folder.name)] = Path(log).stem
        except OSError:
            continue
    return found


def parent(pid):
    return int((Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[1])


def finish(process):
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


@pytest.mark.release
@pytest.mark.parametrize("cluster", ["slurm", "ray"])
def test_after_a_job_was_killed_hard(cluster, tmp_path, swept_once, request):
    request.getfixturevalue(cluster)
    process = started(tmp_path, f"cluster={cluster}")
    killed, log = next(iter(training(tmp_path).items()))
    if cluster == "slurm":  # the launcher's own first: nothing is left to say how it ended
        os.kill(parent(killed), signal.SIGKILL)
    os.kill(killed, signal.SIGKILL)
    status, out, err = finish(process)
    assert status == 1
    size = int(log.rpartition("-")[2])
    assert f"batch size {size} was killed" in err
    assert f"{log}.log" in err
    [other] = {16, 256} - {size}
    assert f"mlp_digits, momentum, batch size {other}: done, 40 of 40" in out
    assert (tmp_path / "report.html").exists()
    assert main([*SWEEP, f"cluster={cluster}", f"results={tmp_path}"]) == 0
    assert tables(tmp_path) == tables(swept_once(*SWEEP))
    assert not (tmp_path / ".cluster").exists()


@pytest.mark.parametrize("cluster", ["local", pytest.param("ray", marks=pytest.mark.release)])
def test_jobs_end_with_who_sent_them_and_the_same_command_continues(cluster, tmp_path, swept_once, request):
    if cluster != "local":
        request.getfixturevalue(cluster)
    process = started(tmp_path, f"cluster={cluster}")
    jobs = training(tmp_path)
    process.kill()
    process.communicate()
    assert jobs
    wait_until(lambda: not alive(set(jobs)), seconds=30)
    assert main([*SWEEP, f"cluster={cluster}", f"results={tmp_path}"]) == 0
    assert tables(tmp_path) == tables(swept_once(*SWEEP))


def test_slurm_jobs_go_on_without_who_sent_them_and_the_same_command_waits(slurm, tmp_path, swept_once, says):
    slowly = "engine.lanes=1"  # so that they are at work when the second command comes
    process = started(tmp_path, "cluster=slurm", slowly)
    process.send_signal(signal.SIGINT)
    status, _, err = finish(process)
    assert status == 130
    assert "its jobs continue, and the same command waits for them; scancel " in err
    jobs = training(tmp_path)
    assert jobs
    assert "running" in says(*SWEEP, "cluster=slurm", slowly, f"results={tmp_path}")
    assert not alive(set(jobs))
    runs = [path.read_text().count('"started"') for path in tmp_path.glob("studies/*/*/*/study.json")]
    assert runs == [1, 1]
    assert tables(tmp_path) == tables(swept_once(*SWEEP))


def test_slurm_that_refuses_leaves_nothing(slurm, tmp_path, capfd):
    results = tmp_path / "results"
    assert main([*SWEEP, "cluster=slurm", "hydra.launcher.partition=nope", f"results={results}"]) == 2
    assert "cluster=slurm refused the jobs: " in capfd.readouterr().err
    assert not results.exists()


@pytest.mark.parametrize(
    "cluster",
    [pytest.param("local", marks=pytest.mark.release), "slurm", pytest.param("ray", marks=pytest.mark.release)],
)
def test_of_a_study_in_shards_others_take_over_what_the_killed_leave(cluster, tmp_path, swept_once, request):
    if cluster != "local":
        request.getfixturevalue(cluster)
    process = started(tmp_path, f"cluster={cluster}", "shards=2", "engine.workers=1", "engine.lanes=2")
    os.kill(next(iter(training(tmp_path))), signal.SIGKILL)
    status, out, err = finish(process)
    assert (status, err) == (0, "")
    assert out.count("done, 40 of 40") == 2
    assert tables(tmp_path) == tables(swept_once(*SWEEP))


@pytest.mark.parametrize("cluster", ["local", "slurm"])
def test_a_job_alone(cluster, tmp_path, request):
    """Joblib then starts no process for it, and SLURM gets no array."""
    if cluster != "local":
        request.getfixturevalue(cluster)
    assert (
        main(
            [
                "sweep",
                "batch_size=256",
                "search.trials=2",
                "search.reruns=0",
                f"cluster={cluster}",
                f"results={tmp_path}",
            ]
        )
        == 0
    )
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    "cluster",
    ["local", pytest.param("slurm", marks=pytest.mark.release), pytest.param("ray", marks=pytest.mark.release)],
)
@pytest.mark.parametrize("shards", [1, pytest.param(2, marks=pytest.mark.release)])
def test_batch_sizes_that_share_a_model(cluster, shards, tmp_path, swept_once, request, monkeypatch):
    """In shards, jobs end with each stage, and the next ones follow."""
    if cluster != "local":
        request.getfixturevalue(cluster)
    monkeypatch.setattr(launch, "SECONDS", 0.5)
    waves = []
    monkeypatch.setattr(launch, "_wave", partial(counted, launch._wave, waves))
    assert main([*REFINED, f"cluster={cluster}", f"shards={shards}", f"results={tmp_path}"]) == 0
    assert tables(tmp_path) == tables(swept_once(*REFINED))
    assert len(waves) >= 3 if shards > 1 else len(waves) == 1  # three stages; perhaps another wave for the reruns
    assert not (tmp_path / ".cluster").exists()


def counted(function, calls, *arguments):
    calls.append(1)
    return function(*arguments)


@pytest.mark.release  # as jobs of SLURM that are killed
def test_jobs_follow_those_that_were_killed_in_a_stage(tmp_path, swept_once):
    more = ["cluster=local", "shards=2"]
    process = started(tmp_path, *more, sweep=REFINED)
    for killed in training(tmp_path):
        os.kill(killed, signal.SIGKILL)
    status, _, err = finish(process)
    assert (status, err) == (0, "")
    assert tables(tmp_path) == tables(swept_once(*REFINED))
