"""State beside parameters and buffers: of a model, its trials train one at a time; of all trials, it is refused."""

import collections
import io
import itertools
import queue
import random
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from helpers.fused import partly
from helpers.users import checked
from helpers.users.checked import Model
from rich.console import Console
from torch import nn

from study import warn, whole_sweep
from study.checks.model import mixture
from study.checks.parts import check_parts
from study.checks.state import State, stateful
from study.errors import UsageError
from workloads.fully_connected import FullyConnected
from workloads.layers import Dropout, GhostBatchNorm

CONTIGUOUS = torch.contiguous_format
CALLS = itertools.count()
TABLE: dict = {}
GENERATOR = np.random.default_rng(0)
ONE = nn.Linear(6, 2)


class Made(checked.Made):
    """A workload whose loss a function of the workload and its outputs adds to."""

    steps = 0
    numbers = itertools.count()
    lengths: list[int] = []  # noqa: RUF012

    def __init__(self, model, more=None):
        super().__init__(model, more=more)

    def loss(self, outputs, targets):
        return super().loss(outputs, targets) + (0 if self.more is None else self.more(self, outputs))


def examples():
    inputs = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    chosen = mixture(40)
    return inputs[chosen], (torch.arange(40) % 2)[chosen]


def found(study, model, loss=None):
    return stateful(study, Made(model, loss), *examples(), CONTIGUOUS)


def counting(self, y):
    self.n += 1
    return y * self.n


def remembering(self, y):
    self.seen.append(float(y.detach().mean()))
    return y


def averaging(self, y):
    self.mean = 0.9 * self.mean + 0.1 * y.detach().mean()
    return y - self.mean


def caching(self, y):
    if self.mask is None:
        self.mask = torch.ones(y.shape[1])
    return y * self.mask


def drawing_from_its_own(self, y):
    return y + self.generator.normal()


class Iterating:
    def __init__(self):
        self.of = iter(range(1, 1000))

    def __call__(self, model, y):
        return y * next(self.of)


class Hidden:
    """Keeps numbers where nothing shows them."""

    def __init__(self):
        self.of = queue.SimpleQueue()
        for number in range(1, 1000):
            self.of.put(number)

    def __call__(self, model, y):
        return y * self.of.get()


class Counter:
    def __init__(self):
        self.n = 0


def counting_inside(self, y):
    self.counter.n += 1
    return y * self.counter.n


def of_a_hook():
    model, calls = Model(), []
    model.layer.register_forward_hook(lambda *_: calls.append(1))
    return model


def only_in_evaluations(self, y):
    if not self.training:
        self.n += 1
    return y


OF_THE_MODEL = {
    "number": (partial(Model, counting, n=0), "a training forward pass changes the attribute `n` of Model"),
    "list": (lambda: Model(remembering, seen=[]), "`seen` of Model"),
    "ring": (lambda: Model(remembering, seen=collections.deque(maxlen=3)), "`seen` of Model"),
    "average": (partial(Model, averaging, mean=0.0), "`mean` of Model"),
    "cache": (partial(Model, caching, mask=None), "`mask` of Model"),
    "generator": (lambda: Model(drawing_from_its_own, generator=np.random.default_rng(0)), "`generator` of Model"),
    "object": (lambda: Model(counting_inside, counter=Counter()), "`counter` of Model"),
    "inner module": (lambda: nn.Sequential(Model(counting, n=0)), "`n` of Model"),
    "hook": (of_a_hook, "`_forward_hooks` of Linear"),
    "iterator": (lambda: Model(Iterating()), "`act` of Model"),
    "queue": (lambda: Model(Hidden()), "a second forward pass gives other outputs or losses"),
}


@pytest.mark.parametrize(("model", "said"), OF_THE_MODEL.values(), ids=OF_THE_MODEL)
def test_state_of_a_model(make_study, model, said):
    state = found(make_study(), model)
    assert said in state.training
    assert state.reason == state.training


def test_state_that_only_evaluations_change(make_study):
    state = found(make_study(), partial(Model, only_in_evaluations, n=0))
    assert state == State(None, "an evaluation changes the attribute `n` of Model")


def memoised(self, y):
    if y.shape not in TABLE:
        TABLE[y.shape] = torch.ones(y.shape[1])
    return y * TABLE[y.shape]


class Rotary(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)
        self.register_buffer("angles", torch.arange(6.0), persistent=False)

    def forward(self, x):
        return self.layer(x * self.angles.cos())


