"""What is said of a schedule against constant batch sizes where seeds are few or missed the goal."""

import re

import numpy as np
import pytest

from analysis.batch_schedules.verified import overview, sentences, table
from analysis.load import LoadError, folders
from study.settings import Budget

STEPS = 100


@pytest.fixture
def verified(tmp_path, make_study, make_curve, write_study):
    """The rows of two arms, from (steps to the goal, or None if it was missed) of each of their seeds."""

    def verified(small, large):
        folder = tmp_path / "verified" / "tiny" / "momentum+ramp" / "8"
        for size, reached in ((8, small), (32, large)):
            study = make_study(batch_size=size, trials=len(reached), stopping="budget", budget=Budget(0, STEPS))
            write_study(folder, study, [make_curve(study, index, reaches=end) for index, end in enumerate(reached)])
        return table([tmp_path])

    return verified


@pytest.mark.parametrize("place", ["verified/tiny/momentum+ramp", "verified/tiny", "verified"])
def test_a_folder_above_results_folders_names_these(verified, tmp_path, place):
    verified([80], [40])
    with pytest.raises(LoadError, match=rf"no studies in .*{re.escape(place)}; give a .*momentum\+ramp/8\.$"):
        folders(tmp_path / place)


def test_one_seed_shows_no_difference(verified):
    """An interrupted `study verify` leaves one seed that ended in all arms."""
    rows = verified([80], [40])
    [said] = sentences(rows.assign(error_difference=0.03))
    assert "2.00 times fewer steps to the goal (one seed has no interval)" in said
    assert "at the end not told apart: +0.03 (one seed has no interval)" in said
    assert "nan" not in said + overview(rows).to_csv()


@pytest.mark.parametrize(
    ("small", "large", "missed"),
    [([80, None], [40, 50], "1 seed of constant 8"), ([80, None], [None, None], "1 seed of constant 8 and 2 seeds")],
)
def test_the_arm_that_missed_the_goal_is_named(verified, small, large, missed):
    rows = verified(small, large)
    [said] = sentences(rows)
    assert f"the goal was missed by {missed}" in said
    assert np.isnan(rows["steps_ratio"].iloc[1])


def test_seeds_of_one_cell_know_the_ratio_to_a_cell_of_the_evaluation_grid(verified):
    """Every seed ends at 44 and at 40 steps; 43 and 40 would look alike."""
    again = verified([44] * 4, [40] * 4).iloc[1]
    assert again["steps_ratio"] == pytest.approx(1.1)
    assert again["steps_ratio_low"] < 43 / 40 < 1.1 < again["steps_ratio_high"] < 1.25


@pytest.mark.parametrize("large", [[40] * 4, [44] * 4], ids=["another", "alike"])
def test_an_arm_is_known_to_be_as_fast_as_itself_and_as_no_other(verified, large):
    ends = ["steps_ratio_low", "steps_ratio_high"]
    own, other = verified([44] * 4, large)[ends].to_numpy()
    assert own.tolist() == [1.0, 1.0]
    assert other[0] < other[1]
