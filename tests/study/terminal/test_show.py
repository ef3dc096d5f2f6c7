"""What the terminal says before a sweep."""

import math
from io import StringIO
from itertools import groupby
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from omegaconf import OmegaConf
from rich.console import Console

from analysis.counting import RACE
from analysis.labels import rough
from analysis.load import load
from analysis.tables import steps_to_result
from study import warn
from study.config.composed.compose import CONF
from study.config.jobs import Job
from study.devices.placement import Placement
from study.engine.cost import Cost, Work
from study.observers.base import Sweep
from study.observers.events import search_of, state_of
from study.search.tuner import Tuner
from study.settings import Budget
from study.terminal import costs, show
from study.terminal.claims import claims
from study.terminal.progress import SweepProgress
from study.terminal.steps import show_steps

PUBLISHED = Path("results/published")


@pytest.mark.parametrize(
    ("sizes", "fields", "said"),
    [
        ([8, 16, 32, 64], {"trials": 100}, "preset=quick, search.trials=50, batch_size=16,64 or budget.epochs=10"),
        ([64, 32, 16], {"trials": 8}, "search.trials=4, batch_size=16,64 or budget.epochs=10"),
        ([8, 16], {"trials": 8, "budget": Budget(0, 100)}, "search.trials=4"),
        ([8], {"trials": 1, "budget": Budget(0, 100)}, "a smaller model"),
        ([8], {"sampler": "refine", "trials": 29}, "preset=quick, search.refine=[4,4,3] or budget.epochs=10"),
        ([8], {"sampler": "refine", "refine": (4, 4, 3), "trials": 21}, "preset=quick or budget.epochs=10"),
    ],
)
def test_ways_to_cheapen_ask_for_less_than_the_sweep_does(make_study, sizes, fields, said):
    studies = [make_study(**({"batch_size": size, "budget": Budget(20, 100)} | fields)) for size in sizes]
    assert costs.ways_to_cheapen(studies) == said


def test_the_quick_preset_is_as_quick_as_is_said():
    quick = OmegaConf.load(CONF / "preset/quick.yaml")
    assert quick.search.trials == costs.QUICK_TRIALS


@pytest.mark.release
def test_what_races_leave_is_that_of_the_published_sweeps():
    studies = [study for folder in PUBLISHED.iterdir() if folder.is_dir() for study in load(folder)]
    shares = []
    for _, group in groupby(sorted(studies, key=lambda study: study.curve), key=lambda study: study.curve):
        curve = list(group)
        budgets = sum(len(steps_to_result.counted_trials(study)) * study.train_steps for study in curve)
        shares.append(steps_to_result.table(curve, stopping=RACE)["steps_trained"].sum() / budgets)
    assert pytest.approx(np.quantile(shares, [0.25, 0.75]), abs=0.005) == costs.RACES_LEAVE
    assert (min(shares), max(shares)) == pytest.approx((0.002, 1.0), abs=0.005)


@pytest.mark.parametrize(
    ("stopping", "step", "expected"),
    [("race", 1, True), ("race", 0.5, False), ("goal", 1, False), ("budget", 1, False)],
)
def test_only_long_races_are_expected_to_take_less(make_study, stopping, step, expected):
    console = Console(record=True, width=200)
    costs.show(console, [Work(make_study(stopping=stopping, budget=Budget(0, 100)), Cost(step, 0, 0), 10)], "cpu", 1)
    said = console.export_text()
    low, high = (rough(1000 * share) for share in costs.RACES_LEAVE)
    assert (f"Expect {low} to {high}:" in said) == expected
    assert f"About {rough(1000 * step)} at full budget" in said


def test_each_way_to_split_a_batch_is_told_once(make_study):
    """Two curves may split one batch size in two ways; the searches of one curve split it alike."""
    console = Console(record=True, width=120)
    works = [
        Work(make_study(optimizer=optimizer, batch_size=8), Cost(1, 1, 1, parts=parts), 2)
        for optimizer, parts in [("sgd", ((4, 4),)), ("sgd", ((4, 4),)), ("momentum", ((2, 2, 2, 2),))]
    ]
    costs.show(console, works, "cpu", 1)
    said = [line for line in console.export_text().splitlines() if line.startswith("Batch size")]
    assert said == [
        "Batch size 8 = 1 device x 2 accumulation steps of at most 4 examples.",
        "Batch size 8 = 1 device x 4 accumulation steps of at most 2 examples.",
    ]


@pytest.mark.parametrize("tokens", [None, 8])
@pytest.mark.parametrize("width", [26, 32, 40, 48, 60, 80])
def test_costs_break_no_word_or_number(make_study, width, tokens):
    study = make_study(budget=Budget(0, 1_234_567), tokens_per_example=tokens)

    def table(width):
        console = Console(file=StringIO(), width=width)
        costs.show(console, [Work(study, Cost(0.0123, 0, 0), 1000)], "cpu", 1)
        return console.file.getvalue().split("\n\n")[0].splitlines()

    assert max(map(len, table(width))) <= width
    words = {*" ".join(table(width)).split()}
    assert {"batch", "trials", "budget", "1,000", "4,218"} <= words <= {*" ".join(table(120)).split()}


