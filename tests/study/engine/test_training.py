"""What every optimizer can be given: averages of weights, half-lives, decay; and what lanes know nothing of."""

import json
from itertools import product

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.blobs import CPU, Blobs
from helpers.desks import Desk, fixed_trial, trained
from helpers.fused import partly

from analysis.counting import Goal
from study.__main__ import main
from study.data.order import Batches
from study.engine.arithmetic import candidates
from study.settings import Evaluation
from workloads.layers import keyed_layers, set_keys

STEPS = 20
FIXED = {"learning_rate": 0.05, "momentum": 0.8}
ADAM = {"learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "epsilon": 1e-6}
BLOBS = Blobs()
DATA = BLOBS.data()


@pytest.fixture
def question(make_study):
    """A study of Blobs with these fixed hyperparameters, measured at every step."""

    def make(space, how="plain", **fields):
        defaults = {"batch_size": 6, "evaluation": Evaluation(first=1 / STEPS, ratio=1 + 1e-9, every=1)}
        return make_study(space=space, arithmetic=how, steps=STEPS, **defaults | fields)

    return make


def curve(study, workload=BLOBS):
    return trained(study, Desk([fixed_trial(study)]), workload=workload)[0]


def by_hand(study, decay=0.0, l2=0.0, weight_decay=0.0):
    """The validation loss of weights and of their average at every step, momentum written out."""
    trial, workload = fixed_trial(study), BLOBS
    torch.manual_seed(trial.seed)
    model = workload.model()
    weights = dict(model.named_parameters())
    velocity = {name: torch.zeros_like(w) for name, w in weights.items()}
    average = {name: w.detach().clone() for name, w in weights.items()}
    batches = Batches(trial.order_seed, 64, study.batch_size, CPU)
    inputs, targets = DATA.evaluated["val"]
    found = []
    for step in range(STEPS):
        index = batches(step)
        set_keys(keyed_layers(model.train()), trial.seed, step)
        loss = workload.loss(model(DATA.inputs[index]), DATA.targets[index]).mean()
        gradients = torch.autograd.grad(loss, list(weights.values()))
        with torch.no_grad():
            for (name, w), g in zip(weights.items(), gradients, strict=True):
                velocity[name] = FIXED["momentum"] * velocity[name] + g + l2 * w
                w.copy_((1 - FIXED["learning_rate"] * weight_decay) * w - FIXED["learning_rate"] * velocity[name])
                average[name] = decay * average[name] + (1 - decay) * w
            model.eval()
            losses = (
                F.cross_entropy(torch.func.functional_call(model, w, inputs), targets) for w in (weights, average)
            )
            found.append([float(each) for each in losses])
    return np.array(found).T


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "linear_chain", "vmap"])
def test_averages_are_measured_beside_the_weights(question, how):
    study = question(FIXED | {"ema_decay": 0.7}, how)
    measured = curve(study).errors
    weights, average = by_hand(study, decay=0.7)
    np.testing.assert_allclose(measured["val/loss"], weights, rtol=1e-4)
    np.testing.assert_allclose(measured["val/ema_loss"], average, rtol=1e-4)
    assert {"train/ema_loss", "test/ema_loss", "val/ema_classification_error"} <= measured.keys()
    assert np.abs(weights - average).max() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("decay", "how"),
    partly(product([{"l2": 0.5}, {"weight_decay": 0.5}], ["plain", "linear_chain", "linear_blocks", "vmap"]), 3),
)
def test_decay_reaches_the_engines(question, how, decay):
    study = question(FIXED | decay, how)
    np.testing.assert_allclose(curve(study).errors["val/loss"], by_hand(study, **decay)[0], rtol=1e-4)
    assert np.abs(by_hand(study, **decay)[0] - by_hand(study)[0]).max() > 0.01


@pytest.mark.parametrize("how", ["plain", "linear_chain"])
def test_decay_is_of_a_batch_that_is_accumulated_too(question, how):
    """The penalty is no part of the loss, and so it is not shared out over the parts of a batch."""
    whole = curve(question(FIXED | {"l2": 0.5}, how)).errors["val/loss"]
    parts = curve(question(FIXED | {"l2": 0.5}, micro_batch=4)).errors["val/loss"]
    # Dropout is of an example's number in its batch, so that both see the same.
    np.testing.assert_allclose(parts, whole, rtol=1e-4)


