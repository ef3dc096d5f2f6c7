"""Commands as trials: what their metrics, their ends and early stopping make of them."""

import json
import os
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.desks import Desk
from helpers.fused import partly
from helpers.processes import alive, files_of_at_most, wait_until

from analysis.counting import COMPLETE, INFEASIBLE, Goal, TrialCurve, outcome
from study.engine.command import process
from study.engine.command.train import Place, train
from study.errors import Failed
from study.records import COMMAND
from study.store.curves import begun
from workloads.command import Command

SCRIPT = Path(__file__).with_name("script.py")
STEPS = 40


def run(
    make_study, folder, lines, end="", limit=STEPS, failed="stop", stopping="race", extra=(), rate=0.5, timeout=None
):
    """(the curve, how the trial ended) of a script that appends `lines` and then does `end`."""
    lines = lines.replace("\n", "\\n").replace("{", "{{").replace("}", "}}")
    given = ["{log}", "{steps}", "{batch_size}", "{seed}"]
    workload = Command("made", 100, shlex.join([sys.executable, str(SCRIPT), *given, lines, end, *extra]), failed)
    study = make_study(
        optimizer="sgd",
        space={"learning_rate": {"choices": [0.5, 0.1]}},
        workload={"_target_": "workloads.command.Command", **{k: getattr(workload, k) for k in ("name", "command")}}
        | {"train_examples": 100},
        goal=Goal("val/loss", 0.3),
        stopping=stopping,
        budget=replace(make_study().budget, steps=STEPS),
        arithmetic=COMMAND,
    )
    desk = Desk([study.trial(0, {"learning_rate": rate})])
    desk.limit = limit
    [curve] = train(study, workload, desk, Place(folder, {}, timeout))
    measured = TrialCurve(curve.steps, curve.errors["val/loss"], curve.first_bad_step)
    return curve, outcome(study.rule._replace(stopping="goal"), measured, None)


CSV = "step,val/loss\n10,0.9\n20,0.5\n30,0.4\n40,0.35\n"
ENDS = {
    "to the end of its budget": (CSV, "", "", 40, None, COMPLETE),
    "JSON lines": ('{"step": 20, "val/loss": 0.5}\n{"step": 40.0, "val/loss": 0.4}\n', "", "", 40, None, COMPLETE),
    "without a last line break": (CSV[:-1], "", "", 40, None, COMPLETE),
    "no line in the last steps": ("step,val/loss\n15,0.9\n30,0.5\n", "", "", 40, None, COMPLETE),
    "the goal stops it": ("step,val/loss\n10,0.9\n20,0.2\n30,0.1\n", "waits", "goal", 20, 20, COMPLETE),
    "the goal at step 0 does not": ("step,val/loss\n0,0.2\n20,0.9\n40,0.9\n", "", "", 40, None, COMPLETE),
    "NaN stops it": ("step,val/loss\n10,0.9\n20,nan\n", "waits", "diverged", 20, None, INFEASIBLE),
    "an infinity in JSON": ('{"step": 9, "train/loss": Infinity}\n', "waits", "diverged", 9, None, INFEASIBLE),
    "the goal before NaN": ("step,val/loss\n10,0.2\n20,nan\n", "waits", "goal", 10, 10, COMPLETE),
    "beyond its budget": ("step,val/loss\n40,0.5\n50,0.1\n", "waits", "goal", 40, None, COMPLETE),
}


@pytest.mark.parametrize(("lines", "end", "stopped", "last", "reached", "status"), ENDS.values(), ids=ENDS)
def test_metrics_decide_how_a_trial_ends(make_study, tmp_path, lines, end, stopped, last, reached, status):
    curve, ended = run(make_study, tmp_path, lines, end)
    assert (ended.status, ended.end, ended.steps_to_goal) == (status, last, reached)
    assert curve.command["stopped"] == stopped
    assert (curve.command["status"] == 0) == (stopped == "")


def test_a_limit_that_falls_stops_it(make_study, tmp_path):
    curve, _ = run(make_study, tmp_path, "step,val/loss\n10,0.9\n20,0.8\n", "waits", limit=20)
    assert (curve.command["stopped"], curve.steps.tolist()) == ("limit", [10, 20])


