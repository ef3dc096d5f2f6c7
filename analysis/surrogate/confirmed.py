"""Which configuration `search=refine` confirms: the candidate whose screens did best."""

from collections.abc import Mapping
from typing import Any

from analysis import counting
from analysis.counting import Rule, TrialCurve
from analysis.question.goals import Goal
from analysis.surrogate.proposals import chosen
from analysis.surrogate.responses import Result, about_errors, measured, responses, slope


def tuned(search: Mapping[str, Any], goal: Goal, rule: Rule, trials: Mapping[int, TrialCurve]) -> int:
    """The index of the first of the last screens of the candidate whose last screens did best.

    Arguments:
        search: the `search` of a recorded question.
        goal: the goal that chose the candidates.
        rule: the stopping rule of the trials, with its stages.
        trials: all trials of a complete search in which a trial met the goal, by index.

    >>> search = {"sampler": "refine", "scouts": 2, "refine": [1], "candidates": 2, "screens": 1}
    >>> rule = Rule("race", 0.05, [10, 20, 40], stages=(2, 3, 5))
    >>> met = {index: TrialCurve([10, steps], [0.2, 0.04], None) for index, steps in enumerate((40, 20, 20, 40, 20))}
    >>> tuned(search, Goal("val/classification_error", 0.05), rule, met)  # trials 3 and 4 are the screens
    4
    """
    *_, rounds, last = rule.stages
    found = counting.outcomes(rule, trials)
    own = [Result((), trials[index], found[index]) for index in range(last)]
    never_negative, floor = about_errors(goal.metric, measured(own))
    steep = slope({0: own}, floor)
    values = responses(own, goal.threshold, steep, never_negative, floor).values
    count = search["candidates"]
    return int(rounds + chosen([values[rounds + number : last : count].tolist() for number in range(count)]))