def test_averages_are_measured_with_the_statistics_of_today(question):
    """An average that follows at once is the model, running statistics of batch norm included."""
    found = curve(question(FIXED | {"ema_decay": 0.0}), Blobs(images=True, normed=True))
    np.testing.assert_array_equal(found.errors["val/ema_loss"], found.errors["val/loss"])


def test_a_goal_can_be_the_averages(question):
    study = question(FIXED | {"ema_decay": 0.5}, goal=Goal("val/ema_loss", 1.2), stopping="goal")
    found = curve(study)
    assert found.errors["val/ema_loss"][-1] < 1.2
    assert (found.errors["val/ema_loss"][:-1] >= 1.2).all()
    assert len(found.steps) < STEPS


@pytest.mark.parametrize("how", ["plain", "linear_chain"])
def test_half_lives_are_betas(question, how):
    explicit = curve(question(ADAM | {"beta1": 0.5**0.25, "beta2": 0.5**0.1}, how, optimizer="adam"))
    halves = {"beta1_half_life_examples": 24.0, "beta2_half_life_examples": 60.0}
    fixed = {name: value for name, value in ADAM.items() if name not in ("beta1", "beta2")}
    found = curve(question(fixed | halves, how, optimizer="adam"))
    np.testing.assert_array_equal(found.errors["val/loss"], explicit.errors["val/loss"])
    assert found.trial.hyperparameters["beta1_half_life_examples"] == 24.0  # on file as it was searched


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (FIXED | {"momentum_half_life_examples": 10.0}, "has both momentum and momentum_half_life_examples; give one"),
        (FIXED | {"ema_decay": 0.9, "ema_decay_half_life_examples": 10.0}, "has both ema_decay and ema_decay_half_"),
        ({"learning_rate": 0.1, "beta1_half_life_examples": 10.0}, r"needs search\.space\.momentum, but it is missing"),
    ],
)
def test_a_beta_is_given_once(question, space, message):
    with pytest.raises(ValueError, match=message):
        question(space)


@pytest.mark.parametrize(
    ("optimizer", "space", "arguments"),
    [
        ("kfac", {"momentum": 0.5, "damping": 0.1, "factor_decay": 0.9, "inverse_frequency": 2.0}, {}),
        ("torch.optim.RAdam", {"learning_rate": 0.3}, {}),
        ("torch.optim.LBFGS", {"learning_rate": 0.02}, {"max_iter": 3}),  # evaluates the loss more than once
    ],
)
def test_optimizers_of_whole_models_train_on_the_serial_engine(question, optimizer, space, arguments):
    study = question({"learning_rate": 0.03} | space, optimizer=optimizer, optimizer_arguments=arguments)
    assert candidates(BLOBS.model(), study, "cpu", forced=True) == ["plain"]
    losses = curve(study).errors["val/loss"]
    assert losses[-1] < 0.75 * losses[0]


class Restless(torch.optim.SGD):
    """Draws from torch's global generator."""

    def step(self, closure):
        loss = super().step(closure)
        for p in self.param_groups[0]["params"]:
            p.data += 0.01 * torch.randn_like(p)
        return loss


def test_random_optimizers_are_functions_of_their_trial(question):
    study = question({"learning_rate": 0.1}, optimizer=f"{__name__}.Restless")
    first = curve(study).errors["val/loss"]
    torch.rand(7)
    np.testing.assert_array_equal(curve(study).errors["val/loss"], first)


class Elsewhere(torch.optim.SGD):
    """Trains at one point and is to be measured at another, as schedule-free optimizers do."""

    @torch.no_grad()
    def eval(self, by: float = 100.0) -> None:
        for p in self.param_groups[0]["params"]:
            p.add_(by)

    def train(self) -> None:
        self.eval(-100.0)


def test_optimizers_are_told_when_they_are_measured(question):
    moved = curve(question({"learning_rate": 1e-9}, optimizer=f"{__name__}.Elsewhere")).errors["val/loss"]
    still = curve(question({"learning_rate": 1e-9}, optimizer="sgd")).errors["val/loss"]
    assert np.abs(moved - still).min() > 0.01
    assert np.ptp(moved) < 0.01


