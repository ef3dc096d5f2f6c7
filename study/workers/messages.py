"""The messages between the parent and its worker processes, sent through a pipe as frozen records.

The parent sends orders: `Train` and `Measure`. A worker sends questions (`AskTrial`, `AskStepLimit`, `AskCheckpoint`),
which the parent answers, and reports, which it does not answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from study.engine.cost import Cost
    from study.records import Curve, Study, Trial


@dataclass(frozen=True)
class Train:
    """Order: train trials of the study until the parent has no more.

    Attributes:
        heights: admitted stack heights; a stack of height l trains up to l lanes.
        lanes: trials to train at once.
    """

    study: Study
    heights: tuple[int, ...]
    lanes: int


@dataclass(frozen=True)
class Measure:
    """Order: measure the cost of a trial of the study; the worker reports `Measured` or `TooLarge`.

    Attributes:
        most: highest stack to try if `lanes` is None.
        lanes: trials at once; None: the fastest number.
    """

    study: Study
    most: int
    lanes: int | None


@dataclass(frozen=True)
class AskTrial:
    """Question: the next trial to train. Answer: a `Proposal` or None.

    Attributes:
        wait: the worker has nothing else to do, so the answer may come late: when there is a trial, or with None at the
            end of the search.
    """

    wait: bool


@dataclass(frozen=True)
class Proposal:
    """Answer: a trial to train, and whether it has a checkpoint to continue from."""

    trial: Trial
    has_checkpoint: bool


@dataclass(frozen=True)
class AskStepLimit:
    """Question: the step beyond which trial `index` need not run. Answer: an int."""

    index: int


@dataclass(frozen=True)
class AskCheckpoint:
    """Question: the checkpoint of trial `index`. Answer: bytes or None."""

    index: int


@dataclass(frozen=True)
class Checkpoint:
    """Report: the latest checkpoint of trial `index`."""

    index: int
    content: bytes


@dataclass(frozen=True)
class Finished:
    """Report: the curve of a finished trial."""

    curve: Curve


@dataclass(frozen=True)
class Measured:
    """Report: the measured cost of a trial."""

    cost: Cost


@dataclass(frozen=True)
class TooLarge:
    """Report: a trial of the study does not fit on this worker's device. It ends the order. `reason`: the message for
    the user, with the cure."""

    reason: str


@dataclass(frozen=True)
class Crashed:
    """Report: the worker exits because of this error. `lost`: it only says that another rank of the team is gone."""

    error: str
    lost: bool = False


Order = Train | Measure
Question = AskTrial | AskStepLimit | AskCheckpoint
Report = Checkpoint | Finished | Measured | TooLarge | Crashed
