"""Models in each layout, mode and size of training and evaluation; those that cannot be trained are refused."""

from dataclasses import InitVar, dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.users.checked import Made, Model, refused
from torch import nn

from study.checks.functions import check_functions
from study.checks.model import check_evaluation, check_model
from study.checks.state import State, stateful
from study.errors import UsageError

CONTIGUOUS = torch.contiguous_format


class Viewing(nn.Module):
    """Flattens images with `view` after a convolution, which channels-last images do not allow, in some modes."""

    def __init__(self, modes):
        super().__init__()
        self.conv, self.layer, self.modes = nn.Conv2d(3, 4, 3), nn.Linear(16, 2), modes

    def forward(self, x):
        y = self.conv(x)
        return self.layer(y.view(len(y), -1) if self.training in self.modes else y.flatten(1))


@pytest.mark.parametrize(
    ("modes", "expected"),
    [
        ((True, False), CONTIGUOUS),
        ((True,), CONTIGUOUS),
        ((False,), CONTIGUOUS),
        ((), torch.channels_last),
    ],
)
def test_models_that_take_one_layout_of_images(make_study, modes, expected):
    workload, study = Made(lambda: Viewing(modes)), make_study()
    few = torch.randn(8, 3, 4, 4), torch.arange(8) % 2
    layout = check_model(study, workload, *few)
    assert layout == expected
    check_evaluation(study, workload, *few, layout, [8])
    assert stateful(study, workload, *few, layout) == State()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"in_channels": 4, "kernel_size": 1, "stride": 2}, CONTIGUOUS),
        ({"in_channels": 32, "kernel_size": 1, "stride": (1, 2), "groups": 4}, CONTIGUOUS),
        ({"in_channels": 16, "kernel_size": 1, "stride": 2}, torch.channels_last),
        ({"in_channels": 4, "kernel_size": 3, "stride": 2}, torch.channels_last),
        ({"in_channels": 4, "kernel_size": 1}, torch.channels_last),
    ],
    ids=str,
)
def test_gradients_that_would_overrun_their_memory_take_the_other_layout(make_study, options, expected):
    """In channels-last this process would crash: "corrupted double-linked list"."""
    first = nn.Conv2d(3, options["in_channels"], 3)
    layers = [first, nn.Conv2d(**options, out_channels=8), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2)]
    few = torch.randn(8, 3, 8, 8), torch.arange(8) % 2
    assert check_model(make_study(), Made(lambda: nn.Sequential(*layers)), *few) == expected


def test_the_last_part_of_an_evaluation_may_hold_one_example(make_study):
    def of_several(self, y):
        assert self.training or len(y) > 1
        return y

    def model():
        return Model(of_several)

    few = torch.randn(8, 6), torch.arange(8) % 2
    check_evaluation(make_study(), Made(model), *few, CONTIGUOUS, [1024, 50])
    with pytest.raises(UsageError, match="of 1 example"):
        check_evaluation(make_study(), Made(model), *few, CONTIGUOUS, [1024, 1025])


def test_sparse_gradients_are_refused(make_study):
    workload = Made(lambda: nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2)))
    with pytest.raises(UsageError, match=r"momentum needs dense gradients, but .* 0.weight .* leave out sparse=True"):
        check_model(make_study(), workload, torch.arange(24).view(8, 3) % 9, torch.arange(8) % 2)


def passes(study, workload, few):
    """All checks pass on these examples."""
    layout = check_model(study, workload, *few)
    check_evaluation(study, workload, *few, layout, [8])
    check_functions(study, workload, *few, layout)
    assert stateful(study, workload, *few, layout) == State()


def cropped(inputs, generator):
    first = int(torch.randint(3, (), generator=generator))
    return inputs.sub_(1)[:, first : first + 6]


