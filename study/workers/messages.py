"""The messages between the parent and its worker processes, sent through a pipe as frozen records.

The parent sends orders: `Train` and `Measure`. While a worker trains, the parent sends it news (`Given`, `StepLimits`,
`Stored`), which the worker reads between two steps, so that it need not wait for the parent. A worker sends reports and
requests.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from study.engine.cost import Cost
    from study.records import Curve, Study, Trial


@dataclass(frozen=True)
class Proposal:
    """A trial to train.

    Attributes:
        has_checkpoint: whether it has a checkpoint to continue from.
        step_limit: the step beyond which it need not run, until `StepLimits` lowers it.
    """

    trial: Trial
    has_checkpoint: bool
    step_limit: int


@dataclass(frozen=True)
class Train:
    """Order: train these trials of the study, and those that the parent gives later.

    Attributes:
        heights: admitted stack heights; a stack of height l trains up to l lanes.
        lanes: trials to train at once.
        proposals: the first trials, at least one and at most `room`.
        room: number of trials that the worker trains at once: `lanes`, or 1 if each trial has data of its own.
        records: whether updates may be recorded as CUDA graphs.
        compiled: compile the update of `lanes` trials.
        folder: of the search; commands keep their files there.
    """

    study: Study
    heights: tuple[int, ...]
    lanes: int
    proposals: tuple[Proposal, ...]
    room: int
    records: bool = True
    compiled: bool = False
    folder: Path | None = None


@dataclass(frozen=True)
class Measure:
    """Order: measure the cost of a trial of the study; the worker reports `Measured`, `TooLarge` or `NotRecorded`.

    Attributes:
        most: highest stack to try if `lanes` is None.
        lanes: trials at once; None: the fastest number.
        neighbour: the cost at a neighbouring batch size, if it is known.
        records: whether updates may be recorded as CUDA graphs.
    """

    study: Study
    most: int
    lanes: int | None
    neighbour: Cost | None = None
    records: bool = True


@dataclass(frozen=True)
class Given:
    """News: trials that the worker asked for. Without any: the order ends."""

    proposals: tuple[Proposal, ...] = ()


@dataclass(frozen=True)
class StepLimits:
    """News: trial index -> the step beyond which the trial need not run any more."""

    limits: Mapping[int, int]


@dataclass(frozen=True)
class Stored:
    """News: the requested checkpoint; None if there is none."""

    checkpoint: bytes | None


@dataclass(frozen=True)
class AskTrials:
    """Request: this many more trials, as soon as there are any. `Given` brings them, perhaps a few at a time.

    Attributes:
        idle: the worker has nothing else to do. It waits for `Given`.
    """

    more: int
    idle: bool


@dataclass(frozen=True)
class AskCheckpoint:
    """Request: the checkpoint of trial `index`. `Stored` brings it."""

    index: int


@dataclass(frozen=True)
class Checkpoint:
    """Report: the latest checkpoint of trial `index`."""

    index: int
    content: bytes


@dataclass(frozen=True)
class Reached:
    """Report: trial index -> the step that the trial under way has reached. At most one a second."""

    steps: Mapping[int, int]


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
class NotRecorded:
    """Report: the worker exits because an update, or an evaluation, could not be recorded as a CUDA graph. `reason`:
    the first error. Another process takes its place, with what was ordered."""

    reason: str


@dataclass(frozen=True)
class Crashed:
    """Report: the worker exits because of this error. `lost`: it only says that another rank of the team is gone."""

    error: str
    lost: bool = False


Order = Train | Measure
News = Given | StepLimits | Stored
Report = Checkpoint | Reached | Finished | Measured | TooLarge | NotRecorded | Crashed
