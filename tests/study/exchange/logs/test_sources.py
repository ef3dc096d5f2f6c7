"""The same runs in the formats of many tools give the same steps to the result."""

import importlib.util
import json
import logging
from importlib import import_module

import pytest
from helpers.fused import partly
from helpers.logs import made_logs

from analysis.load import load
from analysis.tables import steps_to_result
from study.exchange.importing import ImportRefused
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked

PATTERN = "{optimizer}_bs{batch_size}_lr{learning_rate}"
NAMES = {"run": "exp", "step": "t", "batch_size": "bsz", "val/loss": "loss", "learning_rate": "alpha"}
MAPS = [f"{name}={column}" for name, column in NAMES.items()]


def with_package(name, *arguments):
    """A source that a package must write or read; without it, a skipped test says so."""
    missing = importlib.util.find_spec(name) is None
    return pytest.param(*arguments, marks=pytest.mark.skipif(missing, reason=f"{name} is not installed"))


SOURCES = {
    "csv": (made_logs.long_csv, {}),
    "tsv": (lambda folder: made_logs.long_csv(folder, "\t", "tsv"), {}),
    "csv with semicolons": (lambda folder: made_logs.long_csv(folder, ";"), {}),
    "csv with decimal commas": (made_logs.with_decimal_commas, {}),
    "csv.gz": (made_logs.compressed, {}),
    "csv with an index": (made_logs.with_index, {}),
    "csv with other names": (lambda folder: made_logs.long_csv(folder, **NAMES), {"maps": MAPS}),
    "csv with usual names": (
        lambda folder: made_logs.long_csv(
            folder, run="Run ID", step="global_step", batch_size="bs", learning_rate="lr", **{"val/loss": "valid_loss"}
        ),
        {},
    ),
    "csv without runs": (made_logs.columns_that_form_a_run, {"maps": ["run=batch_size,learning_rate"]}),
    "csv of metric, value": (made_logs.one_column_for_all_metrics, {}),
    "csv of splits": (made_logs.a_row_for_each_split, {}),
    "files of splits": (made_logs.a_file_for_each_split, {"pattern": PATTERN}),
    "csv of examples": (made_logs.examples, {}),
    "csv of epochs": (made_logs.epochs, {"sets": [f"train_examples={made_logs.EXAMPLES}"]}),
    "csv of epochs by --map": (
        lambda folder: made_logs.epochs(folder, "pass"),
        {"maps": ["epoch=pass"], "sets": [f"train_examples={made_logs.EXAMPLES}"]},
    ),
    "json lines": (made_logs.json_lines, {}),
    "parquet": (made_logs.parquet, {}),
    "Lightning": (made_logs.a_file_for_each_run, {}),
    "files with configs": (made_logs.named_files_with_configs, {}),
    "Hugging Face": (made_logs.trainer_states, {"pattern": PATTERN}),
    "Keras": (made_logs.histories, {"pattern": PATTERN, "sets": [f"train_examples={made_logs.EXAMPLES}"]}),
    "W&B chart": (made_logs.chart, {"pattern": PATTERN}),
    "W&B chart and runs": (made_logs.chart_and_runs, {}),
    "TensorBoard downloads": (made_logs.downloads, {"pattern": PATTERN}),
    "MLflow folder": (made_logs.mlflow_folder, {}),
    "MLflow database": (made_logs.mlflow_database, {}),
}


def answers(source, results, goal=made_logs.GOAL, maps=(), sets=(), pattern=None):
    """(batch size -> (steps to the result, learning rate), the table, what was said)."""
    said = import_log(source, results, Asked.parse(maps, sets, pattern), [goal])
    table = steps_to_result.table(load(results))
    rates = table["learning_rate"] if "learning_rate" in table else table["steps_to_result"] * 0
    rows = zip(table["batch_size"], table["steps_to_result"], rates, strict=True)
    return {size: (steps, rate) for size, steps, rate in rows}, table, said


