"""What is kept survives bit for bit; what is not this study's is refused and left alone."""

import errno
import json
import os
from contextlib import suppress
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from analysis import load as analysis_load
from analysis.counting import Goal
from study import store
from study.records import Curve
from study.settings import Budget, Evaluation, Seeds
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


@pytest.fixture
def tiny(tmp_path, make_study, make_curve, write_study):
    """A study, its folder, its curves by index, what writes them as a sweep would, and the indices on file."""
    study = make_study()
    folder = store.study_folder(tmp_path, study)
    return SimpleNamespace(
        results=tmp_path,
        study=study,
        folder=folder,
        curve=partial(make_curve, study),
        write=lambda *curves, close=True: write_study(tmp_path, study, curves, close=close),
        indices=lambda: [curve.trial.index for curve in store.load(folder)],
    )


@pytest.mark.parametrize("close", [False, True])
def test_round_trip(tiny, close):
    curves = odd_curves(tiny.study)
    tiny.write(*reversed(curves), close=close)
    found = store.load(tiny.folder)
    assert len(found) == 3
    assert all(map(same, found, curves))


def test_an_interrupted_compaction_yields_each_trial_once(tiny):
    tiny.write(*(tiny.curve(index) for index in range(4)), close=False)
    trials = {path: path.read_bytes() for path in (tiny.folder / "trials").iterdir()}
    store.compact(tiny.folder)
    for path in list(trials)[1:]:
        path.write_bytes(trials[path])
    assert tiny.indices() == [0, 1, 2, 3]
    data = analysis_load.load_study(tiny.folder)
    assert list(data.trials.index) == [0, 1, 2, 3]
    assert not data.measurements.duplicated(["trial", "step"]).any()
    store.compact(tiny.folder)
    assert not list((tiny.folder / "trials").iterdir())
    assert len(store.load(tiny.folder)) == 4


def test_more_trials_join_those_already_gathered(tiny):
    tiny.write(tiny.curve(0), tiny.curve(2))
    tiny.write(tiny.curve(1))
    assert tiny.indices() == [0, 1, 2]
    before = snapshot(tiny.folder)
    store.compact(tiny.folder)
    assert snapshot(tiny.folder) == before
    assert [path.name for path in tiny.folder.rglob("*.parquet")] == [store.COMPACTED]


def test_a_trial_run_again_replaces_the_unfinished_one_that_was_gathered(tiny):
    """Both readers must agree, and compaction must not bring the unfinished one back."""
    tiny.write(tiny.curve(0, until=50))
    store.save(tiny.folder, tiny.curve(0))
    for _ in range(2):
        assert store.load(tiny.folder)[0].steps[-1] == 100
        assert analysis_load.load_study(tiny.folder).measurements["step"].max() == 100
        store.compact(tiny.folder)


def test_every_run_is_recorded(tiny):
    for _ in range(2):
        tiny.write()
    held = json.loads((tiny.folder / "study.json").read_text())
    assert [run | {"run": ""} for run in held["provenance"]] == [{"device": "cpu", "ended": "now", "run": ""}] * 2
    assert held["question"] == json.loads(json.dumps(tiny.study.question()))


def test_runs_that_work_at_once_are_all_recorded(tiny):
    """Also when gathering was interrupted between the two places."""
    started = [{"started": when, "device": "cpu"} for when in ("2", "1", "3")]
    files = [store.open_study(tiny.results, tiny.study, run) for run in started]
    store.end_run(files[1], {"ended": "4"})
    before = store.runs(tiny.folder)
    assert [run["started"] for run in before] == ["1", "2", "3"]
    assert ["ended" in run for run in before] == [True, False, False]
    contents = {path: path.read_bytes() for path in files}
    store.gather(tiny.folder)
    assert not (tiny.folder / "runs").exists()
    for again in (False, True):
        assert store.runs(tiny.folder) == analysis_load.load_study(tiny.folder).provenance == before
        if not again:
            (tiny.folder / "runs").mkdir()
            files[0].write_bytes(contents[files[0]])


