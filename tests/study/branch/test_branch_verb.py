"""`study branch` from the command line: trains a trunk's checkpoints and its branches once, and says what it found."""

import json

import numpy as np
import pandas as pd
import pytest

from analysis.load import load_study
from study.__main__ import main
from study.branch import trunk
from study.engine.run import Run
from study.engine.trial import checkpoints
from study.store import trunks as store
from study.user_code.optimizer_state import by_parameter
from workloads.noisy_quadratic_exact import Recursion, spectrum

SWEEP = ["sweep", "optimizer=momentum,adam", "batch_size=64", "search.trials=2", "search.reruns=0", "engine=serial"]
FEW = ["checkpoints=2", "multiples=[1,2,4]", "window=1024", "seeds=2", "--workers", "1"]


@pytest.fixture
def swept(swept_once):
    return swept_once(*SWEEP)


def trunks(folder):
    return sorted(folder.glob("branched/*/*/*/trunk.json"))


@pytest.mark.slow
def test_runs_are_branched_reported_and_read_again(swept, says, monkeypatch):
    said = says("branch", swept, "optimizer=adam", *FEW)
    assert "mlp_digits with adam at batch size 64: 2 checkpoints of trial" in said
    assert "gradients of examples, " in said
    assert "branched from batch size 64: the critical batch size is" in said
    found = pd.read_csv(swept / "tables/branched.csv")
    assert set(found["optimizer"]) == {"adam"}
    assert set(found["rule"]) == {"square_root"}
    assert (found["examples_seen"] == 64 * found["step"]).all()
    assert found["critical_batch_size"].isin([64, 128, 256]).all()
    assert (found["low"] <= found["critical_batch_size"]).all()
    assert (found["critical_batch_size"] < found["high"].fillna(np.inf)).all()
    [path] = trunks(swept)
    held = json.loads(path.read_text())
    assert held["question"]["trial"]["hyperparameters"]["learning_rate"] > 0
    for step, known in held["checkpoints"].items():
        file = path.parent / f"checkpoints/{int(step):06d}.pt"
        assert checkpoints.checksum(checkpoints.read(file.read_bytes())) == known["checksum"]
        study = load_study(next(path.parent.glob(f"*/studies/mlp_digits/adam/256/*/from-step-{step}")))
        assert study.question["branch"]["start"]["checksum"] == known["checksum"]
        rate = held["question"]["trial"]["hyperparameters"]["learning_rate"]
        assert study.trials["learning_rate"].tolist() == pytest.approx([2 * rate] * 2)

    monkeypatch.setattr(trunk, "prepare", None)  # nothing is trained again
    shown = json.loads(says("branch", swept, "optimizer=adam", *FEW, "--json"))
    assert len(shown["rows"]) == len(found)
    assert len(shown["tables"]["branched_losses"]) == 3 * len(found)
    changed = says("branch", swept, "optimizer=adam", *FEW, "tolerance=10")
    assert "every batch size is within the tolerance" in changed


@pytest.mark.slow
def test_a_checkpoint_that_is_gone_is_made_again_with_its_checksum(swept, says):
    asked = ["branch", swept, "optimizer=momentum", "checkpoints=[8,12]", "multiples=[1,2]", "window=256"]
    asked += ["factors=[0.5,1]", "--workers", 1]
    assert "the linear, best of 0.5, 1 rule" in says(*asked, "seeds=2")
    losses = pd.read_csv(swept / "tables/branched_losses.csv").query("optimizer == 'momentum'")
    base = losses["learning_rate"] / losses["factor"]
    assert set(losses["factor"]) <= {0.5, 1.0}
    assert base.to_numpy() == pytest.approx(base.iloc[0] * losses["branch_batch_size"].to_numpy() / 64)
    [path] = [each for each in trunks(swept) if "momentum" in str(each)]
    before = json.loads(path.read_text())["checkpoints"]
    for file in path.parent.glob("checkpoints/*.pt"):
        file.unlink()
    assert "checkpoints of trial" not in says(*asked, "seeds=2")  # all branches are there
    assert "2 checkpoints of trial" in says(*asked, "seeds=3")
    after = json.loads(path.read_text())["checkpoints"]
    assert [each["checksum"] for each in after.values()] == [each["checksum"] for each in before.values()]
    # Another run may not take its place.
    (path.parent / "checkpoints/000012.pt").unlink()
    held = json.loads(path.read_text())
    held["checkpoints"]["12"]["checksum"] = "0" * 64
    path.write_text(json.dumps(held))
    assert "trained again, has another checkpoint at step 12" in says(*asked, "seeds=4", status=1)


