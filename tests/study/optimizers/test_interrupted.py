"""A trial with a class of a user's own continues exactly after an interruption, or starts again and says so."""

import warnings

import pytest
import torch
from helpers.blobs import Blobs
from helpers.desks import Desk, Killed, assert_same_bits, fixed_trial, trained

from study.checks.optimizer import refusal
from study.settings import Evaluation

STEPS, KEPT = 14, 5
BLOBS = Blobs()
DATA = BLOBS.data()


class Base(torch.optim.Optimizer):
    """Subtracts what `change(parameter, its state)` returns."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr, "t": 0})
        self.begin([p for group in self.param_groups for p in group["params"]])

    def begin(self, weights):
        pass

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(group["lr"] * self.change(weight, self.state[weight]))


def velocity(held, gradient):
    return held.mul_(0.9).add_(gradient)


class Double(Base):
    def change(self, weight, state):
        held = state.setdefault("v", torch.zeros_like(weight, dtype=torch.float64))
        return velocity(held, weight.grad.double()).float()


class Half(Base):
    def change(self, weight, state):
        held = state.setdefault("v", torch.zeros_like(weight, dtype=torch.bfloat16))
        return velocity(held, weight.grad.bfloat16()).float()


class Whole(Base):
    def change(self, weight, state):
        held = state.setdefault("v", torch.zeros_like(weight, dtype=torch.int8))
        return held.bitwise_right_shift_(1).add_((9 * weight.grad.sign()).to(torch.int8)).float() / 9


class Masking(Base):
    def change(self, weight, state):
        return torch.where(state.setdefault("few", weight > 0), weight.grad, 0.5 * weight.grad)


class Adding(Base):
    """Adds up the gradients of two steps."""

    count = 0

    def zero_grad(self):
        if self.count % 2 == 0:
            super().zero_grad()

    def step(self):
        self.count += 1
        if self.count % 2 == 0:
            super().step()

    def change(self, weight, state):
        return weight.grad


class Ahead(Base):
    """An optimizer within it shares its groups."""

    def begin(self, weights):
        self.inner = torch.optim.SGD(self.param_groups, lr=1.0)

    def step(self):
        self.inner.step()


class Flat(Base):
    """Parameters are views of one tensor."""

    def begin(self, weights):
        self.flat = torch.cat([weight.detach().flatten() for weight in weights])
        for weight, part in zip(weights, self.flat.split([weight.numel() for weight in weights]), strict=True):
            weight.data = part.view_as(weight)

    @torch.no_grad()
    def step(self):
        group = self.param_groups[0]
        self.flat.sub_(group["lr"] * torch.cat([weight.grad.flatten() for weight in group["params"]]))


class Views(Base):
    """Velocities are views of one tensor."""

    def begin(self, weights):
        self.flat = torch.zeros(sum(map(torch.numel, weights)))
        for weight, part in zip(weights, self.flat.split([*map(torch.numel, weights)]), strict=True):
            self.state[weight]["v"] = part.view_as(weight)

    def step(self):
        self.flat.mul_(0.9)
        super().step()

    def change(self, weight, state):
        return state["v"].add_(weight.grad)


class Addressed(Base):
    def begin(self, weights):
        self.held = {}

    def change(self, weight, state):
        return velocity(self.held.setdefault(id(weight), torch.zeros_like(weight)), weight.grad)


class OnParameters(Base):
    def change(self, weight, state):
        weight.velocity = velocity(getattr(weight, "velocity", torch.zeros_like(weight)), weight.grad)
        return weight.velocity


class InDefaults(Base):
    def change(self, weight, state):
        self.defaults["t"] += 1
        return weight.grad / self.defaults["t"] ** 0.5


class InClass(Base):
    t = 0

    def change(self, weight, state):
        type(self).t += 1
        return weight.grad / self.t**0.5


WAYS = {
    **dict.fromkeys((Double, Half, Whole, Masking, Adding, Ahead, OnParameters), True),
    **dict.fromkeys((Flat, Views, Addressed, InDefaults, InClass), False),
}
"""Class -> whether a checkpoint holds all of its state."""


def asked(make_study, kind, **fields):
    space = {"learning_rate": {"choices": [0.03]}, **fields.pop("space", {})}
    grid = Evaluation(first=1 / STEPS, ratio=1 + 1e-9, every=1)
    name = f"{__name__}.{kind.__name__}"
    return make_study(space=space, arithmetic="plain", steps=STEPS, evaluation=grid, optimizer=name, **fields)


def check_continued(study, exact):
    """The trial is interrupted, and continues with the curve of one that was not."""
    whole, kept = trained(study, Desk([fixed_trial(study)]), workload=BLOBS, data=DATA), {}
    with pytest.raises(Killed):
        trained(study, Desk([fixed_trial(study)], minutes=0, kept=kept, lives=KEPT), workload=BLOBS, data=DATA)
    desk = Desk([fixed_trial(study)], kept=kept)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert_same_bits(trained(study, desk, workload=BLOBS, data=DATA), whole)
    assert desk.pace.made == (STEPS - KEPT if exact else STEPS)
    assert [f"{each.message}"[:38] for each in said] == ([] if exact else ["an interrupted trial of tiny starts ag"])


@pytest.mark.parametrize("kind", WAYS)
def test_an_interrupted_trial_continues_exactly_or_starts_again(make_study, kind):
    check_continued(asked(make_study, kind), WAYS[kind])


def test_the_groups_that_an_inner_optimizer_shares_follow_the_schedule_after_an_interruption(make_study):
    """The trial is interrupted at the end of the warmup, where the rate is the one that the class was built with."""
    space = {
        "learning_rate_decay_fraction": {"choices": [1.0]},
        "end_learning_rate_factor": {"choices": [0.0]},
        "warmup_steps": {"choices": [KEPT]},
    }
    study, kept = asked(make_study, Ahead, space=space, schedule="linear_decay"), {}
    with pytest.warns(UserWarning, match=r"checkpoints cannot hold inner \(SGD\)"):
        whole = trained(study, Desk([fixed_trial(study)], minutes=0, kept=kept), workload=BLOBS, data=DATA)
    assert_same_bits(trained(study, Desk([fixed_trial(study)], kept=kept), workload=BLOBS, data=DATA), whole)


HELD = {}


class InItsModule(Base):
    def change(self, weight, state):
        return velocity(HELD.setdefault(weight.shape, torch.zeros_like(weight)), weight.grad)


class InItsClass(Base):
    held: dict = {}  # noqa: RUF012

    def change(self, weight, state):
        return velocity(self.held.setdefault(weight.shape, torch.zeros_like(weight)), weight.grad)


class Warning_(Base):
    told = []  # noqa: RUF012

    def change(self, weight, state):
        if not self.told:
            self.told.append("once")
        return weight.grad


@pytest.mark.parametrize(
    ("kind", "name"),
    [(InItsModule, "test_interrupted.HELD"), (InItsClass, "InItsClass.held"), (Warning_, None), (Ahead, None)],
)
def test_a_class_that_keeps_state_for_all_trials_is_refused(make_study, kind, name):
    why = refusal(asked(make_study, kind), BLOBS, DATA)
    assert why is None if name is None else f"{name}, which all trials of a process share" in why


class Keeping(Base):
    def __init__(self, params, lr):
        self.weights = list(params)
        super().__init__(self.weights, lr)

    @torch.no_grad()
    def step(self):
        for weight in self.weights:
            weight.sub_(self.param_groups[0]["lr"] * weight.grad)


def test_a_class_that_takes_the_pairs_for_parameters_is_told(make_study):
    assert "params are pairs of name and parameter" in refusal(asked(make_study, Keeping), BLOBS, DATA)
