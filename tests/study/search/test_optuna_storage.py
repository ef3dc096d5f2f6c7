"""Optuna's storage as an image of the curves: shared, mended after interruptions, never the truth."""

import math
from dataclasses import replace

import optuna
import pytest
from optuna.trial import TrialState

from study.__main__ import main
from study.search.optuna_storage import CURVE_POINTS, JOURNAL, Storage
from study.search.tuner import Tuner


def held(results):
    """The trials of the only search in a results folder's journal."""
    backend = optuna.storages.journal.JournalFileBackend(str(results.resolve() / JOURNAL))
    storage = optuna.storages.JournalStorage(backend)
    [name] = optuna.get_all_study_names(storage)
    return optuna.load_study(study_name=name, storage=storage).trials


def states(results):
    return sorted(trial.state.name for trial in held(results))


@pytest.fixture
def interrupted(monkeypatch, tmp_path, make_study, make_curve):
    """A search of which trial 0 was kept and told, trial 1 kept, trial 2 under way when its process died."""
    monkeypatch.setattr("study.search.tuner.STARTUP", 1)
    study = make_study(sampler="tpe", trials=4, stopping="goal")
    tuner = Tuner(study, storage=Storage("journal", tmp_path))
    for _ in range(3):
        tuner.ask()
    curves = [make_curve(study, 0, reaches=30), make_curve(study, 1, bad=7)]
    tuner.tell(curves[0])
    return study, curves


def test_a_search_is_seen_while_it_runs(interrupted, tmp_path):
    assert states(tmp_path) == ["COMPLETE", "RUNNING", "RUNNING"]
    [first] = [trial for trial in held(tmp_path) if trial.state == TrialState.COMPLETE]
    assert first.value == pytest.approx(math.log(30))
    assert set(first.params) == {"learning_rate", "one_minus_momentum"}


def test_a_dashboard_finds_names_and_learning_curves(interrupted, tmp_path):
    study, curves = interrupted
    Tuner(study, curves, storage=Storage("journal", tmp_path))
    found = Storage("journal", tmp_path).open(study)
    assert found.metric_names == ["log of the steps to val/classification_error < 0.1"]
    assert found.user_attrs == {"workload": "tiny", "optimizer": "momentum", "batch_size": 8}
    trials = {trial.user_attrs["index"]: trial for trial in found.trials if trial.state != TrialState.RUNNING}
    about = {"batch_size": 8, "optimizer": "momentum"}
    assert trials[0].user_attrs.items() >= (about | {"steps": 30}).items()
    assert trials[1].user_attrs.items() >= (about | {"steps": None}).items()  # mended by the second run
    assert len(trials[0].intermediate_values) <= CURVE_POINTS
    assert trials[0].intermediate_values[30] == 0.05
    assert max(trials[1].intermediate_values) < 7


@pytest.mark.parametrize("sampler", ["tpe", "gp", "cmaes", "sobol"])
def test_what_a_dashboard_shows_changes_no_proposal(sampler, tmp_path, monkeypatch, make_study, make_curve):
    monkeypatch.setattr("study.search.tuner.STARTUP", 2)
    study = make_study(sampler=sampler, trials=6, stopping="goal")
    proposed = []
    for storage in (Storage(), Storage("journal", tmp_path)):
        tuner, found = Tuner(study, storage=storage), []
        for index in range(5):
            trial = tuner.ask()
            found.append(trial.hyperparameters)
            tuner.tell(replace(make_curve(study, index, reaches=20 + 7 * index), trial=trial))
        proposed.append(found)
    assert proposed[0] == proposed[1]


def test_what_died_is_mended_from_the_curves(interrupted, tmp_path, make_curve):
    study, curves = interrupted
    tuner = Tuner(study, curves, storage=Storage("journal", tmp_path))
    assert states(tmp_path) == ["COMPLETE", "FAIL", "FAIL"]  # diverged; abandoned
    assert tuner.ask().index == 2
    tuner.tell(make_curve(study, 2))
    assert states(tmp_path) == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]
    Tuner(study, [*curves, make_curve(study, 2)], storage=Storage("journal", tmp_path))
    assert states(tmp_path) == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]  # nothing is entered twice


def test_a_trial_that_nobody_owns_is_failed_after_a_while(interrupted, tmp_path, monkeypatch):
    """Its process died between asking for it and signing it."""
    study, curves = interrupted
    Storage("journal", tmp_path).open(study).ask()
    Tuner(study, curves, storage=Storage("journal", tmp_path))
    assert states(tmp_path) == ["COMPLETE", "FAIL", "FAIL", "RUNNING"]  # it may be signed any moment
    monkeypatch.setattr("study.search.optuna_storage.STALE", 0)
    Tuner(study, curves, storage=Storage("journal", tmp_path))
    assert states(tmp_path) == ["COMPLETE", "FAIL", "FAIL", "FAIL"]


def test_a_torn_line_is_cut_off(interrupted, tmp_path, make_curve):
    study, curves = interrupted
    with (tmp_path / JOURNAL).open("ab") as file:
        file.write(b'{"op_code": 5, "wor')
    tuner = Tuner(study, curves, storage=Storage("journal", tmp_path))
    tuner.ask()
    tuner.tell(make_curve(study, 2))
    assert states(tmp_path) == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"]


def test_trials_that_an_earlier_run_kept_elsewhere_are_entered(tmp_path, make_study, make_curve):
    study = make_study(sampler="tpe")
    Tuner(study, [make_curve(study, 0, reaches=20)], storage=Storage("journal", tmp_path))
    assert states(tmp_path) == ["COMPLETE"]


@pytest.mark.slow
def test_sweeps_of_one_question_share_a_search(monkeypatch, tmp_path, make_study, make_curve):
    monkeypatch.setattr("study.search.tuner.STARTUP", 1)
    url = f"sqlite:///{tmp_path / 'optuna.db'}"
    study = make_study(sampler="tpe")
    one, other = (Tuner(study, storage=Storage(url, tmp_path / name)) for name in ("one", "other"))
    for tuner in (one, other):
        tuner.ask()
        tuner.tell(make_curve(study, 0, reaches=20))
    mine = Tuner(study, [make_curve(study, 0, reaches=20)], storage=Storage(url, tmp_path / "one"))
    mine.ask()
    storage = optuna.storages.RDBStorage(url)
    [name] = optuna.get_all_study_names(storage)
    trials = optuna.load_study(study_name=name, storage=storage).trials
    assert [trial.state for trial in trials] == [TrialState.COMPLETE] * 2 + [TrialState.RUNNING]
    assert len({trial.user_attrs["owner"] for trial in trials}) == 2
    Tuner(make_study(sampler="gp"), storage=Storage(url, tmp_path))
    assert len(optuna.get_all_study_names(storage)) == 2  # another question has a search of its own


@pytest.mark.slow
def test_a_sweep_with_a_journal(tmp_path):
    command = [
        "sweep",
        "batch_size=64",
        "search=tpe",
        "search.trials=4",
        "search.reruns=0",
        "budget.epochs=2",
        "search.storage=journal",
    ]
    assert main([*command, "engine.workers=1", f"results={tmp_path}"]) == 0
    assert len([state for state in states(tmp_path) if state == "COMPLETE"]) == 4
