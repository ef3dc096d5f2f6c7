"""Workloads of the user's own that cannot be trained: what is wrong is said in words before anything is trained."""

import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from helpers.users.checked import Does, Made, Model, refused, settled
from torch import nn

from study.checks.functions import check_functions
from study.checks.model import check_evaluation, check_model
from study.config import checked
from study.errors import UsageError
from workloads.base import Splits, cross_entropy_error
from workloads.fully_connected import FullyConnected


class Masked(Does):
    def forward(self, x, mask):
        return super().forward(x * mask)


def spoilt(model):
    """The model with a number in its first parameter that is not finite."""
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] = math.inf
    return model


@pytest.mark.parametrize(
    ("where", "value", "said"),
    [
        (0, math.nan, "; the train split's example 3 holds numbers that are not finite: leave it out.$"),
        (0, math.inf, "; the train split's example 3 holds numbers that are not finite: leave it out.$"),
        (1, math.nan, "; the train split's example 3 holds numbers that are not finite: leave it out.$"),
        (1, 1e30, r"of 8 examples, inputs float32 \[8, 6\] and targets float32 \[8\].$"),
    ],
)
def test_examples_that_spoil_the_loss_are_named(make_study, where, value, said):
    few = torch.randn(8, 6), torch.randn(8)
    few[where][3] = value
    workload = Made(Model, loss=lambda outputs, targets: (outputs[:, 0] - targets).square() * targets.abs())
    with refused(f"loss is not finite before training, .*{said}"):
        check_model(make_study(), workload, *few)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: None, r"model\(\) must return a torch.nn.Module, but got a NoneType"),
        (lambda: len, "must return a torch.nn.Module, but got a builtin_function"),
        (lambda: 1 / 0, r"model\(\) cannot be computed: ZeroDivisionError: division by zero \(.*, line"),
        (lambda: nn.Flatten(), "has no parameter to train"),
        (lambda: nn.Sequential(nn.Flatten(), nn.LazyLinear(10)), "has lazy layers, .*; give them their sizes"),
        (lambda: Does().requires_grad_(False), "has no parameter to train; look for requires_grad=False"),
        (lambda: Does(after=lambda y: y.detach()), r"depends on no trained parameter; look for detach\(\)"),
        (lambda: Does(before=lambda x: x.flatten(1)[:, :5]), "model cannot be computed of 8 examples, .*shapes"),
        (lambda: Does(before=lambda x: x.double()), "model cannot be computed .* RuntimeError: .*dtype"),
        (Masked, "model cannot be computed .* 'mask'"),
        (lambda: Does(after=lambda y: (y, y)), r"loss cannot be computed of outputs \(float32 .*\) and 8 examples"),
        (lambda: Does(after=lambda y: y[:, :1]), r"outputs float32 \[8, 1\] .* IndexError: Target \d is out of bounds"),
        (lambda: Does(after=lambda y: y * math.nan), "loss is not finite before training"),
        (
            lambda: spoilt(Does()),
            r"parameter .*weight of mlp_digits's model is not finite before .*; look for torch.empty",
        ),
        (lambda: Does(after=lambda y: y.argmax(1).float()), "cannot be computed|depends on no trained"),
    ],
)
def test_models_that_cannot_be_trained(tmp_path, monkeypatch, model, said):
    monkeypatch.setattr(FullyConnected, "model", lambda self: model())
    with pytest.raises(UsageError, match=said):
        settled(tmp_path)


def seeding(seed, within):
    """A builder with a seed of its own, which puts the generator back if `within` says so."""
    with within():
        seed(0)
        return Does()


