"""Classes of optimizers whose `step` calls the closure, passes it on, ignores or rejects it, or has hooks."""

import re

import numpy as np
import pytest
import torch
from helpers.blobs import Blobs
from helpers.desks import Desk, fixed_trial, trained

from study.checks.optimizer import refusal
from study.optimizers.foreign import calls_closure
from study.settings import Evaluation

STEPS = 20
BLOBS = Blobs()
DATA = BLOBS.data()


@pytest.fixture
def question(make_study):
    """A study of Blobs with these fixed hyperparameters, measured at every step."""

    def make(space, **fields):
        evaluation = Evaluation(first=1 / STEPS, ratio=1 + 1e-9, every=1)
        return make_study(space=space, arithmetic="plain", steps=STEPS, batch_size=6, evaluation=evaluation, **fields)

    return make


def curve(study):
    return trained(study, Desk([fixed_trial(study)]), workload=BLOBS)[0]


class ByHand(torch.optim.SGD):
    """For loops that call loss.backward() before step(): it takes no closure."""

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter -= group["lr"] * parameter.grad


class Ignoring(ByHand):
    """Takes a closure and does not call it."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step()


class Silent(torch.optim.SGD):
    """Returns no loss."""

    def step(self, closure):
        super().step(closure)


class Scaled(torch.optim.SGD):
    """Takes no closure, but a keyword."""

    def step(self, *, scale=1.0):
        for weight in self.param_groups[0]["params"]:
            weight.grad.mul_(scale)
        super().step()


class Second(torch.optim.SGD):
    """Takes the closure as its second argument."""

    def step(self, scaler=None, closure=None):
        assert scaler is None
        return super().step(closure)


class KeywordOnly(torch.optim.SGD):
    def step(self, *, closure=None):
        return super().step(closure)


class Rejecting(ByHand):
    """Takes a closure, as the signature wants it, and rejects it."""

    def step(self, closure=None):
        if closure is not None:
            raise RuntimeError("closures are not supported.")
        super().step()


class Refusing(ByHand):
    def step(self, closure=None):
        if not closure:
            return super().step()
        raise RuntimeError("closures are not supported.")


class Negating(ByHand):
    def step(self, closure=None):
        alone = not closure
        assert alone
        super().step()


class ByName(torch.optim.SGD):
    """Takes keywords alone."""

    def step(self, **keywords):
        return super().step(**keywords)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("ByHand", "Ignoring", "Silent", "Scaled", "Second", "KeywordOnly", "Rejecting", "Refusing", "Negating"),
        "ByName",
    ],
)
def test_optimizers_need_not_return_the_loss_nor_know_of_closures(question, name):
    theirs = curve(question({"learning_rate": 0.1}, optimizer=f"{__name__}.{name}"))
    ours = curve(question({"learning_rate": 0.1}, optimizer="sgd"))
    np.testing.assert_allclose(theirs.errors["val/loss"], ours.errors["val/loss"], rtol=1e-5)


def _clipped(optimizer):
    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], 0.1)


class Hooked(torch.optim.SGD):
    """Clips gradients in a hook."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.register_step_pre_hook(lambda optimizer, args, keywords: _clipped(optimizer))


class HookedByHand(Hooked):
    step = ByHand.__dict__["step"]


class HookedTwice(Hooked):
    """Its hooks must run once for each step."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.register_step_pre_hook(lambda optimizer, args, keywords: self._halve(2.0))
        self.register_step_post_hook(lambda optimizer, args, keywords: self._halve(1.0))

    @torch.no_grad()
    def _halve(self, by):
        for parameter in self.param_groups[0]["params"]:
            parameter.grad.div_(by)


@pytest.mark.parametrize(("name", "rate"), [("Hooked", 0.1), ("HookedByHand", 0.1), ("HookedTwice", 0.05)])
def test_hooks_before_a_step_change_the_gradients_of_its_batch(question, name, rate):
    theirs = curve(question({"learning_rate": 0.1}, optimizer=f"{__name__}.{name}"))
    ours = curve(question({"learning_rate": rate, "clip_norm": 0.1}, optimizer="sgd"))
    np.testing.assert_allclose(theirs.errors["val/loss"], ours.errors["val/loss"], rtol=1e-5)
    assert refusal(question({"learning_rate": 0.1}, optimizer=f"{__name__}.{name}"), BLOBS, DATA) is None


class ClippedStale(torch.optim.SGD):
    """Clips before it passes the closure on."""

    def step(self, closure=None):
        _clipped(self)
        return super().step(closure)


class ReadFirst(torch.optim.SGD):
    """Reads gradients before it calls the closure, which it needs."""

    def step(self, closure):
        self.param_groups[0]["params"][0].grad.mul_(2)
        return super().step(closure)


class RejectedWithin(torch.optim.SGD):
    """Rejects a closure in a way that does not show in its code."""

    def step(self, closure=None):
        if closure is not None:
            raise RuntimeError(f"got {type(closure).__name__}.")
        return super().step()


class Disabling(torch.optim.Adam):
    """Calls the closure where gradients are disabled."""

    @torch.no_grad()
    def step(self, closure):
        return closure()


class Failing(torch.optim.Adam):
    """Has a fault of its own."""

    def step(self):
        raise RuntimeError("no room for the factors.")


class Deaf(torch.optim.Optimizer):
    """Fixes its learning rate at the start."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr, "rate": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for each in group["params"]:
                each -= group["rate"] * each.grad


REFUSED = {
    "Disabling": r"begin it with `with torch.enable_grad\(\): loss = closure\(\)`",
    "ClippedStale": r"must call the closure, which computes the gradients, before it reads them",
    "ReadFirst": r"line \d+: .*\); it had not called the closure, and gradients are None before: begin",
    "RejectedWithin": r"fails with a closure, .* works without: let it take no .* \(got function \(",
    "Failing": r"learning_rate=0.1, .*: no room for the factors \(.*test_closures.py, line \d+: raise RuntimeError",
    "Deaf": r"let it read group\['lr'\], or choose schedule=constant$",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_step_that_cannot_train_is_told_the_cure_or_its_line(question, name):
    fixed = {"learning_rate": 0.1, "learning_rate_decay_fraction": 1.0, "end_learning_rate_factor": 0.1}
    study = question(fixed, optimizer=f"{__name__}.{name}", schedule="linear_decay")
    assert re.search(REFUSED[name], refusal(study, BLOBS, DATA))


def test_what_cannot_be_looked_into_is_taken_to_call_its_closure():
    steps = (len, ByHand.step, torch.optim.LBFGS.step, Refusing.step, Rejecting.step, RejectedWithin.step)
    assert [calls_closure(step) for step in steps] == [True, False, True, False, False, True]


class ReadingLoss(torch.optim.Optimizer):
    """Takes the length of a step from the loss, as Polyak does."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        loss = 0.0
        if closure is not None:
            with torch.enable_grad():
                loss = float(closure())
        for group in self.param_groups:
            for weight in group["params"]:
                weight.sub_(group["lr"] * (1 + loss) * weight.grad)


def test_a_step_may_use_the_loss_that_its_closure_returns(question):
    asked = question({"learning_rate": 0.1}, optimizer=f"{__name__}.ReadingLoss")
    assert refusal(asked, BLOBS, DATA) is None
