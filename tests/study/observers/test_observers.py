"""Observers of a sweep: none of them can stop it, and those in another process hold nothing up."""

import os
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.observers import told
from rich.console import Console

from study.cluster import launch
from study.command_line import observers
from study.commands import sweep
from study.config.jobs import parse_jobs
from study.observers import background
from study.observers.background import Background
from study.observers.base import Ended, Guarded, Observer, Sweep
from study.observers.events import finished_of, search_of, state_of
from study.observers.followed import Followed
from study.search.tuner import Tuner

EVENTS = ("begin", "tick", "trial", "report")


class Noting(Observer):
    """Notes what it is told."""

    name = "notes"

    def __init__(self):
        self.told = []

    def begin(self, sweep):
        self.told.append("begin")

    def tick(self, search, steps):
        self.told.append(("tick", dict(steps)))

    def trial(self, search, state, finished):
        self.told.append((search.batch_size, search.name, state.done, finished and finished.index))

    def report(self, ended):
        self.told.append(("report", ended.error, ended.interrupted, *ended.sentences))


class Failing(Observer):
    """Fails at one event. Can be pickled."""

    name = "this one"

    def __init__(self, at):
        self.at = at

    def __getattribute__(self, event):
        if event in EVENTS and event == object.__getattribute__(self, "at"):
            raise OSError("no room\nmore")
        return super().__getattribute__(event)


def tell_all(observer: Observer) -> None:
    told.tell(observer, Path("results"))
    observer.tick(told.search(), {3: 10})
    observer.report(Ended([Path("results")], ["Found."]))


@pytest.mark.parametrize("at", EVENTS)
def test_one_that_fails_is_left_out_with_one_warning(at):
    notes, warned = Noting(), []
    tell_all(Guarded([Failing(at), notes], warned.append))
    assert warned == ["this one failed, and the sweep goes on without it: no room"]
    trials = [(64, "", 0, None), (64, "", 1, 0), (64, "", 1, 1), (64, "rerun-0", 1, 0), (8, "", 1, 0)]
    assert notes.told == ["begin", *trials, ("tick", {3: 10}), ("report", None, False, "Found.")]


@pytest.mark.slow
def test_another_process_of_the_lowest_priority_takes_its_time(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(told.__file__).parents[2]), prepend=os.pathsep)
    warned: list[str] = []
    observer = Background(told.Lasting(tmp_path / "notes", 0.1), warned.append)
    start = time.monotonic()
    told.tell(observer, tmp_path)
    assert time.monotonic() - start < 0.3 or not (tmp_path / "notes").exists()  # nothing waited for the trials
    observer.report(Ended([tmp_path]))
    lines = [line.split() for line in (tmp_path / "notes").read_text().splitlines()]
    assert [size for _, _, size in lines] == ["64", "64", "64", "64", "8"]
    assert {nice for _, nice, _ in lines} == {str(background.LOWEST)}
    assert {int(process) for process, _, _ in lines} != {os.getpid()}
    assert warned == []


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        ({"PATIENCE": 0.0}, "it had not finished 0 s after the sweep"),
        ({"process": lambda module, pipe: dead()}, "it ended with exit code 3"),
    ],
)
def test_a_process_that_hangs_or_dies_is_one_warning(tmp_path, monkeypatch, broken, said):
    for name, value in broken.items():
        monkeypatch.setattr(background, name, value)
    warned: list[str] = []
    guarded = Guarded([Background(Observer(), warned.append)], warned.append)
    told.tell(guarded, tmp_path)
    guarded.report(Ended([tmp_path]))
    assert warned == [f"the process of Observer failed, and the sweep goes on without it: {said}"]


def dead():
    import subprocess
    import sys

    return subprocess.Popen([sys.executable, "-c", "exit(3)"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (None, ("report", None, False, "Found.")),
        (RuntimeError("no memory"), ("report", "no memory", False)),
        (KeyboardInterrupt(), ("report", None, True)),
    ],
)
def test_they_are_told_how_the_sweep_ended(monkeypatch, raised, expected):
    notes = Noting()
    monkeypatch.setattr(observers, "Notify", lambda url: notes)
    jobs = parse_jobs(["batch_size=64", "notify=json://127.0.0.1"])

    def ended():
        with observers.told(jobs, "command", Console()) as asked:
            asked.sentences = ["Found."]
            if raised:
                raise raised

    if raised is None:
        ended()
    else:
        with pytest.raises(type(raised)):
            ended()
    assert notes.told == [expected]


def test_events_are_those_of_the_tuner(make_study, make_curve, tmp_path):
    study = make_study(trials=2)
    curves = [make_curve(study, 0, reaches=30), make_curve(study, 1, bad=7)]
    tuner = Tuner(study, curves)
    search = search_of(study, tmp_path, 2.5)
    assert (search.name, search.goal, search.trials) == ("", "val/classification_error < 0.1", 2)
    held = state_of(tuner)
    assert (held.done, held.infeasible, held.best, held.complete, held.lacks) == (1, 1, 30, False, False)
    found = [finished_of(tuner, curve, position) for position, curve in enumerate(curves, start=1)]
    assert [(each.index, each.status, each.steps_to_goal, each.trained) for each in found] == [
        (0, "COMPLETE", 30, 30),
        (1, "INFEASIBLE", None, 7),
    ]
    assert found[0].errors["val/classification_error"][-1] == 0.05


def test_trials_of_other_processes_are_followed_by_their_files(make_study, make_curve, write_study, tmp_path):
    study, other = make_study(trials=4), make_study(trials=4, batch_size=16)
    curves = [make_curve(study, index, reaches=30 + index) for index in range(3)]
    write_study(tmp_path, study, curves[:1], close=False)
    notes = Noting()
    followed = Followed([(tmp_path, study), (tmp_path, other)], notes)
    followed.look()
    assert notes.told == [(8, "", 1, 0), ("tick", {})]  # the first trial was there before
    write_study(tmp_path, study, curves[1:], close=False)
    write_study(tmp_path, other, [make_curve(other, 0, reaches=9)], close=False)
    followed.look()
    followed.look()
    tick = ("tick", {})
    assert notes.told == [(8, "", 1, 0), tick, (8, "", 3, 1), (8, "", 3, 2), (16, "", 1, 0), tick, tick]


def test_trials_that_finish_before_ctrl_c_are_told(make_study, make_curve, write_study, tmp_path, monkeypatch):
    """A look at the jobs comes every few seconds."""
    study, notes = make_study(batch_size=8), Noting()

    @contextmanager
    def launched(*_):
        def looks():
            yield {}
            write_study(tmp_path, study, [make_curve(study, 0, reaches=10)], close=False)
            raise KeyboardInterrupt

        yield looks()

    monkeypatch.setattr(launch, "launched", launched)
    monkeypatch.setattr(launch, "states_of", lambda *_: ["running"])
    [job] = [replace(each, study=study, results=tmp_path) for each in parse_jobs(["batch_size=8"])]
    with pytest.raises(KeyboardInterrupt):
        sweep.train([job], launch.Cluster("local", {}), None, "command", Console(quiet=True), told=notes)
    assert [each for each in notes.told if each != ("tick", {})] == ["begin", (8, "", 1, 0)]


def test_a_sweep_begins_with_what_is_left(make_study):
    assert Sweep("command", [told.search()]).searches[0].key == (Path("results"), "tiny", "momentum", 64, "")
