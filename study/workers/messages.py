"""What the parent and its worker processes say to each other through a pipe, each message a frozen record.

The parent gives orders: `Train` and `Measure`. A worker in training asks (`AskTrial`, `AskStepLimit`, `AskCheckpoint`)
and waits for the answer; everything else that it says is a report and gets none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from study.engine.cost import Cost
    from study.records import Curve, Study, Trial


@dataclass(frozen=True)
class Train:
    """Order: train the study's trials until no answer to `AskTrial` brings another, `lanes` of them at once, in stacks
    of any of these `heights`."""

    study: Study
    heights: tuple[int, ...]
    lanes: int


@dataclass(frozen=True)
class Measure:
    """Order: measure what a trial of the study costs with `lanes` lanes (None: the fastest number, up to `most`);
    answered by `Measured` or `TooLarge`."""

    study: Study
    most: int
    lanes: int | None


@dataclass(frozen=True)
class AskTrial:
    """Question: the next trial to train; answered by a `Proposal` or None. `wait`: the worker has nothing else to do
    and waits until there is a trial, or the search is over (None)."""

    wait: bool


@dataclass(frozen=True)
class Proposal:
    """Answer: a trial to train, and whether it has a checkpoint to continue from."""

    trial: Trial
    has_checkpoint: bool


@dataclass(frozen=True)
class AskStepLimit:
    """Question: the step beyond which trial `index` need not run; answered by an int."""

    index: int


@dataclass(frozen=True)
class AskCheckpoint:
    """Question: the checkpoint of trial `index`; answered by bytes or None."""

    index: int


@dataclass(frozen=True)
class Checkpoint:
    """Report: trial `index` can continue from here."""

    index: int
    content: bytes


@dataclass(frozen=True)
class Finished:
    """Report: the curve of a finished trial."""

    curve: Curve


@dataclass(frozen=True)
class Measured:
    """Report: what was measured."""

    cost: Cost


@dataclass(frozen=True)
class TooLarge:
    """Report: one trial of the study does not fit on this worker's device; the order is over. `reason`: for a person,
    with the cure."""

    reason: str


@dataclass(frozen=True)
class Crashed:
    """Report: the worker ends with this error."""

    error: str


Order = Train | Measure
Question = AskTrial | AskStepLimit | AskCheckpoint
Report = Checkpoint | Finished | Measured | TooLarge | Crashed
