"""The tables that a report judges, from the loaded searches of a test."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis.estimates import limits, pairs, tuned
from analysis.rises import shown
from analysis.tables import answers, compare, scaling, steps_to_result


class Estimated(NamedTuple):
    steps: pd.DataFrame
    limits: pd.DataFrame
    pairs: pd.DataFrame


def estimated(studies, goals=(None,), by="optimizer", base=None) -> Estimated:
    """Steps, limits and pairs with their estimates; reruns among the studies are read as such."""
    searches = [study for study in studies if study.branch.rerun is None]
    runs = answers.rerun_steps(studies, goals)
    steps = tuned.table(steps_to_result.table(searches, goals=goals), runs)
    found = shown.withheld(limits.table(scaling.table(searches, goals, base), steps, base), steps)
    return Estimated(steps, found, pairs.table(compare.table(searches, goals, by), steps, found, runs, by))


def ends(steps, before=np.nan):
    """The ends of the steps of some seeds; `before`: the last measured step before, 0 if steps are an upper bound."""
    return pairs.ends(pd.DataFrame({"rerun": range(len(steps)), "steps": steps, "step_before": before}))
