"""Proxies beside the measured critical batch size: which rows, which ratios, and what bounds do to them."""

import numpy as np
import pandas as pd
import pytest

from analysis.load import CURVE
from analysis.proxies.table import LIMITS, table
from analysis.tables.scaling import CRITICAL

INF, NAN = np.inf, np.nan
SGD = dict(zip(CURVE, ("tiny", "sgd", "val/loss", 0.1), strict=True))
ADAM = SGD | {"optimizer": "adam"}


def scaling(estimate=40.0, low=32.0, high=50.0, bound="=", of=SGD, definition=CRITICAL):
    ends = {"estimate": estimate, "estimate_low": low, "estimate_high": high, "estimate_bound": bound}
    return of | ends | {"definition": definition}


def noise(step, scale, low, high, size=8, estimator="per_example", form="plain", of=SGD):
    kind = {"batch_size": size, "step": step, "estimator": estimator, "form": form}
    return of | kind | {"noise_scale": scale, "low": low, "high": high}


def branch(step, size, low, high, bound, rule="linear", factors="1"):
    kind = {"batch_size": 8, "step": step, "rule": rule, "factors": factors, "window": 4096}
    return SGD | kind | {"critical_batch_size": size, "low": low, "high": high, "bound": bound}


def one_step(step, value, space="log", form="plain"):
    kind = {"batch_size": 8, "step": step, "space": space, "form": form}
    return SGD | kind | {"noise_scale": value, "low": value / 2, "high": value * 2}


def found(limits, **measured):
    return table({"scaling": pd.DataFrame(limits), **{name: pd.DataFrame(rows) for name, rows in measured.items()}})


CASES = {
    "the last point counts": ([noise(9, 5.0, 4.0, 6.0), noise(90, 20.0, 16.0, 25.0)], [(20.0, 0.5, 0.364, 0.686, "=")]),
    "the smallest run counts": (
        [noise(90, 20.0, 16.0, 25.0), noise(99, 9.0, 8.0, 10.0, size=64)],
        [(20, 0.5, 0.364, 0.686, "=")],
    ),
    "no upper end": ([noise(90, 20.0, 16.0, INF)], [(16.0, 0.4, 0.32, INF, ">")]),
    "may be nothing": ([noise(90, 20.0, 0.0, 25.0)], [(25.0, 0.625, 0.0, 0.781, "<")]),
    "unknown": ([noise(90, 20.0, 0.0, INF)], []),
    "half preconditioned is left out": ([noise(90, 20.0, 16.0, 25.0, form="half_preconditioned")], []),
}


@pytest.mark.parametrize(("rows", "expected"), CASES.values(), ids=CASES)
def test_noise(rows, expected):
    made = found([scaling()], noise_scale=rows)
    columns = made[["value", "ratio", "ratio_low", "ratio_high"]].to_numpy(dtype=float)
    assert made["bound"].tolist() == [row[-1] for row in expected]
    np.testing.assert_allclose(columns, np.reshape([row[:-1] for row in expected], (-1, 4)), rtol=2e-3)


@pytest.mark.parametrize(("rows", "expected"), [*CASES.values()][2:5], ids=[*CASES][2:5])
def test_one_step_is_open_ended_like_the_noise_scale(rows, expected):
    """Without a bend the fit ends anywhere: at 1e-8 times the smallest batch size, or 1e8 times the largest."""
    made = found([scaling()], one_step=[each | {"space": "log"} for each in rows])
    assert made["bound"].tolist() == [row[-1] for row in expected]
    assert made["value"].tolist() == [row[0] for row in expected]


def test_every_kind_of_measurement_has_a_row():
    made = found(
        [scaling(), *(scaling(20.0, 10.0, 40.0, definition=definition) for definition in LIMITS)],
        noise_scale=[noise(90, 20.0, 16.0, 25.0), noise(90, 21.0, 16.0, 25.0, estimator="two_batch_sizes")],
        branched=[
            branch(90, 32, 16.0, 64.0, "="),
            branch(90, 64, 32.0, INF, ">", rule="square_root", factors="0.5, 1"),
        ],
        one_step=[one_step(90, 30.0), one_step(90, 31.0, space="linear"), one_step(90, 32.0, form="preconditioned")],
    )
    assert made["proxy"].tolist() == [
        *LIMITS.values(),
        "gradient noise scale",
        "gradient noise scale, two batch sizes",
        "branches, linear rule",
        "branches, square root rule, tuned",
        "one step",
        "one step, preconditioned",
    ]
    assert made["ratio"].tolist() == pytest.approx([0.5] * 5 + [0.525, 0.8, 1.6, 0.75, 0.8])
    assert made["step"].isna().sum() == len(LIMITS)


@pytest.mark.parametrize(
    ("row", "value"),
    [
        (branch(90, 32, 16.0, 64.0, "="), 32),
        (branch(90, 8, 8.0, 64.0, "<"), 64),
        (branch(90, 8, 8.0, INF, "<"), 8),
        (branch(90, 256, 32.0, INF, ">"), 256),
    ],
)
def test_branches_below_all_sizes_are_below_the_first_that_loses(row, value):
    [made] = found([scaling()], branched=[row]).to_dict("records")
    assert (made["value"], made["bound"]) == (value, row["bound"])


@pytest.mark.parametrize("bound", ["<", ">"])
def test_without_a_measured_limit_there_is_no_ratio(bound):
    made = found([scaling(bound=bound)], noise_scale=[noise(90, 20.0, 16.0, 25.0)])
    assert made["measured_bound"].tolist() == [bound]
    assert made["ratio"].isna().all()


def test_only_curves_with_something_cheap_are_compared():
    limits = [scaling(), scaling(of=ADAM), scaling(of=ADAM, definition="perfect_scaling_limit")]
    assert found(limits, noise_scale=[noise(90, 20.0, 16.0, 25.0)])["optimizer"].tolist() == ["sgd"]
    assert found(limits).empty
    assert found(limits[1:], noise_scale=[noise(90, 20.0, 16.0, 25.0)]).empty  # no steps of its own to compare with
