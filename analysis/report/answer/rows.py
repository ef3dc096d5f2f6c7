"""A row for each optimizer: its fewest steps, how far it scales, and its learning rate there, with intervals."""

from typing import NamedTuple

import pandas as pd

from analysis.labels import number, optimizer_text
from analysis.report.answer.values import UNKNOWN, Value, best, curves, limit, steps_value
from analysis.tables.scaling import CRITICAL, USEFUL

NEAR = 1.2
"""Learning rates of trials within this multiple of the fewest steps count as good, as for the tunability."""


class Row(NamedTuple):
    """One optimizer.

    Attributes:
        steps: at the batch size that needs the fewest, with the interval of the tuned optimum, or of the tuned
            configuration with fewer than six batch sizes.
        useful, critical: the maximum useful batch size, and the critical batch size of McCandlish et al. (2018).
        learning_rate: of the tuned configuration at that batch size, with the range of all trials there that needed
            at most NEAR times the fewest steps.
    """

    optimizer: str
    steps: Value
    useful: Value
    critical: Value
    learning_rate: Value

    @property
    def sentence(self) -> str:
        """The row in a sentence for the terminal; empty without known steps: the title says why."""
        if self.steps == UNKNOWN:
            return ""
        noun = "step" if self.steps.text == "1" else "steps"
        parts = [f"{self.steps.text} {noun}{_in_brackets(self.steps)} {self.steps.note}"]
        if self.learning_rate != UNKNOWN:
            parts.append(f"learning rate {self.learning_rate.text}{_in_brackets(self.learning_rate)}")
        parts += [
            f"{name} batch size {value.text}{_in_brackets(value)}"
            for name, value in (("critical", self.critical), ("maximum useful", self.useful))
            if value != UNKNOWN
        ]
        return f"{self.optimizer}: {', '.join(parts)}."


def _in_brackets(value: Value) -> str:
    return f" ({value.interval})" if value.interval else ""


def rows(steps: pd.DataFrame, limits: pd.DataFrame, trials: pd.DataFrame) -> list[Row]:
    """The rows of one workload and goal, by optimizer.

    Arguments:
        steps, limits, trials: rows of one workload and goal, from `analysis.estimates.tuned.table`,
            `analysis.estimates.limits.table` and `analysis.tables.trials.trials`.

    >>> tables = [pd.read_csv(f"{published}/tables/{name}.csv") for name in ("steps_to_result", "scaling", "trials")]
    >>> found, _ = rows(*tables)
    >>> for name, value in zip(found._fields, found):
    ...     print(name, value)
    optimizer Momentum
    steps 11 (8.61 to 14.1) at batch size 1,024
    useful ≥ 1,024 (above 241)
    critical 62 (46 to 84)
    learning_rate 0.503 at batch size 1,024
    """
    found = []
    for optimizer, curve in curves(steps):
        top = best(curve)
        found.append(
            Row(
                optimizer_text(optimizer),
                UNKNOWN if top is None else steps_value(top),
                limit(limits, optimizer, USEFUL).value,
                limit(limits, optimizer, CRITICAL).value,
                UNKNOWN if top is None else _learning_rate(top, trials),
            )
        )
    return found


def _learning_rate(top: pd.Series, trials: pd.DataFrame) -> Value:
    """The tuned learning rate at one batch size, with the range of the good ones."""
    if pd.isna(top.get("learning_rate")):
        return UNKNOWN
    here = trials[(trials["optimizer"] == top["optimizer"]) & (trials["batch_size"] == top["batch_size"])]
    taken = here["steps_to_goal"].astype("Float64")
    good = here.loc[(taken <= NEAR * taken.min()).fillna(value=False), "learning_rate"]
    low, high = min(good.min(), top["learning_rate"]), max(good.max(), top["learning_rate"])
    interval = f"{number(low)} to {number(high)}" if low < high else ""
    return Value(number(top["learning_rate"]), interval, f"at batch size {top['batch_size']:,}")
