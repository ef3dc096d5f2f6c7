"""Goals: a metric and the threshold that it must fall below. `study` imports these names from `analysis.counting`."""

import math
import re
from dataclasses import dataclass
from typing import Self

NEVER_NEGATIVE = ("classification_error", "cross_entropy_error", "average_precision_error")
"""Errors that are at least 0, so that no training meets a goal of 0 or less."""
OF_EXAMPLES = ("classification_error", "cross_entropy_error")
"""Those among them that are a mean over examples: a part of the examples gives a lower bound."""
AS_ERRORS = {"average_precision": "average_precision_error"}
"""Metric for which larger is better -> name of the error, 1 - metric, that is stored instead."""
ACCURACIES: tuple[str, ...] = ("accuracy", "acc", "top1", "top_1", "acc1", "acc_1", "top1_accuracy", "accuracy_top1")
ACCURACIES += ("acc_top1", "categorical_accuracy", "sparse_categorical_accuracy", "binary_accuracy")
"""Names of metrics that are 1 - classification error."""
GROWING = (*ACCURACIES, *AS_ERRORS, "balanced_accuracy", "top5_accuracy", "accuracy_top5", "f1", "f1_score")
GROWING += ("auc", "auroc", "roc_auc", "r2", "r2_score", "precision", "recall", "iou", "miou", "dice", "exact_match")
"""Names of metrics that grow to 1 as a model improves, so that a goal below a threshold on them is met at once."""
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"  # a regular expression
_GOAL = re.compile(rf"(?P<metric>(?:train|val|test)/\w+)\s*<\s*(?P<threshold>{NUMBER})")


@dataclass(frozen=True)
class Goal:
    """A metric and the threshold that it must fall strictly below. Every metric is an error: lower is better.

    Raises:
        ValueError: the threshold is not a finite number, no error of this kind can be below it, or every error is.
    """

    metric: str
    threshold: float

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ValueError(f"a goal's threshold must be a finite number, but got {self.threshold:g}.")
        if self.error in NEVER_NEGATIVE and self.threshold <= 0:
            name = self.error.replace("_", " ")
            raise ValueError(f"a {name} is never negative, so {self} is never met; choose a threshold above 0.")
        if self.metric.endswith("/classification_error") and self.threshold > 1:
            raise ValueError(f"a classification error is at most 1, so {self} is always met; choose a lower threshold.")

    @property
    def error(self) -> str:
        """The error or metric, whatever split and weights it is measured on.

        >>> Goal("val/ema_cross_entropy_error", 0.2).error
        'cross_entropy_error'
        """
        return self.metric.rpartition("/")[2].removeprefix("ema_")

    @property
    def names(self) -> dict[str, str | float]:
        """The columns of a goal in tables.

        >>> Goal("val/loss", 0.2).names
        {'goal_metric': 'val/loss', 'goal_threshold': 0.2}
        """
        return {"goal_metric": self.metric, "goal_threshold": self.threshold}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `val/classification_error < 0.05`.

        Raises:
            ValueError: the text has another form, or the threshold is not valid (see `Goal`).

        >>> goal = Goal.parse("val/classification_error < 0.05")
        >>> goal.metric, goal.threshold
        ('val/classification_error', 0.05)
        """
        match = _GOAL.fullmatch(text.strip())
        if match is None:
            wanted = "'SPLIT/ERROR < NUMBER' such as 'val/classification_error < 0.05'"
            cure = " Goals are on errors: an accuracy > 0.9 is a classification_error < 0.1." if ">" in text else ""
            raise ValueError(f"a goal must read {wanted}, but got {text!r}.{cure}")
        return cls(match["metric"], float(match["threshold"]))

    def __str__(self) -> str:
        """The goal with every digit of its threshold, as `parse` reads it.

        >>> str(Goal("val/mse", 1234567.0))
        'val/mse < 1234567'
        """
        return f"{self.metric} < {float(self.threshold)!r}".removesuffix(".0")
