"""What is kept survives bit for bit; what is not this study's is refused and left alone."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys

import numpy as np
import pytest

from analysis import load as analysis_load
from analysis.counting import Goal
from study import store
from study.records import Curve, Seeds


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(one: Curve, other: Curve) -> bool:
    """Equal to the last bit, NaN included."""
    assert one.errors.keys() == other.errors.keys()
    arrays = [(one.steps, other.steps), *((one.errors[metric], other.errors[metric]) for metric in one.errors)]
    return (one.trial, one.first_bad_step, one.seconds) == (other.trial, other.first_bad_step, other.seconds) and all(
        (a.dtype, a.tobytes()) == (b.dtype, b.tobytes()) for a, b in arrays
    )


def odd_curves(study):
    """No rows at all, NaN and the extremes of floats, one row."""
    wild = [np.nan, 5e-324, 1 / 3, np.inf, -0.0, 1e308]
    trials = [
        study.trial(0, {"learning_rate": 0.1, "momentum": 0.0}),
        study.trial(1, {"learning_rate": 1 / 3, "momentum": 0.9 + 1e-16}),
        study.trial(1_000_000, {"learning_rate": 5e-324, "momentum": 0}),
    ]
    return [
        Curve(
            trial,
            bad,
            np.arange(1, rows + 1),
            {m: np.array(wild[:rows]) for m in ("val/loss", "val/classification_error")},
            {"training": 0.1, "evaluation": 0.2},
        )
        for trial, bad, rows in zip(trials, (1, None, 2**31 - 1), (0, 6, 1), strict=True)
    ]


@pytest.mark.parametrize("close", [False, True])
def test_round_trip(tmp_path, make_study, write_study, close):
    study = make_study()
    curves = odd_curves(study)
    folder = write_study(tmp_path, study, reversed(curves), close=close)
    found = store.load(folder)
    assert len(found) == 3
    assert all(map(same, found, curves))


def test_compaction_keeps_everything_in_one_file(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, index) for index in range(4)], close=False)
    before = store.load(folder)
    store.compact(folder)
    assert [path.name for path in folder.rglob("*.parquet")] == [store.COMPACTED]
    assert all(map(same, store.load(folder), before))
    bytes_before = snapshot(folder)
    store.compact(folder)
    assert snapshot(folder) == bytes_before


def test_an_interrupted_compaction_yields_each_trial_once(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, index) for index in range(4)], close=False)
    trials = {path: path.read_bytes() for path in (folder / "trials").iterdir()}
    store.compact(folder)
    for path in list(trials)[1:]:
        path.write_bytes(trials[path])
    assert [curve.trial.index for curve in store.load(folder)] == [0, 1, 2, 3]
    data = analysis_load.load_study(folder)
    assert list(data.trials.index) == [0, 1, 2, 3]
    assert not data.measurements.duplicated(["trial", "step"]).any()
    store.compact(folder)
    assert not list((folder / "trials").iterdir())
    assert len(store.load(folder)) == 4


def test_more_trials_join_those_already_gathered(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 0), make_curve(study, 2)])
    write_study(tmp_path, study, [make_curve(study, 1)])
    assert [curve.trial.index for curve in store.load(folder)] == [0, 1, 2]
    assert len(list(folder.rglob("*.parquet"))) == 1


def test_a_trial_run_again_replaces_the_unfinished_one_that_was_gathered(tmp_path, make_study, make_curve, write_study):
    """Both readers must agree, and compaction must not bring the unfinished one back."""
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 0, until=50)])
    store.save(folder, make_curve(study, 0))
    for _ in range(2):
        assert store.load(folder)[0].steps[-1] == 100
        assert analysis_load.load_study(folder).measurements["step"].max() == 100
        store.compact(folder)


def test_every_run_is_recorded(tmp_path, make_study, write_study):
    study = make_study()
    for _ in range(2):
        folder = write_study(tmp_path, study, [])
    held = json.loads((folder / "study.json").read_text())
    assert held["provenance"] == [{"device": "cpu", "ended": "now"}] * 2
    assert held["question"] == json.loads(json.dumps(study.question()))


def test_unfinished_files_are_ignored(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 0)])
    for name in (".curves.parquet.77", "trials/.000001.parquet.77", ".study.json.77"):
        (folder / name).write_bytes(b"half a fi")
    assert [curve.trial.index for curve in store.load(folder)] == [0]
    store.check(tmp_path, [study])
    assert list(analysis_load.load_study(folder).trials.index) == [0]


def test_nothing_is_left_aside(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    write_study(tmp_path, study, [make_curve(study, 0)])
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".")]


@pytest.mark.parametrize("cut", ["empty", "half", "tail", "text"])
@pytest.mark.parametrize("name", ["curves.parquet", "trials/000001.parquet"])
def test_a_torn_file_is_named(tmp_path, make_study, make_curve, write_study, name, cut):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 0)])
    store.save(folder, make_curve(study, 1))
    whole = (folder / name).read_bytes()
    torn = {"empty": b"", "half": whole[: len(whole) // 2], "tail": whole[:-1], "text": b"x" * len(whole)}
    (folder / name).write_bytes(torn[cut])
    with pytest.raises(store.StoreError, match=f"{folder / name}.*remove it"):
        store.load(folder)
    with pytest.raises(analysis_load.LoadError, match=str(folder)):
        analysis_load.load_study(folder)


def test_a_torn_question_is_named(tmp_path, make_study, write_study):
    study = make_study()
    path = write_study(tmp_path, study, []) / "study.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(store.StoreError, match=str(path)):
        store.check(tmp_path, [study])


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"goal": Goal("val/classification_error", 0.2)}, "goal.threshold: 0.1 -> 0.2"),
        ({"stopping": "budget"}, "stopping: goal -> budget"),
        ({"seeds": Seeds(search=1)}, "seeds.search: 0 -> 1"),
        ({"schedule": "linear_decay", "space": {"learning_rate": 0.1, "momentum": 0, "learning_rate_decay_fraction": 1,
                                               "end_learning_rate_factor": 1}}, "schedule: constant -> linear_decay"),
        ({"examples": 60}, "workload.train_examples: 64 -> 60"),
        ({"numerics_version": 99}, "numerics_version: 1 -> 99"),
        # Studies of one curve must ask the same at every batch size.
        ({"batch_size": 16, "seeds": Seeds(search=1)}, "seeds.search: 0 -> 1"),
    ],
)  # fmt: skip
def test_another_question_is_refused_and_nothing_changes(
    tmp_path, make_study, make_curve, write_study, fields, difference
):
    study = make_study(numerics_version=1)
    write_study(tmp_path, study, [make_curve(study, 0)])
    before = snapshot(tmp_path)
    other = make_study(**{"numerics_version": 1} | fields)
    for refuse in (lambda: store.check(tmp_path, [other]), lambda: store.open_study(tmp_path, other, {})):
        with pytest.raises(store.StoreError) as refusal:
            refuse()
        assert difference in str(refusal.value)
        assert str(tmp_path) in str(refusal.value)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize(
    "fields",
    [{}, {"trials": 9}, {"max_launches": 50}, {"batch_size": 16}, {"name": "other", "stopping": "budget"}],
)
def test_the_same_question_taken_further_is_accepted(tmp_path, make_study, make_curve, write_study, fields):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 0)])
    kept = store.load(folder)
    write_study(tmp_path, make_study(**fields), [])
    assert same(store.load(folder)[0], kept[0])


def test_a_folder_that_cannot_be_written_is_refused(tmp_path, make_study):
    """A path under a regular file: permissions mean nothing to root."""
    (tmp_path / "file").write_text("no folder")
    for results in (tmp_path / "file", tmp_path / "file" / "results"):
        for refuse in (
            lambda results=results: store.check(results, [make_study()]),
            lambda results=results: store.open_study(results, make_study(), {}),
        ):
            with pytest.raises(store.StoreError, match=f"cannot write to {results}"):
                refuse()
    assert (tmp_path / "file").read_text() == "no folder"


def test_a_study_folder_that_cannot_be_written_is_refused(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = store.study_folder(tmp_path, study)
    folder.parent.mkdir(parents=True)
    folder.write_text("no folder")
    with pytest.raises(store.StoreError, match="cannot write to"):
        store.open_study(tmp_path, study, {})
    folder.unlink()
    write_study(tmp_path, study, [], close=False)
    shutil.rmtree(folder / "trials")
    with pytest.raises(store.StoreError, match=r"cannot write to .*000003\.parquet"):
        store.save(folder, make_curve(study, 3))


def test_a_study_has_one_writer(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 0)])
    held = f"{folder} is being worked on by process {os.getpid()} on {socket.gethostname()}; wait for it or choose"
    for _ in range(2):  # given up again
        with store.claimed(folder):
            with pytest.raises(store.StoreError, match=held), store.claimed(folder):
                pytest.fail("claimed twice")
            with store.claimed(store.study_folder(tmp_path, make_study(batch_size=16))):
                pass  # another study of the same folder
    assert [curve.trial.index for curve in store.load(folder)] == [0]


def test_a_study_that_is_worked_on_is_not_announced_anew(tmp_path, make_study):
    with store.claimed(store.study_folder(tmp_path, make_study())), pytest.raises(store.StoreError, match="worked on"):
        store.announce(tmp_path, make_study())
    assert not list(tmp_path.rglob("study.json"))


HOLDER = """
import sys
from pathlib import Path
from study import store

