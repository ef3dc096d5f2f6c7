"""An optimum at an open edge of the box is reported, one at a hard side or by chance is not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from analysis.audits import Edge, edges
from analysis.build import build
from analysis.load import load_study

SPACE = {
    "learning_rate": {"low": 1e-3, "high": 1.0, "scale": "log"},
    "momentum": {"low": 0.0, "high": 0.999, "scale": "reverse_log", "hard": ["low"]},
}
MIDDLE = (0.03, 0.97)


@pytest.fixture
def searched(tmp_path, make_study, make_curve, write_study):
    """A study whose trials have these (learning rate, momentum) and reach the goal in this order, the first soonest."""

    def make(points, space=SPACE, missed=0):
        study = make_study(space=space, trials=len(points) + missed)
        names = ("learning_rate", "momentum")
        curves = []
        for index, values in enumerate([*points, *[MIDDLE] * missed]):
            curve = make_curve(study, index, reaches=10 + 5 * index if index < len(points) else None)
            trial = replace(curve.trial, hyperparameters=dict(zip(names, values, strict=True)))
            curves.append(replace(curve, trial=trial))
        return load_study(write_study(tmp_path, study, curves))

    return make


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([MIDDLE] * 5, []),
        ([(0.9, 0.97)] * 5, [Edge("learning_rate", "high", 0.9, 1.0)]),
        ([(0.0011, 0.97)] * 5, [Edge("learning_rate", "low", 0.0011, 0.001)]),
        ([(0.03, 0.9985)] * 5, [Edge("momentum", "high", 0.9985, 0.999)]),
        ([(0.03, 0.1)] * 5, []),  # momentum 0 is a hard side
        ([(0.9, 0.97), *[MIDDLE] * 4], []),  # the best trial alone
        ([MIDDLE, *[(0.9, 0.97)] * 4], []),  # all but the best
        ([(0.9, 0.97)] * 3 + [MIDDLE] * 2, [Edge("learning_rate", "high", 0.9, 1.0)]),
        ([(0.9, 0.97)] * 3 + [MIDDLE] * 20, [Edge("learning_rate", "high", 0.9, 1.0)]),  # of the best five
        ([(0.9, 0.97)] * 2, []),  # too few to say
        ([(0.49, 0.97)] * 5, []),  # just outside of the outer tenth, 10^-0.3 = 0.501
        ([(0.51, 0.97)] * 5, [Edge("learning_rate", "high", 0.51, 1.0)]),
    ],
)
def test_edges(searched, points, expected):
    assert edges(searched(points, missed=3)) == expected


def test_an_irrelevant_parameter_rarely_alarms(searched):
    """With two parameters that do not matter, by chance: some 3 % and not the 36 % of the best trial alone."""
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(60):
        units = generator.random((20, 2))
        points = [(10 ** (-3 + 3 * a), 1 - 0.001**b) for a, b in units]
        alarms += bool(edges(searched(points)))
    assert alarms <= 8


def test_choices_have_no_edges(searched):
    space = SPACE | {"learning_rate": [0.1, 1.0]}
    assert edges(searched([(1.0, 0.97)] * 5, space=space)) == []


def test_the_report_says_so(searched, tmp_path):
    searched([(0.9, 0.97)] * 5)
    [said] = [text for text in build([tmp_path], tmp_path).warnings if "edge" in text]
    assert "learning_rate 0.9, at the edge of what was searched (1); set search.extend=true or widen" in said
    assert said.endswith("search.space.learning_rate.high.")
    assert "widen search.space.learning_rate.high" in (tmp_path / "report.html").read_text()
