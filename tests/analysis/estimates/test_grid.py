"""Steps are known up to an evaluation: intervals where the noise of seeds does not average this out."""

import numpy as np
import pandas as pd
import pytest

from analysis import intervals
from analysis.estimates import pairs, tuned
from analysis.estimates.pairs import ALL, CONFIGURATIONS, ONE, SeededCurve, statements
from analysis.tables import transfer
from analysis.tables.compare import speed_up

NAMES = {"workload": "tiny", "optimizer": "sgd", "goal_metric": "val/loss", "goal_threshold": 0.1}
SIZES = 2 ** np.arange(6)
RATIO = 1.1
SIMULATED = 100


def grid(budget):
    """The steps of the default evaluation grid of this budget."""
    found = [round(0.02 * budget)]
    while found[-1] < budget:
        found.append(min(budget, max(found[-1] + 1, round(found[-1] * RATIO))))
    return np.array(found)


def runs_of(steps, noise, generator, aligned, seeds=4):
    """Runs of fresh seeds of one curve of these true steps [M]: each seed is moved to the next evaluation.

    Arguments:
        aligned: budgets are in proportion to 1/B, as the steps of perfect scaling are; else all are alike.
    """
    rows = []
    for size, true in zip(SIZES, steps, strict=True):
        points = grid(1e6 / size if aligned else 1e6)
        for number, drawn in enumerate(true * np.exp(noise * generator.standard_normal(seeds))):
            at = int(np.searchsorted(points, drawn))
            rows.append(
                {**NAMES, "batch_size": size, "rerun": number, "steps": points[at], "step_before": points[at - 1]}
            )
    return pd.DataFrame(rows).astype({"steps": float})


def curve(steps, noise, generator, aligned=True):
    """One side of a pair."""
    runs = runs_of(steps, noise, generator, aligned)
    fewest = runs.groupby("batch_size")["steps"].min().astype("Int64")
    table = tuned.table(fewest.rename("steps_to_result").reset_index().assign(**NAMES), runs)
    seeds = {int(size): pairs.ends(part) for size, part in runs.groupby("batch_size")}
    errors = dict(zip(table["batch_size"], table["grid_error"], strict=True))
    return SeededCurve(seeds, table["residual_sd"].iloc[0], 2, np.nan, grid=errors)


@pytest.mark.parametrize(
    ("steps", "before", "exact"),
    [(20, 19, 0.0), (1, 0, 0.0), (22, 20, np.log([21, 22]).std()), (110, 100, np.log(range(101, 111)).std())],
)
def test_the_width_of_a_cell_is_that_of_the_whole_steps_in_it(steps, before, exact):
    assert intervals.cell_width(steps, before) / 12**0.5 == pytest.approx(exact, rel=0.03)


@pytest.mark.parametrize("noise", [0.0, 0.01, 0.02, 0.03, 0.05, 0.1])
def test_the_error_of_the_grid_is_that_of_averages_of_rounded_numbers(noise):
    generator = np.random.default_rng(0)
    width = 0.1
    places = (np.arange(400) + 0.5) / 400 * width  # of the true steps in a cell
    drawn = places + noise * generator.standard_normal((4000, 1)) if noise else places[None]
    means = (np.ceil(drawn / width) * width).mean(axis=0) - places
    assert intervals.grid_error(width, noise) == pytest.approx(means.std(), abs=0.001)
    assert means.mean() == pytest.approx(width / 2, abs=0.003)  # common to all: it cancels in ratios


@pytest.mark.slow
@pytest.mark.parametrize("aligned", [True, False], ids=["budget_as_steps", "budget_alike"])
@pytest.mark.parametrize("noise", [0.0, 0.005, 0.02, 0.05, 0.2])
def test_intervals_hold_whatever_the_noise_and_the_place_in_a_cell(noise, aligned):
    generator = np.random.default_rng(1)
    held = {kind: [] for kind in (ALL, ONE, CONFIGURATIONS)}
    for _ in range(SIMULATED):
        level, ratio = generator.uniform(11, 12), generator.uniform(-0.15, 0.15)
        sides = (curve(np.exp(level + shift) / SIZES, noise, generator, aligned) for shift in (0.0, ratio))
        for found in statements(*sides):
            held[found.kind].append(found.low <= np.exp(ratio) <= found.high)
    shares = {kind: float(np.mean(each)) for kind, each in held.items()}
    assert min(shares.values()) > 0.92, shares


