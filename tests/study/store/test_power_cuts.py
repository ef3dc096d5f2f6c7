"""A power cut undoes what is not flushed to disk: files are removed only when those that replace them are on disk."""

import os
import stat
from pathlib import Path

import pytest

from study import store


@pytest.fixture
def search(tmp_path, make_study, make_curve):
    """The folder of a search with a finished trial and the checkpoint of another one."""
    study = make_study()
    store.end_run(store.open_study(tmp_path, study, {"workers": 1}), {"ended": store.now()})
    folder = store.study_folder(tmp_path, study)
    store.save(folder, make_curve(study, 0, reaches=20))
    store.Checkpoints(folder)[1] = b"weights"
    return folder


@pytest.fixture
def removed(search, monkeypatch):
    """Name of each removed file of a search -> the files that were on disk then, as (name, inode): flushing a folder
    settles which files it holds."""
    found, on_disk, unlink = {}, set(), os.unlink

    def fsync(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            folder = next(
                each for each in (search, search / "trials") if os.path.samestat(each.stat(), os.fstat(handle))
            )
            on_disk.update((path.name, path.stat().st_ino) for path in folder.iterdir())

    def noted(path, **where):
        found[Path(path).name] = set(on_disk)
        unlink(path, **where)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "unlink", noted)
    return found


CASES = {
    "the checkpoint of a trial that ends": (
        lambda folder, curve: store.save(folder, curve),
        {"000001.pt": "trials/000001.parquet"},
    ),
    "trials that are gathered": (lambda folder, curve: store.compact(folder), {"000000.parquet": "curves.parquet"}),
    "records of runs that are gathered": (
        lambda folder, curve: store.gather(folder),
        {"000000.parquet": "curves.parquet", "000001.pt": "curves.parquet", "RUN": "study.json"},
    ),
}


@pytest.mark.parametrize(("act", "pairs"), CASES.values(), ids=CASES)
def test_a_file_is_removed_when_what_replaces_it_is_on_disk(search, removed, make_study, make_curve, act, pairs):
    [run] = (search / "runs").glob("*.json")
    act(search, make_curve(make_study(), 1, reaches=20))
    for name, other in pairs.items():
        left = search / other
        assert (left.name, left.stat().st_ino) in removed[run.name if name == "RUN" else name]
