"""Worker processes that start before the parent knows what to train."""

import subprocess
import sys
from pathlib import Path

import pytest

from study.__main__ import main
from study.devices.placement import Placement
from study.workers import start
from study.workers.pool import Workers


@pytest.fixture
def gpus(monkeypatch, request):
    """A machine of eight cores with `request.param` GPUs."""
    monkeypatch.setattr(start, "cores", lambda: 8)
    monkeypatch.setattr(Path, "glob", lambda folder, pattern: (folder / f"nvidia{i}" for i in range(request.param)))


@pytest.mark.parametrize(
    ("gpus", "overrides", "count"),
    [
        (0, [], 8),
        (0, ["optimizer=sgd,adam", "engine.workers=3"], 3),
        (0, ["engine.workers=null"], 8),
        (0, ["cluster=none"], 8),
        (0, ["cluster=local"], 0),
        (2, [], 2),
        (2, ["engine.device=cpu"], 8),
    ],
    indirect=["gpus"],
)
def test_as_many_as_the_sweep_will_likely_take(gpus, overrides, count, monkeypatch):
    assert start._likely(overrides) == count
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "of torchrun")
    assert start._likely(overrides) == 1


def test_a_pool_takes_the_processes_that_were_started_ahead():
    start.ahead(["engine.workers=3"])
    start.ahead(["engine.workers=3"])
    begun = [each.process.pid for each in start._ahead]
    assert len(begun) == 3
    with Workers(Placement(device="cpu", workers=2)) as workers:
        assert [process.pid for process in workers._processes.values()] == begun[:2]
        [unused] = start._ahead
        start.end_unused()
        assert unused.process.exitcode == -9
    assert not start._ahead


@pytest.mark.parametrize("overrides", [["optimizer=none"], ["--cfg"], ["batch_size=0"]])
def test_no_process_outlives_the_command(overrides, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    begun = []
    new = start._new
    monkeypatch.setattr(start, "_new", lambda: begun.append(new()) or begun[-1])
    main(["sweep", *overrides])
    assert bool(begun) == ("--cfg" not in overrides)
    assert all(each.process.exitcode == -9 for each in begun)


def test_starting_them_imports_nothing_slow():
    slow = {"torch", "hydra", "optuna", "pandas", "scipy"}
    program = f"import sys, study.__main__, study.workers.start; print({slow} & {{*sys.modules}})"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "set()\n"
