"""`study status` of one results folder, of a folder of them, and again and again."""

import argparse
import io
import itertools
import json
import re
import shutil

import pandas as pd
import pytest
from rich.console import Console
from rich.text import Text

from study import store
from study.__main__ import main
from study.commands import status
from study.terminal import show


@pytest.fixture
def folders(tmp_path, make_study, make_curve):
    """A folder with a complete results folder, and with one that waits for three of four trials, one level lower."""
    for results, trials in ((tmp_path / "done", 1), (tmp_path / "more/left", 4)):
        study = make_study(trials=trials)
        store.open_study(results, study, {"workers": 2})
        store.save(store.study_folder(results, study), make_curve(study, 0, reaches=30))
    return tmp_path


def test_a_folder_of_results_folders_has_a_row_for_each(folders, says):
    said = says("status", folders)
    assert "done tiny momentum done 1 of 1 1 of 1 0" in said
    assert "more/left tiny momentum stopped 0 of 1 1 of 4 0" in said
    rows = json.loads(says("status", folders, "--json"))["rows"]
    assert [(row["results"], row["state"]) for row in rows] == [
        (str(folders / "done"), "done"),
        (str(folders / "more/left"), "stopped"),
    ]


def test_one_results_folder_is_as_before(folders, says):
    assert "results" not in json.loads(says("status", folders / "done", "--json"))["rows"][0]
    assert says("status", folders / "empty", status=2).startswith("study: there is no folder ")


def test_it_looks_again_until_all_is_done(folders, monkeypatch, capsys):
    looks = []
    progress = status.progress

    def look(folder):
        looks.append(folder)
        if len(looks) == 3:
            return progress(folders / "done")
        return progress(folders / "more/left")

    monkeypatch.setattr(status, "progress", look)
    monkeypatch.setattr(status, "SECONDS", 0.0)
    assert main(["status", str(folders), "--watch"]) == 0
    assert len(looks) == 3
    assert "Done." in capsys.readouterr().out


MISSING = {
    "no folder": lambda folder: None,
    "an empty folder": lambda folder: folder.mkdir(),
    "a folder without a question": lambda folder: (folder / "studies/tiny/momentum/8").mkdir(parents=True),
    "a file that is none of a sweep": lambda folder: (folder.mkdir(), (folder / "notes.txt").touch()),
}


@pytest.mark.parametrize("missing", MISSING)
@pytest.mark.parametrize("gone", [0, 1], ids=["at first", "and again later"])
def test_it_waits_for_the_first_study(folders, tmp_path, monkeypatch, capsys, missing, gone):
    """The folder may be missing when the command starts, or be removed and made again while it runs."""
    folder, said = tmp_path / "later", []
    MISSING[missing](folder)

    def sleep(_):
        said.append(capsys.readouterr().out)
        shutil.rmtree(folder, ignore_errors=True)
        if len(said) > 2 * gone:
            shutil.copytree(folders / "done", folder)
        elif len(said) == gone:
            shutil.copytree(folders / "more/left", folder)

    monkeypatch.setattr(status.time, "sleep", sleep)
    assert main(["status", str(folder), "--watch"]) == 0
    assert (
        said[0]
        == f"No study is on file in {folder} yet: waiting for a sweep with results={folder}. Ctrl-C ends this.\n"
    )
    assert len(said) == 1 + 2 * gone
    assert "Done." in capsys.readouterr().out


@pytest.mark.parametrize(("height", "lines"), [(40, 5), (4, 3)])
def test_each_look_replaces_the_last_one_and_shows_at_least_its_end(folders, monkeypatch, height, lines):
    looks = []

    def sleep(_):
        looks.append(console.file.getvalue())
        if len(looks) == 3:
            raise KeyboardInterrupt

    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=height, highlight=False)
    monkeypatch.setattr(status.time, "sleep", sleep)
    status.status(argparse.Namespace(results=folders / "more/left", json=False, watch=True), console)
    for before, look in itertools.pairwise(looks):
        shown = Text.from_ansi(re.sub(r"\x1b\[\d*[AK]", "", look.removeprefix(before))).plain.strip("\r").splitlines()
        assert len(shown) == lines
        assert shown[-1].endswith(" left.")


def test_ctrl_c_ends_it_quietly(folders, monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", interrupted)
    assert main(["status", str(folders / "more/left"), "--watch"]) == 0
    assert capsys.readouterr().err == ""


ROW = {"workload": "tiny", "optimizer": "momentum", "batch_size": 8, "search": "", "state": "running", "processes": 1}
ROW |= {"wanted": 10, "complete": 6, "infeasible": 0, "doubled": 0, "best": pd.NA, "running": ()}
UNKNOWN = float("nan")
TIMES = {
    "of one search unknown": (
        [24.4, UNKNOWN],
        "at least 24 s",
        "At least 24 s left, plus the time of 1 search that has",
    ),
    "of all unknown": (
        [UNKNOWN, UNKNOWN],
        "unknown",
        "Time left: unknown, because of 2 searches that have no complete",
    ),
    "of the last one unknown": ([0.0, UNKNOWN], "unknown", "Time left: unknown, because of 1 search that has no compl"),
    "known": ([24.4, 5.2], "30 s", "About 30 s left."),
    "nearly none": ([0.1, 0.1], "< 1 s", "Less than a second left."),
}


@pytest.mark.parametrize(("seconds", "in_row", "below"), TIMES.values(), ids=TIMES)
def test_the_row_of_a_sweep_and_the_line_below_agree_on_the_time_left(seconds, in_row, below):
    console = Console(record=True, width=200)
    show.sweeps(console, pd.DataFrame([ROW | {"results": "r", "seconds_left": left} for left in seconds]))
    said = console.export_text().splitlines()
    assert said[1].rstrip().endswith(in_row)
    assert said[-1].startswith(below)


@pytest.mark.parametrize(
    ("width", "kept"),
    [
        (100, "batch size search state complete infeasible best so far time left"),
        (76, "batch size search state complete best so far time left"),
        (60, "batch size search state complete time left"),
        (50, "batch size search state complete time left"),
    ],
)
def test_no_word_of_a_search_is_folded(width, kept):
    console = Console(record=True, width=width, force_terminal=True, file=io.StringIO())
    times = {"": UNKNOWN, "reruns of trial 7": 9.0}
    found = [ROW | {"search": search, "best": 1429, "seconds_left": left} for search, left in times.items()]
    show.status(console, pd.DataFrame(found))
    lines = console.export_text().splitlines()
    assert " ".join(lines[1].split()) == kept
    assert lines[2].split()[-1] == "unknown"


@pytest.mark.parametrize(
    ("terminal", "width", "kept"),
    [
        (False, 80, "time left"),
        (True, 120, "infeasible"),
        (True, 96, "searches"),
        (True, 80, "complete"),
        (True, 60, "complete"),
    ],
)
def test_long_names_are_never_cut(terminal, width, kept):
    names = ["cmd/r_failed_every_trial_with_sgd", "cmd/r_failed_every_trial_with_adam"]
    console = Console(record=True, width=width, force_terminal=terminal, file=io.StringIO())
    show.sweeps(console, pd.DataFrame([ROW | {"results": name, "seconds_left": 9.0} for name in names]))
    lines = console.export_text().splitlines()
    first = "".join(line.split()[0] for line in lines[1:] if line[:1].strip())
    assert [name for name in names if name not in first] == []
    assert kept in " ".join(lines)
    assert len([line for line in lines if "running" in line]) == 2
