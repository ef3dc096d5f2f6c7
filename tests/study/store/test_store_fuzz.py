"""Writers that take turns at every file operation and die at any, and readers meanwhile: no finished trial is lost.

A process is a thread that stops before each of its file operations until the schedule lets it go on or kills it.
"""

import fcntl
import itertools
import os
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from helpers.desks import asked
from hypothesis import example, given, settings
from hypothesis import strategies as st

from analysis import load as analysis_load
from study import store
from study.records import Curve
from study.settings import Evaluation
from study.training import part
from study.training.lines import run_all
from study.training.search import SearchRun


class Death(BaseException):
    """As by `kill -9`: nothing that the process still meant to do is done."""


class Process(threading.Thread):
    """One writer or reader."""

    def __init__(self, work, number):
        super().__init__(daemon=True)
        self.work, self.number, self.dying, self.over = work, number, False, False
        self.waits_for = ""
        """The name of the file operation that comes next."""
        self.go, self.stopped = threading.Semaphore(0), threading.Semaphore(0)
        self.failure = None
        self.start()

    def run(self):
        self.go.acquire()
        try:
            if not self.dying:
                self.work()
        except Death:
            pass
        except BaseException as error:
            self.failure = error
        self.over = True
        self.stopped.release()

    def step(self, die=False):
        """Let it make the file operation that it waits for, or die there, and come to the next."""
        self.dying |= die
        self.go.release()
        self.stopped.acquire()
        if self.failure:
            raise self.failure

    def pause(self, operation):
        """Before a file operation, in this thread."""
        self.waits_for = operation
        if not self.dying:
            self.stopped.release()
            self.go.acquire()
        if self.dying:
            raise Death


def stopping(real, half=None):
    """A file operation at which processes take turns; `half` is what one that dies there leaves behind."""

    def operation(*arguments, **keywords):
        process = threading.current_thread()
        if isinstance(process, Process):
            alive = not process.dying
            try:
                process.pause(real.__name__)
            except Death:
                if alive and half:
                    half(*arguments)
                raise
        return real(*arguments, **keywords)

    return operation


