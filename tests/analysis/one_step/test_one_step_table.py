"""The tables of one step: read from files, in words, and drawn."""

import json

import numpy as np
import pandas as pd
import pytest
from helpers.made_tables import METRIC, panels_of

from analysis.load import LoadError, load
from analysis.one_step import table
from analysis.report.build import read
from analysis.report.table import header
from study.terminal.show import columns

SIZES = (4, 16, 64, 256)
NAMES = {"workload": "digits", "optimizer": "sgd", "batch_size": 8, "goal_metric": METRIC, "goal_threshold": 0.05}


def effective(size, examples=4096):
    return size / (1 - size / examples)


def losses(size, noise_scale, grid):
    """Of 16 batches whose curvatures scatter, with the least mean loss at 0.5 / (1 + B_n / B)."""
    bend = (1 + noise_scale / effective(size)) / 0.5 * np.linspace(0.8, 1.2, 16)[:, None]
    return (2 - grid + bend * grid**2 / 2).tolist()


def write(folder, step, noise_scale, text=None, shift=0):
    grid = 0.02 * 2 ** np.arange(shift, 12.5, 0.5)
    of_grid = {"form": "plain", "learning_rates": grid.tolist()}
    rates = [of_grid | {"batch_size": size, "losses": losses(size, noise_scale, grid)} for size in SIZES]
    point = {"step": step, "examples_seen": 8 * step, "error": 0.2, "recorded_error": 0.21, "before": 2.0}
    question = {"trial": {"index": 3}, "workload": {"train_examples": 4096}}
    (folder / "one_step").mkdir(exist_ok=True)
    content = json.dumps(point | {"question": question, "rates": rates})
    (folder / f"one_step/{step:06d}.json").write_text(content if text is None else text)


@pytest.mark.slow
def test_points_on_file_become_rows_of_the_report(results):
    [study] = results({8: [30, 40, 50, 60]})
    assert "one_step" not in read([study.folder.parents[3]]).tables
    for step, noise_scale in ((12, 90.0), (8, 30.0)):
        write(study.folder, step, noise_scale)
    tables = read([study.folder.parents[3]]).tables
    fits, rates = tables["one_step"], tables["one_step_rates"]
    assert list(fits.columns) == table.FITS
    assert list(rates.columns) == table.RATES
    assert fits[["step", "space"]].values.tolist() == [[8, "log"], [8, "linear"], [12, "log"], [12, "linear"]]
    assert fits["noise_scale"].tolist() == pytest.approx([30, 30, 90, 90], rel=1e-4)
    assert fits["eps_max"].tolist() == pytest.approx([0.5] * 4, rel=1e-4)
    assert ((fits["low"] < fits["noise_scale"]) & (fits["noise_scale"] < fits["high"])).all()
    assert rates["step_batch_size"].tolist() == [*SIZES, *SIZES]
    assert rates["effective_batch_size"].tolist() == pytest.approx([effective(size) for size in SIZES] * 2)
    assert (rates["loss_after"] < rates["loss_before"]).all()
    assert "the sweep recorded 0.21" in table.warnings(fits, rates)[0]
    write(study.folder, 8, 30.0, text="{")
    with pytest.raises(LoadError, match="is torn"):
        table.tables(load(study.folder.parents[3]))


def test_best_learning_rates_outside_the_tried_ones_are_left_out_and_said(results):
    [study] = results({8: [30, 40, 50, 60]})
    write(study.folder, 8, 30.0, shift=2)  # the grid begins above the best learning rate of the smallest batch
    fits, rates = table.tables([study])
    assert fits["left_out"].tolist() == [1, 1]
    assert fits["noise_scale"].tolist() == pytest.approx([30, 30], rel=1e-4)
    assert rates["learning_rate"].isna().tolist() == [True, False, False, False]
    assert "at 1 of its points and batch sizes the best learning rate of one step lies outside" in " ".join(
        table.warnings(fits, rates)
    )


def test_steps_that_lower_no_loss_have_no_best_learning_rate(results):
    [study] = results({8: [30, 40, 50, 60]})
    write(study.folder, 8, 30.0)
    path = study.folder / "one_step/000008.json"
    path.write_text(path.read_text().replace('"before": 2.0', '"before": 1.95'))
    fits, rates = table.tables([study])
    assert rates["learning_rate"].notna().tolist() == [False, True, True, True]  # it falls by 0.03, 0.09 and more
    assert fits["left_out"].tolist() == [1, 1]


def fits(**columns):
    usual = {"step": 10, "examples_seen": 80, "form": "plain", "space": "log", "eps_max": 0.5, "noise_scale": 90.0}
    usual |= {"low": 60.0, "high": 130.0, "points": 4, "left_out": 0, "error": 0.2, "recorded_error": 0.2}
    return pd.DataFrame(NAMES | usual | columns)


def test_the_sentence_compares_with_measured_limits():
    limits = pd.DataFrame({"definition": ["critical_batch_size_mccandlish"], "estimate": [62.0]})
    limits = limits.assign(**NAMES, estimate_bound="=", estimate_low=46.0, estimate_high=84.0)
    measured = fits(step=[10, 40], noise_scale=[20.0, 90.0], low=[15.0, 60.0]).assign(recorded_error=[0.2, 0.04])
    [said] = table.sentences(measured, limits)
    assert "at a B_n of 20 (15 to 130) at step 10 and 90 (60 to 130) at step 40, where it reached its goal" in said
    assert said.endswith("measured by steps: critical batch size 62 (46 to 84).")
    assert "at step 10, short of its goal (fitted" in table.sentences(measured.iloc[:1], limits)[0]


def test_headings_keep_the_symbols_of_the_text():
    both = pd.concat([fits(step=[10]), fits(step=[10], space="linear")])
    names = list(table.overview(both))
    wanted = ["eps_max", "B_n, log space", "B_n, linear space"]
    assert [column.header for column in columns(*names).columns][5:8] == wanted
    assert [header(name) for name in names][5:8] == wanted


def test_a_curve_that_does_not_bend_is_named():
    found = table.warnings(fits(step=[10], high=1e5), fits(step=[10]).assign(learning_rate=0.1))
    assert "at step 10 the interval of B_n spans more than a factor of 100" in found[0]


def test_the_figure_shows_points_and_both_fits():
    point = {"form": "plain", "step": 10, "examples_seen": 80, "low": [0.1, 0.3], "high": [0.2, 0.5]}
    rates = pd.DataFrame(NAMES | point | {"step_batch_size": [4, 64], "learning_rate": [0.15, 0.4]})
    both = pd.concat([fits(step=[10]), fits(step=[10], space="linear", noise_scale=80.0)])
    [ax] = panels_of("one_step", {"one_step_rates": rates, "one_step": both})
    points, log, linear = ax.lines
    assert points.get_xydata().tolist() == [[4, 0.15], [64, 0.4]]
    assert np.interp(90, *log.get_data()) == pytest.approx(0.25, rel=0.01)
    assert np.interp(80, *linear.get_data()) == pytest.approx(0.25, rel=0.01)
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        *("80 examples seen", "fit in log space", "fit in linear space", "95 % interval")
    ]


def test_an_open_end_is_a_bound():
    ends = ((4e-8, 0.0, 0.14), (6e9, 500.0, np.inf), (3e3, 0.0, np.inf))
    rows = [dict(zip(("noise_scale", "low", "high"), each, strict=True)) for each in ends]
    assert [table.in_words(row) for row in rows] == ["at most 0.140", "at least 500", "unknown"]
