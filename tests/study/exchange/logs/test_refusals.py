"""What a log lacks or breaks is named, with the line and the cure, before anything is written."""

import json
import pickle

import pytest

from study.exchange.importing import ImportRefused
from study.exchange.logs.importing import import_log
from study.exchange.logs.names import Asked

HEADER = "run,batch_size,step,val/loss\n"
ROWS = "a,8,10,0.9\na,8,20,0.4\nb,16,10,0.8\nb,16,20,0.3\n"
GOOD = HEADER + ROWS
GROWS = "run,batch_size,step,val/accuracy\na,8,10,0.1\na,8,20,0.9\n"

# What the message must say -> (name of the file, its content, options).
REFUSED = {
    "there is no file or folder .*absent.csv; give a CSV": ("absent.csv", None, {}),
    "the format is not known": ("log.docx", "x", {}),
    "can run code, so they are not read": ("log.pkl", pickle.dumps([1]), {}),
    "line 1 is empty": ("log.csv", "\n1,2\n", {}),
    "line 1 holds numbers; put a line with the names": ("log.csv", "0.25,0.1\n0.5,0.2\n", {}),
    "line 1 names step more than once": ("log.csv", "run,step,step\na,1,2\n", {}),
    "line 5 has 3 cells, but line 1 has 4": ("log.csv", HEADER + "a,8,10,0.9\n\n\nb,16,10\n", {}),
    "val/loss is '91.5%', which is no number; write a fraction: 0.915.": ("log.csv", HEADER + "a,8,10,91.5%\n", {}),
    "line 3: val/loss is 'many', which is no number": ("log.csv", HEADER + "a,8,10,0.9\na,8,20,many\n", {}),
    "val/loss is '0,9', which is no number; write a point for a decimal comma, and nothing between thousands.": (
        "log.csv",
        HEADER + 'a,8,10,"0,9"\n',
        {},
    ),
    "step is '1,024', no step; write a point for a decimal comma": (
        "log.csv",
        HEADER.replace(",", ";") + "a;8;1,024;0,900\na;8;1,025;0.9\n",
        {},
    ),
    "line 4: step is 'ten', no step": ("log.csv", HEADER + "\na,8,10,0.9\na,8,ten,0.4\n", {}),
    "line 2: step is '-1', no step": ("log.csv", HEADER + "a,8,-1,0.9\n", {}),
    "line 2: run is empty": ("log.csv", HEADER + ",8,10,0.9\na,8,20,0.4\n", {}),
    r"step is 0.25, but steps are whole .* --map epoch=step --set train_examples=N": (
        "log.csv",
        HEADER + "a,8,0.25,0.9\n",
        {},
    ),
    "it is not text in UTF-8": ("log.csv", GOOD.encode() + b"\xff\xfe,8,1,2\n", {}),
    "line 2 is not JSON: Expecting": ("log.jsonl", '{"run": "a"}\n{"run": \n', {}),
    "line 1 is '\\[1\\]', but each line must be an object": ("log.jsonl", "[1]\n", {}),
    "line 2 is not JSON": ("log.json", '[{"run": "a"},\n{"run": ]', {}),
    "cannot read log.parquet": ("log.parquet", "no parquet", {}),
    "log.json holds no log": ("log.json", '{"learning_rate": 0.1}', {}),
    "trainer_state.json: it has no list log_history": ("trainer_state.json", '{"log_history": 3}', {}),
    "no column names the run of a row.* --map run=batch_size,seed": (
        "log.csv",
        "batch_size,seed,step,val/loss\n8,1,10,0.9\n",
        {},
    ),
    "no column counts steps.* The columns are run, batch_size, val/loss.* --map step=COLUMN": (
        "log.csv",
        "run,batch_size,val/loss\na,8,0.9\n",
        {},
    ),
    "add --set train_examples=N": ("log.csv", GOOD.replace("step", "epoch"), {}),
    "step repeats epoch, so it counts epochs: --map epoch=step": (
        "log.csv",
        "run,batch_size,epoch,step,val/loss\na,8,1,1,0.9\na,8,2,2,0.4\n",
        {},
    ),
    "no run has a batch size.* --map batch_size=batch_sizes": (
        "log.csv",
        GOOD.replace("batch_size", "batch_sizes"),
        {},
    ),
    r"as 'x_bs8_lr0.1', a pattern: --run-name 'x_bs\{batch_size\}\*'": (
        "log.csv",
        "run,step,val/loss\nx_bs8_lr0.1,10,0.9\n",
        {},
    ),
    "as 'adam_bs2x8' does by more than its digits, a table with the columns run and batch_size": (
        "log.csv",
        "run,step,val/loss\nadam_bs2x8,10,0.9\n",
        {},
    ),
    "as 'a', a pattern: --run-name": ("log.csv", "run,step,val/loss\na,10,0.9\na,20,0.4\n", {}),
    "a batch size is a whole number of examples, at least 1, but 'a' has 64.5. Correct these values": (
        "log.csv",
        HEADER + "a,64.5,10,0.9\n",
        {},
    ),
    "log.csv: there are no rows, so nothing was measured": ("log.csv", HEADER, {}),
    "log.jsonl: there are no rows": ("log.jsonl", "\n", {}),
    r"run 'a' has several values of batch_size: 8, 16.* --map run=run,batch_size": (
        "log.csv",
        HEADER + "a,8,10,0.9\na,16,10,0.8\n",
        {},
    ),
    "--map step=steps: there is no such column; there are batch_size, run, step, val/loss": (
        "log.csv",
        GOOD,
        {"maps": ["step=steps"]},
    ),
    "--map must read NAME=COLUMN": ("log.csv", GOOD, {"maps": ["step"]}),
    "--map a/b=...: a metric begins with train/, val/ or test/": ("log.csv", GOOD, {"maps": ["a/b=step"]}),
    "only the name of a run has several columns": ("log.csv", GOOD, {"maps": ["step=a,b"]}),
    "--set must read NAME=VALUE": ("log.csv", GOOD, {"sets": ["optimizer="]}),
    "--run-name must name each value once": ("log.csv", GOOD, {"pattern": "bs64"}),
    "--run-name 'bs{batch_size}_\\*' does not fit the run 'a'": ("log.csv", GOOD, {"pattern": "bs{batch_size}_*"}),
    "a goal is needed of log.* --goal 'val/loss<0.401'": ("log.csv", GOOD, {"goals": []}),
    "several metrics could be the goal of log.*'val/loss<0.901', --goal 'train/loss<9.01'": (
        "log.csv",
        "run,batch_size,step,train/loss,val/loss\na,8,10,9,0.9\n",
        {"goals": []},
    ),
    "--goal 'val/accuracy>0.899'": ("log.csv", GROWS, {"goals": []}),
    "a goal must read 'METRIC < NUMBER'": ("log.csv", GOOD, {"goals": ["low"]}),
    "fits no workload; choose among log": ("log.csv", GOOD, {"goals": ["vit:val/loss<0.5"]}),
    "does not measure val/error, only val/loss.* --map val/error=COLUMN": (
        "log.csv",
        GOOD,
        {"goals": ["val/error<0.5"]},
    ),
    "val/accuracy rises during training, so it is no error.* --goal 'val/accuracy>0.899'": (
        "log.csv",
        GROWS,
        {"goals": ["val/accuracy<0.5"]},
    ),
    "val/bleu rises during training": (
        "log.csv",
        GROWS.replace("accuracy", "bleu"),
        {"goals": ["val/bleu<0.5"]},
    ),
    "goes up to 90 here and is at most 100; give a goal on the same scale": (
        "log.csv",
        GROWS.replace("0.", "9").replace("91", "10").replace("99", "90"),
        {"goals": ["val/accuracy>0.9"]},
    ),
    "is at most 1; give a goal on the same scale": ("log.csv", GROWS, {"goals": ["val/accuracy>90"]}),
    "val/loss was never measured": ("log.csv", HEADER + "a,8,10,\na,8,20,nan\n", {}),
    "no column is a metric of train/, val/ or test/. These change during a run: loss. Name one: --map val/loss=loss": (
        "log.csv",
        GOOD.replace("val/loss", "loss"),
        {},
    ),
}