SPLIT = {"batch size": "65,536", "split": "8 x 128 x 64", "steps": "1,234", "a step": "< 13 ms", "time": "1 h 05 min"}
SPLIT |= {"up to": "2 h 10 min", "device time": "8 h 40 min", "cost": "17.3", "": "cheapest"}
SPLITS = {"accumulation": ["1", "2"], "1 device": ["64: does not fit", ""], "8 devices": ["8: 1 h 05 min *", ""]}
CLAIM = {"claim": "a", "text": "The metaparameters that reach the goal become fewer.", "verdict": "contradicted"}
CLAIM |= {"shown": 12, "statements": 34, "parts": [], "settle": ""}


def advice(console):
    frames = [pd.DataFrame([SPLIT]), pd.DataFrame(SPLITS)]
    for frame in frames:
        frame.attrs["title"] = ""
    show.advice(console, *frames, [], [])


@pytest.mark.parametrize("table", [advice, lambda console: claims(console, [CLAIM])], ids=["advice", "claims"])
@pytest.mark.parametrize("width", [36, 40, 48, 60, 80])
def test_advice_and_claims_break_no_word_or_number(table, width):
    def shown(width):
        console = Console(file=StringIO(), width=width)
        table(console)
        return console.file.getvalue().splitlines()

    assert max(map(len, shown(width))) <= width
    words = {*" ".join(shown(width)).split()}
    assert {*" ".join(shown(36)).split()} <= words <= {*" ".join(shown(120)).split()}


def test_predicted_costs_are_told_apart_from_measured_ones(make_study):
    console = Console(record=True, width=200)
    sizes = {64: (), 1024: (16, 64), 2048: (16, 64)}
    studies = {size: make_study(batch_size=size, examples=4096) for size in sizes}
    works = [Work(studies[size], Cost(1, 0, 0, predicted_from=bases), 2) for size, bases in sizes.items()]
    costs.show(console, works, "cpu", 1)
    told = "Not measured: batch sizes 1,024 and 2,048, predicted from the steps of batch sizes 16 and 64."
    assert told in console.export_text()
    assert [work.plan(1).get("predicted_from") for work in works] == [None, [16, 64], [16, 64]]


def test_searches_that_train_at_once_have_a_bar_each(make_study, make_curve):
    console = Console(record=True, width=120)
    large, small = (make_study(batch_size=size, trials=1) for size in (64, 8))
    cost = Cost(0.001, 0.0, 0.0)
    one, other = (search_of(study, Path("results"), cost.trial(study)) for study in (large, small))
    with SweepProgress(console) as progress:
        progress.begin(Sweep("", [one, other]))
        progress.trial(one, state_of(Tuner(large)), None)
        progress.trial(other, state_of(Tuner(small)), None)
        shown = [bar.description for bar in progress.bars.tasks]
        progress.trial(other, state_of(Tuner(small, [make_curve(small, 0, reaches=20)])), None)
        left = [bar.description for bar in progress.bars.tasks]
    assert shown == ["whole sweep", "batch size 64", "batch size 8"]
    assert left == ["whole sweep", "batch size 64"]
    assert "batch size 8: 1 done" in console.export_text()


def test_optimizers_side_by_side_show_the_tokens_of_a_batch(capsys):
    steps = pd.read_csv("results/published/mlp_digits/tables/steps_to_result.csv")
    show_steps(Console(width=79, color_system=None), steps.assign(tokens_per_example=32), [], [])
    lines = capsys.readouterr().out.splitlines()
    assert next(line for line in lines if "batch size" in line).split()[:5] == ["batch", "size", "tokens", "in", "it"]
    assert any(line.split()[:2] == ["1,024", "32,768"] for line in lines)


@pytest.mark.parametrize(("infeasible", "last"), [(0, "complete"), (3, "infeasible")])
def test_a_tuned_schedule_is_named_before_the_count_of_no_infeasible_trials(capsys, infeasible, last):
    steps = pd.read_csv(PUBLISHED / "mlp_digits/tables/steps_to_result.csv").assign(infeasible=infeasible)
    steps.insert(list(steps).index("learning_rate"), "schedule", "linear_decay")
    show_steps(Console(width=80), steps[steps["optimizer"] == "momentum"], [], [])
    heads = capsys.readouterr().out.split("1,024")[0]
    assert ("schedule" in heads) == (not infeasible)
    assert last in heads


def test_an_optimizer_without_momentum_has_no_column_for_it(capsys):
    steps = pd.read_csv("results/published/mlp_digits/tables/steps_to_result.csv")
    other = steps[steps["optimizer"] == "momentum"].assign(optimizer="torch.optim.RAdam", momentum=math.nan)
    show_steps(Console(width=120), pd.concat([steps, other]), [], [])
    assert "nan" not in capsys.readouterr().out


