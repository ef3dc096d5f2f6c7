"""A tracker gets each trial on file once, also those that an earlier sweep could not tell it of."""

import importlib.util
from contextlib import nullcontext
from dataclasses import replace

import pytest
from helpers.fused import partly
from rich.console import Console

from study.command_line import observers
from study.config.jobs import parse_jobs
from study.observers.base import Sweep
from study.observers.events import finished_of, search_of, state_of
from study.observers.trackers.base import Tracker
from study.observers.trackers.journal import Journal
from study.search.tuner import Tuner

WELL, CTRL_C, KILLED = None, KeyboardInterrupt, SystemExit
"""The exception that ends a sweep, or None. Observers are not told of SystemExit, as they are not told of SIGKILL."""


class Noting:
    """A run that notes (step, trial, best steps so far) of each trial, and how it ends."""

    def __init__(self, notes):
        self._notes = notes

    def log(self, step, values):
        self._notes.append((step, int(values["trial"]), values["best_steps_to_goal"]))

    def table(self, name, table):
        raise AssertionError("no report was written")

    def end(self, failed):
        self._notes.append("failed" if failed else "ended")


@pytest.fixture
def sweep(make_study, make_curve, write_study, tmp_path, monkeypatch):
    """(a function that sweeps a study of four trials, what the run of its tracker notes).

    The function takes the trials that finish, those among them that the tracker is told of, and how the sweep ends.
    """
    study, notes = make_study(trials=4, batch_size=8), []
    [job] = [replace(each, study=study, results=tmp_path) for each in parse_jobs(["batch_size=8", "track=mlflow"])]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: True)
    monkeypatch.setattr(Tracker, "_open", lambda self, about: Noting(notes))
    monkeypatch.setattr(observers, "Background", lambda tracker, warn: tracker)

    def swept(finish, tells, ends, track=("mlflow",)):
        curves = {index: make_curve(study, index, reaches=30 - index) for index in finish}
        asked = replace(job, options=replace(job.options, track=track))
        with (
            pytest.raises(ends) if ends else nullcontext(),
            observers.told([asked], "command", Console(quiet=True)) as told,
        ):
            if finish:
                told.begin(Sweep("command", []))
            for index, curve in curves.items():
                write_study(tmp_path, study, [curve], close=False)
                if index in tells:
                    tuner = Tuner(study, [curve])
                    told.trial(search_of(study, tmp_path, 0.0), state_of(tuner), finished_of(tuner, curve, 1 + index))
            if ends:
                raise ends

    return swept, notes


FIRST = [(1, 0, 30), (2, 1, 29)]
SWEEPS = {
    "none is missing": ([([0, 1], [0, 1], CTRL_C), ([2], [2], WELL)], [*FIRST, "failed", (3, 2, 28), "ended"]),
    "killed before it was told of all": ([([0, 1], [0], KILLED), ([2], [2], WELL)], [*FIRST, (3, 2, 28), "ended"]),
    "told of a later one only": (
        [([0, 1], [1], KILLED), ([2], [2], WELL)],
        [(2, 1, 29), (3, 0, 30), (4, 2, 28), "ended"],
    ),
    "killed before it was told of any": ([([0, 1], [], KILLED), ([2], [2], WELL)], [*FIRST, (3, 2, 28), "ended"]),
    "killed twice": ([([0], [], KILLED), ([1], [], KILLED), ([], [], WELL)], [(1, 0, 30), (2, 1, 29), "ended"]),
    "killed before the end alone": ([([0, 1], [0], KILLED), ([], [], WELL)], [*FIRST, "ended"]),
    "killed before the end, with all told": ([([0], [0], KILLED), ([], [], WELL)], [(1, 0, 30), "ended"]),
    "chosen later": ([([0], [], WELL, ()), ([1], [1], WELL)], [*FIRST, "ended"]),
    "chosen when all is on file": ([([0, 1], [], WELL, ()), ([], [], WELL)], [*FIRST, "ended"]),
    "all told": ([([0, 1], [0, 1], WELL), ([], [], WELL)], [*FIRST, "ended"]),
    "extended": ([([0], [0], WELL), ([1], [1], WELL)], [(1, 0, 30), "ended", (2, 1, 29), "ended"]),
}


@pytest.mark.parametrize(("sweeps", "expected"), partly(SWEEPS.values(), 4), ids=SWEEPS)
def test_a_tracker_gets_each_trial_on_file_once(sweep, sweeps, expected):
    swept, notes = sweep
    for each in sweeps:
        swept(*each)
    assert notes == expected


def test_two_processes_tell_of_a_trial_once(tmp_path):
    """The tracker of a killed sweep finishes what it was sent, while the sweep that resumes tells of trials on file."""
    one, other = Journal(tmp_path / "told"), Journal(tmp_path / "told")
    assert one.claim("run", "", 0, 1) == 1
    assert other.claim("run", "", 0, 1) is None
    assert other.claim("run", "", 1, 1) == 2  # a step is taken once
    assert other.claim("run", "rerun-0", 0, 1) == 1
    assert one.has("run", "", 1)


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path):
    path = tmp_path / "told"
    Journal(path).opened({"identity": "run"})
    with path.open("a") as file:
        file.write('\n{"ended": "ru')
    assert Journal(path).claim("run", "", 0, 1) == 1
    again = Journal(path)
    assert again.has("run", "", 0)
    assert again.unfinished("run") == {"identity": "run"}
    again.ended("run")
    assert Journal(path).unfinished("run") is None