with store.claimed(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("killed", [True, False])
def test_another_process_that_works_on_a_study_is_named_and_its_claim_ends_with_it(tmp_path, killed):
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(store.StoreError, match=f"by process {process.pid} on "), store.claimed(tmp_path):
            pytest.fail("claimed twice")
        if killed:
            process.kill()
        else:
            process.stdin.close()
        assert process.wait() == (-9 if killed else 0)
    with store.claimed(tmp_path):
        pass


def test_where_a_file_system_has_no_locks_nothing_is_claimed(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(store.fcntl, "flock", refuse)
    with store.claimed(tmp_path), store.claimed(tmp_path):
        pass


def test_checking_a_new_folder_creates_nothing(tmp_path, make_study):
    store.check(tmp_path / "new" / "results", [make_study()])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({}, {}, {}),
        ({"a": {"b": 1}}, {"a": {"b": 1.0}}, {}),
        ({"a": (1, 2)}, {"a": [1, 2]}, {}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 3, "c": 2}}, {"a.b": (1, 3)}),
        ({"a": 1}, {"b": None, "c": 2}, {"a": (1, None), "c": (None, 2)}),
        ({"a": {"b": 1}}, {"a": [1]}, {"a": (None, [1]), "a.b": (1, None)}),
        ({"a": [1, 2]}, {"a": [2, 1]}, {"a": ([1, 2], [2, 1])}),
    ],
)
def test_differences(old, new, expected):
    assert store.differences(old, new) == expected


def test_batch_sizes_of_one_curve_may_differ_in_arithmetic(tmp_path, make_study):
    """ResNet-8 is computed by vmap at batch sizes 2 and 4 and plainly above; it stopped halfway at 8."""
    store.open_study(tmp_path, make_study(batch_size=4, arithmetic="vmap"), {})
    store.open_study(tmp_path, make_study(batch_size=8, arithmetic="plain"), {})
    with pytest.raises(store.StoreError, match="arithmetic: vmap -> plain"):
        store.check(tmp_path, [make_study(batch_size=4, arithmetic="plain")])