def half_a_text(path, text):
    with open(path, "w") as file:
        file.write(text[: len(text) // 2])


def half_a_table(table, path):
    real_write_table(table, path)
    os.truncate(path, path.stat().st_size // 2)


real_write_table, real_getpid = pq.write_table, os.getpid


def process_number():
    process = threading.current_thread()
    return process.number if isinstance(process, Process) else real_getpid()


def nothing_is_left(_):
    """Instead of waiting for the shards of others."""
    raise store.StoreError("all the rest is being worked on by others")


@pytest.fixture(scope="module")
def taking_turns():
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            *((os, name) for name in ("replace", "truncate", "link")),
            *((Path, name) for name in ("unlink", "mkdir", "glob", "read_text", "read_bytes")),
            (pq, "read_table"),
            (fcntl, "flock"),
        ):
            patch.setattr(owner, name, stopping(getattr(owner, name)))
        patch.setattr(os, "fsync", lambda _: None)  # what the disk does is not played here
        patch.setattr(Path, "write_text", stopping(Path.write_text, half_a_text))
        patch.setattr(pq, "write_table", stopping(pq.write_table, half_a_table))
        patch.setattr(os, "getpid", process_number)
        patch.setattr(part, "provenance", lambda *_: {"device": "cpu"})
        patch.setattr(time, "sleep", nothing_is_left)
        yield


class World:
    """One study's folder, who works on it, and what was seen in it."""

    def __init__(self, results, study, shards):
        self.results, self.study, self.shards = results, study, shards
        self.folder = store.study_folder(results, study)
        self.kept = {}
        """Of trials whose `save` returned."""
        self.seen = {}
        self.numbers, self.stamps = itertools.count(1000), itertools.count()
        self.files: set[tuple[Any, ...]] = set()
        self.runs = 0

    def writer(self, trials):
        """A sweep that wants so many trials."""
        study = replace(self.study, search=replace(self.study.search, trials=trials))

        def work():
            try:
                store.announce(self.results, study)
                run_all([[SearchRun(study, self.results, shards=self.shards)]], self)
            except store.StoreError as error:
                if "is being worked on by " not in str(error):
                    raise

        return Process(work, next(self.numbers))

    def train(self, supply):
        """As workers do; each training leaves a stamp, so that another of the same trial is told from it."""
        for queue, trial in asked(supply):
            study = queue.study
            stamp = next(self.stamps)
            errors = {study.goal.metric: np.array([np.nan, 1 / 3 + stamp])}
            steps = np.array(study.evaluation_steps)
            curve = Curve(trial, None, steps, errors, {"training": float(stamp), "evaluation": 0.1})
            yield queue, curve
            self.kept[trial.index] = contents([curve])[trial.index]

    def reader(self, read):
        """`study status`, or the start of a sweep: it finds at least what was there when it began."""

        def work():
            before = dict(self.seen)
            assert before.items() <= read().items() <= self.seen.items()

        return Process(work, next(self.numbers))

    def by_the_store(self):
        return contents(store.load(self.folder))

    def by_the_analysis(self):
        if not os.path.exists(self.folder / "study.json"):
            return {}
        data = analysis_load.load_study(self.folder)
        assert data.trials.index.is_unique
        rows = dict(iter(data.measurements.groupby("trial")))
        assert rows.keys() == set(data.trials.index)
        found = []
        for record in data.trials.reset_index().to_dict("records"):
            values = rows[record["trial"]]
            assert values["step"].is_unique
            trial = self.study.trial(record["trial"], {name: record[name] for name in data.hyperparameters})
            errors = {metric: values[metric].to_numpy() for metric in values if "/" in metric}
            seconds = {"training": record["seconds_training"], "evaluation": record["seconds_evaluation"]}
            found.append(Curve(trial, None, values["step"].to_numpy(), errors, seconds))
        return contents(found)

    def look(self):
        """Whatever was there once is there, once and unaltered, for both readers."""
        visible = [path for path in self.folder.rglob("[!.]*") if path.is_file()]
        files = {(path, (stat := path.stat()).st_ino, stat.st_mtime_ns, stat.st_size) for path in visible}
        if files == self.files:
            return
        self.files, now = files, self.by_the_store()
        runs = len(analysis_load.load_study(self.folder).provenance)
        assert self.runs <= runs, "a run was forgotten"
        self.runs = runs
        assert self.by_the_analysis() == now
        assert self.seen.items() <= now.items()
        self.seen = now
        assert self.kept.items() <= now.items()


def contents(curves):
    """Trial -> all that was measured of it, to the last bit."""
    return {
        c.trial.index: (
            c.trial.seed,
            tuple(sorted(c.trial.hyperparameters.items())),
            c.first_bad_step,
            c.steps.astype(np.int64).tobytes(),
            tuple((metric, c.errors[metric].tobytes()) for metric in sorted(c.errors)),
            tuple(sorted(c.seconds.items())),
        )
        for c in curves
    }


class Leg(NamedTuple):
    """A process goes on to just before the so-manyth operation of this name, and there stays or dies."""

    operation: str
    times: int
    dies: bool


THE_END = Leg("the end", 1, False)
PARTS = st.builds(
    Leg,
    st.sampled_from(["flock", "link", "glob", "read_table", "write_table", "write_text", "replace", "unlink"]),
    st.sampled_from([1, 1, 2, 3, 4]),
    st.booleans(),
)


class Meeting(NamedTuple):
    """One process sets out, a writer comes between, and the first goes on; who is not over stays for the next ones."""

    first: str
    sets_out: Leg
    between: Leg
    goes_on: Leg


MEETINGS = st.lists(
    st.builds(
        Meeting,
        st.sampled_from(["writer", "writer", "by_the_store", "by_the_analysis"]),
        PARTS,
        PARTS | st.just(THE_END),
        PARTS | st.just(THE_END),
    ),
    min_size=3,
    max_size=6,
)
SHARDS = st.sampled_from([1, 1, 2, 3])
SAVED = Meeting("writer", Leg("replace", 4, True), Leg("flock", 1, True), THE_END)  # and not gathered
GATHERED = Meeting("writer", THE_END, THE_END, THE_END)
SIDE_BY_SIDE = Meeting("writer", Leg("write_table", 1, False), THE_END, Leg("write_table", 1, False))


@pytest.mark.slow
@settings(max_examples=2)
@given(meetings=MEETINGS, shards=SHARDS)
@example(meetings=[Meeting("writer", Leg("replace", 1, False), THE_END, THE_END)], shards=1)  # two that begin at once
@example(meetings=[GATHERED, Meeting("writer", Leg("flock", 1, False), THE_END, THE_END)], shards=1)  # one by one
@example(meetings=[SAVED, Meeting("by_the_store", Leg("read_table", 2, False), THE_END, THE_END)], shards=1)
@example(meetings=[SAVED, Meeting("by_the_analysis", Leg("read_table", 2, False), THE_END, THE_END)], shards=1)
@example(meetings=[GATHERED, Meeting("by_the_analysis", Leg("glob", 3, False), THE_END, THE_END)], shards=1)
@example(meetings=[SAVED, SIDE_BY_SIDE, SAVED, SIDE_BY_SIDE], shards=2)
def test_no_finished_trial_is_lost(taking_turns, make_study, meetings, shards):
    nothing_is_lost(make_study, meetings, shards)


@pytest.mark.slow
@settings(max_examples=30)
@given(meetings=MEETINGS, shards=SHARDS)
def test_however_processes_meet(taking_turns, make_study, meetings, shards):
    nothing_is_lost(make_study, meetings, shards)


def nothing_is_lost(make_study, meetings, shards):
    """Processes that meet so, and one more at the end, which finds all trials that any of them finished."""
    study = make_study(stopping="budget", evaluation=Evaluation(first=0.5, ratio=2))
    with tempfile.TemporaryDirectory() as results:
        world = World(Path(results), study, shards)
        staying = []

        def go(process, operation, times, dies):
            while not process.over and times:
                process.step()
                times -= process.waits_for == operation
                world.look()
            if dies and not process.over:
                process.step(die=True)
                world.look()

        try:
            for trials, meeting in enumerate(meetings, start=1):  # so that there is always one more to train
                writes = meeting.first == "writer"
                first = world.writer(trials) if writes else world.reader(getattr(world, meeting.first))
                staying.append(first)
                go(first, *meeting.sets_out)
                staying.append(world.writer(trials))
                go(staying[-1], *meeting.between)
                go(first, *meeting.goes_on)
                for process in staying[:-1]:  # else whoever holds the claim keeps the next ones out
                    go(process, "the end", 1, False)
                staying = staying[-1:]
        finally:
            for process in staying:
                if not process.over:
                    process.step(die=True)
        world.look()
        go(world.writer(len(meetings)), "the end", 1, False)
        assert sorted(world.seen) == list(range(len(meetings)))
        assert [path.name for path in world.folder.rglob("[!.]*.parquet")] == [store.COMPACTED]
