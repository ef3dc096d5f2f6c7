"""What is kept survives bit for bit; what is not this study's is refused and left alone."""

import errno
import json
import os
import shutil
from contextlib import suppress

import numpy as np
import pytest

from analysis import load as analysis_load
from analysis.counting import Goal
from study import store
from study.records import Curve, Seeds
from study.store import atomic
from study.store.claims import Shard
from study.store.curves import Reader


def snapshot(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def same(one, other):
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
    assert [run | {"run": ""} for run in held["provenance"]] == [{"device": "cpu", "ended": "now", "run": ""}] * 2
    assert held["question"] == json.loads(json.dumps(study.question()))


def test_runs_that_work_at_once_are_all_recorded(tmp_path, make_study):
    """Also when gathering was interrupted between the two places."""
    study = make_study()
    started = [{"started": when, "device": "cpu"} for when in ("2", "1", "3")]
    files = [store.open_study(tmp_path, study, run) for run in started]
    folder = store.study_folder(tmp_path, study)
    store.end_run(files[1], {"ended": "4"})
    before = store.runs(folder)
    assert [run["started"] for run in before] == ["1", "2", "3"]
    assert ["ended" in run for run in before] == [True, False, False]
    contents = {path: path.read_bytes() for path in files}
    store.gather(folder)
    assert not (folder / "runs").exists()
    for again in (False, True):
        assert store.runs(folder) == analysis_load.load_study(folder).provenance == before
        if not again:
            (folder / "runs").mkdir()
            files[0].write_bytes(contents[files[0]])


def test_a_trial_that_was_kept_meanwhile_is_kept_once(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(tmp_path, study, [], close=False)
    assert store.save(folder, make_curve(study, 0))
    before = snapshot(folder)
    assert not store.save(folder, make_curve(study, 0))
    assert snapshot(folder) == before
    assert store.save(folder, make_curve(study, 0), replaces=True)


def test_where_links_cannot_be_made_a_file_is_still_created_once(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "file"
    assert atomic.create(path, lambda aside: aside.write_text("first"))
    assert not atomic.create(path, lambda aside: aside.write_text("second"))
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_somebody_works_in_is_not_gathered(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 0)], close=False)
    with store.claimed(folder, Shard(1, 2)):
        store.gather(folder)
        assert (folder / "trials" / "000000.parquet").exists()
    (folder / ".study.json.1234").write_text("half a fi")
    os.utime(folder / ".study.json.1234", (0, 0))
    (folder / "trials" / ".000001.parquet.5678").write_text("under way")
    store.gather(folder)
    assert sorted(path.name for path in folder.rglob("*") if path.is_file()) == [
        ".000001.parquet.5678",
        "curves.parquet",
        "study.json",
    ]


def test_a_reader_reads_what_came_since(tmp_path, make_study, make_curve, write_study):
    study = make_study()
    folder = write_study(tmp_path, study, [make_curve(study, 1)], close=False)
    reader = Reader(folder)
    assert [curve.trial.index for curve in reader.new()] == [1]
    assert reader.new() == []
    store.save(folder, make_curve(study, 0))
    store.save(folder, make_curve(study, 2))
    assert [curve.trial.index for curve in reader.new()] == [0, 2]
    store.save(folder, make_curve(study, 3))
    store.gather(folder)
    assert [curve.trial.index for curve in reader.new()] == [3]


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
    "fields", [{}, {"trials": 9}, {"max_launches": 50}, {"batch_size": 16}, {"name": "other", "stopping": "budget"}]
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
    """A convolutional network is fused at batch sizes up to 4 and plain above."""
    store.open_study(tmp_path, make_study(batch_size=4, arithmetic="vmap"), {})
    store.open_study(tmp_path, make_study(batch_size=8, arithmetic="plain"), {})
    with pytest.raises(store.StoreError, match=r"arithmetic: vmap -> plain\); its engine= and engine.device= chose"):
        store.check(tmp_path, [make_study(batch_size=4, arithmetic="plain")])


def test_a_finished_search_is_told_what_more_is_asked_for(tmp_path, make_study, make_curve, write_study):
    """Else `study rules`, which goes by it, would look at fewer searches than the report."""
    study = make_study(trials=2, max_launches=8)
    folder = write_study(tmp_path, study, [make_curve(study, index, reaches=20) for index in range(2)])
    runs = store.runs(folder)
    store.announce(tmp_path, make_study(trials=1, budgets=(0.5, 1.0), extend=True, max_launches=4))
    search = store.read(folder / "study.json")["question"]["search"]
    assert (search["trials"], search["budgets"], search["extend"], search["max_launches"]) == (2, [0.5, 1.0], True, 8)
    assert store.runs(folder) == runs
    with store.claimed(folder):  # whoever works on it says so when it starts
        store.announce(tmp_path, make_study(trials=5))
    assert store.read(folder / "study.json")["question"]["search"]["trials"] == 2


def test_trials_without_their_question_are_no_answer(tmp_path, make_study, make_curve, write_study):
    """They are neither a study that is done nor one that is not there."""
    study = make_study(trials=2)
    folder = write_study(tmp_path, study, [make_curve(study, index, reaches=20) for index in range(2)])
    store.gather(folder)
    (folder / "study.json").unlink()
    with pytest.raises(store.StoreError, match=r"holds trials, but no study\.json .* remove the folder"):
        store.check(tmp_path, [study])
    with pytest.raises(analysis_load.LoadError, match=r"holds trials, but no study\.json"):
        analysis_load.folders(tmp_path)


def test_measurements_that_were_altered_on_disk_are_not_read(tmp_path, make_study, make_curve, write_study):
    """Bytes that flip leave other numbers, which nobody could tell from measurements."""
    study = make_study(trials=6)
    folder = write_study(tmp_path, study, [make_curve(study, index, reaches=20 + index) for index in range(6)])
    store.gather(folder)
    path = folder / "curves.parquet"
    content = path.read_bytes()
    before = [curve.errors for curve in store.load(folder)]
    altered = 0
    for place in range(8, len(content) - 8, 97):
        path.write_bytes(
            content[:place] + bytes(255 - byte for byte in content[place : place + 4]) + content[place + 4 :]
        )
        with suppress(store.StoreError, ValueError, KeyError):
            after = [curve.errors for curve in store.load(folder)]
            altered += str(after) != str(before)
    assert not altered
