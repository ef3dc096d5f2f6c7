"""State of a user's optimizer that no checkpoint can hold: trials start again, and nothing branches from them."""

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
from study.engine.serial import Run
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


LOST = ["OnParameters", "InDefaults", "ByAddress", "OfTheClass"]


def asked(make_study: Any, name: str) -> Any:
    fields = {"space": RATE, "steps": STEPS, "batch_size": 16, "evaluation": Evaluation(0.2, 1.6, 1)}
    return make_study(examples=500, optimizer=f"{__name__}.{name}", **fields)


@pytest.mark.parametrize("name", ["Heavy", *LOST])
@pytest.mark.filterwarnings("ignore:an interrupted trial .* starts again")
def test_a_trial_with_lost_state_starts_again(name, make_study):
    study, workload, data = asked(make_study, name), users.Base(), Data.of(users.blobs())
    desk = Desk([fixed_trial(study)], minutes=0)
    whole = trained(study, desk, workload=workload, data=data)
    again = Desk([fixed_trial(study)], kept={0: desk.taken[4][1]})
    assert_same_bits(trained(study, again, workload=workload, data=data), whole)
    assert again.pace.made == (STEPS if name in LOST else STEPS - 5)


@pytest.mark.parametrize("name", ["Heavy", *LOST])
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
