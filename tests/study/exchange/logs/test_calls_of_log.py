"""W&B's own steps: without `step=`, they count calls of log. Such histories are refused with the cure."""

import pytest

from analysis.load import load
from analysis.tables import steps_to_result
from study.exchange.importing import ImportRefused
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked

HEADER = "run,batch_size,_step,epoch,train/loss,lr_now,val/loss\n"
"""Of one run at batch size 8 with epochs of 2 updates (16 examples); the goal is met after the second epoch."""
OWN_CALLS = ["0,0,.9,,", "1,0,.8,,", "2,0,,,.9", "3,1,.7,,", "4,1,.6,,", "5,1,,,.4", "6,2,.5,,", "7,2,.5,,", "8,2,,,.3"]
OF_CALLS = {
    "evaluations in calls of their own": OWN_CALLS,
    "a call for the rate, too": [
        *("0,0,.9,,", "1,,,.1,", "2,0,.8,,", "3,,,.1,", "4,0,,,.9", "5,1,.7,,", "6,,,.1,", "7,1,.6,,", "8,,,.1,"),
        *("9,1,,,.4", "10,2,.5,,", "11,,,.1,", "12,2,,,.3"),
    ],
    "a call for each epoch": ["0,0,.9,,.9", "1,1,.8,,.4", "2,2,.8,,.3"],
    "a call for each epoch, errors alone": ["0,,,,.9", "1,,,,.4", "2,,,,.3"],
}
OF_UPDATES = {
    "evaluations in the calls of updates": ["0,0,.9,,", "1,0,.8,,.9", "2,1,.7,,", "3,1,.6,,.4", "4,2,.5,,", "5,2,,,.3"],
    "steps given, some left out": ["0,0,.9,,", "1,0,,,.9", "2,1,.7,,", "3,1,,,.4", "5,2,,,.3"],
    "few evaluations": ["0,0,.9,,", "1,0,.9,,", "2,0,.9,,", "3,1,,,.4"],
}


def imported(folder, rows, maps=(), sets=()):
    (folder / "log.csv").write_text(HEADER + "".join(f"a,8,{row}\n" for row in rows))
    said = import_log(folder / "log.csv", folder / "results", Asked.parse(maps, sets), ["val/loss<0.5"])
    (study,) = load(folder / "results")
    return steps_to_result.row(study)["steps_to_result"], said


@pytest.mark.parametrize("kind", OF_CALLS)
def test_steps_that_count_calls_are_refused_with_the_cure(kind, tmp_path):
    with pytest.raises(ImportRefused, match=r"_step is W&B's own step, which counts calls of log") as refused:
        imported(tmp_path, OF_CALLS[kind])
    assert "--map step=_step" in str(refused.value)
    assert "--set train_examples=N" in str(refused.value)
    assert imported(tmp_path, OF_CALLS[kind], ["step=_step"])[0] > 0


def test_the_epochs_of_such_a_history_give_its_steps(tmp_path):
    for number, rows in enumerate(list(OF_CALLS.values())[:3]):
        (tmp_path / str(number)).mkdir()
        steps, _ = imported(tmp_path / str(number), rows, ["epoch=epoch"], ["train_examples=16"])
        assert steps == 4


@pytest.mark.parametrize("kind", OF_UPDATES)
def test_steps_that_may_count_updates_are_read(kind, tmp_path):
    steps, _ = imported(tmp_path, OF_UPDATES[kind])
    assert steps in (3, 4)
