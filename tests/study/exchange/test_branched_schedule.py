"""`study schedule` on results of `study branch`: what is written is what the branches were measured with."""

import csv
import io
from argparse import Namespace

import pandas as pd
import pytest

from analysis.question.measured import TABLE
from study.commands.beyond.schedules import schedule_of
from study.errors import UsageError
from study.exchange.batch_schedules import FORMATS

ASKED = dict.fromkeys(("workload", "optimizer", "batch_size", "rule", "tokens"))


def branched(folder, **columns):
    (folder / "tables").mkdir()
    base = {"workload": "mine", "optimizer": "sgd", "batch_size": 16, "examples_seen": [3200, 6400], "rule": "linear"}
    pd.DataFrame(base | {"critical_batch_size": [64, 256]} | columns).to_csv(folder / TABLE, index=False)
    return Namespace(results=folder, examples=12800, **ASKED)


@pytest.mark.parametrize(("rule", "power"), [("linear", 1), ("square_root", 0.5), ("constant", 0)])
def test_it_begins_as_the_trunk_and_moves_the_learning_rate_as_the_branches_did(tmp_path, rule, power):
    made = schedule_of(branched(tmp_path, rule=rule))
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](made)["schedule.csv"])))[:-1]
    assert [int(row["batch_size"]) for row in rows] == [16, 64, 256]
    assert [int(row["examples_seen"]) for row in rows] == [0, 3200, 6400]
    assert [float(row["learning_rate_factor"]) for row in rows] == [1, 4**power, 16**power]
    assert ("does not couple the learning rate" in FORMATS["megatron"](made)["megatron.args"]) == (power > 0)


def test_olmo_takes_what_was_measured_with_the_square_root(tmp_path):
    asked = branched(tmp_path, rule="square_root")
    asked.tokens = 64
    assert "batch_sizes=[1024, 4096, 16384]" in FORMATS["olmo"](schedule_of(asked))["olmo.py"]


def test_of_several_rules_one_must_be_chosen(tmp_path):
    asked = branched(tmp_path, rule=["linear", "square_root"])
    with pytest.raises(UsageError, match="choose one rule of the branches with --rule, among linear, square_root"):
        schedule_of(asked)
    asked.rule = "square_root"
    made = schedule_of(asked)
    assert (made.phases.sizes, made.factors) == ((16, 256), [1, 4])


def test_of_several_trunks_only_the_chosen_one_counts(tmp_path):
    along = {"batch_size": [8, 8, 256, 256], "examples_seen": [3200, 6400, 1000, 6400]}
    asked = branched(tmp_path, **along, critical_batch_size=[16, 32, 512, 1024])
    with pytest.raises(UsageError, match="choose one batch size of the branches with --batch-size, among 8, 256"):
        schedule_of(asked)
    asked.batch_size = 8
    assert schedule_of(asked).phases.sizes == (8, 16, 32)
    asked.batch_size = 256
    assert schedule_of(asked).phases.sizes == (256, 512, 1024)
