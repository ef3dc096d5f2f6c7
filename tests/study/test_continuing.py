"""A killed sweep continues its long trials: the tuner proposes them again, the store keeps their checkpoints."""

import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest
from helpers.checkpointed import held, saved, step
from helpers.fused import partly
from helpers.processes import tables

from analysis.load import load_study
from study import store
from study.__main__ import main
from study.config.jobs import parse_jobs
from study.engine.trial import checkpoints
from study.search.tuner import Tuner


@pytest.mark.parametrize("sampler", partly(["tpe", "gp", "cmaes"], 3))
def test_an_adaptive_sampler_proposes_a_trial_under_way_again(make_study, make_curve, sampler):
    study = make_study(trials=16, sampler=sampler)
    tuner = Tuner(study)
    first = []
    for _ in range(10):
        first.append(tuner.ask())
        tuner.tell(replace(make_curve(study, first[-1].index, reaches=20 + 3 * first[-1].index), trial=first[-1]))
    first += [tuner.ask(), tuner.ask()]
    under_way = first[11]
    finished = [replace(make_curve(study, t.index, reaches=20 + 3 * t.index), trial=t) for t in first[:11]]
    if sampler != "cmaes":  # which knows only what it proposed in this process
        assert Tuner(study, finished).ask() != under_way  # trial 10 taught it otherwise
    tuner = Tuner(study, finished, [under_way])
    assert tuner.ask() == under_way
    tuner.tell(replace(make_curve(study, 11, reaches=9), trial=under_way))
    assert tuner.steps_to_result == 9
    assert tuner.ask().index == 12
    for forged in (replace(under_way, seed=1), replace(under_way, hyperparameters={"learning_rate": 0.1})):
        assert Tuner(study, finished, [forged]).ask() == Tuner(study, finished).ask()


def test_an_indexed_sampler_needs_no_checkpoint_to_propose_again(make_study):
    study = make_study()
    forged = study.trial(0, dict.fromkeys(study.search.space, 0.5))
    assert Tuner(study, under_way=[forged]).ask() == Tuner(study).ask() != forged


def files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_the_store_keeps_checkpoints_until_their_trials_are_finished(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 0)], close=False)
    before = load_study(folder)
    kept = store.Checkpoints(folder)
    assert dict(kept) == {}
    assert 1 not in kept
    for content in (b"old", b"new"):
        kept[1] = content
        kept[1_000_002] = content
    (kept.folder / ".000003.pt.77").write_bytes(b"half a fi")
    (kept.folder / "000004.pt").mkdir()
    assert (1 in kept, 3 in kept) == (True, False)
    assert (kept[1], kept.get(2), kept.get(4)) == (b"new", None, None)
    assert list(kept) == [1, 4, 1_000_002]
    assert checkpoints.trials(kept) == []
    after = load_study(folder)
    assert after.trials.equals(before.trials)
    assert after.measurements.equals(before.measurements)
    store.save(folder, make_curve(study, 1))
    assert list(kept) == [4, 1_000_002]
    store.gather(folder)
    assert files(folder) == ["curves.parquet", "study.json"]
    assert not kept.folder.exists()


def test_a_checkpoint_that_cannot_be_kept_is_named(tmp_path, make_study, write_study):
    folder = write_study(tmp_path, make_study(), [], close=False)
    (folder / "checkpoints").write_text("no folder")
    with pytest.raises(store.StoreError, match=r"cannot write to .*checkpoints: File exists"):
        store.Checkpoints(folder)[3] = b"content"


SWEEP = [
    "batch_size=32",
    "search.trials=2",
    "search.reruns=0",
    "stopping=budget",
    "budget.steps=2000",
    "budget.max_steps=2000",
]


@pytest.mark.slow
@pytest.mark.parametrize("engine_name", ["auto", pytest.param("serial", marks=pytest.mark.release)])
def test_a_sweep_killed_in_the_middle_of_its_trials_continues_them(tmp_path, engine_name):
    peaceful, killed = tmp_path / "peaceful", tmp_path / "killed"
    sweep = ["sweep", *SWEEP, f"engine={engine_name}", "engine.workers=1"]
    assert main([*sweep, f"results={peaceful}"]) == 0
    command = [*sweep, f"results={killed}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([sys.executable, "-m", "study", *command, "checkpoint.minutes=0"], **quiet)
    while not (found := [p for p in killed.glob("studies/*/*/*/checkpoints/0*.pt") if step(p.read_bytes()) > 100]):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    folder = found[0].parent.parent
    assert store.load(folder) == []
    kept = store.Checkpoints(folder)
    for index in kept:  # marked, so that it shows in the curves which of them went on from here
        content = held(kept[index])
        content["seconds"]["training"] += 1e6
        kept[index] = saved(content)
    marked = list(kept)
    assert main(command) == 0
    assert [c.trial.index for c in store.load(folder) if c.seconds["training"] > 1e6] == marked != []
    assert tables(killed) == tables(peaceful)
    assert files(folder) == ["curves.parquet", "study.json"]


@pytest.mark.parametrize(("asked", "continued"), [(None, 5), (3, 3)])
def test_a_race_of_an_older_version_goes_on_measuring_training_errors(
    make_study, make_curve, write_study, tmp_path, asked, continued
):
    """Its question has an `every`, which new races have only if they are asked for it."""
    older = make_study(stopping="race")
    assert older.evaluation.every == 5
    write_study(tmp_path, older, [make_curve(older, 0)], close=False)
    study = replace(older, evaluation=replace(older.evaluation, every=asked))
    assert store.continued(tmp_path, study).evaluation.every == continued
    if asked:
        with pytest.raises(store.StoreError, match=r"evaluation\.every: 5 -> 3"):
            store.check(tmp_path, [store.continued(tmp_path, study)])
    else:
        store.check(tmp_path, [store.continued(tmp_path, study)])


@pytest.mark.parametrize(
    ("keys", "every"),
    [
        (["stopping=race"], None),
        (["stopping=goal"], 5),
        (["stopping=budget"], 5),
        (["stopping=goal", "search=sobol", "evaluation.exact=false"], None),
        (["stopping=race", "evaluation.every=7"], 7),
    ],
)
def test_races_measure_training_errors_at_the_goal_and_the_end(keys, every):
    [job] = parse_jobs([*keys, "batch_size=8", "goal='val/classification_error < 0.05'"])
    assert job.study.evaluation.every == every
