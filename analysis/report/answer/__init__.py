"""The answer of a report at first sight: the finding, a row for each optimizer, and what to run next."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from analysis.labels import goal_text
from analysis.load import TASK, StudyData, rows_with
from analysis.report.answer import infeasible
from analysis.report.answer.finding import begun, finding
from analysis.report.answer.next_step import NextStep, next_step
from analysis.report.answer.rows import Row, rows


class Answer(NamedTuple):
    """The answer of one workload and goal.

    Attributes:
        group: the workload, and the metric and threshold of the goal: the values of TASK in tables.
        optimizers: the names in the tables, in the order of `rows`.
        title: the finding, without workload and goal.
        lead: a sentence that adds to it; may be empty.
    """

    group: tuple[str, str, float]
    optimizers: Sequence[str]
    title: str
    lead: str
    rows: Sequence[Row]
    next: NextStep

    @property
    def workload(self) -> str:
        return self.group[0]

    @property
    def goal(self) -> str:
        """The goal as text."""
        return goal_text(*self.group[1:])

    @property
    def subject(self) -> str:
        """The heading of the answer."""
        return f"{self.workload} to {self.goal}"

    @property
    def lines(self) -> list[str]:
        """The answer in sentences, for the terminal: the finding, then one for each optimizer."""
        return [f"{self.title}.", *filter(None, [self.lead, *(row.sentence for row in self.rows)])]


def answers(studies: Sequence[StudyData], tables: Mapping[str, pd.DataFrame]) -> list[Answer]:
    """The answer of each workload and goal, in the order of the panels of figure 1.

    Arguments:
        studies: the searches that give S(B) (`analysis.tables.answers.answers`).
        tables: by name (`analysis.report.derived.tables`).

    >>> from analysis.report.build import Asked, tables
    >>> [answer] = answers([study], tables([study], [study], Asked()))
    >>> answer.subject, answer.title
    ('mlp_digits to validation cross entropy < 0.2', 'SGD reached the goal at batch size 64')
    """
    found = []
    for key, steps in tables["steps_to_result"].groupby(TASK, sort=False):
        limits, pairs, trials = (rows_with(tables[name], TASK, key) for name in ("scaling", "compare", "trials"))
        cost = tables["cost"][tables["cost"]["workload"] == key[0]]
        mine = [study for study in studies if study.workload == key[0]]
        title, lead = finding(steps, limits, pairs)
        if failed := infeasible.example(hindered := infeasible.hindered(mine, steps)):
            lead = " ".join(filter(None, [begun(f"{infeasible.happened(hindered)}: {failed}."), lead]))
        found.append(
            Answer(
                (str(key[0]), str(key[1]), float(key[2])),
                sorted(set(steps["optimizer"])),
                title,
                lead,
                rows(steps, limits, trials),
                next_step(mine, steps, limits, cost),
            )
        )
    return found
