"""One small set of runs, written in the formats of many tools. All of them give the same steps to the result.

Two batch sizes with five learning rates each. A run is measured every ten steps: `val/loss` is 0.9 until it reaches the
goal, and 0.4 from there on; one run never does.
"""

import csv
import gzip
import json
import sqlite3

import pandas as pd
import yaml

RATES = (0.01, 0.03, 0.1, 0.3, 1.0)
REACHES = {16: (90, 60, 70, None, 80), 64: (50, 40, 30, 60, None)}
ANSWER = {16: (60, 0.03), 64: (30, 0.1)}
"""Batch size -> (steps to val/loss < 0.5, the learning rate that gave them)."""
GOAL = "val/loss<0.5"
EXAMPLES = 640
"""Training examples: 40 and 10 steps an epoch."""


def runs():
    """(name, settings, rows of (step, validation loss)) of each run."""
    for size, ends in REACHES.items():
        for rate, end in zip(RATES, ends, strict=True):
            name = f"adam_bs{size}_lr{rate}"
            rows = [(step, 0.4 if end and step >= end else 0.9) for step in range(10, 101, 10)]
            yield name, {"batch_size": size, "learning_rate": rate, "optimizer": "adam"}, rows


def long(**names):
    """The long frame; `names` renames its columns."""
    rows = [
        {"run": name, **settings, "step": step, "val/loss": loss}
        for name, settings, curve in runs()
        for step, loss in curve
    ]
    return pd.DataFrame(rows).rename(columns=names)


def long_csv(folder, separator=",", suffix="csv", **names):
    path = folder / f"runs.{suffix}"
    long(**names).to_csv(path, index=False, sep=separator)
    return path


def compressed(folder):
    path = folder / "runs.csv.gz"
    path.write_bytes(gzip.compress(long_csv(folder).read_bytes()))
    return path


def with_index(folder):
    """As pandas writes it by default, with a byte order mark and text in quotes, as spreadsheets do."""
    path = folder / "runs.csv"
    path.write_text(long().to_csv(quoting=csv.QUOTE_NONNUMERIC), encoding="utf-8-sig")
    return path


def with_decimal_commas(folder):
    """As spreadsheets write it where a comma separates decimals."""
    path = folder / "runs.csv"
    long().to_csv(path, index=False, sep=";", decimal=",")
    return path


def one_column_for_all_metrics(folder):
    path = folder / "runs.csv"
    frame = long().melt(["run", "batch_size", "learning_rate", "optimizer", "step"], var_name="tag")
    frame.to_csv(path, index=False)
    return path


def json_lines(folder):
    path = folder / "runs.jsonl"
    lines = [
        {"run": name, "config": {**settings, "lr": settings["learning_rate"]}, "step": step, "val": {"loss": loss}}
        for name, settings, rows in runs()
        for step, loss in rows
    ]
    for line in lines:
        del line["config"]["learning_rate"]
    path.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    return path


def parquet(folder):
    path = folder / "runs.parquet"
    long().to_parquet(path)
    return path


def columns_that_form_a_run(folder):
    path = folder / "runs.csv"
    long().drop(columns="run").to_csv(path, index=False)
    return path


def a_file_for_each_run(folder):
    """As Lightning's CSVLogger writes: training and validation in rows of their own, the first update as step 0,
    hyperparameters beside."""
    for number, (_, settings, rows) in enumerate(runs()):
        own = folder / "lightning_logs" / f"version_{number}"
        own.mkdir(parents=True)
        lines = ["epoch,step,train_loss,val_loss"]
        for step, loss in rows:
            lines += [f"{(step - 1) // 40},{step - 1},{loss + 0.01},", f"{(step - 1) // 40},{step - 1},,{loss}"]
        (own / "metrics.csv").write_text("\n".join(lines) + "\n")
        hparams = yaml.safe_dump(settings) + "path: !!python/object/apply:pathlib.PosixPath\n- data\n"
        (own / "hparams.yaml").write_text(hparams)
    return folder / "lightning_logs"


def named_files_with_configs(folder):
    """`NAME.csv` and `NAME.json` in one folder, with what all share in a file above."""
    (folder / "logs" / "all").mkdir(parents=True)
    (folder / "logs" / "config.yaml").write_text("optim:\n  name: adam\n")
    for name, settings, rows in runs():
        lines = "".join(f"{step},{loss}\n" for step, loss in rows)
        (folder / "logs/all" / f"{name}.csv").write_text(f"iteration,valid/loss\n{lines}")
        config = {"data": {"batch_size": settings["batch_size"]}, "optim": {"lr": settings["learning_rate"]}}
        (folder / "logs/all" / f"{name}.json").write_text(json.dumps(config))
    return folder / "logs"


def trainer_states(folder):
    """As Hugging Face's Trainer writes them, one with each checkpoint."""
    for name, settings, rows in runs():
        for until in (50, 100):
            own = folder / "out" / name / f"checkpoint-{until}"
            own.mkdir(parents=True)
            history = [
                line
                for step, loss in rows
                if step <= until
                for line in (
                    {"epoch": step / 40, "learning_rate": 1e-5 * step, "loss": loss, "step": step},
                    {"epoch": step / 40, "eval_loss": loss, "eval_runtime": 1.5 * step, "step": step},
                )
            ]
            state = {"log_history": history, "train_batch_size": settings["batch_size"], "max_steps": 100}
            (own / "trainer_state.json").write_text(json.dumps(state | {"best_metric": None}))
    return folder / "out"


