"""Worker processes: what happens when one of them, or their parent, dies."""

import os
import signal
from copy import copy
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers.processes import SWEEP, alive, started, tables, wait_until, workers

from study.__main__ import main
from study.devices.placement import Placement
from study.engine.cost import COMPILED_SECONDS, Cost
from study.workers import pool
from study.workers.start import one_thread_environment


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").exists(), reason="reads /proc")
def test_workers_die_with_their_parent_and_the_same_command_continues(tmp_path: Path, swept_once) -> None:
    process = started(tmp_path)
    theirs = workers(process.pid)
    assert theirs
    process.kill()
    process.communicate()
    wait_until(lambda: not alive(theirs), seconds=10)
    assert main([*SWEEP, f"results={tmp_path}"]) == 0
    assert tables(tmp_path) == tables(swept_once(*SWEEP))


@pytest.mark.slow
def test_a_second_sweep_is_refused_while_the_first_goes_on(tmp_path: Path, swept_once, capsys) -> None:
    process = started(tmp_path)
    wait_until(lambda: any(tmp_path.glob("studies/*/*/*/.claim.*")))
    process.send_signal(signal.SIGSTOP)  # so that it does not end before the second looks
    try:
        assert main([*SWEEP, f"results={tmp_path}"]) == 2
    finally:
        process.send_signal(signal.SIGCONT)
    assert f"is being worked on by process {process.pid} on " in capsys.readouterr().err
    process.communicate(timeout=120)
    assert process.returncode == 0
    assert tables(tmp_path) == tables(swept_once(*SWEEP))


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGHUP], ids=["Ctrl-C", "closed"])
def test_interrupting_says_how_to_go_on(tmp_path: Path, end: signal.Signals) -> None:
    process = started(tmp_path)
    for each in (*workers(process.pid), process.pid):  # a terminal sends it to all
        os.kill(each, end)
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


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer": "adam"},
        {"optimizer_arguments": {"ns_steps": 3}},
        {"no_decay": ("bias",)},
        {"precision": "bf16"},
        {"evaluation_chunk": 7},
    ],
)
def test_costs_are_kept_apart_by_all_that_a_step_depends_on(make_study, fields):
    study = make_study()
    other = copy(study)
    for name, value in fields.items():
        object.__setattr__(other, name, value)  # combinations that one optimizer would refuse
    assert pool.curve_key(other) != pool.curve_key(study)


@pytest.mark.parametrize(
    ("asked", "device", "seconds", "compiles"),
    [
        ("auto", "cuda", COMPILED_SECONDS, True),
        ("auto", "cuda", 0.99 * COMPILED_SECONDS, False),
        ("auto", "cpu", 100 * COMPILED_SECONDS, False),  # bits are promised there
        (True, "cuda:1", 0.0, True),
        (False, "cuda", 100 * COMPILED_SECONDS, False),
    ],
)
def test_updates_are_compiled_if_training_takes_much_longer(make_study, asked, device, seconds, compiles):
    study = make_study(trials=20, steps=100)
    workers = object.__new__(pool.Workers)
    workers.placement, workers._pipes = Placement(device=device, compile=asked), ["pipe", "pipe"]
    workers._costs = {pool._key(study): Cost(seconds * 2 / (20 * 100), 1.0, 1.0)}
    assert workers.compiles(study) is compiles


def test_updates_of_trials_with_data_of_their_own_are_not_compiled(make_study):
    """Each would have one of its own."""
    workers = object.__new__(pool.Workers)
    workers.placement = Placement(device="cuda", compile=True)
    assert not workers.compiles(SimpleNamespace(differs_by_trial=True))
