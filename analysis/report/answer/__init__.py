"""The answer of a report at first sight: the finding, a row for each optimizer, and what to run next."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from analysis.labels import goal_text
from analysis.load import StudyData, rows_with
from analysis.report.answer import infeasible
from analysis.report.answer.finding import begun, finding
from analysis.report.answer.next_step import NextStep, next_step
from analysis.report.answer.rows import Row, rows
from analysis.report.answer.values import GROUP


class Answer(NamedTuple):
    """The answer of one workload and goal.

    Attributes:
        goal: as text.
        optimizers: the names in the tables, in the order of `rows`.
        title: the finding, without workload and goal.
        lead: a sentence that adds to it; may be empty.
    """

    workload: str
    goal: str
    optimizers: Sequence[str]
    title: str
    lead: str
    rows: Sequence[Row]
    next: NextStep

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
    for key, steps in tables["steps_to_result"].groupby(GROUP, sort=False):
        limits, pairs, trials = (rows_with(tables[name], GROUP, key) for name in ("scaling", "compare", "trials"))
        cost = tables["cost"][tables["cost"]["workload"] == key[0]]
        mine = [study for study in studies if study.workload == key[0]]
        title, lead = finding(steps, limits, pairs)
        if failed := infeasible.example(hindered := infeasible.hindered(mine, steps)):
            lead = " ".join(filter(None, [begun(f"{infeasible.happened(hindered)}: {failed}."), lead]))
        found.append(
            Answer(
                str(key[0]),
                goal_text(str(key[1]), float(key[2])),
                sorted(set(steps["optimizer"])),
                title,
                lead,
                rows(steps, limits, trials),
                next_step(mine, steps, limits, cost),
            )
        )
    return found


def rows_of(table: pd.DataFrame, answer: Answer) -> pd.DataFrame:
    """The rows of a table about the workload and goal of an answer.

    >>> table = pd.DataFrame({"workload": ["a", "b"], "goal_metric": "val/loss", "goal_threshold": 0.1})
    >>> answer = Answer("b", "validation loss < 0.1", [], "", "", [], None)
    >>> rows_of(table, answer).shape, rows_of(table[:0], answer).shape
    ((1, 3), (0, 3))
    """
    rows = table[GROUP].itertuples(index=False, name=None)
    mine = [(name, goal_text(*goal)) == (answer.workload, answer.goal) for name, *goal in rows]
    return table[pd.Series(mine, table.index, dtype=bool)]  # a table without rows keeps its columns
