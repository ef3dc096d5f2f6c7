"""Runs of several projects or experiments in one source: the import says so, and `--map` makes them workloads."""

import sqlite3

import pytest

from analysis.load import load
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked

NAMES = ("cifar", "mnist")


def column(folder):
    rows = [f"{name},{name},8,{step},{0.9 - step / 20}" for name in NAMES for step in (5, 10)]
    (folder / "log.csv").write_text("\n".join(["run,project,batch_size,step,val/loss", *rows]) + "\n")
    return folder / "log.csv"


def mlflow_folder(folder):
    for number, name in enumerate(NAMES):
        run = folder / "mlruns" / str(number) / f"run{number}"
        for part in ("metrics", "params"):
            (run / part).mkdir(parents=True)
        (run.parent / "meta.yaml").write_text(f"experiment_id: '{number}'\nname: {name}\n")
        (run / "meta.yaml").write_text("status: 3\n")
        (run / "params" / "batch_size").write_text("8")
        (run / "metrics" / "val_loss").write_text("1 0.9 5\n2 0.4 10\n")
    return folder / "mlruns"


def mlflow_database(folder):
    with sqlite3.connect(folder / "mlflow.db") as held:
        held.execute("CREATE TABLE experiments (experiment_id INTEGER, name TEXT)")
        held.execute(
            "CREATE TABLE runs (run_uuid TEXT, name TEXT, status TEXT, lifecycle_stage TEXT, start_time INTEGER, "
            "experiment_id INTEGER)"
        )
        held.execute("CREATE TABLE params (run_uuid TEXT, key TEXT, value TEXT)")
        columns = "run_uuid TEXT, key TEXT, step INTEGER, value REAL, is_nan INTEGER, timestamp INTEGER"
        held.execute(f"CREATE TABLE metrics ({columns})")
        for number, name in enumerate(NAMES):
            run = f"run{number}"
            held.execute("INSERT INTO experiments VALUES (?, ?)", (number, name))
            held.execute("INSERT INTO runs VALUES (?, ?, 'FINISHED', 'active', 0, ?)", (run, run, number))
            held.execute("INSERT INTO params VALUES (?, 'batch_size', '8')", (run,))
            for step, loss in ((5, 0.9), (10, 0.4)):
                held.execute("INSERT INTO metrics VALUES (?, 'val_loss', ?, ?, 0, 0)", (run, step, loss))
    held.close()
    return folder / "mlflow.db"


@pytest.mark.parametrize("write", [column, mlflow_folder, mlflow_database])
def test_runs_of_several_projects_are_told_and_can_be_kept_apart(write, tmp_path):
    source = write(tmp_path)
    said = import_log(source, tmp_path / "one", Asked(), ["val/loss<0.5"])
    assert [len(study.trials) for study in load(tmp_path / "one")] == [2]
    (warning,) = [text for text in said.warnings if "several projects" in text]
    assert "(cifar, mnist) count as one workload" in warning
    assert "--map workload=project" in warning
    import_log(source, tmp_path / "two", Asked.parse(["workload=project"]), ["val/loss<0.5"])
    assert [study.workload for study in load(tmp_path / "two")] == list(NAMES)
