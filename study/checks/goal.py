"""Checks that a goal is on an error, which falls as a model improves."""

from analysis.counting import AS_ERRORS, Goal
from analysis.question.goals import ACCURACIES, GROWING
from study.errors import UsageError


def check_falls(goal: Goal) -> None:
    """Raise UsageError if the goal is on an accuracy: below a threshold, it is met at once or never."""
    if goal.error in GROWING:
        own = "classification_error" if goal.error in ACCURACIES else f"{goal.error}_error"
        error = f"{goal.metric.partition('/')[0]}/{AS_ERRORS.get(goal.error, own)}"
        raise UsageError(
            f"a goal must be on an error, which falls as a model improves, but got {goal}, and {goal.error} grows; "
            f"measure 1 - {goal.error} as {error}, from 0 to 1, and give goal='{error} < NUMBER'."
        )