def test_a_limit_waits_for_the_goals_metric_of_its_step(make_study, tmp_path):
    lines = '{"step": 20, "train/loss": 1}\n{"step": 20, "val/loss": 0.2}\n'
    curve, ended = run(make_study, tmp_path, lines, limit=20)
    assert ended.steps_to_goal == 20
    assert curve.errors["train/loss"].tolist() == [1.0]


def test_with_stopping_budget_the_goal_stops_nothing(make_study, tmp_path):
    curve, _ = run(make_study, tmp_path, "step,val/loss\n10,0.1\n40,0.5\n", stopping="budget")
    assert (curve.command["stopped"], curve.steps.tolist()) == ("", [10, 40])


FAILS = {
    "a crash": (CSV[:21], "crash", r"ended with exit status 3\. Its last lines are:\nmade 40 steps\nthe data are gone"),
    "a crash in the middle of a line": (CSV[:18], "crash", "exit status 3"),
    "a signal": (CSV[:21], "killed", r"was ended by SIGKILL \(perhaps memory ran out\)\. Its last lines"),
    "too few steps": ("step,val/loss\n10,0.9\n20,0.5\n", "", "after step 20 of .*/metrics, before its budget of 40"),
    "half a line that meets the goal": ("step,val/loss\n10,0.9\n20,0.", "", "the last line of .* has no line break"),
    "half a line that is far": ("step,val/loss\n10,0.9\n20,9", "", "the last line of .* has no line break"),
    "no line at all": ("", "", "exit status 0, but wrote no metrics: .*/metrics has no line with a step"),
    "only a header": ("step,val/loss\n", "", "wrote no metrics: .*/metrics has no line with a step"),
    "no goal in CSV": ("step,loss\n", "waits", "line 1 .* header of a CSV file, step and val/loss among .*'step,loss"),
    "no goal in JSON": ('{"step": 40, "loss": 1}\n', "", "must have val/loss, .* but has only step and loss"),
    "no step": ('{"val/loss": 1}\n', "waits", "line 1 of .* must have a step"),
    "half a step": ("step,val/loss\n1.5,1\n", "waits", "line 2 of .* must have a step, .* but got '1.5,1'"),
    "too few cells": ("step,val/loss\n1\n", "waits", "line 2 of .* must have 2 cells"),
    "steps of each epoch": ("step,val/loss\n10,0.9\n20,0.8\n10,0.2\n", "waits", "must have a step of at least 20, the"),
    "no JSON": ('{"step": 1, "val/loss": 1}\nstep 2\n', "waits", "line 2 of .* must be one whole JSON object"),
}  # fmt: skip


@pytest.mark.parametrize(("lines", "end", "said"), FAILS.values(), ids=FAILS)
def test_what_goes_wrong_is_told(make_study, tmp_path, lines, end, said):
    with pytest.raises(Failed, match=said):
        run(make_study, tmp_path, lines, end)


def test_a_crash_may_count_as_infeasible_and_is_kept(make_study, tmp_path):
    curve, ended = run(make_study, tmp_path, CSV[:21], "crash", failed="infeasible")
    assert (ended.status, curve.first_bad_step, curve.steps.tolist()) == (INFEASIBLE, 11, [10])
    assert curve.command == {"status": 3, "stopped": "", "output": "made 40 steps\nthe data are gone"}


@pytest.mark.slow
def test_a_command_that_hangs_fails(make_study, tmp_path):
    """The time since its last line counts; at the end of its budget it has all that was asked."""
    with pytest.raises(Failed, match=r"wrote no new metrics for too long, engine.timeout=0.3 seconds, which null or"):
        run(make_study, tmp_path, CSV[:21], "waits", timeout=0.3)
    curve, ended = run(make_study, tmp_path, CSV[:21], "waits", failed="infeasible", timeout=0.3)
    assert (ended.status, curve.first_bad_step, curve.command["stopped"]) == (INFEASIBLE, 11, "timeout")
    curve, ended = run(make_study, tmp_path, CSV, "waits", timeout=0.3)
    assert (ended.status, curve.first_bad_step, curve.command["stopped"]) == (COMPLETE, None, "limit")