@pytest.mark.parametrize("noise", [0.0, 1e-4])
def test_optimizers_on_either_side_of_an_evaluation_are_known_to_a_cell(noise):
    """They differ by 1 %, at every batch size; the steps of all seeds differ by 10 %."""
    true = np.full(len(SIZES), 0.995 * grid(1e6)[20])
    sides = (curve(steps, noise, np.random.default_rng(0), aligned=False) for steps in (true, true * 1.01))
    found = statements(*sides)
    assert {each.kind for each in found} == {ALL, ONE, CONFIGURATIONS}
    for each in found:
        assert each.low < 1.01 < each.ratio < each.high
        assert each.ratio == pytest.approx(RATIO, rel=0.01)


@pytest.mark.parametrize(("cell", "holds"), [(0.0, False), (np.log(RATIO), True)])
def test_searches_whose_trials_end_in_neighbouring_cells_are_known_to_a_cell(cell, holds):
    _, low, high = speed_up(np.full(20, 100.0), np.full(20, 110.0), cells=(cell, cell))
    assert (low < 1.01 < high) == holds


@pytest.mark.parametrize(("before", "holds"), [(None, False), ((100.0, 91.0), True)])
def test_a_transferred_configuration_in_the_next_cell_is_known_to_a_cell(before, holds):
    where = {**NAMES, "base_batch_size": [8] * 6 + [64] * 6, "rule": ["linear"] * 6 + ["tuned"] * 6, "batch_size": 64}
    runs = pd.DataFrame({**where, "run": [*range(6)] * 2, "learning_rate": 0.1, "status": "COMPLETE"})
    runs = runs.assign(steps=[110.0] * 6 + [100.0] * 6, steps_to_result=100.0)
    if before:
        runs = runs.assign(step_before=np.repeat(before, 6))
    lost = transfer.table(runs).iloc[0]
    assert (lost["lost_low"] < 1.01 < lost["lost_high"]) == holds


def test_a_curve_without_scatter_is_known_to_a_cell():
    true = np.exp(11.3) / SIZES
    generator = np.random.default_rng(0)
    for noise, at_least in ((0.0, 0.5 * np.log(RATIO)), (0.2, 0.1)):
        runs = runs_of(true, noise, generator, aligned=True)
        fewest = runs.groupby("batch_size")["steps"].min().astype("Int64").rename("steps_to_result")
        steps = fewest.reset_index().assign(**NAMES)
        for table in (
            tuned.table(steps, runs),
            tuned.table(steps.assign(step_before=steps["steps_to_result"] / 1.1), runs[:0]),
        ):
            half = tuned.half_width(np.array(list(tuned.log_errors(table).values())), tuned.NORMAL)
            assert (half > at_least).all()


WHERE = {
    "seeds everywhere": (range(6), ()),
    "seeds at some": (range(4), ()),
    "seeds at one": ([2], ()),
    "a goal that was missed at some": (range(4), (4, 5)),
    "a goal that seeds missed": (range(6), (5,)),
    "no seeds": ((), (5,)),
}


@pytest.mark.parametrize(("seeded", "missed"), WHERE.values(), ids=WHERE)
def test_the_error_of_the_grid_is_that_of_the_seeds_where_there_are_some(seeded, missed):
    runs = runs_of(np.exp(11.3) / SIZES, 0.2, np.random.default_rng(0), aligned=True)
    fewest = runs.loc[runs.groupby("batch_size")["steps"].idxmin()].astype({"steps": "Int64"}).reset_index(drop=True)
    steps = fewest.rename(columns={"steps": "steps_to_result"}).drop(columns="rerun")
    steps.loc[[*missed], ["steps_to_result", "step_before"]] = pd.NA
    runs.loc[runs["batch_size"].isin(SIZES[[*missed]]), ["steps", "step_before"]] = np.inf, np.nan
    found = tuned.table(steps, runs[runs["batch_size"].isin(SIZES[[*seeded]])])
    of_one = np.log(RATIO) / 12**0.5
    kinds = ["missed" if place in missed else "seeds" if place in seeded else "search" for place in range(6)]
    expected = {"missed": np.nan, "seeds": 0.0, "search": of_one}
    assert found["grid_error"].tolist() == pytest.approx([expected[kind] for kind in kinds], abs=1e-3, nan_ok=True)
    if (found["read_from"] == tuned.SEARCH).all() and not missed:  # the points are those of one trial everywhere
        assert min(tuned.log_errors(found).values()) > 0.9 * of_one
