"""Checkpoints of trials under way: when they fall due, what is in one, and whether it is one of the trial now asked.

A checkpoint holds all that the rest of a curve depends on beside its configuration: weights, the optimizer's state, the
step, and what was measured so far. Batches, dropout and schedules are functions of (seed, step) and need nothing.
"""

import hashlib
import io
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from study.engine.evaluation import Log
from study.records import Trial


class Pace:
    """Cuts training into slices, so that checkpoints are taken on time however far apart evaluations are: every
    `minutes` (0: after every step; None: never). `broadcast` calls what reads the clock, on the first process of a team
    alone, for all of them."""

    def __init__(
        self, minutes: float | None, broadcast: Callable[[Callable[[], Any]], Any] = lambda call: call()
    ) -> None:
        self.broadcast = broadcast
        self.seconds = None if minutes is None else 60 * minutes
        self.last = time.monotonic()
        self.step = float("inf")
        """Seconds that a step took lately; unknown at first, so that the first slice is a single step."""

    def advance(self, advance: Callable[[int], None], most: int) -> None:
        """Make `most` steps, or fewer where the time comes before."""
        start, steps = time.monotonic(), most
        if self.seconds is not None:
            left = self.last + self.seconds - start
            steps = self.broadcast(lambda: int(min(most, max(1, left / self.step))))
        advance(steps)
        if steps:
            self.step = max(1e-9, (time.monotonic() - start) / steps)

    def due(self) -> bool:
        """Whether a checkpoint is due; if so the clock restarts."""
        if self.seconds is None:
            return False
        now, next_one = time.monotonic(), self.last + self.seconds
        if not self.broadcast(lambda: now >= next_one):
            return False
        self.last = now
        return True


class Checkpoint(NamedTuple):
    """Where a trial continues: updates done, weights by name, and the optimizer's state as the engine keeps it."""

    step: int
    weights: Mapping[str, Tensor]
    state: Mapping[Any, Any]


def pack(log: Log, checkpoint: Checkpoint) -> bytes:
    """A digest [32], then everything that torch saves as tensors and plain data, so that no pickle need ever be run."""
    content = {
        "torch": str(torch.__version__),
        "trial": _record(log.trial),
        "micro_batch": log.micro_batch,
        "steps": log.steps,
        "errors": log.errors,
        "seconds": log.seconds,
        "step": checkpoint.step,
        # Copied, since a row of a stack would take the whole stack with it.
        "weights": {name: tensor.to("cpu", copy=True) for name, tensor in checkpoint.weights.items()},
        "state": checkpoint.state,
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    body = buffer.getvalue()
    return _digest(body) + body


def restore(content: bytes | None, log: Log, weights: Mapping[str, Tensor]) -> Checkpoint | None:
    """Fill a log from a checkpoint of its trial, and say where that trial goes on.

    Arguments:
        weights: of the trial at step 0, whose names and shapes those of the checkpoint must have.

    Returns:
        None, and the log untouched, if there is no checkpoint, it cannot be read, or it is not what is now asked:
        another trial, micro-batch, model, set of errors or grid, or another version of torch and so other last bits.
    """
    if content is None:
        return None
    grid = log.study.evaluation_steps
    try:
        held = _read(content)
        asked = (
            held["torch"] == str(torch.__version__)
            and json.loads(held["trial"]) == json.loads(_record(log.trial))
            and held["micro_batch"] == log.micro_batch
            and {name: tensor.shape for name, tensor in held["weights"].items()}
            == {name: tensor.shape for name, tensor in weights.items()}
            and held["errors"].keys() == log.errors.keys()
            and held["steps"] == grid[: len(held["steps"])]
            and held["step"] <= grid[len(held["steps"])]
        )
        found = Checkpoint(held["step"], held["weights"], held["state"])
    except Exception:  # torn files and foreign ones raise whatever their bytes lead to
        return None
    if not asked:
        return None
    log.steps, log.errors, log.seconds = held["steps"], held["errors"], held["seconds"]
    return found


def trials(kept: Mapping[int, bytes]) -> list[Trial]:
    """The trials of those checkpoints that can be read."""
    found = []
    for index in kept:
        try:
            found.append(Trial(**json.loads(_read(kept[index])["trial"])))
        except Exception:  # as above
            continue
    return found


def _record(trial: Trial) -> str:
    # As text: a hyperparameter may come as numpy's kind of float, which is no plain number to torch.load.
    return json.dumps(asdict(trial))


def _read(content: bytes) -> dict[str, Any]:
    body = content[32:]
    if content[:32] != _digest(body):
        raise ValueError("torn")
    return torch.load(io.BytesIO(body), map_location="cpu", weights_only=True)


def _digest(body: bytes) -> bytes:
    # torch.load checks no sum, and a flipped bit of a weight would be another curve.
    return hashlib.sha256(body).digest()
