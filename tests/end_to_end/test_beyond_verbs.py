"""Verbs that train beyond a sweep: a plan writes nothing, and a killed run goes on to the same tables."""

import shutil
import signal
import subprocess
import sys

import pytest
from helpers.fused import seldom
from helpers.processes import alive, tables, wait_until, workers

SWEEP = [
    *("sweep", "optimizer=sgd", "batch_schedule=constant,doubling", "batch_size=16", "search=sobol"),
    *("search.trials=3", "search.reruns=2", "budget.epochs=4", "goal=val/cross_entropy_error < 0.6"),
]
LONGER = ["--workers", "1"]
VERBS = {
    "noise": (["--optimizer", "sgd", "--points", "5", "--examples", "1024"], "**/noise/0*.json", "to measure, "),
    "one step": (
        ["--one-step", "--optimizer", "sgd", "--points", "4", "--step-batch-sizes", "4,16,64"],
        *("**/one_step/0*.json", "losses to measure, "),
    ),
    "trunk": (
        ["checkpoints=8", "multiples=[1,2]", "window=320", "seeds=2", *LONGER],
        *("branched/**/checkpoints/0*.pt", "gradients of examples, "),
    ),
    "branches": (
        ["checkpoints=2", "multiples=[1,2,4]", "window=6400", "seeds=4", *LONGER],
        *("branched/**/from-step-*/**/*.parquet", "at full budget with 1 worker"),
    ),
    "verify": (["--seeds", "6", *LONGER], "verified/**/*.parquet", "at full budget with 1 worker"),
    "certify": (
        ["--optimizer", "sgd", "--seeds", "40", *LONGER],
        *("studies/**/certify-at-*/**/*.parquet", "at full budget with 1 worker"),
    ),
}
"""Name -> words, the first files that the verb writes, and a part of what its plan says."""
ATTEMPTS = 5
"""A run that has written everything before it is killed, as may happen on a busy machine, is started again."""
NAMES = {"one step": "noise", "trunk": "branch", "branches": "branch"}


def files(folder):
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def killed_at_its_first_file(command, results, pattern):
    """Kill the command, and none of its workers by hand, when it has written a file.

    Returns:
        Whether it was killed before its end, and how many files there are.
    """
    process = subprocess.Popen([sys.executable, "-m", "study", *command], stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or any(results.glob(pattern)), seconds=300)
        there = workers(process.pid)
        killed = process.poll() is None
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until(lambda: not alive(there))
    return killed, len(list(results.glob(pattern)))


@pytest.mark.parametrize("name", seldom(VERBS))
def test_a_plan_writes_nothing_and_a_killed_run_goes_on_to_the_same_tables(name, tmp_path, says):
    peaceful, swept, killed = (tmp_path / folder for folder in ("peaceful", "swept", "killed"))
    words, pattern, cost = VERBS[name]
    says(*SWEEP, f"results={peaceful}")
    before = files(peaceful)
    command = [NAMES.get(name, name), str(killed), *words]
    assert cost in says(command[0], peaceful, *words, "--plan")
    assert files(peaceful) == before
    shutil.copytree(peaceful, swept)
    says(command[0], peaceful, *words)
    whole = len(list(peaceful.glob(pattern)))
    for _ in range(ATTEMPTS):
        shutil.rmtree(killed, ignore_errors=True)
        shutil.copytree(swept, killed)
        in_time, there = killed_at_its_first_file(command, killed, pattern)
        if in_time and (there < whole or "parquet" in pattern):  # trials of a study share a file
            break
    else:
        pytest.fail(f"it wrote all {whole} files, or ended, before it could be killed, {ATTEMPTS} times")
    assert cost in says(*command)
    assert tables(killed) == tables(peaceful) != {}
    assert "Nothing is left to train." in says(*command, "--plan")
