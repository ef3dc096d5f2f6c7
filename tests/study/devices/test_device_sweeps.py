"""Sweeps whose trials several processes train together, by their command lines: what they print, leave and survive."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.processes import alive, started, wait_until, workers

TOLERANCE = 2e-4
SWEEP = [
    "batch_size=48,1",
    "search.trials=2",
    "search.reruns=0",
    "budget.epochs=0",
    "budget.steps=30",
    "stopping=budget",
    "engine=serial",
]
SWEEP += ["seeds.shared=true"]  # points whose learning rates are small: large ones amplify rounding
ALONE = ["sweep", *SWEEP, "engine.workers=1"]
LONG = [
    "batch_size=48",
    "search.trials=4",
    "search.reruns=0",
    "budget.steps=4000",
    "budget.max_steps=4000",
    "stopping=budget",
]


def assert_agree(folders: list[Path]) -> None:
    for size in (48, 1):
        paths = [next(folder.glob(f"studies/*/*/{size}/curves.parquet")) for folder in folders]
        losses = [pq.read_table(path)["val/cross_entropy_error"].to_numpy() for path in paths]
        np.testing.assert_allclose(*losses, rtol=TOLERANCE)


def launched(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "study"]
    return subprocess.run([*command, "sweep", *SWEEP, *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_a_sweep_on_two_devices(tmp_path, swept_once, says):
    said = says("sweep", *SWEEP, "engine.devices=2", f"results={tmp_path}")
    assert "Batch size 48 = 2 devices x 1 accumulation step of at most 24 examples." in said
    assert "on 2 x cpu" in said
    [path] = tmp_path.glob("studies/*/*/48/study.json")
    [run] = json.loads(path.read_text())["provenance"]
    assert (run["devices"], run["batch"]) == (2, "48 = 2 devices x 1 accumulation step of at most 24 examples")
    assert_agree([tmp_path, swept_once(*ALONE)])
    said = says(*ALONE, "search.trials=3", "search.reruns=0", f"results={tmp_path}")
    assert "holds trials that were trained on 2 x cpu; trials on cpu agree with them only to a tolerance" in said


@pytest.mark.slow
def test_torchrun_trains_on_its_processes(tmp_path, swept_once):
    done = launched(f"results={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Report: ") == 1
    assert_agree([tmp_path, swept_once(*ALONE)])
    again = launched(f"results={tmp_path}")  # nothing is left to train
    assert again.returncode == 0, again.stderr
    refused = launched("engine.devices=3", f"results={tmp_path}")
    assert refused.returncode != 0
    assert "torchrun started 2 processes, but got engine.devices=3" in " ".join(refused.stderr.split())


@pytest.fixture
def team(tmp_path):
    """(a sweep under way, the processes of its team)."""
    process = started(tmp_path, ["sweep", *LONG, "engine.devices=2", "engine.workers=1"])
    found = workers(process.pid)
    assert len(found) == 2
    return process, found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
@pytest.mark.parametrize("victim", [min, max])
def test_whoever_dies_takes_the_team_along(team, victim):
    process, members = team
    os.kill(victim(members), signal.SIGKILL)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1, said
    assert "a worker process died (exit code -9)" in said
    assert "Traceback" not in said
    assert not alive(members)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_a_team_dies_with_its_parent(team):
    process, members = team
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(members), seconds=15)


@pytest.mark.slow
def test_a_device_that_fills_in_the_middle_of_a_trial_ends_the_sweep_in_words(mapped, says):
    words, results = mapped("Filled", trials=1, steps=4000)
    said = says(*words, "engine.devices=2", f"results={results}", status=1)
    assert "ran out of memory in the middle of a trial" in said
    assert "no room. Finished trials are kept, and the same command continues" in said
    assert "Traceback" not in said