@pytest.mark.parametrize(
    ("augment", "said"),
    [
        (cropped, None),
        (lambda inputs, generator: inputs[1:, :6], r"as many inputs as it takes, but got float32 \[7, 6\]"),
        (lambda inputs, generator: inputs[:, :6] + np.random.default_rng().normal(), "must repeat its random numbers"),
        (lambda inputs: inputs, "augment cannot be computed of inputs float32"),
    ],
)
def test_augmented_inputs_are_those_of_training(make_study, augment, said):
    """The model takes 6 numbers in training, which `augment` cuts out of 8, and all in evaluations."""

    class Cut(Model):
        def forward(self, x):
            return super().forward(x if self.training else x[:, :6])

    workload = Made(Cut, augment=augment)
    few = torch.randn(8, 8), torch.arange(8) % 2
    with refused(said):
        check_model(make_study(), workload, *few)
    if said is None:
        passes(make_study(), workload, few)


class ByMode(nn.Module):
    """Other outputs in training than in evaluations, as many libraries have them; fails in bfloat16 if asked to."""

    def __init__(self, precise=False):
        super().__init__()
        self.layer, self.precise = nn.Linear(6, 2), precise

    def forward(self, x):
        y = self.layer(x)
        assert not self.precise or y.dtype == torch.float32, "single precision alone"
        return (y, 2 * y, y.mean()) if self.training else {"logits": y}


class OfTuples(Made):
    errors = {"wrong": lambda outputs, targets: (outputs["logits"].argmax(-1) != targets).float()}  # noqa: RUF012

    def loss(self, outputs, targets):
        return sum(F.cross_entropy(each, targets, reduction="none") for each in outputs[:2])


@pytest.mark.parametrize(("precision", "precise"), [("fp32", True), ("bf16", False), ("bf16", True)])
def test_each_mode_is_checked_with_its_own_outputs(make_study, precision, precise):
    study, workload = make_study(precision=precision), OfTuples(lambda: ByMode(precise))
    few = torch.randn(8, 6), torch.arange(8) % 2
    said = "single precision alone" if precise and precision == "bf16" else None
    with refused(said):
        check_model(study, workload, *few)
    if said is None:
        passes(study, workload, few)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"errors": {}}, "measures nothing: its `errors` are empty"),
        ({"errors": {}, "metrics": {"m": lambda o, t: 0.5}}, None),
        ({"metrics": {"wrong": lambda o, t: 0.5}}, "has 'wrong' both in `errors` and in `metrics`"),
    ],
)
def test_names_of_errors_and_metrics(make_study, members, said):
    workload = Made(Model, **members)
    few = torch.randn(8, 6), torch.arange(8) % 2
    with refused(said):
        check_evaluation(make_study(), workload, *few, CONTIGUOUS, [8])


class Keeping(Made):
    """A workload whose loss sees the last model that was made."""

    def __init__(self, added, build=Model):
        super().__init__(self.kept)
        self.added, self.build, self.other = added, build, nn.Linear(2, 2)

    def kept(self):
        self.last = self.build()
        return self.last

    def loss(self, outputs, targets):
        return self.added(self, outputs, targets)


def penalty(model):
    return sum(each.square().sum() for each in model.parameters())


def cross_entropy(outputs, targets):
    return F.cross_entropy(outputs, targets, reduction="none")


KEPT = {
    "penalty": (lambda w, o, t: cross_entropy(o, t) + penalty(w.last), "reaches the parameter layer.weight .*weight_d"),
    "head": (lambda w, o, t: cross_entropy(o @ w.last.layer.weight[:, :2], t), "through its outputs alone, .* fused"),
    "constant": (lambda w, o, t: cross_entropy(o, t) + penalty(w.last).detach(), None),
    "another module": (lambda w, o, t: (w.other(o) - w.other(F.one_hot(t, 2).float())).square().mean(1), None),
}


@pytest.mark.parametrize(("loss", "said"), KEPT.values(), ids=KEPT)
def test_a_loss_that_reaches_parameters_without_the_outputs_is_refused(make_study, loss, said):
    """Fused trials left such a penalty out: a goal was reached that no training with the penalty reaches."""
    few = torch.randn(8, 6), torch.arange(8) % 2
    with refused(said):
        check_model(make_study(), Keeping(loss), *few)


def test_a_penalty_beside_the_outputs_is_no_such_loss(make_study):
    def build():
        return Model(lambda self, y: (y, penalty(self).expand(len(y))))

    few = torch.randn(8, 6), torch.arange(8) % 2
    workload = Keeping(lambda w, o, t: cross_entropy(o[0], t) + o[1], build)
    assert check_model(make_study(), workload, *few) in (CONTIGUOUS, torch.channels_last)