@pytest.mark.parametrize("seed", [torch.manual_seed, torch.random.manual_seed, torch.default_generator.manual_seed])
@pytest.mark.parametrize("within", [nullcontext, torch.random.fork_rng])
def test_a_model_that_seeds_the_generator_starts_every_trial_from_the_same_weights(tmp_path, monkeypatch, seed, within):
    """As a `seed_everything` in its builder does: fresh seeds were but another order of the data."""
    monkeypatch.setattr(FullyConnected, "model", lambda self: seeding(seed, within))
    refused = pytest.raises(UsageError, match=r"must leave the seed to the study, .*fork_rng")
    with refused if within is nullcontext else nullcontext():
        settled(tmp_path)


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (
            lambda: nn.BatchNorm1d(10),
            "model cannot be computed of 1 example, .* Expected more than 1 value .* leave batch size 1 out",
        ),
        (
            lambda: lambda y: y.squeeze(),
            r"number per example, of shape \[1\] for 1 of them, but got float32 \[\]; take",
        ),
    ],
)
def test_models_that_cannot_be_trained_on_one_example(tmp_path, monkeypatch, after, said):
    monkeypatch.setattr(FullyConnected, "model", lambda self: Does(after=after()))
    settled(tmp_path, batch_size=8)
    with pytest.raises(UsageError, match=said):
        settled(tmp_path, batch_size=1)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda self, outputs, targets: None, "loss must be a number per example, .* but got a NoneType"),
        (lambda self, outputs, targets: 0.5, "but got a float"),
        (lambda self, outputs, targets: outputs**2, r"loss must be a number per example.*\[8\].*\[8, 10\]"),
        (
            lambda self, outputs, targets: outputs.mean(),
            r"loss must be a number per .*\[8\].*\[\]; do not .*reduction='none'",
        ),
        (lambda self, outputs, targets: outputs.argmax(1).float(), "depends on no trained parameter"),
        (lambda self, outputs, targets: outputs.nope, r"AttributeError: .*'nope' \(.*.*_check.py, line \d+: .*\)"),
        (lambda self, outputs, targets, margin: outputs.mean(1), "'margin'; `hyperparameters` must name .* a default"),
    ],
)
def test_losses_that_are_none(tmp_path, monkeypatch, loss, said):
    monkeypatch.setattr(FullyConnected, "loss", loss)
    with pytest.raises(UsageError, match=said):
        settled(tmp_path)


