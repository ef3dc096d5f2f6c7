"""State of a user's optimizer that checkpoints hold, or that none can: such trials start again, which is said."""

import collections
import itertools
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.desks import Desk, assert_same_bits, fixed_trial, trained
from helpers.users import workloads as users
from rich.console import Console
from torch import Tensor

from study.branch import trunk
from study.branch.trunk import Trunk
from study.data.resident import Data
from study.engine.run import Run
from study.errors import Failed
from study.settings import Evaluation

RATE = {"learning_rate": {"choices": [0.1]}}
STEPS = 8


class Heavy(torch.optim.SGD):
    """Momentum that is kept elsewhere in each class below."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)

    def velocity(self, weight: Tensor) -> Tensor:
        return self.state[weight].setdefault("velocity", torch.zeros_like(weight))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(group["lr"] * self.velocity(weight).mul_(0.9).add_(weight.grad))


class OnParameters(Heavy):
    def velocity(self, weight: Tensor) -> Tensor:
        if not hasattr(weight, "velocity"):
            weight.velocity = torch.zeros_like(weight)  # type: ignore[attr-defined]
        return weight.velocity  # type: ignore[attr-defined]


class OnParametersAtOnce(OnParameters):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        for weight in self.param_groups[0]["params"]:
            weight.velocity = torch.zeros_like(weight)


class InDefaults(Heavy):
    def velocity(self, weight: Tensor) -> Tensor:
        place = len(self.param_groups[0]["params"]), weight.shape
        return self.defaults.setdefault(place, torch.zeros_like(weight))


class ByAddress(Heavy):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.held: dict[int, Tensor] = {}

    def velocity(self, weight: Tensor) -> Tensor:
        return self.held.setdefault(id(weight), torch.zeros_like(weight))


class OfTheClass(Heavy):
    held: dict[Any, Tensor] = {}  # noqa: RUF012

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        type(self).held.clear()

    def velocity(self, weight: Tensor) -> Tensor:
        return self.held.setdefault(weight.shape, torch.zeros_like(weight))


KEPT = ["Heavy", "OnParameters", "OnParametersAtOnce"]
LOST = ["InDefaults", "ByAddress", "OfTheClass"]


def asked(make_study: Any, name: str) -> Any:
    fields = {"space": RATE, "steps": STEPS, "batch_size": 16, "evaluation": Evaluation(0.2, 1.6, 1)}
    return make_study(examples=500, optimizer=f"{__name__}.{name}", **fields)


@pytest.mark.parametrize("name", [*KEPT, *LOST])
@pytest.mark.filterwarnings("ignore:an interrupted trial .* starts again")
def test_a_trial_with_lost_state_starts_again(name, make_study):
    study, workload, data = asked(make_study, name), users.Base(), Data.of(users.blobs())
    desk = Desk([fixed_trial(study)], minutes=0)
    whole = trained(study, desk, workload=workload, data=data)
    again = Desk([fixed_trial(study)], kept={0: desk.taken[4][1]})
    assert_same_bits(trained(study, again, workload=workload, data=data), whole)
    assert again.pace.made == (STEPS if name in LOST else STEPS - 5)


@pytest.mark.parametrize("name", [*KEPT, *LOST])
@pytest.mark.filterwarnings("ignore:an interrupted trial .* starts again")
def test_nothing_branches_from_a_trunk_with_lost_state(name, make_study, tmp_path, monkeypatch):
    study = asked(make_study, name)
    run = Run(study, users.Base(), Data.of(users.blobs()), fixed_trial(study))
    monkeypatch.setattr(trunk, "begun", lambda *_: run)
    asked_of: Any = SimpleNamespace(results=tmp_path)
    found = Trunk(asked_of, study, run.trial, (4,))
    if name not in LOST:
        trunk.prepare(found, "cpu", Console(quiet=True))
        assert found.missing == []
        return
    with pytest.raises(Failed, match="cannot be branched from: no checkpoint can hold the state of its model and opt"):
        trunk.prepare(found, "cpu", Console(quiet=True))
    assert found.missing == [4]


class Cycling(torch.optim.SGD):
    """Scales its gradients by the numbers of an iterator."""

    scales: Any = staticmethod(lambda: itertools.cycle([0.5, 1.0, 2.0]))

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.next = self.scales()

    def step(self, closure: Any = None) -> Any:
        loss = closure()
        scale = next(self.next)
        for weight in self.param_groups[0]["params"]:
            weight.grad.mul_(scale)
        super().step()
        return loss


class CyclingByList(Cycling):
    scales = staticmethod(lambda: iter([0.5, 1.0, 2.0] * 8))


class CyclingByGenerator(Cycling):
    scales = staticmethod(lambda: (2.0 ** (step % 3 - 1) for step in range(24)))


class CyclingByZip(Cycling):
    scales = staticmethod(lambda: map(max, zip([0.5, 1.0, 2.0] * 8, itertools.repeat(0.1), strict=False)))


class InADeque(Heavy):
    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr)
        self.held = collections.deque(torch.zeros_like(weight) for weight in self.param_groups[0]["params"])

    def velocity(self, weight: Tensor) -> Tensor:
        self.held.rotate()
        return next(each for each in self.held if each.shape == weight.shape)


class Remembering(torch.optim.SGD):
    """Keeps no plain data in the state of each parameter."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight].setdefault("norms", collections.deque()).append(weight.detach().norm().item())
        return loss


class Wrapping(torch.optim.Optimizer):
    """Leaves out the constructor of its base class, as common wrappers do."""

    def __init__(self, params: Any, lr: float) -> None:
        self.inner = torch.optim.Adam(params, lr=lr)
        self.param_groups, self.state, self.defaults = self.inner.param_groups, self.inner.state, {}

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.inner.zero_grad(set_to_none)


@pytest.mark.parametrize(
    ("name", "lost"),
    [
        ("InADeque", "held (deque)"),
        ("Remembering", "norms (deque)"),
        ("Cycling", "next (cycle)"),
        ("CyclingByList", "next (list_iterator)"),
        ("CyclingByGenerator", "next (generator)"),
        ("CyclingByZip", "next (map)"),
        ("Wrapping", "the state_dict of Wrapping (AttributeError: 'Wrapping' object has no attribute"),
    ],
)
def test_state_of_an_optimizer_that_no_checkpoint_can_hold_is_said(make_study, name, lost):
    study = asked(make_study, name)
    desk, data = Desk([fixed_trial(study)], minutes=0), Data.of(users.blobs())
    with pytest.warns(UserWarning, match=rf"checkpoints cannot hold {re.escape(lost)}.*, which the model or the optim"):
        trained(study, desk, workload=users.Base(), data=data)