INPUTS, TARGETS = torch.randn(8, 6), torch.arange(8) % 2
TYPES = {
    "double inputs": (INPUTS.double(), TARGETS, r"must have the type of the model's parameters, such as inputs\.float"),
    "whole inputs": (INPUTS.long(), TARGETS, r"must have the type of the model's parameters, such as inputs\.float"),
    "float targets": (INPUTS, TARGETS.float(), r"class numbers must be int64, such as targets\.long"),
    "int32 targets": (INPUTS, TARGETS.int(), r"class numbers must be int64, such as targets\.long"),
    "bool targets": (INPUTS, TARGETS.bool(), r"class numbers must be int64, such as targets\.long"),
    "a column of targets": (INPUTS, TARGETS[:, None], r"must have the shape \[N\], such as targets\.squeeze\(1\)"),
    "one-hot targets": (INPUTS, F.one_hot(TARGETS), r"of shape \[N\], such as targets\.argmax\(1\)"),
    "too many classes": (INPUTS, TARGETS + 9, "class numbers must go from 0 to one less than"),
}


@pytest.mark.parametrize(("inputs", "targets", "cure"), TYPES.values(), ids=TYPES)
def test_types_and_shapes_that_torch_refuses_have_a_cure(make_study, inputs, targets, cure):
    with refused(cure):
        check_model(make_study(), Keeping(lambda w, o, t: cross_entropy(o, t)), inputs, targets)