FULL = {
    "its folder": (0, CSV, "", "000000: File too large"),
    "its metrics": (1000, "step,val/loss\n" + "10,0.9\n" * 200, "", "000000: File too large"),
    "what it prints": (1000, CSV[:21], "crash", "000000: File too large"),
    "its checkpoint": (2**20, CSV[:21], "full", "000000: No space left on device"),
}


@pytest.mark.parametrize("failed", ["stop", "infeasible"])
@pytest.mark.parametrize(("size", "lines", "end", "said"), FULL.values(), ids=FULL)
def test_a_disk_that_is_full_is_named_and_is_no_failure_of_the_script(
    make_study, tmp_path, size, lines, end, said, failed
):
    """What does not fit: the file of the trial, or a file that the script writes."""
    cure = "finished trials are safe. Make room or change its permissions, and run the same command to continue"
    with files_of_at_most(size), pytest.raises(Failed, match=f"^cannot write to {tmp_path}/.*{said}; {cure}"):
        run(make_study, tmp_path, lines, end, failed=failed)
    curve, _ = run(make_study, tmp_path, CSV, failed=failed)
    assert curve.steps.tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize("size", partly([0, 21, 2**20], 3))
def test_metrics_of_an_interrupted_trial_survive_a_full_disk(make_study, tmp_path, size):
    """They are not written again to cut half a line off."""
    with pytest.raises(Failed):
        run(make_study, tmp_path, CSV[:25], "crash", extra=["{folder}"])
    with files_of_at_most(size), suppress(Failed):
        run(make_study, tmp_path, "", "crash", extra=["{folder}"])
    curve, _ = run(make_study, tmp_path, "40,0.5\n", extra=["{folder}"])
    assert curve.steps.tolist() == [10, 40]


