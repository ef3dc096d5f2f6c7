"""Logs whose numbers mean something else than their names say at first: refused with the cure, or read as they are."""

import json

import pandas as pd
import pytest

from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, Goal
from analysis.load import load
from analysis.tables import steps_to_result
from study.exchange.importing import ImportRefused
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked
from study.exchange.readers import tensorboard


def imported(tmp_path, text, goal="val/loss<0.5", **asked):
    (tmp_path / "log.csv").write_text(text)
    said = import_log(tmp_path / "log.csv", tmp_path / "results", Asked.parse(**asked), [goal])
    return list(load(tmp_path / "results")), said


PARTS = {
    "accumulation": "run,batch_size,gradient_accumulation_steps,step,val/loss\n",
    "processes": "run,batch_size,num_gpus,step,val/loss\n",
}


@pytest.mark.parametrize("kind", PARTS)
def test_a_batch_size_of_a_part_of_an_update_is_refused_and_can_be_multiplied(kind, tmp_path):
    text = PARTS[kind] + "a,16,1,40,0.4\nb,16,4,20,0.4\n"
    factor = PARTS[kind].split(",")[2]
    with pytest.raises(ImportRefused, match=rf"run 'b' has batch_size=16, {factor}=4.*batch_size\*{factor}'"):
        imported(tmp_path, text)
    studies, said = imported(tmp_path, text, maps=[f"batch_size=batch_size*{factor}"])
    assert [(study.batch_size, steps_to_result.row(study)["steps_to_result"]) for study in studies] == [
        (16, 40),
        (64, 20),
    ]
    assert all(factor not in study.hyperparameters for study in studies)
    assert f"Batch sizes are batch_size times {factor}." in said.read


def test_a_batch_size_that_is_said_to_be_whole_is_taken(tmp_path):
    text = PARTS["accumulation"] + "a,16,4,40,0.4\n"
    assert [study.batch_size for study in imported(tmp_path, text, maps=["batch_size=batch_size"])[0]] == [16]