class Training(nn.Module):
    """As a LightningModule of a user: the loss is within a step, and there is no forward."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def training_step(self, batch, index):
        return F.cross_entropy(self.layer(batch[0]), batch[1])


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x, mask):
        return self.layer(x * mask)


FORWARDS = {
    "a step": (Training, INPUTS, r"give the model a method forward\(inputs\) that returns what the workload's loss"),
    "a list of modules": (lambda: nn.ModuleList([nn.Linear(6, 2)]), INPUTS, r"a method forward\(inputs\)"),
    "too few inputs": (Masked, INPUTS, "inputs that are a tuple give the arguments of forward in order"),
    "another name": (Masked, {"x": INPUTS, "mask_": INPUTS}, "those that are a mapping give them by name"),
    "too many inputs": (Masked, (INPUTS, INPUTS, INPUTS), "inputs that are a tuple give the arguments"),
    "by name": (Masked, {"x": INPUTS, "mask": INPUTS}, None),
    "in order": (Masked, (INPUTS, INPUTS), None),
}


@pytest.mark.parametrize(("build", "inputs", "cure"), FORWARDS.values(), ids=FORWARDS)
def test_models_that_take_no_such_inputs_have_a_cure(make_study, build, inputs, cure):
    with refused(cure):
        check_model(make_study(), Keeping(lambda w, o, t: cross_entropy(o, t), build), inputs, TARGETS)


NOTHING = "must return what its loss and errors take, but in"
OUTPUTS = {
    "no return": (lambda self, y: None, f"{NOTHING} training it returned a NoneType; look for a missing `return`"),
    "none in training": (lambda self, y: None if self.training else y, f"{NOTHING} training it returned a NoneType"),
    "none in an evaluation": (lambda self, y: y if self.training else None, f"{NOTHING} an evaluation it returned a N"),
    "an empty tuple": (lambda self, y: (), r"in training it returned \(\)"),
    "no logits": (lambda self, y: {"logits": None}, "returned {logits: a NoneType}"),
    "a number": (lambda self, y: y.sum().item(), r"loss cannot be computed of outputs a float .* not float \(.*\)\.$"),
    "numpy": (lambda self, y: y.detach().numpy(), r"must be Tensor, not numpy.ndarray \(.*\)\.$"),
    "a tensor": (lambda self, y: y, None),
}


@dataclass(frozen=True)
class Computed:
    logits: torch.Tensor
    shares: torch.Tensor = field(init=False)

    def __post_init__(self):
        object.__setattr__(self, "shares", self.logits.softmax(1))


@dataclass(slots=True)
class Slots:
    logits: torch.Tensor


@dataclass
class Given:
    logits: torch.Tensor
    scale: InitVar[float]

    def __post_init__(self, scale):
        self.scaled = scale * self.logits


HELD = "must return a tensor, or a tuple, list, mapping or dataclass of tensors, but there is a"
OBJECTS = {
    "a field without argument": (Computed, None),
    "slots": (Slots, None),
    "an attribute beside the fields": (lambda y: Given(y, 2.0), None),
    "a namespace": (lambda y: SimpleNamespace(logits=y), f"{HELD} SimpleNamespace in its outputs; let forward return"),
    "a distribution": (lambda y: torch.distributions.Categorical(logits=y), f"{HELD} Categorical in its outputs"),
}


@pytest.mark.parametrize(("build", "said"), OBJECTS.values(), ids=OBJECTS)
def test_outputs_may_be_any_dataclass_but_no_other_object(make_study, build, said):
    study = make_study()
    workload = Made(lambda: Model(lambda self, y: build(y)), loss=lambda o, t: cross_entropy(o.logits, t), errors={})
    workload.errors = {"e": workload.loss}
    with refused(said):
        layout = check_model(study, workload, INPUTS, TARGETS)
        check_evaluation(study, workload, INPUTS, TARGETS, layout, [8])
        check_functions(study, workload, INPUTS, TARGETS, layout)


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        (lambda o, t: o["loss"], "a model computes itself .* the logits, as workloads.base.cross_entropy_error"),
        (lambda o, t: 2 * F.cross_entropy(o["logits"], t), "losses of torch return each example with reduction='none'"),
    ],
)
def test_the_mean_that_a_model_computes_has_a_cure_of_its_own(make_study, loss, said):
    """As `outputs.loss` of transformers, whose models get the labels with their inputs."""
    workload = Made(lambda: Model(lambda self, y: {"loss": cross_entropy(y, TARGETS).mean(), "logits": y}), loss=loss)
    with refused(said):
        check_model(make_study(), workload, INPUTS, TARGETS)


@pytest.mark.parametrize(("act", "said"), OUTPUTS.values(), ids=OUTPUTS)
def test_models_that_return_nothing_have_a_cure(make_study, act, said):
    study, workload = make_study(), Made(lambda: Model(act))
    with refused(said):
        check_evaluation(study, workload, INPUTS, TARGETS, check_model(study, workload, INPUTS, TARGETS), [8])


def returns(something):
    return lambda outputs, targets: something


FORGETFUL = {
    "loss": ({"loss": returns(None)}, r"loss must be .* but got a NoneType; let it return a tensor"),
    "a number": ({"loss": returns(0.5)}, "got a float; let it return a tensor"),
    "errors": ({"errors": {"e": returns(None)}}, r"errors\['e'\] must be .* let it return a tensor"),
    "a list": ({"errors": {"e": returns([0.5] * 8)}}, r"errors\['e'\] must be .* let it return a tensor"),
    "weights": ({"weights": lambda targets: None}, "weights must be .* let it return a tensor"),
    "metrics": ({"metrics": {"m": returns(None)}}, r"metrics\['m'\] must .* a NoneType; look for a missing `return`"),
    "an argument": ({"loss": lambda o, t, margin: cross_entropy(o, t)}, "'margin'; `hyperparameters` must name each"),
    "of torch": ({"loss": lambda o, t: F.cross_entropy([o], t)}, r"Tensor, not list \(.*line \d+: .*\)\.$"),
    "of a helper": ({"loss": lambda o, t: cross_entropy(o)}, r"argument: '\w+' \(.*line \d+: .*\)\.$"),
}


@pytest.mark.parametrize(("members", "said"), FORGETFUL.values(), ids=FORGETFUL)
def test_functions_that_return_nothing_or_take_something_else_have_a_cure(make_study, members, said):
    study, workload = make_study(), Made(lambda: nn.Linear(6, 2), **members)
    with refused(said):
        layout = check_model(study, workload, INPUTS, TARGETS)
        check_evaluation(study, workload, INPUTS, TARGETS, layout, [8])
        check_functions(study, workload, INPUTS, TARGETS, layout)