def test_where_links_cannot_be_made_a_file_is_still_created_once(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    path = tmp_path / "file"
    assert atomic.create(path, lambda aside: aside.write_text("first"))
    assert not atomic.create(path, lambda aside: aside.write_text("second"))
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_somebody_works_in_is_not_gathered(tiny):
    tiny.write(tiny.curve(0), close=False)
    with store.claimed(tiny.folder, Shard(1, 2)):
        store.gather(tiny.folder)
        assert (tiny.folder / "trials" / "000000.parquet").exists()
    (tiny.folder / ".study.json.1234").write_text("half a fi")
    os.utime(tiny.folder / ".study.json.1234", (0, 0))
    (tiny.folder / "trials" / ".000001.parquet.5678").write_text("under way")
    store.gather(tiny.folder)
    kept = sorted(path.name for path in tiny.folder.rglob("*") if path.is_file())
    assert kept == [".000001.parquet.5678", "curves.parquet", "study.json"]


def test_a_reader_reads_what_came_since(tiny):
    tiny.write(tiny.curve(1), close=False)
    reader = Reader(tiny.folder)
    assert [curve.trial.index for curve in reader.new()] == [1]
    assert reader.new() == []
    store.save(tiny.folder, tiny.curve(0))
    store.save(tiny.folder, tiny.curve(2))
    assert [curve.trial.index for curve in reader.new()] == [0, 2]
    store.save(tiny.folder, tiny.curve(3))
    store.gather(tiny.folder)
    assert [curve.trial.index for curve in reader.new()] == [3]


@pytest.mark.parametrize("cut", ["empty", "half", "tail", "text"])
@pytest.mark.parametrize("name", ["curves.parquet", "trials/000001.parquet"])
def test_a_torn_file_is_named(tiny, name, cut):
    tiny.write(tiny.curve(0))
    store.save(tiny.folder, tiny.curve(1))
    whole = (tiny.folder / name).read_bytes()
    torn = {"empty": b"", "half": whole[: len(whole) // 2], "tail": whole[:-1], "text": b"x" * len(whole)}
    (tiny.folder / name).write_bytes(torn[cut])
    with pytest.raises(store.StoreError, match=f"{tiny.folder / name}.*remove it"):
        store.load(tiny.folder)
    with pytest.raises(analysis_load.LoadError, match=str(tiny.folder)):
        analysis_load.load_study(tiny.folder)


def test_a_torn_question_is_named(tiny):
    path = tiny.write() / "study.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(store.StoreError, match=str(path)):
        store.check(tiny.results, [tiny.study])


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"goal": Goal("val/classification_error", 0.2)}, "goal.threshold: 0.1 -> 0.2"),
        ({"stopping": "budget"}, "stopping: goal -> budget"),
        ({"seeds": Seeds(search=1)}, "seeds.search: 0 -> 1"),
        ({"schedule": "linear_decay", "space": {"learning_rate": 0.1, "momentum": 0, "learning_rate_decay_fraction": 1,
                                               "end_learning_rate_factor": 1}}, "schedule: constant -> linear_decay"),
        ({"extend_factor": 2.0}, "search.extend_factor: 1.5 -> 2"),
        ({"examples": 60}, "workload.train_examples: 64 -> 60"),
        ({"numerics_version": 99}, "numerics_version: 1 -> 99"),
        # Studies of one curve must ask the same at every batch size.
        ({"batch_size": 16, "seeds": Seeds(search=1)}, "seeds.search: 0 -> 1"),
    ],
)  # fmt: skip
def test_another_question_is_refused_and_nothing_changes(tmp_path, make_study, write_study, fields, difference):
    write_study(tmp_path, make_study(numerics_version=1), [])
    before = snapshot(tmp_path)
    other = make_study(**{"numerics_version": 1} | fields)
    for refuse in (lambda: store.check(tmp_path, [other]), lambda: store.open_study(tmp_path, other, {})):
        with pytest.raises(store.StoreError) as refusal:
            refuse()
        assert difference in str(refusal.value)
        assert str(tmp_path) in str(refusal.value)
    assert snapshot(tmp_path) == before


