"""Processes that share an adaptive search through a PostgreSQL server, a real one that the tests start."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from study import store

NOBODY = 65534
SWEEP = [
    "sweep",
    "batch_size=64",
    "search=tpe",
    "search.trials=24",
    "search.reruns=0",
    "budget.epochs=0",
    "budget.steps=1500",
]


class Server:
    """A PostgreSQL server in a folder, reached by a socket there; it refuses to run as root."""

    def __init__(self, folder, binaries):
        self.folder, self.binaries = folder, binaries
        self.url = f"postgresql+psycopg://postgres@/postgres?host={folder}"
        if os.geteuid() == 0:
            os.chown(folder, NOBODY, NOBODY)
        self.run("initdb", "--auth=trust", "--username=postgres", "--no-sync")
        self.start()

    def run(self, program, *arguments):
        command = [str(self.binaries / program), "-D", str(self.folder / "data"), *arguments]
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        subprocess.run(command, check=True, cwd=self.folder, timeout=60, stdout=subprocess.DEVNULL, **who)

    def start(self):
        options = f"-c listen_addresses= -c unix_socket_directories={self.folder} -c fsync=off"
        self.run("pg_ctl", "start", "--wait", "--log", str(self.folder / "log"), "--options", options)

    def stop(self):
        self.run("pg_ctl", "stop", "--mode=immediate")


@pytest.fixture
def server():
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    binaries = found[-1].parent if found else Path(shutil.which("initdb") or "/").parent
    if not (binaries / "initdb").exists():
        pytest.skip("no PostgreSQL server is installed (Debian: postgresql)")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("no driver is installed: pip install 'batch-size-study[postgres]'")
    with tempfile.TemporaryDirectory() as folder:  # short: the path of a socket has 107 characters at most
        Path(folder).chmod(0o755)
        made = Server(Path(folder), binaries)
        try:
            yield made
        finally:
            if (made.folder / "data" / "postmaster.pid").exists():
                made.stop()


def held(url):
    storage = optuna.storages.RDBStorage(url)
    [name] = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).trials


@pytest.mark.slow
def test_processes_share_a_search_and_take_up_what_the_dead_leave(server, tmp_path):
    results = tmp_path / "results"
    slowly = ["stopping=budget", "shards=3", "engine.workers=1", "engine.lanes=1"]
    arguments = [*SWEEP, *slowly, f"search.storage={server.url}", f"results={results}"]
    command = [sys.executable, "-m", "study", *arguments]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    processes = [subprocess.Popen(command, **quiet) for _ in range(3)]
    deadline = time.monotonic() + 240
    victim = None
    while victim is None:  # one that has a shard, while trials are under way that the sampler proposed
        assert time.monotonic() < deadline
        assert any(process.poll() is None for process in processes), processes[0].communicate()[1]
        time.sleep(0.05)
        if _asked_optuna(server.url):
            working = {_pid(path) for path in results.rglob(".claim.*")}
            victim = next((process for process in processes if process.pid in working), None)
    os.killpg(victim.pid, signal.SIGKILL)
    for process in processes:
        _, said = process.communicate()
        assert process.returncode == (-signal.SIGKILL if process is victim else 0), said
    [folder] = results.glob("studies/*/*/*")
    curves = store.load(folder)
    assert [curve.trial.index for curve in curves] == list(range(len(curves)))
    trials = held(server.url)
    finished = [t for t in trials if t.state == TrialState.COMPLETE or (t.state == TrialState.FAIL and t.params)]
    assert not [t for t in trials if t.state == TrialState.RUNNING and "owner" in t.user_attrs]
    complete = Counter(trial.user_attrs["index"] for trial in trials if trial.state == TrialState.COMPLETE)
    assert set(complete.values()) == {1}
    assert sum(complete.values()) == 24
    assert {trial.user_attrs["index"] for trial in finished} >= {curve.trial.index for curve in curves}
    # Every point stands in the search as it was trained.
    points = {t.user_attrs["index"]: t.params["learning_rate"] for t in trials if t.state == TrialState.COMPLETE}
    trained = {curve.trial.index: curve.trial.hyperparameters["learning_rate"] for curve in curves}
    assert all(trained[index] == pytest.approx(rate) for index, rate in points.items())
    shards = {run["shard"] for run in store.runs(folder)}
    assert shards == {"0-of-3", "1-of-3", "2-of-3"}


def _pid(claim):
    """Of the process that holds it; None: it is gone."""
    with suppress(FileNotFoundError):
        return json.loads(claim.read_text())["pid"]


def _asked_optuna(url):
    """Whether a trial is under way that the sampler proposed."""
    try:
        return any(trial.state == TrialState.RUNNING for trial in held(url))
    except Exception:  # no tables yet, or no study
        return False


@pytest.mark.release
def test_a_server_that_goes_away_is_named_and_nothing_is_lost(server, tmp_path, says, monkeypatch):
    command = [*SWEEP, f"search.storage={server.url}", f"results={tmp_path}", "engine.workers=1"]
    real, saved = store.save, []

    def stopping(folder, curve, **how):
        saved.append(curve.trial.index)
        if len(saved) == 5:
            server.stop()
        return real(folder, curve, **how)

    monkeypatch.setattr(store, "save", stopping)
    said = says(*command, status=2)
    assert f"search.storage={server.url} failed" in said
    assert "finished trials are safe, and the same command continues once the storage answers" in said
    assert "cannot be used" in says(*command, status=2)
    server.start()
    says(*command)
    [folder] = tmp_path.glob("studies/*/*/*")
    assert {curve.trial.index for curve in store.load(folder)} >= set(saved)
    assert len(saved) == len(set(saved))  # none was trained twice
