"""Studies whose schedule was tuned, from their search to their page: every command, table and format knows of names."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers.processes import tables

from analysis import figures
from analysis.figures import canvas, tuning
from analysis.load import load
from analysis.report import build
from analysis.report.page import page, write_tables
from analysis.tables import trials
from study import store, transfer
from study.__main__ import main
from study.config.jobs import Job
from study.devices.placement import Placement
from study.schedules import SCHEDULES
from study.search import stages
from study.search.tuner import Tuner
from study.settings import Seeds

NAMES = ["constant", "linear_decay", "exponential"]
SPACE = {
    "learning_rate": {"low": 1e-3, "high": 1.0, "scale": "log"},
    "schedule": NAMES,
    "learning_rate_decay_fraction": {"low": 0.5, "high": 1.0},
    "end_learning_rate_factor": {"low": 1e-4, "high": 0.1, "scale": "log"},
}
MOMENTUM = {"momentum": {"low": 0.0, "high": 0.999, "scale": "reverse_log", "hard": ["low"]}}
CONDITIONAL = ["learning_rate_decay_fraction", "end_learning_rate_factor"]


def steps(hyperparameters):
    """The fewest for a linear decay over most of the budget."""
    return {"constant": 60, "exponential": 50}.get(hyperparameters["schedule"]) or round(
        80 - 60 * hyperparameters["learning_rate_decay_fraction"]
    )


@pytest.fixture(scope="module")
def results(tmp_path_factory, make_study, make_curve, write_study):
    """Two optimizers at two batch sizes, with reruns of the tuned configurations and their transfers by each rule."""
    folder = tmp_path_factory.mktemp("made")

    def write(study):
        bare = [make_curve(study, index) for index in range(study.search.trials)]
        curves = [make_curve(study, n, reaches=steps(curve.trial.hyperparameters)) for n, curve in enumerate(bare)]
        write_study(folder, study, curves)
        return curves

    for optimizer, more in (("sgd", {}), ("momentum", MOMENTUM)):
        fields = {"space": SPACE | more, "schedule": "tuned", "trials": 12, "reruns": 3, "stopping": "budget"}
        fields["seeds"] = Seeds(shared=True)  # so that both batch sizes tune the same configuration
        studies = [make_study(optimizer=optimizer, batch_size=size, **fields) for size in (8, 16)]
        for study in studies:
            write(stages.rerun(Tuner(study, write(study))))
        jobs = {study.batch_size: Job(study, folder, Placement()) for study in studies}
        moved, _ = transfer.transfers_of_curve(jobs, transfer.TransferRequest(seeds=2))
        for study in [study for each in moved for study in each.studies]:
            write(study)
    return folder


OVERRIDE = "search.space.schedule=[constant,linear_decay]"
GOAL = "val/classification_error < 0.5"
COMMANDS = [
    # Words, the exit status, and words of the answer; slow ones draw figures or check a workload.
    (["status", "RESULTS"], 0, ["12 of 12", "reruns of trial"]),
    (["advise", "RESULTS", "--gpus", "2", "--step-ms", "8:1,16:2"], 0, ["fastest"]),
    (["export", "RESULTS", "TMP/csv", "--format", "csv"], 0, ["Exported"]),
    (["sweep", OVERRIDE, "--cfg"], 0, ["schedule: tuned", "learning_rate_decay_fraction:", "- linear_decay"]),
    (["sweep", OVERRIDE, "schedule=cosine"], 2, ["give one of them"]),
    pytest.param(["report", "RESULTS", "--json"], 0, ["schedule", "linear_decay"], marks=pytest.mark.slow),
    pytest.param(["report", "RESULTS", "--goal", GOAL, "--json"], 0, ["schedule"], marks=pytest.mark.slow),
    pytest.param(["compare", "RESULTS"], 0, ["momentum", "sgd"], marks=pytest.mark.slow),
    pytest.param(["calibrate", OVERRIDE], 2, ["a constant learning", "or linear_decay"], marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("words", "status", "said"), COMMANDS)
def test_every_command(results, tmp_path, says, words, status, said):
    for name, place in {"RESULTS": results, "TMP": tmp_path}.items():
        words = [word.replace(name, str(place)) for word in words]
    answer = says(*words, status=status)
    assert [word for word in said if word not in answer] == []


def absent(table):
    """Check that each trial of a table has the parameters of its schedule and no others; returns their schedules."""
    for name in CONDITIONAL:
        takes = [name in SCHEDULES[schedule].hyperparameters for schedule in table["schedule"]]
        assert table[name].notna().tolist() == takes
    return set(table["schedule"])


@pytest.fixture(scope="module")
def reported(results):
    return build.read([results])


TABLES = {
    "trials": lambda found: absent(found) == {*NAMES},
    "steps_to_result": lambda found: absent(found) == {"linear_decay"},
    "searches": lambda found: set(found["searched_schedule"]) == {", ".join(NAMES)},
    "rerun_steps": lambda found: found["steps"].notna().all(),
    "rule_steps": lambda found: set(found["rule"]) == {"tuned", "constant", "square_root", "linear"},
    "rules": lambda found: (found["steps_lost"] == 1).all(),
}


@pytest.mark.parametrize("name", TABLES)
def test_every_table_with_tuned_values(reported, tmp_path, name):
    [path] = write_tables(tmp_path, {name: reported.tables[name]})
    found = pd.read_csv(path)
    assert len(found)
    assert TABLES[name](found)


def test_the_page_shows_the_names(reported):
    text = page(reported)
    assert "constant, linear_decay, exponential" in text  # the search space
    assert "<td>linear_decay</td>" in text.replace(' class="text"', "")  # of the tuned configurations


def test_a_figure_has_an_axis_of_names_and_leaves_out_trials_without_the_parameter(reported):
    chart, *_ = figures.charts(reported.tables, ["along_axes"])
    panels = {panel["axes"]["parameter"].iloc[0]: panel["axes"] for panel in chart.panels}
    assert absent(panels["learning_rate"]) == {*NAMES}
    assert set(panels["end_learning_rate_factor"]["schedule"]) == {"linear_decay", "exponential"}
    [axes] = canvas.draw(lambda ax: tuning.along_axis(ax, panels["schedule"]), small=True).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["constant", "exponential", "linear decay"]
    places = np.concatenate([line.get_xdata() for line in axes.lines])
    assert len(places) == len(panels["schedule"])
    assert set(np.round(places.astype(float))) == {0, 1, 2}


@pytest.mark.slow
def test_tables_of_an_export_hold_names(results, tmp_path):
    for form, read in (("csv", pd.read_csv), ("parquet", pd.read_parquet)):
        assert main(["export", str(results), str(tmp_path / form), "--format", form]) == 0
        found = read(tmp_path / form / f"trials.{form}")
        assert absent(found) == {*NAMES}
        assert set(found.loc[found["rerun"].notna(), "schedule"]) == {"linear_decay"}


@pytest.mark.slow
def test_the_released_layout_holds_names_and_reads_back(results, tmp_path):
    assert main(["export", str(results), str(tmp_path / "tree"), "--format", "batch_science"]) == 0
    described = [json.loads(path.read_text()) for path in (tmp_path / "tree").rglob("study.json")]
    kinds = {json.dumps(each["parameter_configs"]["schedule"]) for each in described}
    assert kinds == {json.dumps({"type": "CATEGORICAL", "feasible_points": NAMES})}
    assert main(["import", str(tmp_path / "tree"), str(tmp_path / "back")]) == 0
    first = [study for study in load(results) if study.branch.path == ""]
    back = [*load(tmp_path / "back")]
    assert [study.provenance[-1]["warnings"] for study in back] == [[]] * 4
    pd.testing.assert_frame_equal(trials.trials(first), trials.trials(back))
    assert [s.question["search"]["space"] for s in back] == [s.question["search"]["space"] for s in first]


def test_reruns_and_transfers_keep_the_schedule(results):
    for study in load(results):
        if study.branch.rerun is not None:
            assert study.question["schedule"] == "tuned"
            assert study.question["search"]["space"]["schedule"] == {"choices": ["linear_decay"]}
            assert "learning_rate_decay_fraction" in study.hyperparameters


SWEEP = [
    *("sweep", "search.space.schedule=[constant,linear_decay,cosine]", "optimizer=momentum", "batch_size=32,64"),
    *("search.trials=6", "search.reruns=2", "budget.epochs=3", "budget.steps=40", "engine.workers=1"),
]


@pytest.mark.release
def test_for_real(swept_once, tmp_path, says):
    """In lanes, one at a time, in shards, resumed, and moved by rules."""
    lanes = swept_once(*SWEEP, "engine=lanes")
    found = tables(lanes)
    assert absent(pd.read_csv(lanes / "tables/trials.csv")) == {"constant", "linear_decay", "cosine"}
    sharded = swept_once(*SWEEP, "engine=lanes", "shards=2")
    assert tables(sharded) == found
    alone, together = (
        pd.read_csv(folder / "tables/trials.csv") for folder in (swept_once(*SWEEP, "engine=serial"), lanes)
    )
    for name in ("schedule", "learning_rate_decay_fraction", "steps_to_goal"):
        pd.testing.assert_series_equal(alone[name], together[name])
    for path in sharded.rglob("curves.parquet"):
        if path.parent.name == "64":
            kept = store.curves.load(path.parent)
            store.curves.write_curves([curve for curve in kept if curve.trial.index != 2], path)
    assert main([*SWEEP, "engine=lanes", "shards=2", f"results={sharded}"]) == 0
    assert tables(sharded) == found
    assert "linear with warmup" in says("rules", sharded, "--seeds", "2")
