"""Epochs of one batch size have equally many updates, unless it is the batch size of a part of an update."""

import pytest

from analysis.load import load
from study.exchange.importing import ImportRefused
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked

REFUSED = r"at batch size 8 an epoch of run 'a' has about .* updates, and one of 'b' .*batch_size=batch_size\*N"


def ends(each, epochs=4, first=0, every=1):
    """Rows of epoch and step at the ends of epochs of this many updates."""
    return [(first + number, (number + 1) * each) for number in range(0, epochs, every)]


def parts(each, end=30, every=7):
    return [(step / each, step) for step in range(every, end * each // 10, every)]


def inner(each, epochs=4, every=9):
    """Rows at every ninth update, each with the number of its epoch."""
    return [(step // each, step) for step in range(1, epochs * each, every)]


RUNS = {  # name -> (epoch and step of the rows of run a, of run b, whether their epochs have other lengths)
    "ends from 0": (ends(80), ends(20), True),
    "ends from 1": (ends(80, first=1), ends(20, first=1), True),
    "two epochs": (ends(80, epochs=2), ends(20, epochs=2), True),
    "of other lengths": (ends(80, epochs=2), ends(20, epochs=9), True),
    "parts of epochs": (parts(80), parts(20), True),
    "within epochs": (inner(80), inner(20), True),
    "twice as many": (ends(80, epochs=9), ends(40, epochs=9), True),
    "counted in two ways": (ends(80), ends(80, first=1), False),
    "logged in two ways": (ends(80), inner(80), False),
    "a smaller last batch": (ends(80, epochs=99), ends(79, epochs=99), False),
    "a little more data": (ends(80, epochs=99), ends(60, epochs=99), False),
    "epochs left out": (ends(80), ends(80, epochs=40, every=5), False),
    "one evaluation": (ends(80, epochs=1), ends(20, epochs=1), False),
}


def imported(folder, rows, **asked):
    lines = [f"{run},8,{epoch},{step},{1 / step}" for run in rows for epoch, step in rows[run]]
    (folder / "log.csv").write_text("\n".join(["run,batch_size,epoch,step,val/loss", *lines]) + "\n")
    return import_log(folder / "log.csv", folder / "results", Asked.parse(**asked), ["val/loss<0.9"])


@pytest.mark.parametrize("kind", RUNS)
def test_runs_of_one_batch_size_whose_epochs_have_other_lengths(kind, tmp_path):
    a, b, differ = RUNS[kind]
    if differ:
        with pytest.raises(ImportRefused, match=REFUSED):
            imported(tmp_path, {"a": a, "b": b})
    said = imported(tmp_path, {"a": a, "b": b}, maps=["batch_size=batch_size"])
    assert any("as if batch sizes counted parts" in warning for warning in said.warnings) == differ


@pytest.mark.parametrize(("examples", "differ"), [(640, False), (633, False), (160, True), (2560, True)])
def test_epochs_that_the_number_of_training_examples_contradicts(examples, differ, tmp_path):
    rows = {"a": ends(80, epochs=9), "b": parts(80)}
    if differ:
        with pytest.raises(
            ImportRefused, match=f"{examples:,} training examples are {examples // 8:,} batches, and an"
        ):
            imported(tmp_path, rows, sets=[f"train_examples={examples}"])
    else:
        imported(tmp_path, rows, sets=[f"train_examples={examples}"])


@pytest.mark.parametrize("examples", [15, 16])
def test_an_epoch_may_leave_out_its_smaller_last_batch(examples, tmp_path):
    """With `drop_last`, 15 examples make one batch of 8 instead of two: a larger factor than is accepted elsewhere."""
    imported(tmp_path, {"a": ends(examples // 8, epochs=9)}, sets=[f"train_examples={examples}"])
    assert [study.batch_size for study in load(tmp_path / "results")] == [8]


def test_runs_with_other_data_may_have_other_epochs(tmp_path):
    text = "run,batch_size,dataset,epoch,step,val/loss\n"
    for run, data, each in (("a", "big", 80), ("b", "small", 20)):
        text += "".join(f"{run},8,{data},{epoch},{step},{1 / step}\n" for epoch, step in ends(each))
    (tmp_path / "log.csv").write_text(text)
    import_log(tmp_path / "log.csv", tmp_path / "results", Asked.parse(), ["val/loss<0.9"])
    assert {study.workload for study in load(tmp_path / "results")} == {"big", "small"}


def test_a_factor_of_each_run_makes_whole_batch_sizes(tmp_path):
    text = "run,bs,parts,epoch,step,val/loss\n"
    for run, parts_of, each in (("a", 1, 80), ("b", 4, 20)):
        text += "".join(f"{run},8,{parts_of},{epoch},{step},{1 / step}\n" for epoch, step in ends(each))
    (tmp_path / "log.csv").write_text(text)
    with pytest.raises(ImportRefused, match=r"--map 'batch_size=bs\*COLUMN'"):
        import_log(tmp_path / "log.csv", tmp_path / "results", Asked.parse(), ["val/loss<0.9"])
    import_log(tmp_path / "log.csv", tmp_path / "results", Asked.parse(["batch_size=bs*parts"]), ["val/loss<0.9"])
    assert sorted(study.batch_size for study in load(tmp_path / "results")) == [8, 32]