def read(source, results, goals=("val/loss<0.5",), **asked):
    import_log(source, results, Asked.parse(**asked), goals)


@pytest.mark.parametrize("said", REFUSED)
def test_what_is_missing_or_malformed_is_said_with_its_cure(said, tmp_path):
    name, content, options = REFUSED[said]
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ImportRefused, match=f"(?s){said}") as caught:
        read(tmp_path / name, tmp_path / "results", **options)
    assert not (tmp_path / "results").exists()
    assert str(caught.value).endswith((".", "?", "'"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("config.json", '{"lr": 0.1,\n "x": }', r"config.json: line 2 is not JSON"),
        ("config.yaml", "lr: 0.1\nx: [1\ny: 2\n", r"config.yaml: line 3 is not YAML"),
        ("mlruns/0/r/metrics/loss", "1 0.5 10\n1 half 20\n", "line 2 is '1 half 20', not `timestamp value step`"),
        ("mlruns/0/r/meta.yaml", "run_name: [\n", "meta.yaml: it is not YAML"),
        ("mlruns/0/r/meta.yaml", "text", "meta.yaml: it holds no fields"),
    ],
)
def test_a_malformed_file_in_a_folder_is_named(name, content, said, tmp_path):
    run = tmp_path / "log" / "mlruns" / "0" / "r"
    (run / "metrics").mkdir(parents=True)
    (run / "meta.yaml").write_text("run_name: a\nstatus: 3\nlifecycle_stage: active\n")
    (tmp_path / "log" / "a.csv").write_text("batch_size,step,val/loss\n8,10,0.4\n")
    (tmp_path / "log" / name).write_text(content)
    with pytest.raises(ImportRefused, match=said):
        import_log(tmp_path / "log", tmp_path / "results", Asked(), ["val/loss<0.5"])


def test_nothing_in_a_source_is_executed(tmp_path):
    """YAML that names Python objects, as Lightning writes, is read without them."""
    (tmp_path / "log").mkdir()
    touched = tmp_path / "touched"
    config = f"batch_size: 8\nevil: !!python/object/apply:os.mkdir ['{touched}']\n"
    (tmp_path / "log" / "hparams.yaml").write_text(config)
    (tmp_path / "log" / "metrics.csv").write_text("step,val_loss\n10,0.9\n20,0.4\n")
    (tmp_path / "log" / "model.pkl").write_bytes(pickle.dumps(print))
    (tmp_path / "log" / "notes.json").write_text(json.dumps({"__reduce__": "os.system"}))
    import_log(tmp_path / "log", tmp_path / "results", Asked(), ["val/loss<0.5"])
    assert not touched.exists()