class Auxiliary(nn.Module):
    """Two heads in training, one in an evaluation, as Inception of torchvision has."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(64, 10), nn.Linear(64, 10)

    def forward(self, x):
        return (self.one(x), self.two(x)) if self.training else self.one(x)


def test_errors_need_not_take_the_outputs_of_training(tmp_path, monkeypatch):
    def loss(self, outputs, targets, **_):
        return sum(nn.functional.cross_entropy(each, targets, reduction="none") for each in outputs)

    monkeypatch.setattr(FullyConnected, "model", lambda self: nn.Sequential(nn.Flatten(), Auxiliary()))
    monkeypatch.setattr(FullyConnected, "loss", loss)
    [job] = settled(tmp_path)
    assert "untrained loss" in job.fingerprint
    assert "untrained classification_error" not in job.fingerprint


class Spectrum(nn.Linear):
    def forward(self, x):
        return super().forward(torch.cat([x.real, x.imag], 1))


def test_complex_inputs_are_known_without_a_warning(tmp_path, monkeypatch):
    splits = FullyConnected.splits

    def turned(self, device):
        return Splits(*((torch.complex(x, 1 - x).flatten(1), y) for x, y in splits(self, device)))

    monkeypatch.setattr(FullyConnected, "model", lambda self: Spectrum(128, 10))
    monkeypatch.setattr(FullyConnected, "splits", turned)
    [job] = settled(tmp_path)
    assert "mean input" in job.fingerprint


def test_a_workload_without_errors(tmp_path, monkeypatch):
    monkeypatch.setattr(FullyConnected, "errors", {})
    with pytest.raises(UsageError, match="mlp_digits measures nothing: its `errors` are empty"):
        settled(tmp_path)


@pytest.mark.parametrize("member", ["errors", "hyperparameters", "splits", "model", "loss"])
def test_a_workload_without_a_member_is_refused_by_the_name_of_the_member(tmp_path, monkeypatch, member):
    [job] = settled(tmp_path)
    built = {name: None for name in ("errors", "hyperparameters", "splits", "model", "loss") if name != member}
    monkeypatch.setattr(checked, "build", lambda config: SimpleNamespace(**built))
    with pytest.raises(UsageError, match=f"mlp_digits has no {member}; add `.*{member}.*` to SimpleNamespace"):
        checked._built(job, "cpu")


class Loose(nn.Module):
    """A model that makes a weight in its own way: `make` in __init__, `use` of outputs [B, 2] in forward."""

    def __init__(self, make, use):
        super().__init__()
        self.layer, self.use = nn.Linear(6, 2), use
        make(self)

    def forward(self, x):
        return self.use(self, self.layer(x))


def late(self, y):
    if not hasattr(self, "shift"):
        self.shift = nn.Parameter(torch.zeros(2))
    return y + self.shift


def force(self, y):
    """Outputs with a gradient by their inputs, as energies have."""
    x = y.detach().requires_grad_()
    return y + torch.autograd.grad((x**3).sum(), x, create_graph=True)[0]


WEIGHTS = {  # name -> (in __init__, in forward, whether something is not trained)
    "a list of layers": (lambda m: setattr(m, "more", [nn.Linear(2, 2)]), lambda m, y: m.more[0](y), True),
    "a dictionary": (lambda m: setattr(m, "more", {"a": nn.Linear(2, 2)}), lambda m, y: m.more["a"](y), True),
    "a tensor": (lambda m: setattr(m, "scale", torch.ones(2, requires_grad=True)), lambda m, y: m.scale * y, True),
    "a parameter in forward": (lambda m: None, lambda m, y: y * nn.Parameter(torch.ones(2)), True),
    "a layer in forward": (lambda m: None, lambda m, y: nn.Linear(2, 2)(y), True),
    "a parameter at the first pass": (lambda m: None, late, True),
    "nn.ModuleList": (lambda m: setattr(m, "more", nn.ModuleList([nn.Linear(2, 2)])), lambda m, y: m.more[0](y), False),
    "nn.Parameter": (lambda m: setattr(m, "scale", nn.Parameter(torch.ones(2))), lambda m, y: m.scale * y, False),
    "a constant": (lambda m: setattr(m, "scale", torch.ones(2)), lambda m, y: m.scale * y, False),
    "frozen layers in a list": (
        lambda m: setattr(m, "more", [nn.Linear(2, 2).requires_grad_(False)]),
        lambda m, y: m.more[0](y),
        False,
    ),
    "a gradient by the inputs": (lambda m: None, force, False),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_no_optimizer_trains_are_refused(make_study, name):
    make, use, loose = WEIGHTS[name]
    with refused("that is none of its parameters, so no optimizer .*nn.ModuleList" if loose else None):
        check_model(make_study(), Made(lambda: Loose(make, use)), torch.randn(8, 6), torch.arange(8) % 2)


def normed(y):
    return (y - y.mean(0)) / y.std(0)


def counted(self, y):
    self.passes = getattr(self, "passes", 0) + 1
    return y + self.passes


MIXED = {  # name -> (of the outputs [B, 2], whether they mix examples in an evaluation)
    "softmax of the wrong axis": (lambda self, y: y.softmax(0), True),
    "a norm without running statistics": (lambda self, y: normed(y), True),
    "the same in training alone": (lambda self, y: normed(y) if self.training else y, False),
    "attention over the batch": (lambda self, y: (y @ y.T).softmax(1) @ y, True),
    "a recurrence over the batch": (lambda self, y: y.cumsum(0), True),  # as of nn.LSTM without batch_first
    "a recurrence from its end": (lambda self, y: y.flip(0).cumsum(0).flip(0), True),
    "batch norm": (lambda self, y: self.more(y), False),
    "softmax": (lambda self, y: y.softmax(1), False),
    "noise": (lambda self, y: y + torch.rand_like(y), False),
    "a count of its passes": (counted, False),
    "a mean beside the outputs": (lambda self, y: (y, y.mean()), False),
}


@pytest.mark.parametrize("name", MIXED)
def test_outputs_that_mix_the_examples_of_an_evaluation_are_refused(make_study, name):
    use, mixed = MIXED[name]
    workload = Made(lambda: Loose(lambda model: setattr(model, "more", nn.BatchNorm1d(2)), use))
    workload.errors = {"e": lambda o, t: torch.zeros(len(t))}
    with refused(r"must not depend on the other examples of an evaluation; look for .*softmax\(0\)" if mixed else None):
        check_evaluation(make_study(), workload, torch.randn(8, 6), torch.arange(8) % 2, torch.contiguous_format, [8])


def likelihood(outputs, targets):
    return -outputs.gather(1, targets[:, None])[:, 0].log()


LOGITS = {  # name -> (of the outputs [B, 2], loss, whether it takes the softmax twice)
    "softmax twice": (lambda self, y: y.softmax(1), cross_entropy_error, True),
    "logits": (lambda self, y: y, cross_entropy_error, False),
    "softmax once": (lambda self, y: y.softmax(1), likelihood, False),
    "logarithms": (lambda self, y: y.log_softmax(1), cross_entropy_error, False),
    "squares": (lambda self, y: y.softmax(1), lambda o, t: (o - nn.functional.one_hot(t, 2)).square().sum(1), False),
}


@pytest.mark.parametrize("name", LOGITS)
def test_cross_entropy_of_probabilities_is_refused(make_study, name):
    use, loss, twice = LOGITS[name]
    workload = Made(lambda: Loose(lambda model: None, use), loss=loss)
    with refused("returns probabilities, .* leave out the softmax of the model" if twice else None):
        check_functions(make_study(), workload, torch.randn(8, 6), torch.arange(8) % 2, torch.contiguous_format)
