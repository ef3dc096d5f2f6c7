"""The README and the docs: their commands are accepted, their code runs, their numbers are those of the files."""

import importlib
import importlib.util
import json
import re
import shlex

import matplotlib
import numpy as np
import pandas as pd
import pytest
import torch
from house import doc_pages

from analysis import figures
from analysis.counting import Goal
from analysis.figures.registry import Drawing
from study.__main__ import TAKE_OVERRIDES
from study.branch import request as requests
from study.commands import VERBS, parser
from study.config.jobs import parse_jobs
from study.optimizers.base import Optimizer, in_place
from study.schedules import Schedule
from study.space import Legal
from workloads.user_code.importing import importable

ROOT = doc_pages.ROOT
PUBLISHED = "results/published/mlp_digits"
OWN = "docs/guide/own-optimizer.md"
ADAPTERS = "docs/guide/adapters.md"
IMAGES = "docs/guide/images.md"
TEXT = "docs/guide/language-models.md"
SCRIPT = "docs/guide/own-script.md"
COMMANDS = doc_pages.commands()
PLUGINS = {"slurm": "hydra_plugins.hydra_submitit_launcher", "ray": "hydra_plugins.hydra_ray_launcher"}


@pytest.fixture
def mine(tmp_path):
    """The folder `mine` with the files that the pages say to create there; beside it, results that they read."""
    for page in ("README.md", OWN, ADAPTERS, IMAGES, TEXT, SCRIPT):
        for name, content in doc_pages.named_blocks(page).items():
            path = tmp_path / "mine" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
    branched = tmp_path / "results/branched/tables/branched.csv"  # of an earlier command of the page
    branched.parent.mkdir(parents=True)
    branched.write_text("workload,optimizer,examples_seen,critical_batch_size,low,high\nmlp_digits,sgd,400,16,8,32\n")
    return tmp_path / "mine"


def test_the_pages_print_commands_of_every_verb():
    verbs = {arguments.partition(" ")[0] for arguments in COMMANDS}
    assert verbs == {*VERBS} - {"calibrate"}


def _cells():
    """The commands; slow are those with at most two choices or keys that no longer one has, and for releases those
    without any."""
    seen = set[str]()
    for arguments in sorted(COMMANDS, key=lambda each: -len(each.split())):
        new = {re.sub(r"(\.\w+|results|batch_sizes?|shards)=.*", r"\1", word) for word in arguments.split()} - seen
        seen |= new
        yield pytest.param(arguments, marks=[] if len(new) > 2 else [pytest.mark.slow if new else pytest.mark.release])


@pytest.mark.parametrize("arguments", list(_cells()))
def test_every_printed_command_is_accepted(arguments, mine, monkeypatch):
    monkeypatch.chdir(mine.parent)
    options, rest = parser().parse_known_args(shlex.split(arguments))
    if options.verb not in TAKE_OVERRIDES:
        assert rest == []
        return
    assert all("=" in word for word in rest)
    _, words = (
        requests.parsed([*options.overrides, *rest]) if options.verb == "branch" else ((), [*options.overrides, *rest])
    )
    if any("=" not in word for word in words):
        return  # the results to branch from
    if "workload=reviews" in words:
        pytest.importorskip("datasets", reason="the extra adapters is not installed")
    overrides = [word for word in words if _composes_here(word, arguments)]
    monkeypatch.syspath_prepend(str(mine))
    importable(options.config_dir)
    assert parse_jobs(overrides, options.config_dir)


def _composes_here(word: str, arguments: str) -> bool:
    """False for what a launcher must know that is not installed."""
    asked = [module for name, module in PLUGINS.items() if f"cluster={name}" in arguments]
    return all(map(importlib.util.find_spec, asked)) or not word.startswith(("cluster=", "hydra.launcher"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "command", "shown"), doc_pages.console_examples(), ids=lambda value: getattr(value, "stem", None)
)
def test_console_examples_print_what_the_page_shows(page, command, shown):
    assert doc_pages.output(command) == shown, "run: python tests/house/doc_pages.py"


def test_links_between_files_lead_somewhere():
    for page in doc_pages.PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
            assert re.match("https?:", target) or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.slow
def test_the_notebook(monkeypatch):
    monkeypatch.chdir(ROOT)
    matplotlib.use("agg")
    names: dict[str, object] = {}
    for block in doc_pages.blocks("docs/guide/notebooks.md", "python"):
        exec(block, names)
    steps, limits, curves = (names[name] for name in ("steps", "ends", "curves"))
    assert set(steps["optimizer"]) == {"momentum", "sgd"}
    assert "maximum_useful_batch_size" in set(limits["definition"])
    assert list(curves.columns[:2]) == ["trial", "step"]
    assert names["ax"].get_ylabel().startswith("training steps to")
    names["plt"].close("all")


