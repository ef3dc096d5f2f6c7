"""Why the steps of a curve rise with the batch size, and what to change."""

from collections.abc import Sequence
from typing import NamedTuple

from analysis.counting import Goal
from analysis.labels import listed
from analysis.load import StudyData
from analysis.rises.shown import Rise
from analysis.tables import audits

TIGHT = 0.5
"""A budget is tight if the goal was met after this share of it."""


class Cause(NamedTuple):
    """A likely cause, and its cure."""

    text: str
    cure: str


POSSIBLE = (
    Cause("a range of learning rates that is cut off", "widen search.space.learning_rate"),
    Cause("a budget in examples, which leaves large batch sizes few steps", "raise budget.steps"),
    Cause("a goal near the noise", "choose a goal that the curves cross steeply"),
)


def causes(studies: Sequence[StudyData], goal: Goal, rise: Rise) -> list[Cause]:
    """The causes that the trials show beyond the smaller batch size of a rise; else all that there may be.

    Arguments:
        studies: the searches of the curve.

    >>> studies = [study, load_study(f"{published}/studies/mlp_digits/sgd/32")]
    >>> [cause.cure for cause in causes(studies, study.goal, Rise(32, 64, 20.0, 30.0))]
    ['widen search.space.learning_rate', 'raise budget.steps', 'choose a goal that the curves cross steeply']
    """
    budgets = {study.batch_size: study.train_steps for study in studies}
    beyond = [study for study in studies if rise.smaller < study.batch_size <= rise.larger]
    found = []
    sides = {edge.side for study in beyond for edge in audits.edges(study, goal) if edge.parameter == "learning_rate"}
    if sides:
        keys = listed(f"search.space.learning_rate.{side}" for side in sorted(sides))
        found.append(POSSIBLE[0]._replace(cure=f"widen {keys}"))
    if budgets[rise.larger] < budgets[rise.smaller] and rise.more > TIGHT * budgets[rise.larger]:
        found.append(POSSIBLE[1])
    if any(audits.noise(study, goal).hides_goal for study in beyond):
        found.append(POSSIBLE[2])
    return found or list(POSSIBLE)