class First(nn.Module):
    """The first part of what a module returns."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x)[0]


ORDINARY = {
    "linear": lambda: nn.Linear(6, 2),
    "constant buffer": Rotary,
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2)),
    "ghost batch norm": lambda: nn.Sequential(nn.Linear(6, 2), GhostBatchNorm(2, group=4)),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 2)),
    "torch's dropout": lambda: nn.Sequential(nn.Linear(6, 2), nn.Dropout(0.5)),
    "our dropout": lambda: nn.Sequential(nn.Linear(6, 2), Dropout(0.5)),
    "NumPy's global generator": lambda: Model(lambda self, y: y + np.random.normal()),  # noqa: NPY002
    "Python's global generator": lambda: Model(lambda self, y: y + random.random()),
    "memory of all models": lambda: Model(memoised),
    "shared activation": lambda: nn.Sequential(nn.Linear(6, 2), ACTIVATION),
    "own generator of a fixed seed": lambda: Model(lambda self, y: y + np.random.default_rng(0).normal()),
    "GRU": lambda: First(nn.GRU(6, 2, batch_first=True)),
}
ACTIVATION = nn.ReLU()


@pytest.mark.parametrize("model", ORDINARY.values(), ids=ORDINARY)
def test_models_without_state(make_study, model):
    assert found(make_study(), model) == State()


def of_a_class(self, y):
    Model.shared += 1
    return y


def of_a_table(self, y):
    TABLE[len(TABLE)] = 1
    return y


def of_a_default(self, y, calls=[]):  # noqa: B006
    calls.append(1)
    return y


def of_a_function(self, y):
    of_a_function.calls = getattr(of_a_function, "calls", 0) + 1
    return y


def of_the_workload(workload, outputs):
    workload.steps += 1
    return 0


def of_its_class(workload, outputs):
    Made.steps += 1
    return 0


def greatest_so_far(workload, outputs):
    workload.most = max(getattr(workload, "most", 0.0), float(outputs.detach().abs().max()) + 0.5)
    workload.most = min(workload.most * 2, 1e9)
    return 0


OF_ALL_TRIALS = {
    "global": (lambda: Model(lambda self, y: y * (1 + next(CALLS))), None, "CALLS"),
    "class": (lambda: Model(of_a_class), None, "Model.shared"),
    "table": (lambda: Model(of_a_table), None, "TABLE"),
    "generator": (lambda: Model(lambda self, y: y + GENERATOR.normal()), None, "GENERATOR"),
    "default argument": (lambda: Model(of_a_default), None, "of_a_default"),
    "function attribute": (lambda: Model(of_a_function), None, "of_a_function"),
    "workload": (Model, of_the_workload, r"Made\(\).steps"),
    "class of the workload": (Model, of_its_class, "Made.steps"),
    "iterator of its class": (Model, lambda workload, _: 0 * next(workload.numbers), "Made.numbers"),
    "list of its class": (Model, lambda workload, _: workload.lengths.append(1) or 0, "Made.lengths"),
    "new attribute": (Model, greatest_so_far, r"Made\(\).most"),
}


@pytest.mark.parametrize(("model", "loss", "name"), OF_ALL_TRIALS.values(), ids=OF_ALL_TRIALS)
def test_state_of_all_trials_is_refused(make_study, model, loss, name):
    with pytest.raises(UsageError, match=f"a training step of tiny changes .*{name}.*in a buffer of the model"):
        found(make_study(), model, loss)


def before_last(workload, inputs, generator):
    """Mixes each batch with the one before it."""
    before, workload.last = getattr(workload, "last", inputs), inputs
    return inputs + 0.1 * before.mean(0)


def remembering_shapes(workload, inputs, generator):
    workload.last = torch.ones(inputs.shape)
    return inputs + workload.last


@pytest.mark.parametrize(("augment", "refuses"), [(before_last, True), (remembering_shapes, False)])
def test_state_of_augmentations_is_refused(make_study, augment, refuses):
    workload = Made(Model)
    workload.augment = partial(augment, workload)
    with checked.refused("augment must repeat .* generator that it takes, and keep no state" if refuses else None):
        stateful(make_study(), workload, *examples(), CONTIGUOUS)


def with_shared_weights():
    model = Model()
    model.layer = ONE
    return model


def with_a_shared_parameter():
    model = Model()
    model.layer.weight = ONE.weight
    return model


def drawn_without_a_seed():
    model = Model()
    nn.init.constant_(model.layer.weight, np.random.default_rng().normal())
    return model


def drawing_from(generator):
    """Adds a number of its own to each output: a single one is sometimes the same twice but for rounding."""

    def act(self, y):
        return y + torch.tensor([generator().random() for _ in range(y.numel())]).view(y.shape)

    return act


def of_earlier_calls():
    model = Model()
    nn.init.constant_(model.layer.weight, next(CALLS))
    return model


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (lambda: ONE, r"tiny.model\(\) returns the same module at each call.*copy.deepcopy"),
        (with_shared_weights, "two models of tiny share the module layer, with layer.weight"),
        (with_a_shared_parameter, "two models of tiny share their layer.weight"),
        (drawn_without_a_seed, r"same weights for the same seed, but layer.weight differs.*default_rng\(\)"),
        (of_earlier_calls, "but layer.weight differs between two calls.*depends on earlier calls"),
        (lambda: Model(drawing_from(np.random.default_rng)), "must repeat the outputs and losses"),
        (lambda: Model(drawing_from(random.SystemRandom)), "generator that no seed settles"),
    ],
)
def test_models_of_one_seed_that_differ(make_study, model, said):
    with pytest.raises(UsageError, match=said):
        found(make_study(), model)


class Wide(Model):
    """Of the digits."""

    def __init__(self, *act, **attributes):
        super().__init__(*act, **attributes)
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        return super().forward(x.flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "model", "because"),
    partly(
        [
            ("auto", partial(Wide, counting, n=0), "a training forward pass changes the attribute `n` of Wide"),
            ("lanes", partial(Wide, counting, n=0), "a training forward pass changes the attribute `n` of Wide"),
            ("lanes", partial(Wide, only_in_evaluations, n=0), "an evaluation changes the attribute `n` of Wide"),
            ("serial", partial(Wide, counting, n=0), None),
            ("auto", lambda: Wide(lambda _, y: y + 0 * y.detach().sum().item()), "its code calls .item() on a tensor"),
            ("auto", lambda: nn.Sequential(Wide(), nn.BatchNorm1d(10)), None),
            ("lanes", lambda: nn.Sequential(Wide(), nn.BatchNorm1d(10)), "BatchNorm1d keeps running"),
            ("lanes", lambda: nn.Sequential(Wide(), nn.Dropout(0.1)), "Dropout draws from one generator"),
            ("lanes", Wide, None),
        ],
        4,
    ),
)
def test_one_line_says_why_trials_train_one_at_a_time(tmp_path, monkeypatch, engine, model, because):
    monkeypatch.setattr(FullyConnected, "model", lambda self: model())
    asked = ["batch_size=2,4", f"engine={engine}", f"results={tmp_path}", "optimizer=sgd"]
    jobs, _ = whole_sweep.jobs_here(asked, None)
    console = Console(width=1000, file=io.StringIO())
    warn.of_lanes(jobs, console)
    said = console.file.getvalue().strip()
    if because is None:
        assert said == ""
        return
    assert said.startswith("mlp_digits with sgd at batch size 2, 4: trials train one at a time, because ")
    assert because in said
    assert "\n" not in said
    assert {job.study.arithmetic for job in jobs} == {"plain"}


@pytest.mark.parametrize(("devices", "micro_batch", "parts"), [(1, 4, "micro-batches of 4"), (2, None, "parts on 2")])
def test_gradient_hooks_take_whole_batches(make_study, devices, micro_batch, parts):
    """The sum of clamped gradients of parts is not the clamped gradient of the batch."""
    study, model = make_study(batch_size=8, micro_batch=micro_batch), Model()
    model.layer.weight.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    check_parts(replace(study, micro_batch=None), model, devices=1)
    with pytest.raises(
        UsageError, match=f"parameter layer.weight has gradient hooks, .* split into {parts}.*clip_norm"
    ):
        check_parts(study, model, devices)


@pytest.mark.parametrize(("devices", "micro_batch", "parts"), [(1, 4, "micro-batches of 4"), (2, None, "parts on 2")])
def test_models_with_state_take_whole_batches(make_study, devices, micro_batch, parts):
    why = "a training forward pass changes the attribute `n` of Model"
    study = make_study(batch_size=8, micro_batch=micro_batch)
    check_parts(study, Model(), devices)
    with pytest.raises(UsageError, match=f"one forward pass, because {why}, but batches of 8 are split into {parts}"):
        check_parts(study, Model(), devices, why)
