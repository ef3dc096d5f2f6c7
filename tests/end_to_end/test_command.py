"""Sweeps whose trials are commands: trained, continued, interrupted and reported as others."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from helpers.processes import alive, children, started, wait_until, workers
from house import doc_pages

from study import store
from study.__main__ import main

SCRIPT = """
import json, sys, time
from shared import loss
log, steps, seed, rate, *wait = sys.argv[1:]
with open(log, "a", buffering=1) as file:
    for step in range(10, int(steps) + 1, 10):
        file.write(json.dumps({"step": step, "val/loss": loss(step, float(rate)), "train/loss": 1.0}) + "\\n")
    time.sleep(float(wait[0]) if wait else 0)
"""
SHARED = """
def loss(step, rate):
    return 1 / (1 + step * rate)
"""
SWEEP = ["sweep", "workload=command", "workload.name=mine", "workload.train_examples=100", "goal=val/loss < 0.1"]
SWEEP += ["optimizer=sgd", "budget={epochs: 0, steps: 100}", "search=sobol", "search.trials=3", "search.reruns=0"]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    """A sweep of a script in the current folder, with `wait` seconds at its end."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    Path("shared.py").write_text(SHARED)

    def asked(wait=0.0, *more):
        command = f"python train.py {{log}} {{steps}} {{seed}} {{learning_rate}} {wait} # {{batch_size}}"
        return [*SWEEP, "batch_sizes=[4]", f"workload.command='{command}'", *more]

    return asked


def trials():
    return {path: path.stat().st_mtime_ns for path in Path("results").rglob("metrics")}


@pytest.mark.slow
def test_a_sweep_is_stored_continued_and_reported(sweep, capsys):
    assert main([*sweep(), "engine.workers=2"]) == 0
    table = pd.read_csv("results/mine/tables/steps_to_result.csv")
    assert (table["steps_to_result"] % 10 == 0).all()
    [first, *_] = store.load(Path("results/mine/studies/mine/sgd/4"))
    assert first.command["stopped"] in ("goal", "limit", "")
    assert set(first.errors) == {"val/loss", "train/loss"}
    held = json.loads(Path("results/mine/studies/mine/sgd/4/study.json").read_text())
    assert held["question"]["arithmetic"] == held["provenance"][0]["engine"] == "command"
    assert {"code train.py", "code shared.py"} <= held["provenance"][0]["fingerprint"].keys()

    before = trials()
    assert main([*sweep(), "search.trials=4"]) == 0
    now = trials()
    assert before.items() < now.items()
    assert "by the trials that have ended" in " ".join(capsys.readouterr().out.split())

    Path("shared.py").write_text(SHARED.replace("1 +", "2 +"))
    assert main([*sweep(), "search.trials=5"]) == 2
    assert "its code changed (shared.py)" in capsys.readouterr().err


def test_plan_says_that_it_cannot_know(sweep, capsys):
    asked = sweep()[1:]
    assert main(["plan", *asked]) == 0
    assert "How long a command takes is not known before" in capsys.readouterr().out
    assert main(["plan", *asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["seconds"] for row in rows] == [None]
    assert not Path("results").exists()


def test_a_crash_ends_the_sweep_and_is_told(sweep, capsys):
    Path("shared.py").write_text("raise OSError('the disk is gone')\n")
    assert main(sweep()) == 1
    said = capsys.readouterr().err
    assert "ended with exit status 1. Its last lines are:\n" in said
    assert "OSError: the disk is gone\n" in said


@pytest.mark.slow
def test_a_mended_script_continues_where_no_trial_is_on_file(sweep, capsys):
    Path("shared.py").write_text("raise OSError('the disk is gone')\n")
    assert main(sweep()) == 1
    Path("shared.py").write_text(SHARED)
    assert main(sweep()) == 0
    Path("train.py").write_text(SCRIPT.replace("wait else 0)", "wait else 0)\nsys.exit(3)"))
    assert main([*sweep(), "search.trials=4", "stopping=race"]) == 2
    assert "its code changed (train.py)" in capsys.readouterr().err


@pytest.mark.slow
def test_failures_may_count_as_infeasible_from_now_on(sweep, capsys):
    Path("train.py").write_text(SCRIPT + "sys.exit(3)\n")
    assert main([*sweep(), "stopping=budget"]) == 1
    assert "workload.failed=infeasible counts" in " ".join(capsys.readouterr().err.split())
    assert main([*sweep(), "stopping=budget", "workload.failed=infeasible"]) == 0
    question = json.loads(Path("results/mine/studies/mine/sgd/4/study.json").read_text())["question"]
    assert question["workload"]["failed"] == "infeasible"


def test_a_script_that_changes_while_it_trains_ends_the_sweep(sweep, capsys):
    edit = "from pathlib import Path\nfile = Path('shared.py')\nfile.write_text(file.read_text() + 'SEEN = 1\\n')\n"
    Path("train.py").write_text(SCRIPT + edit)  # at the end of each trial
    assert main([*sweep(), "stopping=budget", "engine.workers=1"]) == 1
    assert "changed while it trained (shared.py)" in " ".join(capsys.readouterr().err.split())
    assert len(store.load(Path("results/mine/studies/mine/sgd/4"))) == 1


ENDS = {"Ctrl-C": signal.SIGINT, "ended": signal.SIGTERM, "closed": signal.SIGHUP, "killed": signal.SIGKILL}


@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_an_interrupted_sweep_leaves_no_command_behind(sweep, tmp_path, end):
    process = started(tmp_path / "results", [*sweep(30, "stopping=budget"), "engine.workers=1"])
    wait_until(lambda: any(children(worker, "train.py") for worker in workers(process.pid)))
    [worker] = workers(process.pid)
    left = children(worker)
    assert len(left) == 2  # the command and its guard
    process.send_signal(end)
    _, said = process.communicate(timeout=30)
    assert ("study: interrupted; the same command continues" in said) == (end != signal.SIGKILL)
    wait_until(lambda: not alive(left | {worker}))


@pytest.mark.slow
def test_the_script_of_the_page_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = "docs/guide/own-script.md"
    Path("train.py").write_text(doc_pages.blocks(page, "python")[0])
    Path("mine/workload").mkdir(parents=True)
    Path("mine/workload/my_script.yaml").write_text(doc_pages.blocks(page, "yaml")[0])
    asked = ["sweep", "--config-dir", "mine", "workload=my_script", "batch_size=32", "search.trials=4"]
    assert main([*asked, "search.space.learning_rate=[0.1,0.2]", "search.space.momentum=0.9"]) == 0
    assert pd.read_csv("results/my_script/tables/steps_to_result.csv")["reached"].all()


@pytest.mark.slow
def test_a_local_cluster_job_runs_commands(sweep):
    done = subprocess.run([sys.executable, "-m", "study", *sweep(), "cluster=local"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(curve.command for curve in store.load(Path("results/mine/studies/mine/sgd/4")))