@pytest.mark.parametrize("kind", partly(SOURCES, 2))
def test_every_format_gives_the_same_answer(kind, tmp_path):
    write, options = SOURCES[kind]
    found, table, said = answers(write(tmp_path), tmp_path / "results", **options)
    assert found == made_logs.ANSWER
    assert set(table["optimizer"]) == {"adam"}
    assert table["complete"].tolist() == [5, 5]
    assert table["train_steps"].tolist() == [100, 100]
    assert table["high"].notna().all()
    assert "10 runs at batch sizes 16 and 64" in said.read[0]


# A header and a row with semicolons -> whether their commas are decimal points.
COMMAS = {
    "losses": ("val/loss", "0,3088", True),
    "exponents": ("val/loss", "3,0e-1", True),
    "in a setting": ("val/loss;dropout", "0;0,125", True),
    "thousands": ("val/loss;width", "0;1,024", False),
    "layers beside decimal points": ("val/loss;layers", "0.3;64,32", False),
    "text": ("val/loss;layers", "0;64,32,10", False),
}


@pytest.mark.parametrize("kind", COMMAS)
def test_commas_are_decimal_points_if_nothing_speaks_against_it(kind, tmp_path):
    columns, cells, decimal = COMMAS[kind]
    (tmp_path / "log.csv").write_text(f"run;batch_size;step;{columns}\na;8;10;{cells}\n")
    said = import_log(tmp_path / "log.csv", tmp_path / "results", Asked(), ["val/loss<0.5"])
    assert ("Commas in the numbers of log.csv are decimal points." in said.read) == decimal


def tensorboard_runs(folder, hyperparameters=True):
    """Written by torch; hyperparameters go to a folder below that of the run, as `add_hparams` does."""
    from torch.utils.tensorboard import SummaryWriter

    for name, settings, rows in made_logs.runs():
        with SummaryWriter(folder / "tb" / name) as writer:
            for step, loss in rows:
                writer.add_scalar("Loss/val", loss, step)
            if hyperparameters:
                writer.add_hparams(settings, {"hparam/final": rows[-1][1]})
    return folder / "tb"


def add_scalars_runs(folder, writer_of="torch.utils.tensorboard", tag="loss"):
    """Written by `add_scalars`: a folder for each curve, below that of the run."""
    for name, settings, rows in made_logs.runs():
        with import_module(writer_of).SummaryWriter(folder / "tb" / name) as writer:
            for step, loss in rows:
                writer.add_scalars(tag, {"train": 0.1, "val": loss}, step)
            writer.add_hparams(settings, {"hparam/final": rows[-1][1]})
    return folder / "tb"


