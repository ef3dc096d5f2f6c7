"""The end of a sweep waits for trackers as long as they get on."""

import os
import pickle
import subprocess
from pathlib import Path

import pytest
from helpers.fused import partly
from helpers.observers import told
from rich.console import Console

from study.command_line import observers
from study.config.jobs import parse_jobs
from study.observers import background
from study.observers.background import Background
from study.observers.base import Ended, Sweep


@pytest.mark.parametrize(
    ("patience", "longest", "waits"),
    [(20.0, 60.0, True), (20.0, 0.0, False), (0.0, 60.0, False)],
    ids=["while they get on", "not for ever", "not for one event"],
)
def test_they_have_time_while_they_finish_events(tmp_path, monkeypatch, patience, longest, waits):
    monkeypatch.setenv("PYTHONPATH", str(Path(told.__file__).parents[2]), prepend=os.pathsep)
    monkeypatch.setattr(background, "PATIENCE", patience)
    monkeypatch.setattr(background, "LONGEST", longest)
    observer = Background(told.Lasting(tmp_path / "notes", 0.01), [].append)
    told.tell(observer, tmp_path)
    if waits:
        observer.report(Ended([tmp_path]))
        assert len((tmp_path / "notes").read_text().splitlines()) == 5
    else:
        with pytest.raises(TimeoutError, match="it had not finished 0 s after the sweep"):
            observer.report(Ended([tmp_path]))


@pytest.mark.slow
def test_a_tracker_that_hangs_holds_up_no_other(tmp_path, monkeypatch, capsys):
    """MLflow tries a server that does not answer again for four minutes."""
    monkeypatch.setenv("PYTHONPATH", str(Path(told.__file__).parents[2]), prepend=os.pathsep)
    monkeypatch.setattr(background, "PATIENCE", 5.0)
    monkeypatch.setattr(background, "LOWEST", 0)
    seconds = {"mlflow": 600.0, "wandb": 0.01}
    monkeypatch.setattr(observers, "Tracker", lambda name, *_: told.Lasting(tmp_path / name, seconds[name]))
    jobs = parse_jobs(["batch_size=64", "track=[mlflow,wandb]", f"results={tmp_path}"])
    with observers.told(jobs, "command", Console(width=200)) as both:
        told.tell(both, tmp_path)
    assert len((tmp_path / "wandb").read_text().splitlines()) == 5
    assert not (tmp_path / "mlflow").exists()
    assert capsys.readouterr().out.count("failed, and the sweep goes on without it: it had not finished") == 1


@pytest.mark.parametrize("ends", partly([False, True], 2), ids=["killed", "ended"])
def test_they_are_told_of_the_end_of_a_sweep_that_is_killed(tmp_path, monkeypatch, ends):
    """Else MLflow's run goes on for ever and lacks the trials of the last writing."""
    monkeypatch.setenv("PYTHONPATH", str(Path(told.__file__).parents[2]), prepend=os.pathsep)
    events = [told.Ending(tmp_path / "notes"), ("begin", Sweep("", ())), *[("report", Ended([tmp_path]))] * ends]
    process = background.process("study.observers.background", pipe=subprocess.PIPE)
    process.communicate(b"".join(map(pickle.dumps, events)))
    assert (tmp_path / "notes").read_text() == f"interrupted: {not ends}\n"