class Switched(torch.optim.SGD):
    """Steps only between `train` and `eval`, as the optimizers of the package schedulefree do."""

    def __init__(self, params, lr):
        super().__init__(params, lr=lr)
        self.param_groups[0]["train_mode"] = False

    def eval(self):
        self.param_groups[0]["train_mode"] = False

    def train(self):
        self.param_groups[0]["train_mode"] = True

    def step(self, closure=None):
        assert self.param_groups[0]["train_mode"]
        return super().step(closure)


def test_optimizers_are_told_that_training_begins(question):
    switched, plain = (
        curve(question({"learning_rate": 0.1}, optimizer=path)) for path in (f"{__name__}.Switched", "torch.optim.SGD")
    )
    np.testing.assert_array_equal(switched.errors["val/loss"], plain.errors["val/loss"])


SMALL = ["sweep", "batch_size=64", "search.trials=2", "search.reruns=0", "budget.epochs=2", "engine.workers=1"]
RADAM = ["optimizer=torch", "optimizer.target=torch.optim.RAdam"]
RANGER21 = "pytorch_optimizer.Ranger21"
RANGER = ["optimizer=torch", f"optimizer.target={RANGER21}"]
FREE = ["optimizer=torch", "optimizer.target=pytorch_optimizer.ScheduleFreeAdamW"]
HALF_LIFE = "search.space.beta2_half_life_examples={low: 1e3, high: 1e5, scale: log}"


@pytest.mark.parametrize(
    ("asked", "folder"),
    [
        pytest.param([*RANGER, "optimizer.arguments.num_iterations=99"], RANGER21, marks=pytest.mark.slow),
        pytest.param(["optimizer=kfac", "schedule=cosine", "precision=bf16"], "kfac", marks=pytest.mark.slow),
        pytest.param(["optimizer=adam", HALF_LIFE], "adam", marks=pytest.mark.slow),
        pytest.param(
            ["+search.space.ema_decay_half_life_examples=200", "goal=val/ema_classification_error < 0.5"],
            "momentum",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sweeps_end_to_end(tmp_path, asked, folder):
    results = tmp_path / "results"
    assert main([*SMALL, *asked, f"results={results}"]) == 0
    assert (results / "report.html").exists()
    [study] = (results / "studies/mlp_digits" / folder).glob("*/study.json")
    versions = json.loads(study.read_text())["provenance"][0]["versions"]
    assert "torch" in versions
    assert ("pytorch_optimizer" in versions) == folder.startswith("pytorch_optimizer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("asked", "message"),
    partly(
        [
            (["optimizer=torch"], "optimizer=torch needs the import path of a class"),
            (["optimizer=adam", "optimizer.target=torch.optim.RAdam"], "optimizer.target is for optimizer=torch"),
            (["optimizer=sgd,torch", "optimizer.target=torch.optim.RAdam"], "a file optimizer/NAME.yaml in your"),
            (["optimizer=torch", "optimizer.target=torch.optim.Radam"], "did you mean torch.optim.RAdam?"),
            (["optimizer=torch", "optimizer.target=torch.optim.Ours"], "must be the import path of an optimizer class"),
            ([*RADAM, "optimizer.arguments.fast=1"], "takes no argument 'fast'"),
            ([*RADAM, "search.space.weight_dekay=0.1"], "did you mean 'weight_decay'?"),
            (["optimizer=sgd", "search.space.momentum=0.9"], "search.space.momentum is a parameter of neither"),
            (["optimizer=torch", "optimizer.target=RAdam"], "optimizer.target is an import path such as"),
            (RANGER, "pytorch_optimizer.Ranger21 cannot train mlp_digits with learning_rate=1e-05:"),
            (["optimizer=torch", "optimizer.target=torch.optim.Muon"], "Muon only supports 2D parameters"),
            ([*RADAM, "search.space.weight_decay=-1"], "search.space.weight_decay must lie in [0, inf), but got -1"),
            ([*RADAM, "optimizer.arguments.lr=1"], "optimizer.arguments cannot set lr"),
            (
                [*RADAM, "optimizer.arguments.weight_decay=1", "search.space.weight_decay=0.1"],
                "weight_decay is both searched and in optimizer.arguments",
            ),
            ([*FREE, "search.space.warmup_initial_factor=0.1"], "add search.space.warmup_steps"),
        ],
        4,
    ),
)
def test_refusals(tmp_path, capsys, asked, message):
    assert main([*SMALL, *asked, f"results={tmp_path / 'results'}"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "results").exists()