def test_the_data_set_on_disk(tmp_path):
    names: dict = {}
    exec(doc_pages.blocks("docs/guide/own-workload.md", "python")[0], names)
    np.save(tmp_path / "images.npy", np.arange(12, dtype="uint8").reshape(3, 4))
    np.save(tmp_path / "labels.npy", np.array([0, 1, 2]))
    found = names["Images"](tmp_path)
    inputs, target = found[1]
    assert len(found) == 3
    assert inputs.dtype == np.float32
    assert (inputs.tolist(), target) == ([4.0, 5.0, 6.0, 7.0], 1)


def test_the_optimizer_class(mine, monkeypatch):
    monkeypatch.syspath_prepend(str(mine))
    weight = torch.nn.Parameter(torch.tensor([1.0, -1.0]))
    optimizer = importlib.import_module("signs").SignMomentum([weight], lr=0.5, momentum=0.5)
    for gradient in ([1.0, -1.0], [-0.25, 2.0]):
        weight.grad = torch.tensor(gradient)
        optimizer.step()
    # Velocities [1, -1], then [0.25, 1.5].
    assert weight.tolist() == [0.0, -1.0]


def own_code(number: int, **names: object) -> dict:
    """The names that a block of the page on optimizers, schedules and figures defines."""
    exec(doc_pages.blocks(OWN, "python")[number], names)
    return names


def test_the_rule_of_an_optimizer_updates_two_lanes():
    rule = own_code(1)["sign_sgd"]
    registered = own_code(2, OPTIMIZERS={}, Optimizer=Optimizer, Legal=Legal, sign_sgd=rule)["OPTIMIZERS"]["sign_sgd"]
    weights, gradients = torch.ones(2, 2), torch.tensor([[3.0, -3.0], [-1.0, 0.0]])
    in_place(registered)(weights, gradients, {}, {"learning_rate": torch.tensor([[0.5], [1.0]])}, torch.ones(2, 1))
    assert weights.tolist() == [[0.5, 1.5], [2.0, 1.0]]


def test_the_schedule_begins_at_one_and_ends_at_its_factor():
    schedule = own_code(3, SCHEDULES={}, Schedule=Schedule, Legal=Legal)["SCHEDULES"]["quadratic_decay"]
    values = {"end_learning_rate_factor": 0.2}
    factor = schedule.factor(100, 8, values)
    assert [factor(step) for step in (0, 50, 100)] == pytest.approx([1, 0.4, 0.2])


def test_the_figure_is_drawn():
    draw = own_code(4)["learning_rate_per_example"]
    registered = own_code(5, FIGURES={}, Drawing=Drawing, learning_rate_per_example=draw)["FIGURES"]
    steps = pd.read_csv(ROOT / PUBLISHED / "tables/steps_to_result.csv")
    chart = figures.Chart("new", registered["learning_rate_per_example"], "", [{"steps_to_result": steps}])
    [figure] = figures.draw(chart)
    assert figure.axes[0].get_ylabel() == "learning rate / batch size"
    assert len(figure.axes[0].lines) == steps["optimizer"].nunique()


def test_the_critical_batch_sizes_of_the_readme():
    text = (ROOT / "README.md").read_text()
    place = re.search(r"\]\((results/published/\w+)/figures/steps_to_result\.svg\)", text)[1]
    limits, pairs = (pd.read_csv(ROOT / place / f"tables/{name}.csv") for name in ("scaling", "compare"))
    goal = Goal.parse(re.search(r"The goal is\s`(.*?)`", text)[1])
    assert {(goal.metric, goal.threshold)} == {*zip(limits["goal_metric"], limits["goal_threshold"], strict=True)}
    limits = limits.set_index(["optimizer", "definition"])
    told = re.findall(r"([\d,]+) \(([\d,]+) to ([\d,]+)\)\swith (\w+)", text)
    assert [optimizer for *_, optimizer in told] == ["Adam", "momentum", "SGD"]
    for *numbers, optimizer in told:
        row = limits.loc[(optimizer.lower(), "critical_batch_size_mccandlish")]
        assert [f"{row[f'estimate{end}']:,.0f}" for end in ("", "_low", "_high")] == numbers
    pairs = pairs[pairs["kind"] == "two configurations"].set_index(["a", "b", "smallest_batch_size"])
    assert "At batch sizes 8 and 32 the three are tied" in text
    assert not pairs.loc[pairs.index.isin([8, 32], level=2), "shown"].any()
    [told] = re.findall(r"at 512 momentum needs ([\d.]+) times\s\(([\d.]+) to ([\d.]+)\) fewer steps than SGD", text)
    row = pairs.loc[("momentum", "sgd", 512)]
    assert [round(row[name], 2) for name in ("ratio", "low", "high")] == [float(number) for number in told]


def test_the_figures_of_the_readme_are_among_the_measured_ones():
    table = (ROOT / "README.md").read_text().partition("## How it compares")[2].partition("\n## ")[0]
    measured = (ROOT / "docs/speed.md").read_text()
    numbers = re.findall(r"\d[\d.]* s\b|(?<=\| )\d+\.\d(?= \|)", table)
    assert len(numbers) > 6
    assert [number for number in numbers if number not in measured] == []


