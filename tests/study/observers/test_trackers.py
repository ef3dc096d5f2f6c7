"""Trackers: what the real packages hold after a small sweep, and sweeps with trackers that fail."""

import csv
import importlib.util
import json
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.observers import told
from helpers.processes import tables

from study.__main__ import main
from study.observers import background
from study.observers.background import Background
from study.observers.base import Ended
from study.observers.trackers.base import FOLDER, Tracker, trials_of

STUDY = "tiny-momentum-64-identity"
Held = dict[str, dict[str, dict[int, float]]]
"""Run -> name -> step -> value."""


def of_tensorboard(folder: Path) -> tuple[Held, list[list[str]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found: Held = {}
    text = ""
    for run in sorted((folder / "tensorboard").iterdir()):
        read = EventAccumulator(str(run), size_guidance={"scalars": 0, "tensors": 0})
        read.Reload()
        found[run.name] = {
            name: {event.step: event.value for event in read.Scalars(name)} for name in read.Tags()["scalars"]
        }
        if run.name == STUDY:
            text = read.Tensors("trials")[-1].tensor_proto.string_val[0].decode()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    return found, [rows[0], *rows[2:]]


def of_mlflow(folder: Path) -> tuple[Held, list[list[str]]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    [experiment] = [each for each in client.search_experiments() if each.name == "batch-size-study"]
    found: Held = {}
    rows: list[list[str]] = []
    for run in client.search_runs([experiment.experiment_id]):
        name = run.data.tags["batch_size_study.identity"]
        held = {key: client.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
        found[name] = {key: {each.step: each.value for each in history} for key, history in held.items()}
        assert run.info.status == "FINISHED"
        if name == STUDY:
            assert run.data.params["batch_size"] == "64"
            path = client.download_artifacts(run.info.run_id, "trials.csv", str(folder))
            rows = [*csv.reader(Path(path).read_text().splitlines())]
    return found, rows


def records(path: Path) -> Iterator[bytes]:
    """The records of a .wandb file: a header of 7 bytes, then chunks (checksum, length, kind) in blocks of 32 KiB."""
    data, at, held = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        held += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last of several
            yield held
            held = b""


def of_wandb(folder: Path) -> tuple[Held, list[list[str]]]:
    from wandb.proto.wandb_internal_pb2 import Record

    found: Held = {}
    rows: list[list[str]] = []
    for path in folder.glob("wandb/offline-run-*/run-*.wandb"):
        name = path.stem.removeprefix("run-")
        found[name] = {}
        for data in records(path):
            record = Record()
            record.ParseFromString(data)
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            step = int(float(items.get("finished trials", items.get("training step", "0"))))
            for key, text in items.items():
                if isinstance(value := json.loads(text), int | float) and key[:1] != "_":
                    found[name].setdefault(key, {})[step] = value
        for table in path.parent.rglob("media/table/*.table.json"):
            held = json.loads(table.read_text())
            if name == STUDY:
                rows = [held["columns"], *([str(cell) for cell in row] for row in held["data"])]
    return found, rows


def of_trackio(folder: Path) -> tuple[Held, list[list[str]]]:
    found: Held = {}
    with sqlite3.connect(folder / "trackio/batch-size-study.db") as database:
        held = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id").fetchall()
    rows: list[list[str]] = []
    for name, step, text in held:
        for key, value in json.loads(text).items():
            if isinstance(value, int | float):
                found.setdefault(name, {}).setdefault(key, {})[step] = value
            elif name == STUDY and key == "trials":
                rows = [[*value["_value"][0]], *([str(cell) for cell in row.values()] for row in value["_value"])]
    return found, rows


READERS: dict[str, Callable[[Path], tuple[Held, list[list[str]]]]] = {
    "tensorboard": of_tensorboard,
    "mlflow": of_mlflow,
    "wandb": of_wandb,
    "trackio": of_trackio,
}


@pytest.fixture(autouse=True)
def _time_for_trackers(monkeypatch):
    """On a busy machine a process of the lowest priority takes minutes to import a package."""
    monkeypatch.setattr(background, "LOWEST", 0)
    monkeypatch.setattr(background, "PATIENCE", 600.0)


def needs(tracker: str) -> Any:
    return pytest.mark.skipif(importlib.util.find_spec(tracker) is None, reason=f"{tracker} is not installed")


def some(tracker: str) -> Any:
    slow = [] if tracker == "tensorboard" else [pytest.mark.slow]  # they take seconds to import
    return pytest.param(tracker, marks=[needs(tracker), *slow])


def written(folder: Path) -> None:
    """The table of trials, as a report writes it."""
    (folder / "tables").mkdir()
    lines = ["workload,optimizer,batch_size,trial,status,steps_to_goal,momentum"]
    lines += ["tiny,momentum,64,0,COMPLETE,40,", "tiny,momentum,64,1,INFEASIBLE,,", "tiny,momentum,8,0,COMPLETE,,0.9"]
    (folder / "tables/trials.csv").write_text("\n".join(lines) + "\n")


@pytest.mark.filterwarnings("ignore")  # of the packages that read
@pytest.mark.parametrize("tracker", [some(tracker) for tracker in READERS])
def test_a_run_a_study_with_trials_as_steps_and_a_run_a_trial(tracker, tmp_path, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY", "TRACKIO_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    written(tmp_path)
    warned: list[str] = []
    observer = Background(Tracker(tracker, {tmp_path: "identity"}, trials=True), warned.append)
    told.tell(observer, tmp_path)
    observer.report(Ended([tmp_path]))
    assert warned == []
    found, rows = READERS[tracker](tmp_path / FOLDER)
    whole = {name: held for name, held in found.items() if "trial" not in name}
    assert set(whole) == {STUDY, "tiny-momentum-8-identity"}
    study = whole[STUDY]
    assert study["trial"] == {1: 0, 2: 1}
    assert study["steps_to_goal"] == {1: 40}
    assert study["diverged"] == {1: 0, 2: 1}
    assert study["hyperparameters/learning_rate"] == pytest.approx({1: 0.1, 2: 1.1})
    assert study["rerun-0/steps_to_goal"] == {1: 40}
    assert "steps_to_goal" not in whole["tiny-momentum-8-identity"]
    curve = found["tiny-momentum-64-trial-0-identity"]
    assert curve[told.METRIC] == pytest.approx({20: 0.5, 40: 0.05})
    assert curve["val/loss"] == {40: 1.25}
    assert len([name for name in found if "trial" in name]) == 4
    assert rows[0] == ["trial", "status", "steps_to_goal"]
    assert [row[1] for row in rows[1:]] == ["COMPLETE", "INFEASIBLE"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracker", [pytest.param("mlflow", marks=needs("mlflow"))])
def test_the_runs_of_a_resumed_sweep_go_on(tracker, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    written(tmp_path)
    search = told.search(tmp_path)
    for index in range(2):
        observer = Background(Tracker(tracker, {tmp_path: "identity"}), pytest.fail)
        observer.begin(told.Sweep("command", [search]))
        observer.trial(search, told.state(index + 1, 40), told.finished(index))
        observer.report(Ended([tmp_path]))
    found, _ = READERS[tracker](tmp_path / FOLDER)
    assert found[STUDY]["steps_to_goal"] == {1: 40, 2: 40}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracker", [some(tracker) for tracker in READERS])
def test_a_resumed_sweep_ends_the_runs_of_studies_that_were_complete(tracker, tmp_path, monkeypatch):
    """Else they count as failed for ever, and lack their table."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_MODE", "WANDB_API_KEY", "TRACKIO_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    search = told.search(tmp_path)
    first = Tracker(tracker, {tmp_path: "identity"}, studies=[search.key[:4]])
    first.begin(told.Sweep("command", [search]))
    first.trial(search, told.state(1, 40), told.finished())
    first.report(Ended([tmp_path], interrupted=True))
    written(tmp_path)
    warned: list[str] = []
    resumed = Background(Tracker(tracker, {tmp_path: "identity"}, studies=[search.key[:4]]), warned.append)
    assert resumed.has_left
    resumed.begin(told.Sweep("command", ()))  # everything is on file
    resumed.report(Ended([tmp_path]))
    assert warned == []
    found, rows = READERS[tracker](tmp_path / FOLDER)
    assert set(found) == {STUDY}
    assert rows[0] == ["trial", "status", "steps_to_goal"]
    assert not Tracker(tracker, {tmp_path: "identity"}, studies=[search.key[:4]]).has_left


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("tracker", [some("tensorboard"), some("mlflow")])
def test_steps_increase_where_trials_finish_out_of_order(tracker, tmp_path, monkeypatch):
    """Else `tensorboard` shows only the trials that no trial of smaller index followed."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    written(tmp_path)
    search = told.search(tmp_path)
    observer = Tracker(tracker, {tmp_path: "identity"})
    observer.begin(told.Sweep("command", [search]))
    for position, (index, steps) in enumerate([(3, 90), (0, None), (2, 30)], start=5):  # four trials are on file
        observer.trial(search, told.state(position, steps), told.finished(index, steps, position=position))
    observer.report(Ended([tmp_path]))
    found, _ = READERS[tracker](tmp_path / FOLDER)
    assert list(found[STUDY]["trial"].items()) == [(5, 3), (6, 0), (7, 2)]
    assert found[STUDY]["steps_to_goal"] == {5: 90, 7: 30}


def test_a_table_without_empty_columns(tmp_path):
    written(tmp_path)
    table = trials_of(tmp_path, ["tiny", "momentum", "64"])
    assert table is not None
    assert table.columns == ["trial", "status", "steps_to_goal"]
    assert table.rows == [[0.0, "COMPLETE", 40.0], [1.0, "INFEASIBLE", None]]
    assert trials_of(tmp_path / "elsewhere", ["tiny", "momentum", "64"]) is None


BROKEN = {
    "import": "raise OSError('broken')",
    "constructor": "Settings = dict\ndef init(**_): raise OSError('broken')",
    "every call": "def __getattr__(name): raise OSError('broken')",
}
SMALL = ["sweep", "batch_size=64", "search=sobol", "search.trials=2", "search.reruns=0", "budget.epochs=1"]


@pytest.mark.slow
@pytest.mark.parametrize("fails_at", BROKEN)
def test_a_sweep_with_a_broken_tracker_gives_the_same_tables(fails_at, tmp_path, monkeypatch, swept_once, capsys):
    package = tmp_path / "packages/wandb"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BROKEN[fails_at] + "\n")
    monkeypatch.setenv("PYTHONPATH", str(package.parent), prepend=":")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.syspath_prepend(str(package.parent))
    assert main([*SMALL, "track=wandb", f"results={tmp_path / 'results'}"]) == 0
    assert tables(tmp_path / "results") == tables(swept_once(*SMALL))
    said = capsys.readouterr().out
    assert said.count("track=wandb failed, and the sweep goes on without it: broken") == 1


def test_a_missing_package_is_one_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    tracker = Tracker("trackio", {})
    with pytest.raises(ImportError, match=r"its package is missing: pip install 'batch-size-study\[trackio\]'"):
        tracker.begin(told.Sweep("command", []))
