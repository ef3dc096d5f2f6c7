"""What could have gone wrong in a search without anybody noticing: optima at the edge of the box that was searched."""

from __future__ import annotations

import pandas as pd

from analysis import counting
from analysis.counting import Edge, Outcome
from analysis.load import StudyData
from analysis.steps_to_result import measured, outcomes


def edges(study: StudyData) -> list[Edge]:
    """Open sides of a search's box at which its best trials lie (`analysis.counting.edges`)."""
    counted = outcomes(study).query("counted")
    known = counted.index.intersection(study.trials.index)
    trials = measured(study, study.goal)
    rows = zip(*(counted.loc[known, column] for column in ("status", "end", "steps_to_goal")), strict=True)
    ends = [Outcome(status, end, None if pd.isna(steps) else int(steps)) for status, end, steps in rows]
    best = counting.best_trials(ends, [trials[index] for index in known])
    points = [study.trials.loc[known[position], study.hyperparameters].to_dict() for position in best]
    return counting.edges(study.question["search"]["space"], points)
