"""What a sweep is said to show before training, against simulated sweeps."""

import numpy as np
import pandas as pd
import pytest
from helpers.estimated import ends
from helpers.fused import partly

from analysis.estimates import pairs, power, split, tuned
from analysis.estimates.power import Noise


def shown(noise, seeds, batch_sizes, factor, sweeps=100):
    """The share of simulated pairs in which `pairs` shows this factor over all batch sizes."""
    draws = np.random.default_rng(0)
    found = 0
    for _ in range(sweeps):
        two = []
        for times in (1.0, factor):
            level = draws.normal(scale=noise.tuning, size=(batch_sizes, 1))
            logs = level + draws.normal(scale=noise.seeds, size=(batch_sizes, seeds))
            steps = {8 * 2**size: ends(times * np.exp(each)) for size, each in enumerate(logs)}
            two.append(pairs.SeededCurve(steps, np.nan, 0, np.nan))
        [whole] = [each for each in pairs.statements(*two) if each.kind == pairs.ALL]
        found += whole.shown
    return found / sweeps


@pytest.mark.parametrize(("noise", "batch_sizes"), partly([(Noise(0.2, 0.07), 5), (Noise(0.1, 0.2), 4)], 2))
def test_a_factor_is_shown_as_often_as_said(noise, batch_sizes):
    factor = power.factor(noise, noise, 4, batch_sizes)
    # Means of seeds vary less than medians, for which the factor is derived.
    assert power.POWER - 0.07 < shown(noise, 4, batch_sizes, factor) < power.POWER + 0.15


def test_more_batch_sizes_seeds_and_less_noise_show_smaller_factors():
    quiet, loud = Noise(0.1, 0.05), Noise(0.3, 0.2)
    found = [power.factor(loud, loud, 4, 5), power.factor(quiet, loud, 4, 5), power.factor(quiet, quiet, 4, 5)]
    found += [power.factor(quiet, quiet, 8, 5), power.factor(quiet, quiet, 8, 11)]
    assert found == sorted(found, reverse=True)
    assert power.factor(quiet, quiet, 4, 5, pairs=10) > power.factor(quiet, quiet, 4, 5)
    assert power.factor(quiet, quiet, 4, 2) == np.inf  # a range needs three batch sizes


def test_the_width_of_a_curve_is_that_of_its_table():
    """The interval of S(B) that is announced from a curve's own noise is the one in the table of estimates."""
    draws = np.random.default_rng(1)
    sizes = [2**k for k in range(9)]
    names = {"workload": "w", "optimizer": "o", "goal_metric": "val/loss", "goal_threshold": 1.0}
    rows = [names | {"batch_size": size, "steps_to_result": 1000 / size} for size in sizes]
    runs = [
        row | {"rerun": seed, "steps": row["steps_to_result"] * draws.lognormal(0, 0.3)}
        for row in rows
        for seed in range(4)
    ]
    found = tuned.table(pd.DataFrame(rows), pd.DataFrame(runs))
    own = power.noise("refine", found)
    assert own.own
    widths = np.sqrt(found["optimum_high"] / found["optimum_low"])
    assert power.width(own, 4, len(sizes)) == pytest.approx(widths.max(), rel=0.3)


@pytest.mark.parametrize(
    ("search", "sizes", "said", "unsaid"),
    [
        ({"sampler": "refine", "reruns": 4}, [8, 64], ["noise of seeds alone"], ["factors", "critical"]),
        ({"sampler": "refine", "reruns": 4}, [8, 64, 512], ["factors from", "noise of seeds alone"], ["critical"]),
        ({"sampler": "sobol", "reruns": 4}, [2**k for k in range(8)], ["factors from", "critical"], ["seeds alone"]),
        ({"sampler": "sobol", "reruns": 0, "trials": 20}, [8, 64, 512], ["7 of 20 trials", "0.4 to 2"], ["factors"]),
        ({"sampler": "tpe", "reruns": 0, "trials": 8}, [8], ["without fresh seeds".capitalize()], ["factors"]),
    ],
)
def test_only_what_a_sweep_can_show_is_said(search, sizes, said, unsaid):
    text = " ".join(power.sentences(search, sizes, {"sgd": Noise(0.2, 0.07), "adam": Noise(0.2, 0.07)}))
    assert all(part in text for part in said)
    assert not any(part in text for part in unsaid)


@pytest.mark.parametrize(
    ("sampler", "seeds", "cure"),
    [("refine", 0, "search.confirm=4"), ("tpe", 0, "search.reruns=4"), ("refine", 1, "=4")],
)
def test_a_sweep_without_noise_or_independent_trials_promises_no_interval(sampler, seeds, cure):
    search = {"sampler": sampler, "reruns": seeds, "trials": 29}
    [said] = power.sentences(search, [1, 2, 4], {"sgd": power.noise(sampler), "adam": power.noise(sampler)})
    assert "no interval" in said
    assert cure in said
    assert "S_n" not in said


def test_one_fresh_seed_shows_no_noise():
    names = {"workload": "w", "optimizer": "o", "goal_metric": "val/loss", "goal_threshold": 1.0}
    rows = [names | {"batch_size": 2**k, "steps_to_result": 1000 // 2**k + k % 3} for k in range(8)]
    runs = [row | {"rerun": 0, "steps": 1.2 * row["steps_to_result"]} for row in rows]
    found = tuned.table(pd.DataFrame(rows), pd.DataFrame(runs))
    assert np.isnan(split.shares(found).shortfall)
    assert power.noise("refine", found) == power.noise("refine")
