"""How far a sweep is, what it would cost, and that asking changes nothing."""

import fcntl
import io
import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import pytest
from helpers.fused import partly
from rich.console import Console

from analysis.load import load
from analysis.tables import status, steps_to_result
from study import store, warn
from study.config import preflight
from study.config.jobs import parse_jobs
from study.store import claims

ROOT = Path(__file__).parents[3]
HERE = {"host": socket.gethostname(), "pid": os.getpid(), "boot": status._machine()}
RUN = {"workers": 2}
SMALL = ["batch_size=64,256", "search.trials=3", "search.reruns=0", "budget.epochs=2"]


@pytest.fixture
def state(tmp_path, make_study, make_curve):
    """The row of `status` after these trials (keywords of make_curve, by index), while these processes work on it."""

    def make(curves, *processes, begun=True, **fields):
        study = make_study(**fields)
        store.announce(tmp_path, study)
        if begun:
            store.open_study(tmp_path, study, RUN)
            folder = store.study_folder(tmp_path, study)
            for number, process in enumerate(processes):
                claim = folder / f".claim.{number}-of-{len(processes)}.1"
                claim.write_text(json.dumps(process))
                if process is HERE:
                    held.append(claim.open("rb"))
                    fcntl.flock(held[-1], fcntl.LOCK_EX)
            for index, curve in curves.items():
                store.save(folder, make_curve(study, index, **curve))
        [row] = status.table(load(tmp_path)).to_dict("records")
        return row

    held: list[BinaryIO] = []
    yield make
    for file in held:
        file.close()


def test_a_study_that_is_announced_waits(state, tmp_path):
    row = state({}, begun=False)
    assert (row["state"], row["complete"], row["wanted"]) == ("waiting", 0, 4)
    assert row["seconds_left"] != row["seconds_left"]  # unknown
    assert not steps_to_result.table(load(tmp_path))["reached"].any()


def test_counts_best_and_time_left(state):
    row = state({0: {"reaches": 30}, 1: {"bad": 9}, 3: {"reaches": 20}}, HERE)
    assert (row["state"], row["processes"]) == ("running", 1)
    assert (row["complete"], row["infeasible"], row["incomplete"], row["best"]) == (2, 1, 1, 20)
    seconds = 3 * (2.0 + 0.5)  # of every curve made by hand
    assert row["seconds_left"] == pytest.approx(seconds / 2 * 2 / 2)  # two trials made, two to go, two workers


def test_the_best_is_the_best_of_those_that_count(state):
    """A trial was started for one that seemed to have diverged, until a faster one of lower index had ended."""
    row = state({0: {"reaches": 20}, 1: {"bad": 60}, 2: {"reaches": 10}}, trials=2, stopping="race")
    assert (row["state"], row["best"]) == ("done", 20)


DEAD = {**HERE}  # its number came again: nobody holds its lock
ELSEWHERE = {**HERE, "pid": 2**22 + 1, "boot": "another"}  # a machine of the same name


@pytest.mark.parametrize(
    ("processes", "living"), [([], 0), ([DEAD], 0), ([ELSEWHERE], 1), ([HERE, DEAD, ELSEWHERE], 2), ([{}], 0)]
)
def test_whether_it_runs(state, processes, living):
    row = state({0: {}}, *processes)
    assert (row["state"], row["processes"]) == ("running" if living else "stopped", living)


def test_a_process_elsewhere_that_is_silent_is_dead(tmp_path, state):
    state({0: {}}, ELSEWHERE)
    [claim] = tmp_path.rglob(".claim*")
    os.utime(claim, (0, 0))
    [row] = status.table(load(tmp_path)).to_dict("records")
    assert row["state"] == "stopped"


def test_trials_that_were_made_twice_are_told(tmp_path, make_study, says):
    for doubled in (0, 2, 1):
        run = store.open_study(tmp_path, make_study(), RUN)
        store.end_run(run, {"doubled_trials": doubled})
    told = "Discarded: 3 trials that were trained twice: their process was taken for dead."
    assert told in says("status", tmp_path)


def test_fresh_seeds_name_the_search_whose_configuration_they_train(tmp_path, make_study):
    study = make_study()
    for widened in ((), ("learning_rate.high",)):
        branch = study.branch._replace(widened=widened)
        for each in (branch, branch._replace(rerun=0), branch._replace(rerun=0, rule="linear", base=8)):
            store.open_study(tmp_path, replace(study, branch=each), RUN)
    rows = status.table(load(tmp_path)).to_dict("records")
    named = {row["search"]: row["reruns_of"] for row in rows if isinstance(row["reruns_of"], str)}
    assert named == {"reruns of trial 0": "", "stage 1, reruns of trial 0": "stage 1"}
    assert len(rows) == 6


@pytest.mark.parametrize(("last", "fields"), [({}, {}), ({"bad": 5}, {"max_launches": 3})])
def test_done(state, last, fields):
    row = state({0: {"bad": 5}, 1: {}, 2: last}, trials=2, **fields)
    assert (row["state"], row["seconds_left"]) == ("done", 0)