def trainer_states(folder, accumulation):
    """The end of runs of Hugging Face's Trainer with 200 examples in 4 epochs, at batch size 8 for each process."""
    for rate in (0.1, 0.3):
        (folder / f"lr{rate}").mkdir(parents=True)
        steps = 4 * -(-200 // (8 * accumulation))
        speeds = {"train_samples_per_second": 800 / rate, "train_steps_per_second": steps / rate}
        history = [
            {"epoch": 4.0, "eval_loss": 0.4, "step": steps, "learning_rate": rate},
            {"epoch": 4.0, "step": steps, "total_flos": rate, "train_loss": 0.5, "train_runtime": rate, **speeds},
        ]
        state = {"log_history": history, "train_batch_size": 8, "max_steps": steps}
        (folder / f"lr{rate}" / "trainer_state.json").write_text(json.dumps(state))
    return folder


@pytest.mark.parametrize("parts", [2, 4, 16])
def test_a_batch_size_that_the_speeds_of_a_run_contradict_is_refused_and_can_be_multiplied(parts, tmp_path):
    source = trainer_states(tmp_path / "runs", parts)
    with pytest.raises(ImportRefused, match=r"train_batch_size=8, but .* 'batch_size=train_batch_size\*N' for N parts"):
        import_log(source, tmp_path / "results", Asked.parse(), ["val/loss<0.5"])
    maps = [f"batch_size=train_batch_size*{parts}"]
    said = import_log(source, tmp_path / "results", Asked.parse(maps), ["val/loss<0.5"])
    assert [study.batch_size for study in load(tmp_path / "results")] == [8 * parts]
    assert f"Batch sizes are train_batch_size times {parts}." in said.read
    assert not any("batch size is that of" in warning for warning in said.warnings)


def test_speeds_and_durations_are_no_hyperparameters(tmp_path):
    said = import_log(trainer_states(tmp_path / "a", 1), tmp_path / "results", Asked.parse(), ["val/loss<0.5"])
    (study,) = load(tmp_path / "results")
    assert study.hyperparameters == ["learning_rate"]
    assert any("train_runtime, train_samples_per_second" in warning for warning in said.warnings)


def test_two_batch_sizes_that_differ_are_refused(tmp_path):
    with pytest.raises(ImportRefused, match=r"two values of batch_size: batch_size=16 and effective_batch_size=64"):
        imported(tmp_path, "run,batch_size,effective_batch_size,step,val/loss\na,16,64,40,0.4\n")


def test_tokens_are_no_examples(tmp_path):
    text = "run,batch_size,tokens_seen,val/loss\na,8,81920,0.4\n"
    with pytest.raises(ImportRefused, match=r"tokens_seen counts tokens.*tokens_per_example=N.*--map examples=tokens"):
        imported(tmp_path, text)
    assert (
        steps_to_result.row(imported(tmp_path, text, sets=["tokens_per_example=1024"])[0][0])["steps_to_result"] == 10
    )
    in_tokens = {"maps": ["examples=tokens_seen"], "sets": ["workload=other"]}
    assert [steps_to_result.row(each)["steps_to_result"] for each in imported(tmp_path, text, **in_tokens)[0]] == [
        10,
        10240,
    ]


def test_the_status_of_a_run_follows_the_goal_that_is_asked(tmp_path):
    killed = "a,8,10,0.45,killed\na,8,20,0.4,killed\n"
    diverged = "b,8,10,0.6,finished\nb,8,20,0.4,finished\nb,8,30,nan,finished\n"
    other = "".join(f"c,8,{step},{0.8 if step < 40 else 0.2},finished\n" for step in (10, 20, 30, 40))
    text = f"run,batch_size,step,val/loss,status\n{killed}{diverged}{other}"
    for threshold in (0.3, 0.5):
        folder = tmp_path / str(threshold)
        folder.mkdir()
        [study], _ = imported(folder, text, f"val/loss<{threshold}")
        for other, met in ((0.3, False), (0.5, True)):
            found = steps_to_result.outcomes(study, Goal("val/loss", other))
            by_run = dict(zip(study.trials["trial_id"], found["status"], strict=True))
            expected = [COMPLETE] * 3 if met else [INCOMPLETE, INFEASIBLE, COMPLETE]
            assert [by_run[number] for number in (1, 2, 3)] == expected
            assert found["counted"].all()
            assert steps_to_result.row(study, Goal("val/loss", other))["steps_to_result"] == (10 if met else 40)


NAMED = (("7.1", 0.1, 0.4), ("7.10", 1, 0.9))


def test_names_of_runs_are_no_numbers(tmp_path):
    rows = [f"{run},8,{lr},{step},{loss}\n" for run, lr, loss in NAMED for step in (1, 2)]
    [study], said = imported(tmp_path, "run,batch_size,lr,step,val/loss\n" + "".join(rows))
    assert study.trials["learning_rate"].tolist() == [0.1, 1]
    assert not any("more than once" in line for line in said.warnings)


def test_seeds_that_share_the_name_of_a_run_are_refused(tmp_path):
    alone = "".join(f"b{n},8,0,{step},0.9\n" for n in range(5) for step in (1, 2))
    shared = "a,8,0,1,0.9\na,8,0,2,0.4\na,8,1,1,0.95\na,8,1,2,0.9\n"
    text = "run,batch_size,seed,step,val/loss\n" + alone + shared
    with pytest.raises(ImportRefused, match=r"run 'a' has several values of seed.*--map run=run,seed"):
        imported(tmp_path, text)
    assert len(imported(tmp_path, text, maps=["run=run,seed"])[0][0].trials) == 7


def test_a_budget_of_minus_one_is_none(tmp_path):
    text = "run,batch_size,max_steps,step,val/loss\na,8,-1,10,0.9\nb,8,-1,10,0.9\nb,8,-1,40,0.9\n"
    [study], _ = imported(tmp_path, text)
    assert sorted(steps_to_result.outcomes(study)["status"]) == [COMPLETE, INCOMPLETE]


def test_keras_counts_epochs(tmp_path, monkeypatch):
    """As Keras's callback writes it: epoch_loss at epochs from 0, evaluation_loss_vs_iterations at updates."""
    for part in ("train", "validation"):
        (tmp_path / "tb" / "bs10" / part).mkdir(parents=True)
        (tmp_path / "tb" / "bs10" / part / f"events.out{tensorboard.PART}1").touch()
    loss = pd.DataFrame({"step": [0, 1, 2], "epoch_loss": [0.9, 0.6, 0.4]})
    updates = pd.DataFrame({"step": [10, 20, 30], "evaluation_loss_vs_iterations": [0.9, 0.6, 0.4]})
    written = {"train": {"epoch_loss": loss}, "validation": {"epoch_loss": loss, updates.columns[1]: updates}}
    monkeypatch.setattr(tensorboard, "_events", lambda folder, where: (written[folder.name], {}))
    call = tmp_path / "tb", tmp_path / "results"
    with pytest.raises(ImportRefused, match=r"epochs become steps by the number of training examples"):
        import_log(*call, Asked.parse(pattern="bs{batch_size}"), ["val/loss<0.5"])
    import_log(*call, Asked.parse(pattern="bs{batch_size}", sets=["train_examples=100"]), ["val/loss<0.5"])
    [study] = load(tmp_path / "results")
    assert steps_to_result.row(study)["steps_to_result"] == 30
    assert json.loads((study.folder / "study.json").read_text())["question"]["train_steps"] == 30


def rows_of(run, steps, errors, name="val/loss"):
    return f"run,batch_size,step,{name}\n" + "".join(f"{run},8,{a},{b}\n" for a, b in zip(steps, errors, strict=True))


@pytest.mark.parametrize(("second", "runs"), [((30, 40, 50), 1), ((10, 20, 30), 2), ((20, 30, 40), 1)])
def test_a_file_that_continues_a_run_is_no_run_of_its_own(second, runs, tmp_path):
    source = tmp_path / "logs"
    source.mkdir()
    (source / "x.csv").write_text(rows_of("x", (10, 20, 25), (0.9, 0.8, 0.7)))
    (source / "x-resumed.csv").write_text(rows_of("x", second, (0.6, 0.5, 0.4)))
    import_log(source, tmp_path / "results", Asked.parse(), ["val/loss<0.45"])
    [study] = load(tmp_path / "results")
    assert len(study.trials) == runs


@pytest.mark.parametrize(("steps", "noted"), [((0, 1, 2), True), ((1, 2), False), ((10, 20, 30), False)])
def test_steps_that_may_be_epochs_are_told(steps, noted, tmp_path):
    _, said = imported(tmp_path, rows_of("a", steps, (0.9, 0.6, 0.4)[-len(steps) :]))
    assert any("if these are epochs, --map epoch=step" in line for line in said.warnings) == noted
    _, said = imported(
        tmp_path, rows_of("a", steps, (0.9, 0.6, 0.4)[-len(steps) :]), maps=["step=step"], sets=["model=b"]
    )
    assert not any("epochs" in line for line in said.warnings)


def test_runs_in_fractions_among_runs_in_percent_are_told(tmp_path):
    text = (
        rows_of("a", (10, 20), (50, 91), "val/acc") + rows_of("b", (10, 20), (0.5, 0.95), "val/acc").split("\n", 1)[1]
    )
    _, said = imported(tmp_path, text, "val/acc>90")
    assert any("in 1 run it never exceeds 1: b. If they hold fractions" in line for line in said.warnings)


def test_an_accuracy_that_was_rounded_above_one_is_a_fraction(tmp_path):
    [study], _ = imported(tmp_path, rows_of("a", (10, 20), (0.5, 1.0000001), "val/acc"), "val/acc>0.8")
    assert steps_to_result.row(study)["steps_to_result"] == 20


def test_a_list_in_parquet_is_text(tmp_path):
    rows = pd.DataFrame(
        {"run": ["a", "b"], "batch_size": 8, "step": 10, "val/loss": 0.4, "betas": [[0.9, 0.95], [0.8, 0.9]]}
    )
    rows.to_parquet(tmp_path / "log.parquet")
    import_log(tmp_path / "log.parquet", tmp_path / "results", Asked.parse(), ["val/loss<0.5"])
    [study] = load(tmp_path / "results")
    assert len(study.trials) == 2


def test_a_hyperparameter_in_another_script_keeps_its_name(tmp_path):
    [study], _ = imported(tmp_path, "run,batch_size,step,val/loss,β\na,8,10,0.4,0.1\nb,8,10,0.4,0.2\n")
    assert list(study.hyperparameters) == ["β"]


def test_steps_that_begin_again_are_refused_with_the_cure(tmp_path):
    with pytest.raises(ImportRefused, match=r"steps of one run begin again at each epoch, --map step=COLUMN"):
        imported(tmp_path, rows_of("a", (10, 20, 10, 20), (0.9, 0.8, 0.7, 0.6)))


# Training examples, batch size, epoch -> the steps; PyTorch, Keras and Hugging Face keep the smaller last batch.
EPOCHS = {(1600, 64, 2): 50, (1600, 1024, 3): 6, (50000, 512, 10): 980, (50000, 512, 0.5): 49, (1600, 4096, 2): 2}


@pytest.mark.parametrize("case", EPOCHS)
def test_an_epoch_ends_with_a_smaller_batch(case, tmp_path):
    examples, size, epoch = case
    text = f"run,batch_size,epoch,val/loss\na,{size},{epoch},0.4\n"
    ((study,), said) = imported(tmp_path, text, sets=[f"train_examples={examples}"])
    assert steps_to_result.row(study)["steps_to_result"] == EPOCHS[case]
    assert any("rounded up" in fact for fact in said.read) == bool(examples % size)


# drop_last as a column says it (None: no column), as --set says it -> the steps of two epochs of 1600 examples at 512
DROPPED = {
    ("dataloader_drop_last", "True", None): 6,
    ("train_loader/drop_last", "true", None): 6,
    ("drop_last", "False", None): 8,
    ("drop_last", "", None): 8,
    (None, None, "true"): 6,
    (None, None, "false"): 8,
    ("drop_last", "False", "true"): 6,
}


@pytest.mark.parametrize("case", DROPPED)
def test_an_epoch_ends_without_a_smaller_batch_where_it_was_dropped(case, tmp_path):
    column, cell, given = case
    header, rows = ("", "") if column is None else (f",{column}", f",{cell}")
    text = f"run,batch_size,epoch,val/loss{header}\na,512,2,0.4{rows}\n"
    sets = ["train_examples=1600", *([] if given is None else [f"drop_last={given}"])]
    ((study,), said) = imported(tmp_path, text, sets=sets)
    assert steps_to_result.row(study)["steps_to_result"] == DROPPED[case]
    assert any("rounded down where drop_last" in fact for fact in said.read) == (DROPPED[case] == 6)


@pytest.mark.parametrize(("given", "size", "why"), [("true", 2048, "no step in an epoch"), ("maybe", 8, "true or")])
def test_an_impossible_drop_last_is_refused(given, size, why, tmp_path):
    text = f"run,batch_size,epoch,val/loss\na,{size},2,0.4\n"
    with pytest.raises(ImportRefused, match=why):
        imported(tmp_path, text, sets=["train_examples=1600", f"drop_last={given}"])


def test_a_table_beside_the_log_says_batch_sizes_that_names_have_as_products(tmp_path):
    (tmp_path / "log.csv").write_text("run,step,val/loss\nbs2x8,10,0.9\nbs2x8,20,0.4\nbs4x8,10,0.4\n")
    (tmp_path / "sizes.csv").write_text("run,batch_size\nbs2x8,16\nbs4x8,32\n")
    import_log(tmp_path, tmp_path / "results", Asked.parse(), ["val/loss<0.5"])
    assert sorted(study.batch_size for study in load(tmp_path / "results")) == [16, 32]


PATTERN = "adam_bs{batch_size}*"


@pytest.mark.parametrize("end", ["", "_lr0.1", "-lr0.1", "_2", "-2", "xl", "_x", "lr1", "gpu4", "kfac", "_mean"])
def test_a_number_ends_where_its_digits_end(end):
    assert Asked.parse(pattern=PATTERN).in_name(f"adam_bs64{end}") == {"batch_size": "64"}


@pytest.mark.parametrize(
    "end", ["x8", "X8", "×8", "*8", " x 8", "_x8", "^2", "**2", "k", "K", "M_lr0.1", ",096", ".5.2"]
)
def test_a_number_that_goes_on_is_refused(end):
    with pytest.raises(ImportRefused, match="may be another number; write what follows into the pattern"):
        Asked.parse(pattern=PATTERN).in_name(f"adam_bs2{end}")


@pytest.mark.parametrize(
    ("pattern", "run", "found"),
    [
        ("bs{batch_size}x{devices}", "bs2x8", {"batch_size": "2", "devices": "8"}),
        ("bs{batch_size}k*", "bs2k_lr1", {"batch_size": "2"}),
        ("{optimizer}_bs{batch_size}", "2nd_order_bs8", {"optimizer": "2nd_order", "batch_size": "8"}),
        ("bs{batch_size}_lr{lr}*", "bs8_lr1e-3_a", {"batch_size": "8", "lr": "1e-3"}),
    ],
)
def test_what_the_pattern_names_is_not_refused(pattern, run, found):
    assert Asked.parse(pattern=pattern).in_name(run) == found


NAMES = ("007", "7", "1e5", "100000", "0.10", "true", "1_000")
STEPS = ((5, 0.9), (10, 0.4))


def cells(folder, name, **role):
    """A CSV file with a cell for each setting."""
    rows = [f"{name},{size},{step},{loss}" for size in (8, 16) for step, loss in STEPS]
    path = folder / "log.csv"
    path.write_text("\n".join([f"{role['column']},batch_size,step,val/loss", *rows]) + "\n")
    return path, Asked.parse([f"run={role['column']},batch_size", *role.get("maps", ())])


def column(folder, name):
    return cells(folder, name, column="optimizer")


def mapped(folder, name):
    return cells(folder, name, column="method", maps=["optimizer=method"])


def of_workload(folder, name):
    return cells(folder, name, column="workload")


def beside(folder, name):
    rows = [f"run{size},{step},{loss}" for size in (8, 16) for step, loss in STEPS]
    (folder / "log.csv").write_text("\n".join(["run,step,val/loss", *rows]) + "\n")
    (folder / "runs.csv").write_text(f"run,optimizer,batch_size\nrun8,{name},8\nrun16,{name},16\n")
    return folder, Asked()


def trials(folder, name):
    rows = [f"0,{name},{size},{step},{loss}" for size in (8, 16) for step, loss in STEPS]
    (folder / "log.csv").write_text("\n".join(["trial,optimizer,batch_size,step,val/loss", *rows]) + "\n")
    return folder / "log.csv", Asked()


def by_name(folder, name):
    rows = [f"opt {name} bs{size},{step},{loss}" for size in (8, 16) for step, loss in STEPS]
    (folder / "log.csv").write_text("\n".join(["run,step,val/loss", *rows]) + "\n")
    return folder / "log.csv", Asked.parse(pattern="opt {optimizer} bs{batch_size}")


def set_by_hand(folder, name):
    path, _ = cells(folder, "x", column="run_name")
    return path, Asked.parse(["run=run_name,batch_size"], [f"optimizer={name}"])


@pytest.mark.parametrize("write", [column, mapped, of_workload, beside, trials, by_name, set_by_hand])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_looks_like_a_number_stays_as_it_is_written(write, name, tmp_path):
    (tmp_path / "logs").mkdir()
    source, asked = write(tmp_path / "logs", name)
    import_log(source, tmp_path / "results", asked, ["val/loss<0.5"])
    studies = list(load(tmp_path / "results"))
    assert {study.curve[write is not of_workload] for study in studies} == {name}
    assert [study.batch_size for study in studies] == [8, 16]


def test_two_names_of_one_number_are_two_optimizers(tmp_path):
    rows = [f"0,{name},8,{step},{loss}" for name in ("7", "007") for step, loss in STEPS]
    (tmp_path / "log.csv").write_text("\n".join(["trial,optimizer,batch_size,step,val/loss", *rows]) + "\n")
    import_log(tmp_path / "log.csv", tmp_path / "results", Asked(), ["val/loss<0.5"])
    assert [study.curve[1] for study in load(tmp_path / "results")] == ["007", "7"]
