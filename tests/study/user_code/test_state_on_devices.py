"""What users keep in attributes comes back to the device where it was when a trial is resumed there."""

from typing import Any

import pytest
import torch
from helpers import pretended
from helpers.desks import Desk, assert_near, fixed_trial, trained
from helpers.fused import partly
from helpers.pretended import DEVICE, Held
from helpers.users import workloads as users
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from study.data.resident import Data
from study.settings import Evaluation
from study.user_code import optimizer_state
from study.user_code.hidden_state import is_plain

RATE = {"learning_rate": {"choices": [0.1]}}
CPU = torch.device("cpu")


@pytest.fixture
def device(monkeypatch):
    def as_on_a_gpu(value: Any) -> bool:  # whose tensors are of torch's own class
        return is_plain(tree_map_only(Held, lambda tensor: tensor.raw, value))

    monkeypatch.setattr(optimizer_state, "is_plain", as_on_a_gpu)
    monkeypatch.setattr(optimizer_state, "seal", lambda *_: "")  # it would find `raw` in a tensor
    with pretended.device() as there:
        yield there


class Lookahead(torch.optim.SGD):
    """Keeps slow weights beside `state`, and a count that stays on the CPU."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.count, self.slow = torch.zeros(2), None

    def held(self) -> list[Tensor]:
        if self.slow is None:
            self.slow = [weight.detach().clone() for group in self.param_groups for weight in group["params"]]
        return self.slow

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss, slow = super().step(closure), self.held()
        self.count += torch.ones(2, device=self.count.device)
        weights = [weight for group in self.param_groups for weight in group["params"]]
        for one, weight in zip(slow, weights, strict=True) if self.count[0] % 2 == 0 else ():
            weight.copy_(one.lerp_(weight, 0.5))
        return loss


class UnderAName(Lookahead):
    def held(self) -> list[Tensor]:
        if "slow" not in self.state:
            self.state["slow"] = {"weights": super().held()}
            self.slow = None
        return self.state["slow"]["weights"]


class InTheGroups(Lookahead):
    def held(self) -> list[Tensor]:
        if "slow" not in self.param_groups[0]:
            self.param_groups[0]["slow"], self.slow = super().held(), None
        return self.param_groups[0]["slow"]


class Saving(Lookahead):
    """Has a `state_dict` of its own, and loads it as it is."""

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "slow": self.slow, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.slow, self.count = state["slow"], state["count"]
        super().load_state_dict({key: state[key] for key in ("state", "param_groups")})


class Adding(Lookahead):
    """Adds up gradients over several steps."""

    def zero_grad(self, set_to_none: bool = True) -> None:
        if self.count[0] % 3 == 0:
            super().zero_grad(set_to_none)


class Centred(nn.Module):
    """A running mean that is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.mean = users.mlp(), None

    def forward(self, x: Tensor) -> Tensor:
        mean = torch.zeros_like(x[0]) if self.mean is None else self.mean
        if self.training:
            self.mean = mean.lerp(x.detach().mean(0), 0.1)
        return self.inner(x - mean)


class Workload(users.Base):
    def __init__(self, model: Any) -> None:
        self.make = model

    def model(self) -> nn.Module:
        return self.make()


KINDS = {
    "attribute": ("Lookahead", users.mlp),
    "state under a name": ("UnderAName", users.mlp),
    "groups": ("InTheGroups", users.mlp),
    "state_dict": ("Saving", users.mlp),
    "gradients": ("Adding", users.mlp),
    "model": ("Lookahead", Centred),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("before", "after"), partly([(DEVICE, DEVICE), (CPU, DEVICE), (DEVICE, CPU)], 3))
def test_a_trial_goes_on_with_state_of_all_kinds_on_the_device_of_its_data(kind, before, after, device, make_study):
    optimizer, model = KINDS[kind]
    fields = {"space": RATE, "steps": 10, "batch_size": 16, "evaluation": Evaluation(0.2, 1.6, 1)}
    study = make_study(examples=500, optimizer=f"{__name__}.{optimizer}", **fields)
    workload, trial = Workload(model), fixed_trial(study)
    there, here = (Data.of(workload.splits(CPU), each) for each in (before, after))
    desk = Desk([trial], minutes=0)
    whole = trained(study, desk, workload=workload, data=there)
    again = Desk([trial], kept={0: desk.taken[4][1]})
    found = trained(study, again, workload=workload, data=here)
    assert again.pace.made == 5
    assert_near(found, whole, 1e-5, "")
