"""The numbers are those of NUMERICS_VERSION: whoever alters a curve finds out here and raises it."""

import json
from dataclasses import replace

import pytest
import torch
from helpers import golden
from helpers.fused import partly

from study import records, schedules
from study.data import order
from study.engine import lanes
from workloads import classification, layers

HELD = json.loads(golden.FILE.read_text())


def departure(name, case=None):
    """How far the case, or another in its place, is from the golden curve."""
    return golden.departure(HELD["curves"][name], golden.measured(case or golden.CASES[name]))


def test_the_golden_curves_are_of_this_version():
    assert HELD["numerics_version"] == records.NUMERICS_VERSION, "rewrite them: python tests/helpers/golden.py"
    assert HELD["curves"].keys() == golden.CASES.keys(), "write them: python tests/helpers/golden.py"


@pytest.mark.parametrize("name", golden.CASES)
def test_numbers(name):
    found = departure(name)
    assert found <= golden.TOLERANCE, f"{name} departs by {found:.1e}; rounding by 1e-5 at most: {golden.CURE}"


@pytest.mark.parametrize("name", partly([name for name, case in golden.CASES.items() if case.arithmetic != "plain"], 5))
def test_rounding_is_absorbed(name):
    """Another arithmetic takes other kernels, as another CPU does."""
    assert departure(name, replace(golden.CASES[name], arithmetic="plain")) < golden.TOLERANCE / 4


@pytest.mark.parametrize("name", partly(golden.CASES, 6))
def test_a_thousandth_of_the_learning_rate_is_a_change(name):
    case = golden.CASES[name]
    assert departure(name, replace(case, learning_rate=case.learning_rate * 1.001)) > golden.TOLERANCE


SMOOTHED, DECAY = classification.smoothed_cross_entropy, schedules.SCHEDULES["linear_decay"]
LATE = replace(DECAY, multiplier=lambda step, train_steps, **h: schedules.linear_decay(step + 1, train_steps, **h))
CHANGES = {
    "initial parameters": ("mlp linear_chain", records.Seeds, "of", lambda self, purpose, index, branch: 2 * index + 1),
    "order of the data": ("mlp plain", order, "epoch_permutation", lambda seed, epoch, n: torch.arange(n)),
    "dropout": ("simple_cnn plain adam", layers, "layer_key", lambda seed, step, layer: step + layer),
    "dropout of lanes": ("simple_cnn vmap", lanes, "layer_key", lambda seed, step, layer: step + layer),
    "a schedule one step late": ("mlp linear_chain decay", schedules, "SCHEDULES", {"linear_decay": LATE}),
    "another smoothing": (
        "mlp linear_chain decay",
        classification,
        "smoothed_cross_entropy",
        lambda *a: SMOOTHED(*a[:3], "uniform"),
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_changes_are_noticed(monkeypatch, change):
    name, owner, attribute, new = CHANGES[change]
    monkeypatch.setattr(owner, attribute, new)
    assert departure(name) > golden.TOLERANCE


@pytest.mark.parametrize(("name", "value"), [("momentum", 0.9009), ("beta1", 0.9009), ("label_smoothing", 0.101)])
def test_small_changes_of_other_hyperparameters_are_noticed(name, value):
    case = next(case for case in golden.CASES.values() if name in case.hyperparameters)
    [key] = [key for key in golden.CASES if golden.CASES[key] is case]
    assert departure(key, replace(case, hyperparameters={**case.hyperparameters, name: value})) > golden.TOLERANCE


def test_the_writer_refuses_other_numbers_under_the_same_version(monkeypatch, tmp_path):
    path = tmp_path / "golden.json"
    few = {name: golden.CASES[name] for name in ("softmax linear_chain", "mlp linear_chain")}
    monkeypatch.setattr(golden, "CASES", {"softmax linear_chain": few["softmax linear_chain"]})
    golden.write(path)
    first = path.read_text()
    golden.write(path)
    assert path.read_text() == first
    monkeypatch.setattr(golden, "CASES", few)
    golden.write(path)  # a new case is no change
    before = json.loads(path.read_text())
    # As measured here: on another CPU than that of the file the last bits may differ.
    here = {name: golden.measured(case) for name, case in few.items()}
    assert before == {"numerics_version": records.NUMERICS_VERSION, "curves": here}

    other = replace(few["mlp linear_chain"], learning_rate=0.0101)
    monkeypatch.setattr(golden, "CASES", few | {"mlp linear_chain": other})
    with pytest.raises(ValueError, match=r"mlp linear_chain: the numbers changed.*raise NUMERICS_VERSION in study/rec"):
        golden.write(path)
    assert json.loads(path.read_text()) == before
    monkeypatch.setattr(records, "NUMERICS_VERSION", records.NUMERICS_VERSION + 1)
    golden.write(path)
    after = json.loads(path.read_text())
    assert after["numerics_version"] == before["numerics_version"] + 1
    assert after["curves"]["softmax linear_chain"] == before["curves"]["softmax linear_chain"]
    assert after["curves"]["mlp linear_chain"] != before["curves"]["mlp linear_chain"]


def test_departures_are_of_the_measured_numbers():
    assert golden.departure({"a": [1.0, None]}, {"a": [1.001, None]}) == pytest.approx(1e-3)
    for other in ({"a": [1.0, 2.0]}, {"b": [1.0, None]}, {"a": [1.0]}, {"a": [None, 1.0]}):
        assert golden.departure({"a": [1.0, None]}, other) == float("inf")
