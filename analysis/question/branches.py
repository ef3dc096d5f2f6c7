"""Identify one search of a study, its folder and its seeds. `study` imports these names from `analysis.counting`."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

TUNED = "tuned"
"""The rule that transfers nothing: the batch size's own tuned configuration, the reference for the other rules."""
VERIFIED = "verified_"
"""The beginning of the rules of `study verify`: the rest says how its arm got its hyperparameters."""
VERIFIED_FOLDER, BRANCHED_FOLDER = "verified", "branched"
"""The folders below a results folder that hold those of `study verify` and `study branch`."""
VERIFIED_RESULTS = f"{VERIFIED_FOLDER}/*/*/*"
"""Where the results folder of each verified schedule is: by workload, curve and batch size."""
BRANCHED_RESULTS = f"{BRANCHED_FOLDER}/*/*/*/*"
"""Where the results folder of each rule and window is: by workload, optimizer and trunk."""
SPLIT, VALIDATION = "split", "validation"
"""What `search.fresh_data` varies with each fresh seed: the split into training and validation data, or the evaluated
part of the validation set alone."""
TRUNK = -1
"""In place of the index of a trial: the checkpoint of the trunk, from which the trials of a branch start."""


class Start(NamedTuple):
    """The checkpoint that all trials of a branched search start from. It is of another run, the trunk.

    Attributes:
        step: updates of the trunk before it.
        checksum: SHA-256 of its weights and optimizer state.
        batch_size, train_steps: batch size and step budget of the trunk, whose schedule goes on in the branch.
    """

    step: int
    checksum: str
    batch_size: int
    train_steps: int


class Branch(NamedTuple):
    """Identifies one search of a study. The defaults identify the first search, from which all others start.

    Attributes:
        repeat: 0, or the number of a repeat with other seeds.
        budget: the multiple of the step budget.
        widened: the sides at which each stage widened the search space, such as `learning_rate.high` (see
            `analysis.edges.widening`).
        rerun: index of the trial whose configuration is trained again with fresh seeds; None for a search.
        rule, base: the rule that transferred this configuration, and the batch size that it was tuned at. The other
            attributes then identify a search and its trial at `base`. None: nothing was transferred.
        certify: the step at which every training ends, to test whether the mean error is below the goal there (`study
            certify`); None: trainings end by their stopping rule.
        start: the checkpoint that trials start from; None: a newly initialised model.

    >>> Branch.of({"branch": {"repeat": 0, "budget": 2.0, "widened": ["learning_rate.high"], "rerun": None}}).path
    'budget-2/stage-1-learning_rate.high'
    >>> Branch(rerun=5, rule="square_root", base=32).path
    'rule-square_root-from-32-trial-5'
    >>> Branch(rerun=5, certify=440).path
    'certify-at-440-trial-5'
    >>> Branch(start=Start(800, "5f3c", batch_size=8, train_steps=2000)).path
    'from-step-800'
    """

    repeat: int = 0
    budget: float = 1.0
    widened: tuple[str, ...] = ()
    rerun: int | None = None
    rule: str | None = None
    base: int | None = None
    certify: int | None = None
    start: Start | None = None

    @classmethod
    def of(cls, question: Mapping[str, Any]) -> Self:
        """The branch of a recorded question."""
        recorded = question["branch"]
        start = {"start": Start(**recorded["start"])} if recorded.get("start") else {}
        return cls(**{**recorded, "widened": tuple(recorded["widened"]), **start})

    @property
    def stage(self) -> int:
        """How many times the search space was widened."""
        return len(self.widened)

    @property
    def path(self) -> str:
        """The folder of the search below the folder of its study; empty for the first search."""
        again = f"rerun-{self.rerun}" if self.rule is None else f"rule-{self.rule}-from-{self.base}-trial-{self.rerun}"
        again = again if self.certify is None else f"certify-at-{self.certify}-trial-{self.rerun}"
        parts = [f"repeat-{self.repeat}" if self.repeat else "", f"budget-{self.budget:g}" if self.budget != 1 else ""]
        parts += [f"stage-{number}-{widened}" for number, widened in enumerate(self.widened, start=1)]
        start = "" if self.start is None else f"from-step-{self.start.step}"
        return "/".join(filter(None, [*parts, "" if self.rerun is None else again, start]))

    @property
    def seed_key(self) -> str:
        """The key that seeds derive from; empty for the first search. Budgets share it, and so do rules and bases,
        certificates at all steps, and the arms of a verification."""
        if self.certify is not None:
            return ":certify"
        if self.start is not None:
            return f":from-step-{self.start.step}"
        if self.rule is not None:
            return ":verified" if self.rule.startswith(VERIFIED) else ":rules"
        rerun = self.rerun is not None
        return f":{self.repeat}:{self.stage}:{rerun}" if self.repeat or self.stage or rerun else ""

    def __str__(self) -> str:
        """The name of the search for people; empty for the first search."""
        again = f"reruns of trial {self.rerun}"
        if self.rule is not None:
            again = f"{self.rule.replace('_', ' ')} from {self.base:,}" if self.rule != TUNED else "tuned, once more"
        if self.certify is not None:
            again = f"certificate of trial {self.rerun} at step {self.certify:,}"
        budget = "" if self.budget == 1 else f"{self.budget:g} x budget"
        parts = [f"repeat {self.repeat}" if self.repeat else "", budget]
        parts += [f"stage {self.stage}" if self.stage else "", "" if self.rerun is None else again]
        parts += ["" if self.start is None else f"from step {self.start.step:,}"]
        return ", ".join(filter(None, parts))