LOOSER, TIGHTER, OTHER = (Goal("val/classification_error", 0.2), Goal("val/classification_error", 0.05),
                          Goal("val/cross_entropy_error", 0.2))  # fmt: skip
READ = "its curves answer this one without training: python -m study report {} --goal '{}'; or choose another"


@pytest.mark.parametrize(
    ("on_file", "wanted", "cure"),
    [
        ({}, {"goal": LOOSER}, READ.format("{}", LOOSER)),
        ({}, {"goal": LOOSER, "stopping": "budget"}, READ.format("{}", LOOSER)),
        ({"stopping": "budget"}, {"stopping": "budget", "goal": OTHER}, READ.format("{}", OTHER)),
        ({}, {"goal": TIGHTER}, "its trials stopped at val/classification_error < 0.1, so they answer only looser"),
        ({}, {"goal": OTHER}, "choose another results=DIR, where stopping=budget answers any goal"),
        ({"evaluation": Evaluation(exact=False)}, {"evaluation": Evaluation(exact=False), "goal": LOOSER}, "no other"),
        ({"stopping": "budget"}, {}, "stopping=budget continues it; or choose another results=DIR"),
        ({}, {"seeds": Seeds(trial=1)}, "search.repeats=1 repeats the search there with other seeds; or choose"),
        ({"budget": Budget(0, 10)}, {"budget": Budget(0, 20)}, "search.budgets=[1,2] searches there under 2 times"),
        ({"budget": Budget(2, 10)}, {"budget": Budget(1, 5)}, "search.budgets=[1,0.5] searches there under 0.5 times"),
        ({"budget": Budget(2, 10)}, {"budget": Budget(4, 10)}, "); choose another results=DIR."),
        ({"budget": Budget(2, 10, 99)}, {"budget": Budget(4, 20, 99)}, "search.budgets=[1,2] searches there under 2"),
        ({"budget": Budget(2, 10, 99)}, {"budget": Budget(2, 10, 90)}, "); choose another results=DIR."),
        ({}, {"goal": LOOSER, "seeds": Seeds(trial=1)}, "); choose another results=DIR."),
    ],
    ids=str,
)
def test_the_cheapest_cure_of_another_question_is_named(tmp_path, make_study, on_file, wanted, cure):
    store.open_study(tmp_path, make_study(**on_file), {})
    with pytest.raises(store.StoreError) as refusal:
        store.check(tmp_path, [make_study(**wanted)])
    assert cure.replace("{}", str(tmp_path)) in str(refusal.value)


FIXED, RANGE, WIDER = 0.5, {"low": 0.1, "high": 0.9}, {"low": 0.1, "high": 1.5}
COSINE = {"end_learning_rate_factor": FIXED, "learning_rate_decay_fraction": RANGE}
ALONE = {"learning_rate": {"low": 0.01, "high": 1, "scale": "log"}}


@pytest.mark.parametrize(
    ("on_file", "wanted", "changed"),
    [
        (("constant", {}), ("cosine", COSINE), "(schedule: constant -> cosine);"),
        (("cosine", COSINE), ("constant", {}), "(schedule: cosine -> constant);"),
        (("constant", {}), ("constant", {"l2": FIXED}), "(search.space.l2: none -> [0.5]);"),
        (("constant", {"l2": RANGE}), ("constant", {}), "l2: {low: 0.1, high: 0.9, scale: linear} -> none);"),
        (("constant", {"l2": RANGE}), ("constant", {"l2": FIXED}), "high: 0.9, scale: linear} -> [0.5]);"),
        (("constant", {"l2": RANGE}), ("constant", {"l2": WIDER}), "(search.space.l2.high: 0.9 -> 1.5);"),
    ],
)
def test_a_changed_hyperparameter_is_told_as_a_whole(tmp_path, make_study, on_file, wanted, changed):
    studies = [
        make_study(schedule=name, space={**ALONE, **space}, optimizer="sgd") for name, space in (on_file, wanted)
    ]
    store.open_study(tmp_path, studies[0], {})
    with pytest.raises(store.StoreError) as refusal:
        store.check(tmp_path, [studies[1]])
    assert changed in str(refusal.value)