SIGNS = (
    "Brackets: 95 % intervals.",
    "≤ n: the goal was met at the first",
    "> n: the goal was not reached within the budget",
)


@pytest.mark.parametrize(
    ("optimizer", "meanings"), [("adamw", [SIGNS[0]]), ("muon", SIGNS[:2]), ("sgd", [SIGNS[0], SIGNS[2]])]
)
def test_a_table_names_its_goal_and_explains_its_signs(capsys, optimizer, meanings):
    steps = pd.read_csv(PUBLISHED / "lstm_shakespeare/tables/steps_to_result.csv")
    show_steps(Console(width=200), steps[steps["optimizer"] == optimizer], [], [])
    printed = capsys.readouterr().out
    assert f"lstm_shakespeare, {optimizer}: steps to validation cross entropy < 2.3" in printed
    assert [meaning for meaning in SIGNS if meaning in printed] == [*meanings]


@pytest.mark.parametrize(("width", "meanings"), [(200, SIGNS[:1]), (40, ())])
def test_signs_that_a_narrow_table_has_no_room_for_are_not_explained(capsys, width, meanings):
    steps = pd.read_csv(PUBLISHED / "fc_mnist_128/tables/steps_to_result.csv")
    show_steps(Console(width=width), steps, [], [])
    printed = " ".join(capsys.readouterr().out.split())
    assert [meaning for meaning in SIGNS if meaning in printed] == [*meanings]


@pytest.mark.parametrize(("width", "shown"), [(120, ["AdamW_fused"]), (30, ["AdamW_", "fused"])])
def test_an_optimizer_has_one_name_in_tables_and_sentences(width, shown):
    steps = pd.read_csv("results/published/mlp_digits/tables/steps_to_result.csv")
    console = Console(width=width, record=True)
    show_steps(console, steps.replace({"optimizer": {"momentum": "AdamW_fused"}}), [], [])
    said = console.export_text()
    assert [name for name in shown if name not in said] == []
    assert "AdamW fused" not in said


@pytest.mark.parametrize(
    ("width", "there"), [(120, ["label smoothing", "weight decay"]), (80, ["weight"]), (60, ["learning"])]
)
def test_the_table_has_what_was_searched_as_far_as_the_line_goes(width, there):
    steps = pd.read_csv("results/published/narrow_cnn_fashion_mnist/tables/steps_to_result.csv")
    steps = steps[steps["optimizer"] == "adam"].assign(seeds=0)
    steps.insert(steps.columns.get_loc("steps_n"), "label_smoothing", [0.0, 0.1, 0.2, 0.3, 0.4])
    steps["weight_decay"] = [0.0, 0.01, 0.02, 0.03, 0.04]
    console = Console(width=width, record=True)
    show_steps(console, steps, [], [])
    said = console.export_text()
    assert [name for name in there if name not in said] == []
    assert "\N{HORIZONTAL ELLIPSIS}" not in said
    assert "0.00121" in said


@pytest.mark.parametrize(
    ("megabytes", "lanes", "minutes", "said"),
    [
        (26, 100, 10.0, "Every 10 minutes the checkpoints of 100 trials of tiny take 2.6 GB"),
        (26, 64, 60.0, "Every 60 minutes the checkpoints of 128 trials of tiny take 3.3 GB"),
        (26, 10, 10.0, ""),
        (26, 100, None, ""),
    ],
)
def test_large_checkpoints_are_mentioned(make_study, megabytes, lanes, minutes, said, capsys):
    study = make_study(trials=100 if lanes == 100 else 200)
    placement = Placement(device="cuda", checkpoint_minutes=minutes)
    job = Job(study, Path("nowhere"), placement, checkpoint_bytes=megabytes * 10**6)
    warn.of_checkpoints([(job, Cost(1.0, 1.0, 1.0, lanes=lanes))], 2, Console(width=200))
    found = " ".join(capsys.readouterr().out.split())
    assert found.startswith(said) if said else not found
    warn.of_checkpoints([], 2, Console())


CERTIFICATE = "certificate of trial 13 at step 21"
HEADINGS = ("batch size", "search", "trials", "steps each", "examples", "ms a step", "evaluating", "at full budget")


@pytest.mark.parametrize("width", [72, 80, 90, 120])
@pytest.mark.parametrize("search", ["", "reruns of trial 13", "verified constant from 4", CERTIFICATE])
def test_a_table_folds_between_words_where_they_fit(width, search):
    table = show.columns(*HEADINGS)
    table.add_row("64", search, "20", "21", "27 k", "0.221", "31%", "< 1 s")
    out = StringIO()
    Console(file=out, width=width).print(table)
    printed = out.getvalue().split()
    assert sorted(printed) == sorted(" ".join([*HEADINGS, "64", search, "20 21 27 k 0.221 31% < 1 s"]).split())
    assert max(map(len, out.getvalue().splitlines())) <= width
