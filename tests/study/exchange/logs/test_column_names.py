"""Columns whose names may mean two things: they are read one way, and the import says so with the cure."""

import pytest
from helpers.fused import partly

from analysis.load import load
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked

RUNS = [(run, size) for size in (8, 16) for run in range(4)]


def read(tmp_path, name, values, maps=()):
    """(workload names, hyperparameters, lines) of runs with a column that takes two values."""
    rows = [
        f"{size}-{run},{size},{0.1 * 2**run},{values[run % 2]},{step},{1 - step / 100 * (run + 1)}\n"
        for run, size in RUNS
        for step in (10, 20, 30)
    ]
    (tmp_path / "log.csv").write_text("".join([f"run,batch_size,learning_rate,{name},step,val/loss\n", *rows]))
    results = tmp_path / f"results{len(maps)}"
    said = import_log(tmp_path / "log.csv", results, Asked.parse(maps=maps), ["val/loss<0.8"])
    studies = list(load(results))
    names = sorted({study.question["workload"]["name"] for study in studies})
    return names, sorted({each for study in studies for each in study.hyperparameters}), [*said.read, *said.warnings]


UNDERSCORED = {  # column -> the hyperparameter that it is, or None: W&B's own
    "_momentum": "momentum",
    "_Beta2": "beta2",
    "_runtime": None,
    "_timestamp": None,
    "_wandb.runtime": None,
}


@pytest.mark.parametrize("name", UNDERSCORED)
def test_of_names_with_an_underscore_first_only_those_of_wandb_are_left_out(tmp_path, name):
    _, found, lines = read(tmp_path, name, (0.5, 0.9))
    assert found == sorted(filter(None, ["learning_rate", UNDERSCORED[name]]))
    assert not any("left out" in line.lower() for line in lines)


@pytest.mark.parametrize("name", partly(["task", "data", "arch", "dataset_name", "config/task"], 3))
@pytest.mark.parametrize("values", [("cola", "sst2"), (0, 1)])
def test_another_name_of_a_workload_is_said_with_its_cure(tmp_path, name, values):
    names, found, lines = read(tmp_path, name, values)
    assert (names, found) == (sorted(map(str, values)), ["learning_rate"])
    [line] = [line for line in lines if "is a workload of its own" in line]
    again, found, lines = read(tmp_path, name, (0, 1), [line.rpartition("--map ")[2].rstrip(".")])
    assert (again, found) == (["log"], sorted(["learning_rate", name.rpartition("/")[2]]))
    assert not any("is a workload of its own" in line for line in lines)


@pytest.mark.parametrize("name", ["workload", "dataset", "model"])
def test_the_name_of_a_workload_goes_without_saying(tmp_path, name):
    names, found, lines = read(tmp_path, name, (0, 1))
    assert (names, found) == (["0", "1"], ["learning_rate"])
    assert not any("is a workload of its own" in line for line in lines)


@pytest.mark.parametrize("name", partly(["name", "experiment", "exp_name"], 1))
def test_a_name_that_several_runs_share_is_left_out_with_its_cure(tmp_path, name):
    _, found, lines = read(tmp_path, name, (0.5, 0.9))
    [line] = [line for line in lines if "such names describe a run" in line]
    _, again, _ = read(tmp_path, name, (0.5, 0.9), [line.rpartition("--map ")[2]])
    assert (found, again) == (["learning_rate"], sorted(["learning_rate", name]))