@pytest.mark.parametrize(
    "fields", [{}, {"trials": 9}, {"max_launches": 50}, {"batch_size": 16}, {"name": "other", "stopping": "budget"}]
)
def test_the_same_question_taken_further_is_accepted(tiny, make_study, write_study, fields):
    tiny.write(tiny.curve(0))
    [kept] = store.load(tiny.folder)
    write_study(tiny.results, make_study(**fields), [])
    assert same(store.load(tiny.folder)[0], kept)


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
    with pytest.raises(store.StoreError, match=r"arithmetic: vmap -> plain\); repeat the engine= and engine.device="):
        store.check(tmp_path, [make_study(batch_size=4, arithmetic="plain")])


def test_the_first_run_decides_what_depends_on_its_machine(tmp_path, make_study):
    """A machine that only announces a search knows neither memory nor arithmetic of the one that trains it."""
    announced, decided = make_study(), make_study(arithmetic="vmap", micro_batch=16, evaluation_chunk=32)
    store.announce(tmp_path, announced)
    assert store.recorded(tmp_path, announced).settled == {}
    store.check(tmp_path, [decided])
    store.open_study(tmp_path, decided, {})
    store.announce(tmp_path, announced)
    settled = {"arithmetic": "vmap", "micro_batch": 16, "evaluation_chunk": 32}
    assert store.recorded(tmp_path, announced).settled == settled
    with pytest.raises(store.StoreError, match="arithmetic: vmap -> plain"):
        store.check(tmp_path, [announced])


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


def test_trials_without_their_question_are_no_answer(tiny):
    """They are neither a study that is done nor one that is not there."""
    tiny.write(tiny.curve(0))
    (tiny.folder / "study.json").unlink()
    with pytest.raises(store.StoreError, match=r"holds trials, but study\.json, .* is missing: .* remove the folder"):
        store.check(tiny.results, [tiny.study])
    with pytest.raises(analysis_load.LoadError, match=r"holds trials but no study\.json"):
        analysis_load.folders(tiny.results)


def test_measurements_that_were_altered_on_disk_are_not_read(tiny):
    """Bytes that flip leave other numbers, which nobody could tell from measurements."""
    tiny.write(*(tiny.curve(index, reaches=20 + index) for index in range(6)))
    path = tiny.folder / "curves.parquet"
    content = path.read_bytes()
    before = [curve.errors for curve in store.load(tiny.folder)]
    altered = 0
    for place in range(8, len(content) - 8, 97):
        flipped = bytes(255 - byte for byte in content[place : place + 4])
        path.write_bytes(content[:place] + flipped + content[place + 4 :])
        with suppress(store.StoreError, ValueError, KeyError):
            after = [curve.errors for curve in store.load(tiny.folder)]
            altered += str(after) != str(before)
    assert not altered


@pytest.mark.parametrize(("held", "asked", "refused"), [(None, 64, False), (64, None, False), (64, 128, True)])
def test_a_class_that_learns_its_tokens_continues_its_folder(tmp_path, make_study, write_study, held, asked, refused):
    write_study(tmp_path, make_study(tokens_per_example=held), [], close=False)
    study = make_study(tokens_per_example=asked)
    assert len(store.of_curve(tmp_path, study)) == (not refused)
    if refused:
        with pytest.raises(store.StoreError, match="tokens_per_example: 64 -> 128"):
            store.check(tmp_path, [study])
        return
    store.announce(tmp_path, study)
    [recorded] = analysis_load.load(tmp_path)
    assert recorded.tokens_per_example == asked
