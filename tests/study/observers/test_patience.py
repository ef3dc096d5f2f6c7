"""The end of a sweep waits for trackers as long as they get on."""

import os
from pathlib import Path

import pytest
from helpers.observers import told

from study.observers import aside
from study.observers.aside import Aside
from study.observers.base import Ended


@pytest.mark.parametrize(
    ("patience", "longest", "waits"),
    [(20.0, 60.0, True), (20.0, 0.0, False), (0.0, 60.0, False)],
    ids=["while they get on", "not for ever", "not for one event"],
)
def test_they_have_time_while_they_finish_events(tmp_path, monkeypatch, patience, longest, waits):
    monkeypatch.setenv("PYTHONPATH", str(Path(told.__file__).parents[2]), prepend=os.pathsep)
    monkeypatch.setattr(aside, "PATIENCE", patience)
    monkeypatch.setattr(aside, "LONGEST", longest)
    observer = Aside([told.Lasting(tmp_path / "notes", 0.01)], [].append)
    told.tell(observer, tmp_path)
    if waits:
        observer.report(Ended([tmp_path]))
        assert len((tmp_path / "notes").read_text().splitlines()) == 5
    else:
        with pytest.raises(TimeoutError, match="it had not finished 0 s after the sweep"):
            observer.report(Ended([tmp_path]))
