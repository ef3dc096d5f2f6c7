"""What is said of two curves of which one mostly missed the goal over a range of batch sizes."""

import numpy as np
import pandas as pd
import pytest

from analysis.estimates import verdicts
from analysis.estimates.pairs import ALL, BEYOND, UP_TO

INF = np.inf


@pytest.mark.parametrize("kind", [ALL, UP_TO, BEYOND])
@pytest.mark.parametrize(("ratio", "low", "high"), [(INF, INF, INF), (0.0, 0.0, 0.0)])
def test_a_range_at_which_the_other_missed_has_no_infinite_ratio(kind, ratio, low, high):
    row = {"kind": kind, "workload": "w", "a": "a", "b": "b", "goal_metric": "val/loss", "goal_threshold": 1.0}
    rows = pd.DataFrame([row | {"smallest_batch_size": 8, "largest_batch_size": 64, "ratio": ratio, "shown": True}])
    columns = ["workload", "optimizer", "goal_metric", "goal_threshold", "definition", "estimate"]
    [said] = verdicts.sentences(rows.assign(low=low, high=high), pd.DataFrame(columns=columns))
    ahead, behind = ("a", "b") if low > 1 else ("b", "a")
    assert f"{ahead} needs fewer steps than {behind}" in said
    assert f"where {behind} mostly missed the goal" in said
    assert "inf" not in said


@pytest.mark.parametrize(
    ("kind", "ratio", "count"), [(UP_TO, INF, 1), (BEYOND, INF, 1), (BEYOND, 0.0, 2), (BEYOND, 2.0, 2)]
)
def test_a_goal_missed_over_all_batch_sizes_is_not_said_again_of_a_part(kind, ratio, count):
    row = {"workload": "w", "a": "a", "b": "b", "goal_metric": "val/loss", "goal_threshold": 1.0, "shown": True}
    ends = {"smallest_batch_size": 8, "largest_batch_size": 64}
    rows = [row | ends | {"kind": each, "ratio": at, "low": at, "high": at} for each, at in ((ALL, INF), (kind, ratio))]
    columns = ["workload", "optimizer", "goal_metric", "goal_threshold", "definition", "estimate"]
    [said] = verdicts.sentences(pd.DataFrame(rows), pd.DataFrame(columns=columns))
    assert said.count("fewer steps than") == count
