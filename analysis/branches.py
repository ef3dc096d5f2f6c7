"""The searches of a study: which one, its folder and its seeds. `analysis.counting` passes them on to `study`."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

TUNED = "tuned"
"""The rule that changes nothing: the batch size's own tuned configuration, the reference of other rules."""


class Branch(NamedTuple):
    """Which of a study's searches; the first is what all others start from.

    Attributes:
        repeat: 0, or the number of the repetition with other seeds.
        budget: the multiple of the step budget.
        widened: how the box was widened, stage by stage, such as `learning_rate.high` (see `widening`).
        rerun: the trial whose configuration is trained again with fresh seeds; None: a search.
        rule, base: by which rule that configuration was moved here, and from which batch size, whose search all of the
            above is about; None: it was not moved.

    >>> Branch.of({"branch": {"repeat": 0, "budget": 2.0, "widened": ["learning_rate.high"], "rerun": None}}).path
    'budget-2/stage-1-learning_rate.high'
    >>> Branch(rerun=5, rule="square_root", base=32).path
    'rule-square_root-from-32-trial-5'
    """

    repeat: int = 0
    budget: float = 1.0
    widened: tuple[str, ...] = ()
    rerun: int | None = None
    rule: str | None = None
    base: int | None = None

    @classmethod
    def of(cls, question: Mapping[str, Any]) -> Self:
        """The branch that a question on file is of."""
        held = question["branch"]
        return cls(**{**held, "widened": tuple(held["widened"])})

    @property
    def stage(self) -> int:
        """How often the box was widened."""
        return len(self.widened)

    @property
    def path(self) -> str:
        """Its folder below the study's own; empty for the first search."""
        again = f"rerun-{self.rerun}" if self.rule is None else f"rule-{self.rule}-from-{self.base}-trial-{self.rerun}"
        parts = [f"repeat-{self.repeat}" if self.repeat else "", f"budget-{self.budget:g}" if self.budget != 1 else ""]
        parts += [f"stage-{number}-{widened}" for number, widened in enumerate(self.widened, start=1)]
        return "/".join(filter(None, [*parts, "" if self.rerun is None else again]))

    @property
    def seed_key(self) -> str:
        """What its seeds depend on; empty for the first search. Budgets share theirs, and so do all rules and bases."""
        if self.rule is not None:
            return ":rules"
        rerun = self.rerun is not None
        return f":{self.repeat}:{self.stage}:{rerun}" if self.repeat or self.stage or rerun else ""

    def __str__(self) -> str:
        """The name of the search; empty for the first."""
        again = f"reruns of trial {self.rerun}"
        if self.rule is not None:
            again = f"{self.rule.replace('_', ' ')} from {self.base:,}" if self.rule != TUNED else "tuned, once more"
        budget = "" if self.budget == 1 else f"{self.budget:g} x budget"
        parts = [f"repeat {self.repeat}" if self.repeat else "", budget]
        parts += [f"stage {self.stage}" if self.stage else "", "" if self.rerun is None else again]
        return ", ".join(filter(None, parts))
