"""Worker processes: what happens when one of them, or their parent, dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from study.__main__ import main
from study.workers.pool import one_thread_environment

SWEEP = ["sweep", "batch_size=32", "search.trials=12", "budget.steps=3000", "budget.max_steps=3000", "stopping=budget"]


def children(pid: int) -> set[int]:
    """Processes started by `pid` that run Python code of this project's workers."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
            command = (status.parent / "cmdline").read_text()
        except OSError:
            continue
        if f"PPid:\t{pid}\n" in text and "spawn_main" in command:
            found.add(int(status.parent.name))
    return found


def alive(pids: set[int]) -> set[int]:
    """Those that run still; a zombie does not."""
    running = set()
    for pid in pids:
        try:
            state = (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if state != "Z":
            running.add(pid)
    return running


def wait_until(condition, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def started(results: Path, sweep: Sequence[str] = SWEEP) -> subprocess.Popen[str]:
    """A sweep in a process of its own, from its first finished trial or, at least, its folder on."""
    command = [sys.executable, "-m", "study", *sweep, f"results={results}"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=_heed_interrupts
    )
    wait_until(lambda: any(results.glob("studies/*/*/*/study.json")))
    return process


def _heed_interrupts() -> None:
    """A shell starts its background jobs with Ctrl-C ignored, and children, such as this sweep, inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def tables(folder: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in (folder / "tables").glob("*.csv") if p.name != "cost.csv"}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert main([*SWEEP, f"results={folder}"]) == 0
    return tables(folder)


@pytest.mark.slow
def test_a_worker_that_dies_is_reported_and_the_same_command_continues(tmp_path: Path, undisturbed) -> None:
    process = started(tmp_path)
    os.kill(min(children(process.pid)), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "a worker process died (exit code -9)" in said
    assert "Traceback" not in said
    assert main([*SWEEP, f"results={tmp_path}"]) == 0
    assert tables(tmp_path) == undisturbed


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_workers_die_with_their_parent_and_the_same_command_continues(tmp_path: Path, undisturbed) -> None:
    process = started(tmp_path)
    workers = children(process.pid)
    assert workers
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(workers), seconds=10)
    assert main([*SWEEP, f"results={tmp_path}"]) == 0
    assert tables(tmp_path) == undisturbed


@pytest.mark.slow
def test_a_second_sweep_is_refused_while_the_first_goes_on(tmp_path: Path, undisturbed, capsys) -> None:
    process = started(tmp_path)
    wait_until(lambda: any(tmp_path.glob("studies/*/*/*/trials/[0-9]*")))
    process.send_signal(signal.SIGSTOP)  # so that it does not end before the second looks
    try:
        assert main([*SWEEP, f"results={tmp_path}"]) == 2
    finally:
        process.send_signal(signal.SIGCONT)
    assert f"is being worked on by process {process.pid} on " in capsys.readouterr().err
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert tables(tmp_path) == undisturbed


@pytest.mark.slow
def test_interrupting_says_how_to_go_on(tmp_path: Path) -> None:
    process = started(tmp_path)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "the same command continues" in said
    assert not list(tmp_path.rglob(".*.parquet*"))


def test_what_workers_are_told_joins_what_the_user_told_and_ends_with_them(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=0")
    monkeypatch.delenv("MALLOC_MMAP_MAX_", raising=False)
    with one_thread_environment():
        assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.check=0:glibc.malloc.hugetlb=1"
        assert os.environ["MALLOC_MMAP_MAX_"] == "0"
    assert os.environ["GLIBC_TUNABLES"] == "glibc.malloc.check=0"
    assert "MALLOC_MMAP_MAX_" not in os.environ
