"""`study certify` from the command line: fresh seeds up to one step, resumed and extended."""

import json

import pandas as pd
import pytest

from study import store
from study.records import Study
from study.search.tuner import Tuner

SWEEP = ["sweep", "optimizer=momentum", "batch_size=64,256", "search.trials=3", "search.reruns=2"]


@pytest.fixture
def swept(swept_once):
    return swept_once(*SWEEP)


def certificates(folder, size=64):
    return sorted((folder / f"studies/mlp_digits/momentum/{size}").glob("certify-at-*/study.json"))


@pytest.mark.slow
def test_fresh_seeds_are_trained_tested_and_extended(swept, says):
    asked = ["certify", swept, "--goal", "val/classification_error < 0.2", "--steps", 40]
    said = says(*asked, "--seeds", 3)
    assert "momentum: what it will cost" in said
    assert "over 3 fresh seeds, validation error at step 40 is" in said
    assert "fixed before training" in said
    [path] = certificates(swept)
    study = Study.from_question(json.loads(path.read_text())["question"])
    curves = store.load(path.parent)
    assert [int(curve.steps[-1]) for curve in curves] == [40, 40, 40]
    assert study.stopping == "budget"
    assert Tuner(study, curves).complete
    others = [each for found in swept.rglob("study.json") if found != path for each in store.load(found.parent)]
    seeds = {curve.trial.seed for curve in curves} | {curve.trial.order_seed for curve in curves}
    assert not seeds & {seed for other in others for seed in (other.trial.seed, other.trial.order_seed)}
    errors = [float(curve.errors["val/classification_error"][-1]) for curve in curves]

    shown = json.loads(says(*asked, "--seeds", 5, "--json"))  # two more
    [row] = shown["rows"]
    assert (row["seeds"], row["step"]) == (5, 40)
    kept = store.load(path.parent)
    assert [float(curve.errors["val/classification_error"][-1]) for curve in kept][:3] == errors
    assert "what it will cost" not in says(*asked, "--seeds", 5)  # nothing is trained again
    table = pd.read_csv(swept / "tables/certificates.csv")
    assert table["goal_metric"].tolist() == ["val/cross_entropy_error"]  # the report tests the goal of the sweep
    assert table["seeds"].tolist() == [5]


@pytest.mark.slow
def test_by_default_up_to_the_tuned_steps(swept, says):
    said = json.loads(says("certify", swept, "--batch-size", 256, "--seeds", 2, "--json"))
    steps = pd.read_csv(swept / "tables/rerun_steps.csv")
    mine = sorted(steps.loc[steps["batch_size"] == 256, "steps"])
    assert [row["step"] for row in said["rows"]] == [mine[1]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--seeds", "1"], "--seeds must be at least 2"),
        (["--steps", "0"], "--steps must be at least 1"),
        (["--steps", "1000000"], "--steps must be at most the budget of mlp_digits at batch size 64"),
        (["--gap", "0"], "--gap must be above 0"),
        (["--goal", "accuracy"], "a goal must read"),
        (["--goal", "val/perplexity < 3"], "val/perplexity is not measured; there are:"),
        (["--batch-size", "32"], "batch size 32 was not swept; there are: 64, 256."),
        (["--optimizer", "momentun"], "did you mean 'momentum'?"),
    ],
)
def test_refusals_say_what_to_change(words, why, swept, says):
    assert why in says("certify", swept, *words, status=2)
