"""Files of results that are torn, and files and folders that may not be read, as those of another user."""

import errno
import os
from pathlib import Path

import pytest

TORN = "remove the torn file and sweep again."
FILES = {
    "study.json": "restore it, or remove the folder and sweep again.",
    "curves.parquet": TORN,
    "trials/000007.parquet": TORN,
    "runs/a.json": TORN,
}
VERBS = (("status",), ("report",), ("advise", "--step-ms", "8:1"), ("export", "out"))


@pytest.fixture
def results(sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return sweep({8: [400] * 4, 64: [200] * 4}, tmp_path / "results")


@pytest.mark.parametrize("name", FILES)
def test_a_torn_file_is_named(results, says, name):
    torn = results / "studies/tiny/momentum/64" / name
    torn.parent.mkdir(exist_ok=True)
    torn.write_bytes(b"torn")
    said = says("status", results, status=2)
    assert said.startswith(f"study: cannot read {torn}: ")
    assert said.endswith(FILES[name])


@pytest.mark.parametrize("words", VERBS, ids=str)
@pytest.mark.parametrize("name", [".", "studies", "studies/tiny/momentum", "studies/tiny/momentum/64"])
def test_results_lack_no_folder_that_may_not_be_read_without_a_word(results, says, monkeypatch, words, name):
    locked, scandir = results / name, os.scandir

    def refusing(place="."):
        if Path(os.fsdecode(place)).is_relative_to(locked):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), os.fspath(place))
        return scandir(place)

    monkeypatch.setattr(os, "scandir", refusing)
    said = says(words[0], results, *words[1:], status=2)
    assert said.startswith(f"study: cannot read {locked}")
    assert said.endswith(": Permission denied; make it readable, and run the command again.")


@pytest.mark.parametrize("words", VERBS, ids=str)
def test_a_file_that_may_not_be_read_need_not_be_removed(results, says, monkeypatch, words):
    locked, read_text = results / "studies/tiny/momentum/64/study.json", Path.read_text

    def refusing(path, *args, **kwargs):
        if path == locked:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return read_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "read_text", refusing)
    said = says(words[0], results, *words[1:], status=2)
    assert said == f"study: cannot read {locked}: Permission denied; make it readable, and run the command again."
