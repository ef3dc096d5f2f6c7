"""Files and folders under a temporary name: processes with one id, as in two containers, do not share it."""

import os

import pytest

from analysis import export
from analysis.figures.atomic import write_atomically


@pytest.fixture(autouse=True)
def _one_process_id(monkeypatch):
    """As of the first process of each container."""
    monkeypatch.setattr(os, "getpid", lambda: 1)


def write(study, folder):
    write_atomically(folder / "page.html", b"whole")


def export_as(form):
    return lambda study, folder: export.export(study.results, folder / "tables", form)


WRITERS = {"a file of a report": write, **{f"an export as {form}": export_as(form) for form in export.FORMATS}}


@pytest.mark.parametrize("writer", WRITERS)
def test_what_a_killed_process_left_is_not_in_the_way(results, tmp_path, monkeypatch, writer):
    [study] = results({8: [20]})
    made, left = tmp_path / "made", tmp_path / "left"
    made.mkdir()
    left.mkdir()
    with monkeypatch.context() as patch:  # SIGKILL: nothing is cleaned up
        patch.setattr(export.shutil, "rmtree", lambda *_, **__: None)
        patch.setattr("pathlib.Path.replace", lambda *_: None)
        patch.setattr("pathlib.Path.unlink", lambda *_, **__: None)
        WRITERS[writer](study, made)
    assert [path.name.startswith(".") for path in made.iterdir()] == [True]
    WRITERS[writer](study, made)
    assert len([path for path in made.iterdir() if not path.name.startswith(".")]) == 1


def test_two_at_once_write_whole_files(tmp_path, monkeypatch):
    fsync = os.fsync

    def meanwhile(file):
        monkeypatch.setattr(os, "fsync", fsync)
        write_atomically(tmp_path / "page.html", b"of the other")

    monkeypatch.setattr(os, "fsync", meanwhile)
    write_atomically(tmp_path / "page.html", b"whole")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"page.html": b"whole"}
