"""Steps that are counted from 0, as Lightning counts them: 1 is added, so that a curve counts updates."""

import pytest

from analysis.load import load
from analysis.tables import steps_to_result
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked

HEADER = "run,batch_size,epoch,step,train/loss,val/loss"
"""Of one run at batch size 8 with epochs of 4 updates; the goal is met at the end of the second one."""
LOGS = {  # name -> (header, rows of epoch, step, train/loss, val/loss; the first step below the goal as it is read)
    "ends of epochs from 0": (HEADER, ["0,3,,0.9", "1,7,,0.4", "2,11,,0.3"], 8),
    "two epochs": (HEADER, ["0,3,,0.9", "1,7,,0.4"], 8),
    "training errors between": (HEADER, ["0,0,1,", "0,2,1,", "0,3,,0.9", "1,5,.5,", "1,7,,0.4", "2,8,.2,"], 8),
    "every second epoch": (HEADER, ["0,2,1,", "1,7,,0.4", "3,15,,0.3", "5,23,,0.3"], 8),
    "within epochs, too": (HEADER, ["0,1,,0.9", "0,3,,0.9", "1,5,,0.6", "1,7,,0.4", "2,9,,0.3"], 8),
    "Lightning in W&B": (HEADER.replace("step", "trainer/global_step"), ["0,2,,0.9", "1,7,,0.4"], 8),
    "updates from 1": (HEADER, ["0,4,,0.9", "1,8,,0.4", "2,12,,0.3"], 8),
    "epochs from 1": (HEADER, ["1,4,,0.9", "2,8,,0.4", "3,12,,0.3"], 8),
    "parts of epochs": (HEADER, ["0.5,2,,0.9", "1.0,4,,0.9", "2.0,8,,0.4"], 8),
    "begins of epochs": (HEADER, ["0,0,,0.9", "1,4,,0.7", "2,8,,0.4"], 8),
    "one epoch": (HEADER, ["0,3,,0.9", "0,8,,0.4"], 8),
}
FROM_ZERO = tuple(LOGS)[:6]


def imported(folder, kind, maps=()):
    header, rows, _ = LOGS[kind]
    text = "\n".join([header, *(f"a,8,{row}" for row in rows)])
    (folder / "log.csv").write_text(text + "\n")
    said = import_log(folder / "log.csv", folder / "results", Asked.parse(maps), ["val/loss<0.5"])
    (study,) = load(folder / "results")
    return steps_to_result.row(study)["steps_to_result"], said


@pytest.mark.parametrize("kind", LOGS)
def test_steps_from_zero_become_numbers_of_updates(kind, tmp_path):
    steps, said = imported(tmp_path, kind)
    assert steps == LOGS[kind][2]
    assert any("counts updates from 0" in warning for warning in said.warnings) == (kind in FROM_ZERO)


@pytest.mark.parametrize("kind", FROM_ZERO)
def test_a_column_of_the_user_is_read_as_it_stands(kind, tmp_path):
    column = LOGS[kind][0].split(",")[3]
    assert imported(tmp_path, kind, [f"step={column}"])[0] == 7


@pytest.mark.parametrize("has_hyperparameters", [True, False])
def test_lightning_is_known_by_the_file_beside_its_log(has_hyperparameters, tmp_path):
    run = tmp_path / "logs" / "version_0"
    run.mkdir(parents=True)
    (run / "metrics.csv").write_text("epoch,step,val_loss\n0,2,0.9\n0,5,0.8\n0,8,0.4\n")  # one epoch alone
    if has_hyperparameters:
        (run / "hparams.yaml").write_text("batch_size: 8\n")
    said = import_log(tmp_path / "logs", tmp_path / "results", Asked.parse(sets=["batch_size=8"]), ["val/loss<0.5"])
    (study,) = load(tmp_path / "results")
    assert steps_to_result.row(study)["steps_to_result"] == 8 + has_hyperparameters
    assert any("column step counts updates from 0" in warning for warning in said.warnings) == has_hyperparameters