@pytest.mark.slow
def test_plan_writes_nothing(tmp_path, says):
    rows = json.loads(says("plan", *SMALL, "--json", "engine.workers=1", f"results={tmp_path / 'results'}"))["rows"]
    assert [(row["batch_size"], row["trials"], row["steps"]) for row in rows] == [(64, 3, 600), (256, 3, 600)]
    assert [row["examples"] for row in rows] == [600 * 64, 600 * 256]
    assert all(row["seconds"] > 600 * row["seconds_per_step"] > 0 for row in rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "optimizer", "told"),
    partly([("lanes", "kfac", True), ("lanes", "momentum", False), ("auto", "kfac", False)], 2),
)
def test_lanes_that_cannot_be_are_told(tmp_path, engine, optimizer, told):
    console = Console(width=1000, file=io.StringIO())
    arguments = [*SMALL, f"optimizer={optimizer}", f"engine={engine}", f"results={tmp_path}"]
    warn.of_lanes(preflight.settle(parse_jobs(arguments)), console)
    line = f"mlp_digits with {optimizer} at batch size 64, 256: trials train one at a time, because kfac updates whole"
    assert (line in console.file.getvalue()) is told


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "told"), partly([("tf32", True), ("fp32", False), ("bf16", False)], 3))
def test_tf32_on_a_cpu_is_told(tmp_path, precision, told):
    console = Console(width=1000, file=io.StringIO())
    arguments = [*SMALL, f"precision={precision}", "engine.device=cpu", f"results={tmp_path}"]
    warn.of_precision(preflight.settle(parse_jobs(arguments)), console)
    assert ("precision=tf32 changes nothing on a CPU" in console.file.getvalue()) is told


@pytest.mark.slow
def test_status_and_plan_of_a_finished_sweep(tmp_path, says):
    small = [*SMALL, "engine.workers=1", f"results={tmp_path}"]
    says("sweep", *small)
    rows = json.loads(says("status", tmp_path, "--json"))["rows"]
    assert [(row["batch_size"], row["state"], row["complete"]) for row in rows] == [(64, "done", 3), (256, "done", 3)]
    assert "Done." in says("status", tmp_path)
    assert "Nothing is left to train." in says("plan", *small)
    rows = json.loads(says("plan", *small, "search.trials=5", "search.reruns=0", "--json"))["rows"]
    assert [(row["trials"], row["steps"]) for row in rows] == [(2, 400), (2, 400)]  # what is on file costs nothing


def test_nobody_knows_how_long_it_takes_before_a_trial_has_ended(tmp_path, says, make_study):
    for size in (8, 64):
        store.announce(tmp_path, make_study(batch_size=size))
    store.open_study(tmp_path, make_study(batch_size=8), RUN)
    assert "Time left: unknown, because of 2 searches that have no complete trial yet." in says("status", tmp_path)


def test_status_of_nothing_is_refused(tmp_path, says):
    assert "no studies in" in says("status", tmp_path, status=2)


@pytest.mark.slow
def test_whoever_reads_it_may_stop_reading():
    """As `head` does; JSON of many studies is more than a pipe holds."""
    command = [sys.executable, "-m", "study", "status", "results/published/mlp_digits", "--json"]
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        ended = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    assert (ended.returncode, ended.stderr) == (1, "")


def test_a_process_that_is_killed_is_at_work_no_more(tmp_path, make_study):
    """Whatever has its number now."""
    folder = store.study_folder(tmp_path, make_study())
    with claims.claimed(folder):
        assert status.at_work(folder) == 1
        [claim] = folder.glob(".claim.*")
        content = claim.read_text()
    claim.write_text(content)
    assert status.at_work(folder) == 0


def test_commands_under_way_are_shown(tmp_path, make_study, make_curve, monkeypatch, says):
    """Not those on file, those that were interrupted long ago, or any of a search that no process works on."""
    study = make_study()
    store.open_study(tmp_path, study, RUN)
    folder = store.study_folder(tmp_path, study)
    store.save(folder, make_curve(study, 0, reaches=30))
    held = {"seconds": 200.0, "silent": 65.0, "step": 120, "error": 0.25}
    for index, age in enumerate([0, 0, 600]):
        path = folder / "commands" / f"{index:06d}" / "progress.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(held))
        os.utime(path, (path.stat().st_mtime - age,) * 2)
    assert "trial 1" not in says("status", tmp_path)
    monkeypatch.setattr(status, "at_work", lambda _: 1)
    said = says("status", tmp_path)
    assert (
        f"trial 1 is at step 120 of {study.train_steps} after 3 min 20 s, error 0.250, last metrics 1 min 10 s" in said
    )
    [row] = json.loads(says("status", tmp_path, "--json"))["rows"]
    assert [each["trial"] for each in row["running"]] == [1]
