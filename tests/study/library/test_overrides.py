"""Keyword arguments ask for the same as the command line, in its own words."""

from collections import OrderedDict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.fused import partly

from study.config.composed.compose import compositions
from study.errors import UsageError
from study.library.overrides import overrides

HOME = Path.home()
GIVEN = [
    ({}, []),
    ({"optimizer": "sgd"}, ["optimizer=sgd"]),
    ({"optimizer": ["sgd", "momentum"]}, ["optimizer=sgd,momentum"]),
    ({"batch_sizes": [8, 64]}, ["batch_sizes=[8,64]"]),
    ({"batch_sizes": 64}, ["batch_sizes=[64]"]),
    ({"batch_sizes": np.int64(64)}, ["batch_sizes=[64]"]),
    ({"batch_sizes": "32k tokens"}, ["batch_sizes=['32k tokens']"]),
    ({"search": {"refine": 4, "budgets": 1.0}}, ["search.refine=[4]", "search.budgets=[1.0]"]),
    ({"optimizer": {"no_decay": "bias"}}, ["optimizer.no_decay=[bias]"]),
    ({"batch_sizes": range(1, 4)}, ["batch_sizes=[1,2,3]"]),
    ({"batch_sizes": np.array([8, 64])}, ["batch_sizes=[8,64]"]),
    ({"batch_sizes": torch.tensor([8, 64])}, ["batch_sizes=[8,64]"]),
    ({"batch_sizes": torch.tensor(64)}, ["batch_sizes=[64]"]),
    ({"batch_sizes": [np.int64(8), torch.tensor(64)]}, ["batch_sizes=[8,64]"]),
    ({"batch_size": pd.Series([8, 64])}, ["batch_size=8,64"]),
    ({"optimizer": np.array(["sgd", "adam"])}, ["optimizer=sgd,adam"]),
    ({"search.space.label_smoothing": np.array([0, 0.5])}, ["search.space.label_smoothing=[0.0,0.5]"]),
    ({"batch_size": (8, 64)}, ["batch_size=8,64"]),
    ({"search": {"trials": 20}}, ["search.trials=20"]),
    ({"search.trials": np.int64(20)}, ["search.trials=20"]),
    ({"search": "sobol", "search.trials": 20}, ["search=sobol", "search.trials=20"]),
    ({"budget": {"epochs": 0.5, "max_steps": None}}, ["budget.epochs=0.5", "budget.max_steps=null"]),
    ({"search": {"extend": True, "budgets": [1, 2]}}, ["search.extend=true", "search.budgets=[1,2]"]),
    ({"stopping": ["race", "goal"]}, ["stopping=race,goal"]),
    ({"precision": "bf16"}, ["precision=bf16"]),
    ({"track": "mlflow"}, ["track=mlflow"]),
    ({"track": ["tensorboard", "mlflow"]}, ["track=[tensorboard,mlflow]"]),
    ({"track": {"trials": True}, "notify": "ntfy://topic"}, ["track.trials=true", "notify='ntfy://topic'"]),
    (
        {"search": {"space": {"learning_rate": {"low": 0.03, "scale": "log"}}}},
        ["search.space.learning_rate={low: 0.03, scale: log}"],
    ),
    ({"search.space.label_smoothing": [0, 0.1]}, ["search.space.label_smoothing=[0,0.1]"]),
    ({"search": {"space": {"momentum": 0.9}}}, ["search.space.momentum=0.9"]),
    ({"workload": {"widths": [7, 8]}}, ["workload.widths=[7,8]"]),
    ({"goal": "val/cross_entropy_error < 0.3"}, ["goal='val/cross_entropy_error < 0.3'"]),
    ({"goal": ["val/a < 1", "val/b < 2"]}, ["goal='val/a < 1','val/b < 2'"]),
    ({"results": Path("here/it's, a (1)")}, [r"results='here/it\'s, a (1)'"]),
    ({"results": "~/out"}, [f"results='{HOME}/out'"]),
    ({"results": "true"}, ["results='true'"]),
    ({"results": "12"}, ["results='12'"]),
    ({"results": "here/${workload.name}"}, ["results='here/${workload.name}'"]),
]


@pytest.mark.parametrize(("given", "expected"), GIVEN, ids=[str(given) for given, _ in GIVEN])
def test_settings_become_overrides(given, expected):
    found = overrides(given, ["engine.workers=1"])
    assert [word.replace(f"'{HOME}/out'", f"{HOME}/out") for word in found] == [
        *(word.replace(f"'{HOME}/out'", f"{HOME}/out") for word in expected),
        "engine.workers=1",
    ]


COMPOSED = [
    ({"results": Path("here/it's, a (1)")}, "results", "here/it's, a (1)"),
    ({"results": "true"}, "results", "true"),
    ({"results": "here/${workload.name}"}, "results", "here/mlp_digits"),
    ({"results": "here/${other}"}, "results", "here/${other}"),
    ({"goal": "val/classification_error < 0.1"}, "goal", "val/classification_error < 0.1"),
    ({"budget": {"max_steps": None}}, "budget.max_steps", None),
    ({"search": {"space": {"learning_rate": {"low": 1e-05}}}}, "search.space.learning_rate.low", 1e-05),
    ({"search": {"space": {"learning_rate": {"low": 1e-05}}}}, "search.space.learning_rate.scale", "log"),
    ({"batch_sizes": ["16k tokens", 8]}, "batch_sizes", ["16k tokens", 8]),
    ({"workload": {"widths": [7, 8]}}, "workload.widths", [7, 8]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("given", "key", "value"), partly(COMPOSED, 2), ids=[str(row[:2]) for row in COMPOSED])
def test_the_schema_reads_the_values_that_were_given(given, key, value):
    [config] = compositions(overrides(given))
    for name in key.split("."):
        config = config[name]
    assert config == value


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"search.trials": object}, "search.trials must be a number, a text, true or false, None, a list or"),
        ({"batch_sizes": {16: 1}}, r"batch_sizes must be a list, but got {16: 1}; for example batch_sizes=\[8,64\]"),
        ({"search": {"refine": {4: 1}}}, r"search.refine must be a list of whole numbers, but got {4: 1}; for example"),
        ({"batch_sizes": {8, 64}}, "batch_sizes must be a number, a text"),
        ({"batch_size": np.array([], int)}, r"batch_size must have at least one value, but got \[\]"),
        ({"optimizer": OrderedDict}, r"the class OrderedDict; .*='torch' and .*'optimizer.target=collections.Ordered"),
        ({"optimizer": ["sgd", OrderedDict]}, "a name, but got the class OrderedDict; give optimizer='torch'"),
        ({"optimizer": []}, r"optimizer must have at least one value, but got \[\]"),
    ],
)
def test_values_of_other_kinds_are_refused(given, told):
    with pytest.raises(UsageError, match=told):
        overrides(given)


def test_one_override_is_a_list_of_one():
    assert overrides({}, "search.trials=20") == overrides({}, ["search.trials=20"]) == ["search.trials=20"]


@pytest.mark.parametrize("further", [3, [3], None, {"search.trials": 20}], ids=str)
def test_overrides_that_are_no_texts_are_refused(further):
    with pytest.raises(UsageError, match=r"overrides must be a list of texts, such as .*, but got "):
        overrides({}, further)