def histories(folder):
    """The columns of Keras's History, an epoch a row, with a part of an epoch so that steps are exact."""
    (folder / "keras").mkdir()
    for name, settings, rows in runs():
        per_epoch = EXAMPLES / settings["batch_size"]
        history = {"epoch": [step / per_epoch for step, _ in rows], "val_loss": [loss for _, loss in rows]}
        (folder / "keras" / f"{name}.json").write_text(json.dumps(history))
    return folder / "keras"


def chart(folder, name="chart.csv"):
    """A chart that Weights & Biases exports."""
    (folder / "wandb").mkdir()
    frame = long().pivot_table(index="step", columns="run", values="val/loss", sort=False)
    columns = {"Step": frame.index}
    for run in frame:
        columns |= {f"{run} - val/loss{end}": frame[run].to_numpy() for end in ("", "__MIN", "__MAX")}
    pd.DataFrame(columns).to_csv(folder / "wandb" / name, index=False, quoting=csv.QUOTE_ALL)
    return folder / "wandb" / name


def chart_and_runs(folder):
    """The chart, and the table of runs with their hyperparameters and last values."""
    chart(folder)
    table = [
        {"Name": name, "State": "finished", "Notes": "-", "Created": f"2024-01-0{number % 9 + 1}T00:00:00.000Z"}
        | {"Runtime": 10 + number, "batch_size": settings["batch_size"], "lr": settings["learning_rate"]}
        | {"optimizer": "adam", "val/loss": rows[-1][1]}
        for number, (name, settings, rows) in enumerate(runs())
    ]
    pd.DataFrame(table).to_csv(folder / "wandb" / "runs.csv", index=False, quoting=csv.QUOTE_ALL)
    return folder / "wandb"


def downloads(folder):
    """The files of TensorBoard's web page, one for each run and tag."""
    (folder / "downloads").mkdir()
    for name, _, rows in runs():
        lines = "".join(f"{1.7e9 + step},{step},{loss}\n" for step, loss in rows)
        path = folder / "downloads" / f"run-{name}-tag-val_loss.csv"
        path.write_text(f"Wall time,Step,Value\n{lines}")
    return folder / "downloads"


def mlflow_folder(folder):
    """MLflow's folder `mlruns`; a deleted run in it does not count."""
    for number, (name, settings, rows) in enumerate(runs()):
        own = folder / "mlruns" / "0" / f"{number:032x}"
        (own / "metrics" / "val").mkdir(parents=True)
        (own / "params").mkdir()
        meta = {"run_id": own.name, "run_name": "same" if number < 2 else name, "status": 3}
        (own / "meta.yaml").write_text(yaml.safe_dump(meta | {"lifecycle_stage": "active"}))
        for key, setting in settings.items():
            (own / "params" / key).write_text(str(setting))
        (own / "metrics/val/loss").write_text("".join(f"{1700000000000 + s} {loss} {s}\n" for s, loss in rows))
    deleted = folder / "mlruns" / "0" / "deleted"
    (deleted / "metrics").mkdir(parents=True)
    (deleted / "meta.yaml").write_text("run_name: gone\nstatus: 3\nlifecycle_stage: deleted\n")
    return folder / "mlruns"


def mlflow_database(folder):
    """The tables of MLflow's database that a log is read from."""
    path = folder / "mlflow.db"
    with sqlite3.connect(path) as held:
        held.execute("CREATE TABLE runs (run_uuid, name, status, lifecycle_stage, start_time)")
        held.execute("CREATE TABLE params (key, value, run_uuid)")
        held.execute("CREATE TABLE metrics (key, value, timestamp, run_uuid, step, is_nan)")
        for number, (name, settings, rows) in enumerate(runs()):
            held.execute("INSERT INTO runs VALUES (?, ?, 'FINISHED', 'active', ?)", (f"id{number}", name, number))
            pairs = [(key, str(value), f"id{number}") for key, value in settings.items()]
            held.executemany("INSERT INTO params VALUES (?, ?, ?)", pairs)
            values = [("val/loss", loss, step, f"id{number}", step, 0) for step, loss in rows]
            held.executemany("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", values)
    held.close()
    return path


def examples(folder):
    """Progress in examples instead of steps."""
    frame = long()
    path = folder / "runs.csv"
    frame.assign(samples_seen=frame["step"] * frame["batch_size"]).drop(columns="step").to_csv(path, index=False)
    return path


def epochs(folder, name="epoch"):
    """Progress in epochs instead of steps."""
    frame = long()
    path = folder / "runs.csv"
    frame[name] = frame["step"] * frame["batch_size"] / EXAMPLES
    frame.drop(columns="step").to_csv(path, index=False)
    return path


def a_row_for_each_split(folder):
    """Training and validation in rows of their own, told apart by a column."""
    frame = long().rename(columns={"val/loss": "loss"})
    both = pd.concat([frame.assign(phase="valid"), frame.assign(phase="train", loss=2 * frame["loss"])])
    both.to_csv(folder / "runs.csv", index=False)
    return folder / "runs.csv"


def a_file_for_each_split(folder):
    """A folder for each run with `train.csv` and `test.csv`, as many scripts write."""
    for name, _, rows in runs():
        (folder / "out" / name).mkdir(parents=True)
        for split, factor in (("train", 2), ("val", 1)):
            lines = "".join(f"{step},{factor * loss},{1e-3 * step}\n" for step, loss in rows)
            (folder / "out" / name / f"{split}.csv").write_text(f"Steps,Loss,Learning Rate\n{lines}")
    return folder / "out"
