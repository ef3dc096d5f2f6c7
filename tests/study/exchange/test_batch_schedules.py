"""Schedules for other trainers: what is written means the batch sizes that this project trains with."""

import csv
import io
import re
import tomllib
from itertools import pairwise

import pytest

from analysis.question.batch_schedules import BatchSchedule
from study.errors import UsageError
from study.exchange.batch_schedules import FORMATS, Written

RAMP = ("ramp", {"batch_growth": 4, "batch_ramp_fraction": 0.5})
DOUBLING = ("doubling", {"batch_first_switch_fraction": 0.05, "batch_switch_ratio": 4})
STEP = ("step", {"batch_growth": 3, "batch_first_switch_fraction": 0.2, "batch_switches": 2})
BUDGET = 9600


def written(kind, values, coupling="none", tokens=None, first=8):
    schedule = BatchSchedule(kind, coupling)
    given = first, BUDGET, 5000, values
    return Written("mine", schedule.points(*given), schedule.phases(*given), schedule, tokens)


def batch_sizes(of_seen, budget):
    """The batch sizes of a trainer that asks for the next one with the examples seen so far."""
    seen, found = 0, []
    while seen < budget:
        found.append(of_seen(seen))
        seen += found[-1]
    return found


def ours(made):
    return [made.phases.size(step) for step in range(made.phases.steps)]


@pytest.mark.parametrize(("kind", "values"), [RAMP, DOUBLING, STEP])
def test_csv_holds_every_phase(kind, values):
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](written(kind, values, "linear", tokens=3))["schedule.csv"])))
    made = written(kind, values)
    found = []
    for row, following in pairwise(rows):
        found += [int(row["batch_size"])] * (int(following["step"]) - int(row["step"]))
        assert float(row["learning_rate_factor"]) == int(row["batch_size"]) / 8
        assert int(row["tokens_seen"]) == 3 * int(row["examples_seen"])
    assert found == ours(made)
    assert int(rows[-1]["examples_seen"]) == sum(found)


@pytest.mark.parametrize("tokens", [None, 16])
@pytest.mark.parametrize(("kind", "values"), [RAMP, DOUBLING, STEP])
def test_megatron_steps_at_the_same_updates(kind, values, tokens):
    made = written(kind, values, tokens=tokens)
    text = FORMATS["megatron"](made)["megatron.args"]
    steps = re.search(r'--step-batch-size-schedule "(.*)"', text)[1]
    points = [tuple(map(int, each.split(":"))) for each in steps.split()]
    unit = tokens or 1
    found = batch_sizes(lambda seen: [size for place, size in points if place <= seen * unit][-1], BUDGET)
    assert found == ours(made)
    assert f"--train-samples {sum(found)}" in text


def test_megatrons_ramp_is_ours():
    """As Megatron Core computes it: start + increment x floor(consumed / samples per increment), then the last one."""
    made = written(*RAMP)
    text = FORMATS["megatron"](made)["megatron.args"]
    start, increment, samples, last = map(
        int, re.search(r"--rampup-batch-size (\d+) (\d+) (\d+) --global-batch-size (\d+)", text).groups()
    )
    per_increment = samples / ((last - start) / increment)

    def size(seen):
        return last if seen > samples else min(last, start + increment * int(seen / per_increment))

    assert batch_sizes(size, BUDGET) == ours(made)
    for other in (DOUBLING, STEP, ("ramp", RAMP[1] | {"batch_growth": 3.5})):
        assert "--rampup-batch-size cannot express it" in FORMATS["megatron"](written(*other))["megatron.args"]


def test_megatron_is_told_of_a_coupling_that_it_lacks():
    assert "does not couple" not in FORMATS["megatron"](written(*DOUBLING))["megatron.args"]
    assert "here it was times 1, 2, 4, 8" in FORMATS["megatron"](written(*DOUBLING, "linear"))["megatron.args"]


def test_olmo_gets_tokens_and_whole_factors():
    text = FORMATS["olmo"](written(*DOUBLING, "square_root", tokens=10))["olmo.py"]
    compile(text, "olmo.py", "exec")
    assert "batch_sizes=[80, 160, 320, 640]" in text
    assert (
        "schedule=[Duration.tokens(0), Duration.tokens(4800), Duration.tokens(19200), Duration.tokens(76800)]" in text
    )


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ((*DOUBLING, "square_root"), "the tokens of an example are unknown; give --tokens"),
        ((*RAMP, "square_root", 10), "whole factors alone, but got 16 -> 24 and 24 -> 32"),
        ((*DOUBLING, "linear", 10), "trained with batch_schedule.coupling=linear; choose square_root"),
    ],
)
def test_olmo_refuses_what_it_would_train_otherwise(how, said):
    with pytest.raises(UsageError, match=re.escape(said)):
        FORMATS["olmo"](written(*how))


def test_torchtitan_goes_on_from_stage_to_stage():
    made = written(*DOUBLING, "linear")
    files = FORMATS["torchtitan"](made)
    found, before = [], 0
    for number, text in enumerate(files.values(), start=1):
        assert list(files)[number - 1] == f"stage-{number}.toml"
        read = tomllib.loads(text)
        found += [read["training"]["global_batch_size"]] * (read["training"]["steps"] - before)
        before = read["training"]["steps"]
        assert read["checkpoint"]["enable"]
        assert f"optimizer.lr: {found[-1] / 8:g} times" in text
    assert found == ours(made)