def lightning_runs(folder):
    """As Lightning's TensorBoardLogger: the first update is step 0, and hyperparameters are in a file beside."""
    from torch.utils.tensorboard import SummaryWriter

    for number, (_, settings, rows) in enumerate(made_logs.runs()):
        run = folder / "tb" / f"version_{number}"
        with SummaryWriter(run) as writer:
            for step, loss in rows:
                writer.add_scalar("val_loss", loss, step - 1)
                writer.add_scalar("epoch", (step - 1) // 1000, step - 1)
        (run / "hparams.yaml").write_text(json.dumps(settings))
    return folder / "tb"


def keras_runs(folder):
    """As Keras's callback: training and validation in folders of their own, with the same tags, at epochs from 0."""
    from torch.utils.tensorboard import SummaryWriter

    for name, settings, rows in made_logs.runs():
        for part, more in (("train", 0.1), ("validation", 0.0)):
            with SummaryWriter(folder / "tb" / name / part) as writer:
                each = 64 // settings["batch_size"]  # updates of an epoch
                for epoch in range(100 // each):
                    loss = [0.9, *(loss for step, loss in rows if step <= (epoch + 1) * each)][-1]
                    writer.add_scalar("epoch_loss", loss + more, epoch)
    return folder / "tb"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("write", "options"),
    [
        with_package("tensorboard", tensorboard_runs, {}),
        with_package("tensorboard", lambda folder: tensorboard_runs(folder, False), {"pattern": PATTERN}),
        with_package("tensorboard", add_scalars_runs, {}),
        with_package(
            "tensorboard", lambda folder: add_scalars_runs(folder, tag="net/loss"), {"goal": "val/net_loss<0.5"}
        ),
        with_package(
            "tensorboardX",
            lambda folder: add_scalars_runs(folder, "tensorboardX", "net/loss"),
            {"goal": "val/net_loss<0.5"},
        ),
        with_package("tensorboard", lightning_runs, {}),
        with_package("tensorboard", keras_runs, {"pattern": PATTERN, "sets": ["train_examples=64"]}),
    ],
    ids=["torch with add_hparams", "torch", "add_scalars", "nested add_scalars", "tensorboardX", "Lightning", "Keras"],
)
def test_event_files_give_the_same_answer(write, options, tmp_path):
    found, table, _ = answers(write(tmp_path), tmp_path / "results", **options)
    assert {size: (steps, round(rate, 6)) for size, (steps, rate) in found.items()} == made_logs.ANSWER
    assert table["complete"].tolist() == [5, 5]


def mlflow_runs(folder, uri):
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.create_experiment("sweep")
    for name, settings, rows in made_logs.runs():
        run = client.create_run(experiment, run_name=name).info.run_id
        for key, value in settings.items():
            client.log_param(run, key, value)
        for step, loss in rows:
            client.log_metric(run, "val/loss", loss, step=step)
        client.set_terminated(run)


@pytest.mark.release
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("uri", "source"),
    [
        with_package("mlflow", "{folder}/mlruns", "mlruns"),
        with_package("mlflow", "sqlite:///{folder}/mlflow.db", "mlflow.db"),
    ],
)
def test_what_mlflow_writes_gives_the_same_answer(uri, source, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    logging.getLogger("alembic").setLevel(logging.ERROR)
    mlflow_runs(tmp_path, uri.format(folder=tmp_path))
    found, _, _ = answers(tmp_path / source, tmp_path / "results")
    assert found == made_logs.ANSWER


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [with_package("wandb", "wandb")])
def test_what_wandb_writes_offline_gives_the_same_answer(name, tmp_path, monkeypatch):
    import wandb

    monkeypatch.setenv("WANDB_SILENT", "true")
    for run, settings, rows in made_logs.runs():
        with wandb.init(
            mode="offline", dir=tmp_path, project="sweep", name=run, config=settings | {"long": "x" * 40000}
        ) as logged:
            for step, loss in rows:
                logged.log({"val/loss": loss, "trainer/global_step": step - 1})
    found, _, said = answers(tmp_path / name, tmp_path / "results")
    assert found == made_logs.ANSWER
    assert not any("own _step" in warning for warning in said.warnings)


@pytest.mark.slow
def test_earlier_imports_in_a_folder_are_left_out(tmp_path, says):
    source = made_logs.a_file_for_each_run(tmp_path)
    answers(source, source / "earlier")
    said = says("import", source, tmp_path / "results", "--goal", made_logs.GOAL)
    assert "earlier: results of this project, no logs: left out" in said
    assert "2 studies with" in said
    assert "odd" not in said
    assert answers(source, tmp_path / "again")[0] == made_logs.ANSWER
    assert f"{source / 'earlier'} is a results folder" in says("import", source / "earlier", tmp_path / "x", status=2)


@pytest.mark.parametrize("name", ["events.out.tfevents.1", "run-a.wandb", "mlflow.db"])
def test_torn_files_are_named(name, tmp_path):
    (tmp_path / name).write_bytes(b"torn " * 20)
    package = {"run-a.wandb": "wandb", "events.out.tfevents.1": "tensorboard"}.get(name)
    if package and importlib.util.find_spec(package) is None:
        with pytest.raises(ImportRefused, match=f"pip install {package}"):
            answers(tmp_path / name, tmp_path / "results")
        return
    with pytest.raises(ImportRefused, match=name.replace(".", r"\.")):
        answers(tmp_path / name, tmp_path / "results")
    assert not (tmp_path / "results").exists()
