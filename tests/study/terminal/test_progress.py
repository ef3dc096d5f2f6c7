"""The progress of a sweep: steps from the first second, and a line a minute where there is no terminal."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from helpers.observers import told
from rich.console import Console

from analysis.question.branches import Branch
from study.observers.base import Sweep
from study.terminal import progress
from study.terminal.progress import JobsProgress, StudiesProgress, SweepProgress


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(progress, "time", clock)
    return clock


def lines(console):
    return [line for line in console.export_text().splitlines() if line.startswith("After")]


def test_steps_count_from_the_first_second(clock):
    console = Console(record=True, width=200)
    one, other = told.search(), told.search(batch_size=8)
    with SweepProgress(console) as shown:
        shown.begin(Sweep("", [one, other]))
        assert shown.bars.tasks[0].fields["status"] == "0 steps, time left: measuring"
        shown.trial(one, told.state(), None)
        clock.now = 10.0
        shown.tick(one, {0: 100, 1: 300})  # 40 of 800 s of work in 10 s
        assert shown.bars.tasks[0].fields["status"] == "400 steps, at most 3 min 10 s left"
        assert shown.bars.tasks[1].fields["status"].endswith("goal not reached yet, 400 steps")
        clock.now = 20.0
        shown.tick(one, {0: 200})
        shown.trial(one, told.state(1, 200), told.finished(0, 200, steps=[200]))
        # Trials are expected to end at a fifth of the budget, so trial 1 is nearly done.
        assert shown.bars.tasks[0].completed == pytest.approx(100 * 1.95)
        assert shown.bars.tasks[0].fields["status"].startswith("500 steps, 1 min left")
        for _ in range(3):
            shown.trial(one, told.state(4, 200, complete=True), told.finished(3, 200, steps=[200]))
        assert len(shown.bars.tasks) == 2  # the search is not over before the tuner's last word
        shown.trial(one, told.state(4, 200, complete=True), None)
        assert shown.bars.tasks[0].completed == pytest.approx(400)
        assert [bar.description for bar in shown.bars.tasks] == ["whole sweep"]
    assert "batch size 64: 4 done, 4 feasible, 0 infeasible, best 200 steps" in console.export_text()


def test_one_step_is_singular():
    assert progress._told(told.state(4, 1)) == "4 done, 4 feasible, 0 infeasible, best 1 step"


def test_a_search_is_named_for_people(clock):
    console = Console(record=True, width=200)
    again = told.search(name="rerun-24", title="reruns of trial 24", trials=1)
    with SweepProgress(console) as shown:
        shown.begin(Sweep("", [told.search(trials=1), again]))
        shown.trial(again, told.state(1, 40, complete=True), told.finished(0))
        shown.trial(again, told.state(1, 40, complete=True), None)
    assert "batch size 64, reruns of trial 24: 1 done" in console.export_text()


def test_nothing_left_is_no_time_of_picoseconds(clock):
    with SweepProgress(Console(record=True, width=200)) as shown:
        shown.begin(Sweep("", [told.search(trials=1)]))
        shown.trial(told.search(trials=1), told.state(), None)
        clock.now = 10.0
        shown.tick(told.search(trials=1), {0: 949})
        assert shown.bars.tasks[0].fields["status"] == "949 steps, less than a second left"


def test_a_line_a_minute_without_a_terminal(clock):
    console = Console(record=True, width=200)
    one, other = told.search(), told.search(batch_size=8)
    with SweepProgress(console) as shown:
        shown.begin(Sweep("", [one, other]))
        for search in (one, other):
            shown.trial(search, told.state(), None)
        clock.now = 59.0
        shown.tick(one, {0: 500})
        clock.now = 60.0
        shown.tick(one, {0: 600})
        shown.tick(other, {0: 10})
        clock.now = 121.0
        shown.trial(other, told.state(1, 40), told.finished(0))
    first, second = lines(console)
    assert first.startswith("After 1 min 00 s: 0 of 8 trials, 600 steps; best so far: goal not reached yet; at most ")
    assert second.startswith("After 2 min 01 s: 1 of 8 trials, 640 steps; best so far: 40 steps at batch size 8; ")


def test_a_line_keeps_the_best_of_complete_searches_and_counts_no_reruns(clock):
    """Once only fresh seeds were left, the line said "goal not reached yet" of a sweep that had reached it."""
    console = Console(record=True, width=200)
    first = told.search(trials=1)
    again = told.search(name="rerun-0", title="reruns of trial 0", trials=2)
    with SweepProgress(console) as shown:
        shown.begin(Sweep("", [first]))
        shown.trial(first, told.state(1, 40, complete=True), None)
        shown.trial(again, told.state(1, 30), None)
        clock.now = 60.0
        shown.tick(again, {1: 5})
    assert "best so far: 40 steps at batch size 64; " in lines(console)[-1]


def test_a_line_says_once_what_searches_have_in_common(clock):
    console = Console(record=True, width=200)
    curves = [told.search(batch_size=size) for size in (8, 64)]
    searches = [replace(search, optimizer=name) for name in ("sgd", "adam") for search in curves]
    with SweepProgress(console) as shown:
        shown.begin(Sweep("", searches))
        for number, search in enumerate(searches, 1):
            shown.trial(search, told.state(1, 1000 * number), None)
        clock.now = 60.0
        shown.tick(searches[0], {1: 500})
    sgd = "tiny, sgd: 1,000 steps at batch size 8, 2,000 at 64"
    adam = "tiny, adam: 3,000 steps at batch size 8, 4,000 at 64"
    assert f"best so far: {sgd}; {adam}; " in lines(console)[0]


def test_on_a_terminal_bars_take_the_place_of_lines(clock):
    console = Console(record=True, width=200, force_terminal=True)
    with SweepProgress(console) as shown:
        shown.begin(Sweep("", [told.search()]))
        shown.trial(told.search(), told.state(), None)
        clock.now = 600.0
        shown.tick(told.search(), {0: 500})
    assert lines(console) == []


def test_trials_of_an_earlier_run_say_nothing_of_the_speed(clock):
    console = Console(record=True, width=200)
    with SweepProgress(console) as shown:
        shown.begin(Sweep("", [told.search()]))
        shown.trial(told.search(), told.state(2, 40), None)
        clock.now = 10.0
        assert shown.bars.tasks[0].fields["status"].endswith("time left: measuring")
        shown.trial(told.search(), told.state(3, 40), told.finished(2, steps=[1000]))
        assert shown.bars.tasks[0].fields["status"].endswith("10 s left")


DUMB = {"force_terminal": True, "_environ": {"TERM": "dumb"}}
"""A terminal that cannot redraw a line, such as a shell in Emacs."""


@pytest.mark.parametrize("made", [{}, DUMB], ids=["file", "dumb"])
def test_without_bars_there_are_lines_and_no_empty_ones(clock, made):
    console = Console(record=True, width=200, **made)
    with SweepProgress(console) as shown:
        shown.begin(Sweep("", [told.search()]))
        clock.now = 60.0
        shown.trial(told.search(), told.state(), None)
    assert len(lines(console)) == 1
    study = SimpleNamespace(name="blobs", series="sgd", batch_size=64, search=SimpleNamespace(trials=4))
    with JobsProgress(console) as shown:
        shown.watch([(study, ["running"], [])])
    with StudiesProgress(console, "importing") as shown:
        shown.begin(1)
    with StudiesProgress(console, "importing"):
        pass
    said = console.export_text().splitlines()
    assert [line.split()[0] for line in said] == ["blobs,"]


@pytest.mark.parametrize(("rows", "said"), [([1], "1 study with 1 measurement in "), ([2, 0], "2 studies with 2 meas")])
def test_studies_and_measurements_are_counted(rows, said):
    with StudiesProgress(Console(quiet=True), "importing") as shown:
        shown.begin(len(rows))
        for count in rows:
            shown.watch("digits", count)
    assert shown.done.startswith(said)


@pytest.mark.parametrize("tuned", [Branch(), Branch(budget=2.0), Branch(widened=("learning_rate.high",))])
def test_a_study_of_jobs_ends_with_its_result_and_not_with_the_luckiest_fresh_seed(tuned):
    study = SimpleNamespace(name="blobs", series="sgd", batch_size=64, search=SimpleNamespace(trials=4))
    searches = [
        (tuned, None, 56),
        (tuned._replace(rerun=0), str(tuned), 51),
        (tuned._replace(rerun=0, rule="linear", base=8), None, 40),
    ]
    counts = {"state": "done", "complete": 4, "wanted": 4, "infeasible": 0}
    rows = [{"search": str(name), "reruns_of": of, "best": best, **counts} for name, of, best in searches]
    console = Console(record=True, width=200)
    with JobsProgress(console) as shown:
        shown.watch([(study, ["running"], [rows[0], {**rows[1], "state": "running"}])])
        shown.watch([(study, ["ended"], rows)])
        shown.watch([(study, ["ended"], rows[:1])])
    running, *ended = console.export_text().splitlines()
    assert "running" in running
    assert "reruns of trial 0, best 51 steps" in running
    name = f", {tuned}" if str(tuned) else ""
    assert ended == [f"blobs, sgd, batch size 64: done, 4 of 4 trials{name}, best 56 steps"]