@pytest.mark.slow
def test_an_interrupted_trunk_goes_on_from_its_checkpoint_to_the_same_ones(swept, says, monkeypatch):
    asked = ["branch", swept, "optimizer=adam", "checkpoints=[5,9,11]", "multiples=[1,2]", "window=128", "--workers", 1]
    real, advance, saved, steps = store.save_checkpoint, Run.advance, [], []

    def save(*content):
        if saved:
            raise KeyboardInterrupt
        saved.append(real(*content))

    monkeypatch.setattr(store, "save_checkpoint", save)
    assert main([*map(str, asked), "seeds=2"]) == 130
    monkeypatch.setattr(store, "save_checkpoint", real)
    monkeypatch.setattr(Run, "advance", lambda run, count: (steps.append(count), advance(run, count)))
    assert "2 checkpoints of trial" in says(*asked, "seeds=2")
    assert sum(steps) <= 11 - 5  # another test may have left later checkpoints
    [path] = [each for each in trunks(swept) if "adam" in str(each)]
    before = json.loads(path.read_text())["checkpoints"]
    path.unlink()
    says(*asked, "seeds=3")
    after = json.loads(path.read_text())["checkpoints"]
    assert [after[step]["checksum"] for step in after] == [before[step]["checksum"] for step in after]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ([], "branch needs a run to branch from: the RESULTS of a finished sweep, or the settings of one"),
        (["RESULTS", "batch_size=32"], "batch size 32 was not swept; there are: 64."),
        (["RESULTS", "optimizer=adm"], "no optimizer 'adm' in these results; did you mean 'adam'?"),
        (["RESULTS", "goal=val/loss<1"], "with RESULTS, branch takes workload=, optimizer=, batch_size="),
        (["RESULTS", "batch_size=x"], "batch_size must be a whole number, but got x."),
        (["RESULTS", "checkpoints=[99999]"], "checkpoints must be at most"),
        (["RESULTS", "--device", "cuda:7"], "'cuda:7' cannot be used"),
        (["RESULTS", "--seeds", "3"], "Settings are key=value."),
    ],
)
def test_refusals_say_what_to_change(words, why, swept, says):
    given = [swept if word == "RESULTS" else word for word in words]
    assert why in says("branch", *given, status=2)


DIMENSIONS, WINDOW, TOLERANCE = 40, 1024, 0.02
ASKED = [
    *("workload=nqm", f"workload.dimensions={DIMENSIONS}", "workload.replicas=256", "batch_size=4"),
    *("search=sobol", "search.trials=1", "search.reruns=0", "stopping=budget"),
    *("budget.epochs=0", "budget.steps=600", "evaluation.ratio=2", "goal=val/loss<0.5"),
    *("checkpoints=[100,400]", "multiples=[1,2,4,8,16,32,64]", f"window={WINDOW}", "seeds=4", f"tolerance={TOLERANCE}"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("rate", "momentum"), [(0.05, 0.0), (0.01, 0.8)])
def test_the_interval_holds_the_exact_critical_batch_size_of_the_quadratic_model(rate, momentum, tmp_path):
    """The expected loss after the window follows from weights and velocity at the checkpoint (PROTOCOL section 6)."""
    own = ["optimizer=momentum", f"search.space.momentum={momentum}"] if momentum else ["optimizer=sgd"]
    own += [f"search.space.learning_rate={rate}"]
    assert main(["branch", *ASKED, *own, f"results={tmp_path}", "--workers", "1"]) == 0
    found = pd.read_csv(tmp_path / "tables/branched.csv")
    losses = pd.read_csv(tmp_path / "tables/branched_losses.csv")
    assert found["step"].tolist() == [100, 400]
    for row in found.to_dict("records"):
        exact = exact_losses(tmp_path, row["step"], rate, momentum)
        limit = (1 + TOLERANCE) * exact[4]
        within = [size for size in exact if all(exact[smaller] <= limit for smaller in exact if smaller <= size)]
        assert row["low"] <= within[-1]
        assert np.isnan(row["high"]) or within[-1] < row["high"]
        assert row["bound"] == "="
        mine = losses[losses["step"] == row["step"]].set_index("branch_batch_size")["branch_loss"]
        for size, loss in exact.items():
            if np.isfinite(mine[size]) and loss < 10 * exact[4]:
                assert mine[size] == pytest.approx(loss, rel=0.1), (row["step"], size)


def exact_losses(results, step, slow, momentum):
    """Batch size -> the expected loss after the window, from the state of the trunk."""
    [path] = results.glob(f"branched/*/*/*/checkpoints/{step:06d}.pt")
    held = checkpoints.read(path.read_bytes())
    theta = held.weights["phi"].double().numpy()
    state = by_parameter(held.state).get("phi", {})
    velocity = state["velocity"].double().numpy() if momentum else None
    found = {}
    for size in (4, 8, 16, 32, 64, 128, 256):
        rate = slow * size / 4
        exact = Recursion(size, rate, momentum, curvatures=spectrum(DIMENSIONS))
        z = [theta] if velocity is None else [theta, rate * velocity]
        moments = np.array([[(a * b).mean(0) for b in z] for a in z])
        found[size] = float(exact.loss(exact.after(moments, WINDOW // size)))
    return found
