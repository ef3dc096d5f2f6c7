"""What is said of curves whose batch size grows."""

import numpy as np
import pandas as pd
import pytest

from analysis.batch_schedules import table

EARLY = "before the batch size grows"


@pytest.mark.parametrize(
    ("fewest", "tuned", "early"),
    [
        ((123, 984), (np.nan, np.nan), True),
        ((123, 987), (np.nan, np.nan), False),
        ((123, 987), (120.4, 960), True),
        ((100, 800), (123.0, 1000), False),
        ((100, 800), (130.6, 131 * 8), True),
    ],
)
def test_a_goal_met_before_the_first_switch_is_told(fewest, tuned, early):
    row = {"workload": "digits", "optimizer": "sgd+ramp", "batch_size": 8, "last_batch_size": 11, "reached": True}
    row |= dict(zip(["steps_to_result", "examples_to_result"], fewest, strict=True))
    row |= dict(zip(["tuned_steps", "tuned_examples"], tuned, strict=True))
    [said] = table.sentences(pd.DataFrame([row | {"constant_steps": 100.0, "constant_examples": 800.0}]))
    assert (EARLY in said) == early
    assert said.endswith("; constantly at 8: 100 and 800.")
