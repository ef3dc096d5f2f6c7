"""Shared by tests of checks: workloads of made examples, models with one habit, and what must be refused."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor, nn

from study import whole_sweep
from study.config.jobs import Job, parse_jobs
from study.errors import UsageError


class Made:
    """A workload of made examples whose model is given; `members` replace its own or join them."""

    hyperparameters = ()
    errors = {"wrong": lambda outputs, targets: (outputs.argmax(-1) != targets).float()}  # noqa: RUF012
    name = "made"

    def __init__(self, model: Any, **members: Any) -> None:
        self.model = model
        vars(self).update(members)

    def loss(self, outputs: Any, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none")


class Model(nn.Module):
    """One linear layer and a function of the model and its outputs."""

    shared = 0

    def __init__(self, act: Any = lambda self, y: y, **attributes: Any) -> None:
        super().__init__()
        self.layer, self.act = nn.Linear(6, 2), act
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Any:
        return self.act(self, self.layer(x))


class Does(nn.Module):
    """One linear layer for the digits, and something done to its input or output."""

    def __init__(self, before: Any = lambda x: x, after: Any = lambda x: x) -> None:
        super().__init__()
        self.before, self.after, self.layer = before, after, nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Any:
        return self.after(self.layer(self.before(x).flatten(1)))


def settled(results: Path, batch_size: int = 64) -> Any:
    """The jobs of a sweep of the digits, after all checks."""
    return whole_sweep.settled([replace(job, results=results) for job in _composed(batch_size)])


@cache
def _composed(batch_size: int) -> list[Job]:
    return parse_jobs([f"batch_size={batch_size}"])


def refused(said: str | None) -> AbstractContextManager[Any]:
    """A block that raises a UsageError which says this; None: a block that raises nothing."""
    return nullcontext() if said is None else pytest.raises(UsageError, match=said)
