"""Worker processes are forks of a server that imports torch before the parent knows what to train."""

import multiprocessing
import os
import subprocess
import sys
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest

from study.workers import start

linux = pytest.mark.skipif(not start._FORKS, reason="only on Linux are workers forks")


@pytest.fixture
def started():
    """Starts worker processes, and ends them after the test."""
    processes = []

    def new():
        processes.append(start.worker().process)
        return processes[-1].pid

    yield new
    for process in processes:
        process.kill()
        process.join()


def _status(pid, key):
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith(key))


@linux
def test_one_server_starts_all_workers(started):
    start.ahead()
    server = forkserver._forkserver._forkserver_pid
    assert {int(_status(started(), "PPid")) for _ in range(3)} == {server}
    assert "libtorch_cpu" in Path(f"/proc/{server}/maps").read_text()


@linux
def test_the_server_runs_no_thread_that_a_fork_would_lose(started):
    started()
    assert _status(forkserver._forkserver._forkserver_pid, "Threads") == "1"


@pytest.mark.parametrize("method", [None, "fork"])
def test_a_users_code_may_set_the_start_method_of_processes_later(monkeypatch, started, method):
    monkeypatch.setattr(multiprocessing.context._default_context, "_actual_context", None)
    multiprocessing.set_start_method(method, force=True)
    started()
    assert multiprocessing.get_start_method(allow_none=True) == method


TOUCHING = """
import sys
import torch

calls = []
for name in {names}:
    setattr(torch.cuda, name, lambda *_, name=name, **__: calls.append(name))
import study.workers.preload
print(calls, torch.cuda.is_initialized(), "study.engine.train" in sys.modules)
"""
NAMES = ["is_available", "device_count", "init", "_lazy_init", "current_device", "get_device_properties", "set_device"]


@pytest.mark.slow
def test_the_server_asks_nothing_of_cuda():
    """Even the question whether there is a GPU starts CUDA's driver, which no fork can use any more."""
    program = TOUCHING.format(names=NAMES)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[] False True\n", done.stderr


PROGRAM = """
import os
from study.workers import start

if __name__ == "__main__":
    start.ahead()
    os.environ["CUDA_VISIBLE_DEVICES"] = "later"
    process, pipe = start.worker()
    print(start.forkserver._forkserver._forkserver_pid, process.pid, flush=True)
    pipe.send(("a setting", None))  # on which it crashes
    print(pipe.recv().error, flush=True)
    os._exit(0)
"""


@pytest.mark.slow
@linux
def test_server_and_workers_end_with_the_parent(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True, check=True)
    pids = done.stdout.splitlines()[0].split()
    assert len(pids) == 2, done.stderr
    deadline = time.monotonic() + 20
    while any(Path("/proc", pid).exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(Path("/proc", pid).exists() for pid in pids)


BUSY = """
import os
import signal
import time
from study.devices import signals
from study.workers import start

def busy(pipe):
    signals.die_with_pool()
    pipe.send(os.getpid())
    time.sleep(60)

if __name__ == "__main__":
    start.ahead()
    context = start.mp.get_context("forkserver" if start._FORKS else "spawn")
    ours, theirs = context.Pipe()
    context.Process(target=busy, args=(theirs,)).start()
    print(ours.recv(), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_a_busy_worker_ends_soon_after_a_killed_parent(tmp_path):
    (tmp_path / "program.py").write_text(BUSY)
    with (tmp_path / "said").open("w") as said:  # not a pipe, which would stay open as long as a worker lives
        subprocess.run([sys.executable, tmp_path / "program.py"], stdout=said, stderr=subprocess.DEVNULL)
    [worker] = (tmp_path / "said").read_text().split()
    deadline = time.monotonic() + 10
    while Path("/proc", worker).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path("/proc", worker).exists()


HOLDING = """
import multiprocessing
import time
from study.workers import start

def hold(pipe):
    held = multiprocessing.RLock()  # as tqdm makes one at its import
    pipe.send(held._semlock.name is not None)
    time.sleep(60)

if __name__ == "__main__":
    start.ahead()
    context = start.mp.get_context("forkserver" if start._FORKS else "spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold, args=(theirs,))
    process.start()
    print(ours.recv(), flush=True)
    process.kill()
    process.join()
"""


@pytest.mark.slow
@linux
def test_semaphores_of_libraries_in_killed_workers_are_freed_without_a_word(tmp_path):
    (tmp_path / "program.py").write_text(HOLDING)
    done = subprocess.run([sys.executable, tmp_path / "program.py"], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_a_worker_has_the_environment_of_now(started, monkeypatch):
    start.ahead()
    said = []
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "later")
    monkeypatch.setattr(start.mp, "get_context", lambda method: _Context(said))
    start.worker()
    [(_, variables)] = said
    assert variables["CUDA_VISIBLE_DEVICES"] == "later"
    assert variables["OMP_NUM_THREADS"] == "1"
    assert "PYTHONSAFEPATH" not in os.environ


class _Context:
    """A context that records the arguments of a process instead of starting it."""

    def __init__(self, said):
        self._said = said

    def Pipe(self):
        return forkserver.connection.Pipe()

    def Process(self, target, args):
        self._said.append(args)
        return self

    def start(self):
        pass


def test_starting_them_imports_nothing_slow():
    slow = {"torch", "hydra", "optuna", "pandas", "scipy"}
    program = f"import sys, study.__main__, study.workers.start; print({slow} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
