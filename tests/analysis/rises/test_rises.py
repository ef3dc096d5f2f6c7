"""Curves whose steps rise with the batch size are warned of, and curves that are flat within their noise are not."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from helpers.fused import partly

from analysis.edges import Edge
from analysis.report import build
from analysis.rises.causes import POSSIBLE, causes
from analysis.rises.shown import Rise, rise
from analysis.tables import audits

NAN = np.nan
SIZES = [2, 8, 32, 128, 512, 2048, 8192]


def curve(steps, sizes=SIZES, read_from="search", **ends):
    """The columns of a curve that a rise is read from."""
    points = {"steps_to_result": steps, "tuned_steps": steps}
    unknown = dict.fromkeys(("low", "high", "tuned_low", "tuned_high"), NAN)
    return pd.DataFrame({"batch_size": sizes[: len(steps)], **points, **unknown, **ends, "read_from": read_from})


LOW_HIGH = ([90.0, 180.0, 280.0], [110.0, 220.0, 330.0])
WIDE = ([50.0, 90.0, 100.0], [300.0, 500.0, 900.0])
CURVES = {
    "rises all along": (curve([100, 150, 240, 370, 600, 900, 1500]), (2, 8192)),
    "falls, then rises": (curve([900, 300, 200, 240, 390, 700, 1300]), (32, 8192)),
    "falls, then rises, with noise": (curve([900, 310, 190, 260, 370, 760, 1200]), (32, 8192)),
    "rises from fresh seeds": (curve([900, 300, 200, 240, 390, 700, 1300], read_from="fresh seeds"), (32, 8192)),
    "rises, and misses the goal at last": (curve([900, 300, 200, 240, 390, 700, NAN]), (32, 2048)),
    "few batch sizes, intervals apart": (curve([100, 200, 300], low=LOW_HIGH[0], high=LOW_HIGH[1]), (2, 32)),
    "few batch sizes of fresh seeds, intervals apart": (
        curve([100, 200, 300], read_from="fresh seeds", tuned_low=LOW_HIGH[0], tuned_high=LOW_HIGH[1]),
        (2, 32),
    ),
    "few batch sizes of fresh seeds, intervals hardly apart": (
        curve([100, 140], read_from="fresh seeds", tuned_low=[90.0, 125.0], tuned_high=[110.0, 155.0]),
        None,
    ),
    "few batch sizes, intervals overlap": (curve([100, 200, 300], low=WIDE[0], high=WIDE[1]), None),
    "few batch sizes, no intervals": (curve([100, 200, 300]), None),
    "flat": (curve([100] * 7), None),
    "flat with noise": (curve([100, 130, 95, 120, 90, 135, 110]), None),
    "falls": (curve([6400, 1600, 400, 110, 50, 40, 41]), None),
    "rises by a little": (curve([100, 104, 108, 112, 116, 120, 124]), None),
    "one far off": (curve([100, 300, 98, 102, 100, 97, 103]), None),
    "one point": (curve([100]), None),
    "none": (curve([NAN, NAN, NAN]), None),
}


@pytest.mark.parametrize(("steps", "expected"), CURVES.values(), ids=CURVES)
def test_what_rises(steps, expected):
    found = rise(steps)
    assert (found[:2] if found else None) == expected


@pytest.mark.parametrize("count", partly([5, 6, 7], 2))
@pytest.mark.parametrize("noise", partly([0.1, 0.3], 2))
@pytest.mark.parametrize("slope", [0.0, -0.5])
def test_false_alarms_are_rare(count, noise, slope):
    rng, sizes = np.random.default_rng(0), np.array(SIZES[:count], dtype=float)
    made = [1000 * sizes**slope * np.exp(noise * rng.standard_normal(count)) for _ in range(300)]
    assert np.mean([rise(curve(steps)) is not None for steps in made]) <= 0.04


@pytest.mark.parametrize("noise", [0.05, 0.1])
def test_rises_are_seen_through_noise(noise):
    rng, exact = np.random.default_rng(0), np.array([900, 300, 200, 240, 400, 700, 1300])
    made = [exact * np.exp(noise * rng.standard_normal(len(exact))) for _ in range(100)]
    assert np.mean([rise(curve(steps)) is not None for steps in made]) >= 0.8


CALM, NOISY = audits.Noise(0.0, 1.0), audits.Noise(0.7, 1.0)
CAUSES = {
    "edge": ([("learning_rate", "high")], 2000, CALM, ["widen search.space.learning_rate.high"]),
    "edge of another": ([("momentum", "high")], 2000, CALM, [each.cure for each in POSSIBLE]),
    "budget": ([], 400, CALM, ["raise budget.steps"]),
    "ample budget": ([], 1500, CALM, [each.cure for each in POSSIBLE]),
    "noise where curves stop at the goal": (
        [],
        2000,
        audits.Noise(NAN, 0.1),
        ["choose a goal that the curves cross steeply"],
    ),
    "calm where curves stop at the goal": ([], 2000, audits.Noise(NAN, 0.9), [each.cure for each in POSSIBLE]),
    "noise": ([], 2000, NOISY, ["choose a goal that the curves cross steeply"]),
    "edge and noise": (
        [("learning_rate", "low")],
        2000,
        NOISY,
        ["widen search.space.learning_rate.low", "choose a goal that the curves cross steeply"],
    ),
}


@pytest.mark.parametrize(("edges", "budget", "noise", "cures"), CAUSES.values(), ids=CAUSES)
def test_the_causes_that_trials_show(monkeypatch, edges, budget, noise, cures):
    held = [Edge(name, side, 1.0, 1.0) for name, side in edges]
    monkeypatch.setattr(audits, "edges", lambda study, goal: held if study.batch_size > 8 else [])
    monkeypatch.setattr(audits, "noise", lambda study, goal: noise if study.batch_size > 8 else audits.Noise(0.9, 1.0))
    studies = [SimpleNamespace(batch_size=size, train_steps=steps) for size, steps in ((8, 2000), (64, budget))]
    assert [cause.cure for cause in causes(studies, None, Rise(8, 64, 100.0, 300.0))] == cures


@pytest.mark.slow
def test_a_rise_is_warned_of_and_a_flat_curve_is_not(sweep, tmp_path):
    rising = {2: 400, 8: 200, 32: 240, 128: 390, 512: 700, 2048: 1300}
    for folder, ends in (("rising", rising), ("flat", dict.fromkeys(rising, 200))):
        sweep({size: [end] * 8 for size, end in ends.items()}, tmp_path / folder)
    said = build.read([tmp_path / "rising"]).warnings
    [found] = [each for each in said if "rise" in each]
    assert found.startswith(
        "tiny, momentum: steps rise from 200 at batch size 8 to 1,300 at 2,048, by more than noise explains, although "
        "a well-tuned larger batch needs no more steps, so no limits of scaling are read; likely: "
    )
    assert "widen search.space.learning_rate" in found
    assert not [each for each in build.read([tmp_path / "flat"]).warnings if "rise" in each]