def test_a_program_that_is_not_there(make_study, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", "no-such-python")
    with pytest.raises(Failed, match=r"cannot be started: .*no-such-python"):
        run(make_study, tmp_path, CSV)


def test_a_command_that_ignores_sigterm_is_killed(make_study, tmp_path, monkeypatch):
    monkeypatch.setattr(process, "GRACE", 0.2)
    curve, _ = run(make_study, tmp_path, "step,val/loss\n10,0.2\n", "deaf")
    assert (curve.command["stopped"], curve.command["status"]) == ("goal", -9)


STARTED = {
    "in its group": "sleep 60 & echo $!",
    "in a session of its own": "setsid sleep 60 & echo $!",
    "by one that ended": "(setsid sh -c 'sleep 60 & echo $!' &)",
    "that ignores SIGTERM": "setsid sh -c 'trap \"\" TERM; echo $$; exec sleep 60' &",
}
DIES = """
import os, signal, sys, time
from pathlib import Path
from study.engine.command.process import Process
process = Process(["sh", "-c", sys.argv[1] + " sleep 60"], Path(sys.argv[2]), dict(os.environ), int(sys.argv[3]))
while not process.last_output().isdigit():
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("worker", partly(["lives", "dies"], 2))
@pytest.mark.parametrize("started", STARTED.values(), ids=STARTED)
def test_what_a_command_started_ends_with_it(tmp_path, started, worker):
    started = started if started.endswith("&") else f"{started};"
    output = tmp_path / "output"
    if worker == "dies":
        subprocess.run([sys.executable, "-c", DIES, started, str(output), "2"], check=False)
    else:
        with process.Process(["sh", "-c", f"{started} sleep 0.3"], output, dict(os.environ)) as command:
            wait_until(lambda: command.poll() is not None)
            assert alive({int(command.last_output())})
    wait_until(lambda: not alive({int(output.read_text())}))


def test_the_parent_hears_of_the_death_of_a_worker_when_its_command_writes_no_more(tmp_path):
    """Then another worker may train the trial, in the same files."""
    output, metrics = tmp_path / "output", tmp_path / "metrics"
    heard, held = os.pipe()
    writes = f"(while :; do echo line >> '{metrics}'; done) & until [ -s '{metrics}' ]; do :; done; echo 1;"
    words = [sys.executable, "-c", DIES, writes, str(output), str(held)]
    subprocess.run(words, check=False, pass_fds=[held])
    os.close(held)
    assert os.read(heard, 1) == b""
    os.close(heard)
    written = metrics.stat().st_size
    time.sleep(0.2)
    assert metrics.stat().st_size == written


def test_the_end_of_a_long_output_is_kept(tmp_path):
    """Neither the whole file nor a line without an end is read, and no output of an earlier run."""
    output = tmp_path / "output"
    output.write_text("the output of an earlier run\n")
    with process.Process(["true"], output, dict(os.environ)) as command:
        assert command.last_output() == ""
        os.truncate(output, 2**36)  # 64 GiB that take no room
        with output.open("ab") as file:
            file.write(b"\rstep 1\rstep 2\nna\xefve [bold]\n" + "änderung\n".encode())
        assert command.last_output().splitlines()[-4:] == ["step 1", "step 2", "na\ufffdve [bold]", "änderung"]


@pytest.mark.parametrize(
    ("extra", "rate", "steps"),
    [([], 0.5, [40]), (["{folder}"], 0.5, [10, 20, 40]), (["{folder}"], 0.1, [20, 40])],
    ids=["from the start", "goes on", "another learning rate"],
)
def test_a_trial_that_was_interrupted_begins_again_or_goes_on(make_study, tmp_path, extra, rate, steps):
    with pytest.raises(Failed):
        run(make_study, tmp_path, "step,val/loss\n10,0.9\n20,0.8\n30,0.7\n40,0", "crash", extra=extra)
    lines = "step,val/loss\n" + ("20,0.7\n40,0.5\n" if extra else "40,0.5\n")
    curve, _ = run(make_study, tmp_path, lines, extra=extra, rate=rate)
    assert curve.steps.tolist() == steps
    assert curve.errors["val/loss"][-1] == 0.5


@pytest.mark.parametrize("extra", [[], ["{folder}"]], ids=["from the start", "goes on"])
def test_the_seconds_are_those_of_all_runs_that_count(make_study, tmp_path, extra):
    progress = tmp_path / "commands" / "000000" / "progress.json"
    with pytest.raises(Failed):
        run(make_study, tmp_path, "step,val/loss\n10,0.9\n20,0.8\n", "crash", extra=extra)
    held = json.loads(progress.read_text())
    assert held["seconds"] >= held["silent"] > 0
    assert (held["step"], held["error"]) == (20, 0.8)
    progress.write_text(json.dumps(held | {"seconds": 1000.0}))  # what it took until it was interrupted
    curve, _ = run(make_study, tmp_path, "step,val/loss\n20,0.7\n40,0.5\n", extra=extra)
    assert (curve.seconds["training"] > 1000) == bool(extra)
    progress.write_text("")  # the machine broke down
    run(make_study, tmp_path, "step,val/loss\n40,0.5\n", extra=extra)


USELESS = {
    "a line that cannot be read": "step,val/loss\n10,12 %\n",
    "too few steps": "step,val/loss\n10,0.9\n20,0.5\n",
    "no line": "",
    "no goal": '{"step": 40, "val/error": 1}\n',
}


@pytest.mark.slow
@pytest.mark.parametrize("lines", USELESS.values(), ids=USELESS)
def test_a_script_whose_metrics_are_mended_begins_again(make_study, tmp_path, lines):
    """Also one with checkpoints: those of before left these metrics, which no later line can mend."""
    folder = tmp_path / "commands" / "000000" / "folder"
    with pytest.raises(Failed):
        run(make_study, tmp_path, "step,val/loss\n10,0.9\n", "crash", extra=["{folder}"])
    (folder / "checkpoint").touch()
    assert begun(tmp_path)
    with pytest.raises(Failed):
        run(make_study, tmp_path, lines, extra=["{folder}"])
    (folder / "checkpoint").touch()
    assert not begun(tmp_path)
    curve, _ = run(make_study, tmp_path, "step,val/loss\n20,0.7\n40,0.5\n", extra=["{folder}"])
    assert curve.steps.tolist() == [20, 40]
    assert not (folder / "checkpoint").exists()
