"""The searches of a study: which one, its folder and its seeds. `analysis.counting` passes them on to `study`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

TUNED = "tuned"
"""The rule that changes nothing: the batch size's own tuned configuration, the reference of other rules."""


class Branch(NamedTuple):
    """Identifies a search of a study. All others start from the first, `Branch()`.

    Attributes:
        repeat: 0, or the number of the repetition with other seeds.
        budget: the multiple of the step budget.
        widened: the sides of the search space that each stage widened, such as `learning_rate.high` (see `widening`).
        rerun: the trial whose configuration is trained again with fresh seeds; None: a search.
        rule, base: the rule that transferred the configuration, and the batch size that it came from (the fields above
            then describe the search at that batch size); None: not transferred.

    >>> Branch(budget=2.0, widened=("learning_rate.high",)).path
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
    def of(cls, question: Mapping[str, Any]) -> Branch:
        """The branch of a question on file.

        >>> str(Branch.of({"branch": {"repeat": 0, "budget": 2.0, "widened": ["learning_rate.high"], "rerun": None}}))
        '2 x budget, stage 1'
        """
        held = question["branch"]
        return cls(**{**held, "widened": tuple(held["widened"])})

    @property
    def stage(self) -> int:
        """The number of times that the search space was widened."""
        return len(self.widened)

    @property
    def path(self) -> str:
        """Its folder below the study's own; empty for the first search."""
        again = f"rerun-{self.rerun}" if self.rule is None else f"rule-{self.rule}-from-{self.base}-trial-{self.rerun}"
        return "/".join(
            [
                *([f"repeat-{self.repeat}"] if self.repeat else []),
                *([f"budget-{self.budget:g}"] if self.budget != 1 else []),
                *(f"stage-{number}-{widened}" for number, widened in enumerate(self.widened, start=1)),
                *([again] if self.rerun is not None else []),
            ]
        )

    @property
    def seed_key(self) -> str:
        """The part of the branch that its seeds depend on; empty for the first search.

        All budgets share their seeds, and so do all rules and bases, to make them comparable.
        """
        if self.rule is not None:
            return ":rules"
        rerun = self.rerun is not None
        return f":{self.repeat}:{self.stage}:{rerun}" if self.repeat or self.stage or rerun else ""

    def __str__(self) -> str:
        """The name of the search; empty for the first."""
        again = f"reruns of trial {self.rerun}"
        if self.rule is not None:
            again = f"{self.rule.replace('_', ' ')} from {self.base:,}" if self.rule != TUNED else "tuned, once more"
        words = [
            *([f"repeat {self.repeat}"] if self.repeat else []),
            *([f"{self.budget:g} x budget"] if self.budget != 1 else []),
            *([f"stage {self.stage}"] if self.stage else []),
            *([again] if self.rerun is not None else []),
        ]
        return ", ".join(words)
