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
OF_UPDATES = {  # name -> (rows, steps to the goal; where epochs of 2 updates end at step 1, steps count from 0)
    "evaluations in the calls of updates": (
        ["0,0,.9,,", "1,0,.8,,.9", "2,1,.7,,", "3,1,.6,,.4", "4,2,.5,,", "5,2,,,.3"],
        4,
    ),
    "steps given, some left out": (["0,0,.9,,", "1,0,,,.9", "2,1,.7,,", "3,1,,,.4", "5,2,,,.3"], 4),
    "few evaluations": (["0,0,.9,,", "1,0,.9,,", "2,0,.9,,", "3,1,,,.4"], 3),
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
    rows, steps = OF_UPDATES[kind]
    assert imported(tmp_path, rows)[0] == steps


# the axis of an exported chart -> its values at the evaluations of a run, and the steps of that run; the first error
# below the goal is the second one, and None: refused.
CHARTS = {
    "Step": ((3, 7, 11), (3, 7, 11), 7),
    "trainer/global_step": ((3, 7, 11), (30, 70, 110), 8),
    "Relative Time (Process)": ((1.5, 2.5, 3.5), (3, 7, 11), 7),
    "epoch": ((1, 2, 3), (4, 9, 11), 4),
    "Step from 0": ((0, 1, 2), (0, 1, 2), None),
}


@pytest.mark.parametrize("kind", CHARTS)
def test_the_axis_of_a_chart_gives_the_steps(kind, tmp_path):
    axis, (at, steps, answer) = kind.removesuffix(" from 0"), CHARTS[kind]
    own = "" if axis == "Step" else ",".join(["", *(f"a b - _step{end}" for end in ("", "__MIN", "__MAX"))])
    lines = [f"{axis}{own},a b - val/loss,a b - val/loss__MIN,a b - val/loss__MAX"]
    for position, step, error in zip(at, steps, (0.9, 0.4, 0.3), strict=True):
        lines.append(f"{position}{'' if axis == 'Step' else 3 * f',{step}'}{3 * f',{error}'}")
    (tmp_path / "chart.csv").write_text("\n".join(lines) + "\n")
    source = tmp_path / "chart.csv", tmp_path / "results", Asked.parse(sets=["batch_size=8", "train_examples=16"])
    if answer is None:
        with pytest.raises(ImportRefused, match=r"Step is W&B's own step.*each call of log was an evaluation"):
            import_log(*source, ["val/loss<0.5"])
        return
    said = import_log(*source, ["val/loss<0.5"])
    (study,) = load(tmp_path / "results")
    assert steps_to_result.row(study)["steps_to_result"] == answer
    of_calls = any("which counts calls of log, from 0" in warning for warning in said.warnings)
    assert of_calls == (axis == "Step" or "Time" in axis)