def test_the_comparison_of_optimizers_is_the_published_one():
    tables = ROOT / "results/published/narrow_cnn_fashion_mnist/tables"
    steps, limits, pairs = (pd.read_csv(tables / f"{name}.csv") for name in ("steps_to_result", "scaling", "compare"))
    text = (ROOT / "docs/guide/optimizers.md").read_text()
    rows = re.findall(r"^\| `(\w+)`((?: \| \d+)+) \| (\d+) \((\d+) to (\d+)\) \|$", text, re.MULTILINE)
    both = steps[steps["batch_size"].isin([4, 16, 64, 256, 512])]  # SGD has more
    found = both.pivot(index="optimizer", columns="batch_size", values="tuned_steps").round()
    assert {row[0]: [int(each) for each in row[1].split(" | ")[1:]] for row in rows} == found.T.to_dict("list")
    critical = limits[limits["definition"] == "critical_batch_size_mccandlish"].set_index("optimizer")
    critical = critical[["estimate", "estimate_low", "estimate_high"]].round()
    assert {row[0]: [int(each) for each in row[2:]] for row in rows} == critical.T.to_dict("list")
    trainings = [each[["complete", "infeasible", "seeds"]].sum().sum() for each in (both, steps)]
    assert trainings == [825 + 20, 825 + 242]  # four more seeds of SGD at each of five batch sizes
    assert re.search(r"825\strainings.*242\strainings", text, re.DOTALL)
    [row] = pairs[pairs["kind"].str.contains("all|beyond|up to") & pairs["shown"]].round(2).to_dict("records")
    told = f"{row['a'].upper()} needs {row['ratio']} times ({row['low']} to {row['high']}) fewer steps"
    assert told in text
    assert told in (ROOT / "README.md").read_text()


def test_the_comparison_of_optimizers_on_shakespeare_is_the_published_one():
    tables = ROOT / "results/published/transformer_shakespeare/tables"
    steps, limits, pairs = (pd.read_csv(tables / f"{name}.csv") for name in ("steps_to_result", "scaling", "compare"))
    text = (ROOT / "docs/guide/language-models.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)`((?: \| [\d,]+| \| not reached)+) \|(?: (\d+) \((\d+) to (\d+)\), ([\d.]+) k| \|)", text, re.M
    )
    found = steps.pivot(index="optimizer", columns="batch_size", values="tuned_steps").round()
    told = {
        name: ["not reached" if pd.isna(each) else f"{each:,.0f}" for each in of] for name, *of in found.itertuples()
    }
    assert {row[0]: row[1].split(" | ")[1:] for row in rows} == told
    critical = limits[limits["definition"] == "critical_batch_size_mccandlish"].set_index("optimizer")
    critical = critical[["estimate", "estimate_low", "estimate_high"]].dropna()
    said = {row[0]: [float(each) for each in row[2:5]] for row in rows if row[2]}
    assert said == {name: [*of] for name, *of in critical.round().itertuples()}
    assert {row[0]: float(row[5]) for row in rows if row[5]} == (critical["estimate"] * 64 / 1000).round(1).to_dict()
    assert f"{steps[['complete', 'infeasible', 'seeds']].sum().sum()}\ntrainings" in text
    row = pairs[(pairs["kind"] == "all batch sizes") & pairs["shown"]].iloc[0]
    told = f"{1 / row['ratio']:.2f} times ({1 / row['high']:.2f} to {1 / row['low']:.2f}) fewer steps than AdamW"
    assert f"Muon needs {told}" in text
    assert f"Muon needs {told}" in (ROOT / "README.md").read_text()


def test_the_file_format_names_every_key_of_a_question():
    question = json.loads((ROOT / PUBLISHED / "studies/mlp_digits/sgd/64/study.json").read_text())["question"]
    page = (ROOT / "docs/reference/format.md").read_text()
    table = page.partition("The keys of `question`")[2].partition("\nAsking")[0]
    keys = {key for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for key in re.findall(r"`(\w+)`", row)}
    assert keys == {*question, "no_decay", "tokens_per_example", "batch_schedule", "budget_examples"}


def test_own_text_becomes_windows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "notes").mkdir()
    for number in range(50):
        (tmp_path / f"notes/{number}.txt").write_text(f"Note {number}. " * 300)
    names: dict = {}
    exec(doc_pages.blocks("docs/guide/language-models.md", "python")[-1], names)
    assert names["inputs"].shape == names["targets"].shape == (1000, 64)


def test_pairs_of_batch_size_and_learning_rate_are_fitted(capsys):
    exec(doc_pages.blocks("docs/guide/one-step.md", "python")[0], {})
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[0] for line in said] == ["log", "linear"]
    assert all(0.4 < float(line[1]) < 0.6 and float(line[3]) < float(line[2]) < float(line[4]) for line in said)
