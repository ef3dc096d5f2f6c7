"""Reading results while a sweep, or a script, removes folders in them."""

import os
import shutil

import pytest

from analysis.load import load, load_study
from analysis.tables import status as progress_of
from study import store
from study.commands import status
from study.observers import live_page
from study.observers.base import Observer
from study.observers.followed import Followed
from study.store.curves import begun
from study.terminal import served


@pytest.fixture
def sweep(tmp_path, make_study, make_curve):
    """(results folder, study, its folder) of a sweep that is being worked on, whose trials keep files."""
    study = make_study()
    store.open_study(tmp_path / "mine", study, {"workers": 1})
    folder = store.study_folder(tmp_path / "mine", study)
    store.save(folder, make_curve(study, 0, reaches=20))
    for place in ("checkpoints", "commands/000001/folder/epoch-3", "commands/000001/folder/epoch-4"):
        (folder / place).mkdir(parents=True)
    (folder / "checkpoints/000001.pt").write_bytes(b"weights")
    (folder / "commands/000001/trial.json").write_text("{}")
    (folder / "commands/000001/progress.json").write_text('{"seconds": 1.0, "silent": 1.0, "step": 1, "error": 0.5}')
    (folder / "commands/000001/folder/study.json").write_text("{}")  # of the script: any name may be there
    (tmp_path / ".exported.1").mkdir()
    return tmp_path / "mine", study, folder


READERS = {
    "load": lambda results, study, folder: len(list(load(results))),
    "the table of status": lambda results, study, folder: len(progress_of.table(load(results))),
    "commands at work": lambda results, study, folder: len(progress_of.commands_at_work(load_study(folder))) <= 1,
    "status of a folder of results folders": lambda results, study, folder: len(status.progress(results.parent)),
    "the page of study watch": lambda results, study, folder: len(served.matching(results.parent, "*/studies")),
    "the time of the newest trial": lambda results, study, folder: live_page.newest_trial(results) > 0,
    "fingerprints": lambda results, study, folder: store.fingerprints(results, study.name) == [],
    "records of runs": lambda results, study, folder: len(store.runs(folder)) <= 1,
    "whether a trial has begun": lambda results, study, folder: begun(folder),
    "checkpoints": lambda results, study, folder: len(store.Checkpoints(folder)) <= 1,
    "trials of other processes": lambda results, study, folder: len(
        {path for path, _ in Followed([(results, study)], Observer())._searches()}
    ),
}
REMOVED = ("runs", "checkpoints", "commands", "000001", "folder", "epoch-3", ".exported.1")


@pytest.mark.parametrize("name", REMOVED)
@pytest.mark.parametrize("reader", READERS)
def test_a_folder_that_is_removed_just_before_it_is_listed_is_passed_over(sweep, monkeypatch, reader, name):
    scandir = os.scandir

    def late(path="."):
        if os.path.basename(path) == name:
            monkeypatch.setattr(os, "scandir", scandir)
            shutil.rmtree(path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", late)
    assert READERS[reader](*sweep) == 1


@pytest.mark.parametrize("reader", READERS)
def test_files_of_scripts_are_no_searches(sweep, reader):
    """A script may keep a study.json, too."""
    assert READERS[reader](*sweep) == 1
