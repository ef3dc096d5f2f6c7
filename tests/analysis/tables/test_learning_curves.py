"""Learning curves: which trials and evaluations the table holds."""

import numpy as np
import pytest

from analysis.tables import learning_curves
from analysis.tables.learning_curves import MISSED, REACHED
from study.settings import Evaluation


def test_each_trial_up_to_its_end_the_best_first(results):
    studies = results(
        {8: [300, None, "bad", 100, "missing"], 64: [None, None]}, stopping="budget", evaluation=Evaluation()
    )
    table = learning_curves.learning_curves(studies)
    assert list(table.drop_duplicates("batch_size")["batch_size"]) == [8, 64]
    small, large = (table[table["batch_size"] == size] for size in (8, 64))
    assert list(dict.fromkeys(small["trial"])) == [3, 0, 1]  # trial 2 diverged before its first evaluation
    assert dict(zip(small["trial"], small["state"], strict=True)) == {3: REACHED, 0: REACHED, 1: MISSED}
    assert set(small["trial"][small["best"]]) == {3}
    assert not large["best"].any()
    assert (small.groupby("trial")["step"].max() == 2000).all()
    assert small.groupby("trial")["error"].min().to_dict() == {0: 0.05, 1: 0.9, 3: 0.05}


@pytest.mark.parametrize(("most", "every"), [(4, 6), (11, 2), (1000, 1)])
def test_long_curves_keep_the_crossing_and_the_end(results, monkeypatch, most, every):
    monkeypatch.setattr(learning_curves, "MOST_EVALUATIONS", most)
    [study] = results({8: [333, None]})
    whole = study.reader.read([study.goal.metric])["step"].nunique()
    table = learning_curves.learning_curves([study])
    assert set(table["every"]) == {-(-whole // most)}
    best = table[table["best"]]
    assert 333 in set(best["step"])
    assert table.groupby("trial")["step"].max().tolist() == [2000, 2000]
    assert len(best) <= most + 2
    assert (len(best) == whole) is (every == 1)


@pytest.mark.parametrize("most", [2, 3, 60])
def test_of_many_trials_the_best_the_worst_and_some_between(results, monkeypatch, most):
    monkeypatch.setattr(learning_curves, "MOST_TRIALS", most)
    ends = [100 + 50 * trial for trial in range(8)]
    table = learning_curves.learning_curves(results({8: ends[::-1]}))
    kept = list(dict.fromkeys(table["trial"]))
    assert len(kept) == min(most, 8)
    assert (kept[0], kept[-1]) == (7, 0)
    assert set(table["trials"]) == {8}


def test_errors_that_are_not_known_are_left_out(results, monkeypatch):
    [study] = results({8: [300]})
    trial = learning_curves.measured(study, study.goal)[0]
    errors = np.where(np.asarray(trial.steps) < 300, np.nan, trial.errors)
    monkeypatch.setattr(learning_curves, "measured", lambda *_: {0: trial._replace(errors=errors)})
    table = learning_curves.learning_curves([study])
    assert table["step"].min() == 300
    assert np.isfinite(table["error"]).all()
