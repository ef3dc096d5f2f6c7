"""What every optimizer can be given beside its rule: both engines follow a plain torch loop."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from helpers.blobs import Blobs
from helpers.desks import Desk, assert_same_bits, trained
from helpers.fused import FUSING, Rule, Scheduled, admitted, fusing, partly, plain_loop, seldom
from torch import nn

from study.engine.arithmetic import candidates
from study.optimizers import OPTIMIZERS, kfac
from study.records import Study
from study.settings import Evaluation

STEPS = 12
TOLERANCE = 2e-4  # relative, of the validation loss at every step
H: dict[str, float] = {
    "learning_rate": 0.03,
    "momentum": 0.8,
    "momentum_correction": 1.0,
    "beta1": 0.8,
    "beta2": 0.9,
    "epsilon": 1e-3,
    "weight_decay": 0.3,
    "trust_coefficient": 0.3,
    "damping": 0.1,
    "factor_decay": 0.9,
    "inverse_frequency": 2.0,
    "precondition_frequency": 3.0,
}
RATES = {"lars": 0.3, "lion": 0.003, "soap": 0.01}
"""Learning rates of optimizers that are measured in other units."""
ENGINES = [(name, how) for name in FUSING for how in ("plain", *(fusing(name) if name != "soap" else ()))]
"""Not SOAP in lanes: rounding decides its path (see its docstring)."""
Build = Callable[[nn.Module, dict[str, float]], Any]


@pytest.fixture
def asked(make_study: Any) -> Any:
    """A study of Blobs that is measured at every step."""

    def make(how: str, optimizer: str, **fields: Any) -> Study:
        names = OPTIMIZERS[optimizer].hyperparameters if optimizer in OPTIMIZERS else ("learning_rate",)
        fixed = {name: H[name] for name in names}
        space = {**fixed, "learning_rate": RATES.get(optimizer, H["learning_rate"]), **fields.pop("space", {})}
        grid = Evaluation(first=1 / STEPS, ratio=1 + 1e-9, every=STEPS)
        defaults = {"batch_size": 6, "steps": STEPS, "evaluation": grid}
        return make_study(space=space, optimizer=optimizer, arithmetic=how, **defaults | fields)

    return make


def desk(study: Study, name: str) -> Desk:
    """Trial i takes choice i of this hyperparameter."""
    fixed = {key: each.choices[0] for key, each in study.search.space.items() if each.choices}
    values = study.search.space[name].choices or ()
    return Desk([study.trial(index, fixed | {name: value}) for index, value in enumerate(values)])


def losses(study: Study, name: str, workload: Any) -> list[np.ndarray]:
    """The validation losses of the trials of `desk`."""
    curves = trained(study, desk(study, name), workload=workload)
    return [curves[index].errors["val/loss"] for index in sorted(curves)]


def by_hand(study: Study, name: str, workload: Any, build: Build) -> list[list[float]]:
    return [list(plain_loop(study, workload, trial, build)) for trial in desk(study, name).trials]


CLIPS = {"clip_norm": {"choices": [0.2, 1.0, 100.0]}}
"""The first trial is clipped at every step, the second at some, the last at none."""
WHOLE: dict[str, Build] = {
    "momentum": lambda model, h: torch.optim.SGD(model.parameters(), lr=h["learning_rate"], momentum=h["momentum"]),
    "torch.optim.Adagrad": lambda model, h: torch.optim.Adagrad(model.parameters(), lr=h["learning_rate"]),
    "torch.optim.LBFGS": lambda model, h: torch.optim.LBFGS(model.parameters(), lr=h["learning_rate"], max_iter=2),
    "kfac": kfac.KFAC,
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("optimizer", "how"), seldom(partly([each for each in ENGINES if each[1] != "linear_blocks"], 8))
)
def test_every_rule_gets_the_clipped_gradient(asked, optimizer, how):
    study, workload = asked(how, optimizer, space=CLIPS), Blobs(images=how == "vmap")
    wanted = by_hand(study, "clip_norm", workload, lambda model, h: Rule(model, optimizer, h))
    np.testing.assert_allclose(losses(study, "clip_norm", workload), wanted, rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "micro_batch"), partly(product(WHOLE, [None, 4]), 3))
def test_whole_batches_and_accumulated_ones_are_clipped_once(asked, optimizer, micro_batch):
    arguments = {"max_iter": 2} if optimizer == "torch.optim.LBFGS" else {}  # evaluates the loss more than once
    study = asked("plain", optimizer, micro_batch=micro_batch, space=CLIPS, optimizer_arguments=arguments)
    wanted = by_hand(study, "clip_norm", Blobs(), WHOLE[optimizer])
    np.testing.assert_allclose(losses(study, "clip_norm", Blobs()), wanted, rtol=TOLERANCE)


@pytest.mark.parametrize("how", ["plain", "linear_chain", "vmap"])
def test_clipping_makes_a_difference_and_leaves_the_penalty_alone(asked, how):
    study, workload = asked(how, "sgd", space=CLIPS | {"l2": 0.5}), Blobs(images=how == "vmap")

    def build(model: nn.Module, h: dict[str, float]) -> Any:
        return torch.optim.SGD(model.parameters(), lr=h["learning_rate"], weight_decay=h["l2"])

    found = np.array(losses(study, "clip_norm", workload))
    np.testing.assert_allclose(found, by_hand(study, "clip_norm", workload, build), rtol=TOLERANCE)
    free = asked(how, "sgd", space={"clip_norm": {"choices": [1e9] * 3}, "l2": 0.5})
    apart = np.abs(found - losses(free, "clip_norm", workload)).max(1)
    assert (apart > 20 * TOLERANCE).tolist() == [True, True, False]


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_a_clipped_lane_does_not_depend_on_its_neighbours(asked, how):
    study = asked(how, "momentum", space=CLIPS)
    heights = admitted(study)
    assert len(heights) >= 3
    alone = {i: trained(study, Desk([each]), heights[:1])[i] for i, each in enumerate(desk(study, "clip_norm").trials)}
    for chosen in (heights[:2], heights):
        for order in (1, -1):
            found = trained(study, Desk(desk(study, "clip_norm").trials[::order]), chosen)
            assert_same_bits({index: found[index] for index in alone}, alone)


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_a_gradient_whose_norm_is_nan_leaves_the_next_trial_alone(asked, how):
    """The row of a diverged trial, with the gaps between its parameters, goes to the next trial."""
    study = asked(how, "momentum", space=CLIPS)
    diverging, healthy, _ = desk(study, "clip_norm").trials
    diverging = replace(diverging, hyperparameters={**diverging.hyperparameters, "learning_rate": 1e38})
    curves = trained(study, Desk([diverging, healthy]), (1,))
    assert curves[0].first_bad_step is not None
    assert_same_bits(curves[1], trained(study, Desk([healthy]), (1,))[1])


def test_linear_blocks_never_write_the_gradient_whose_norm_is_needed(asked):
    for space, able in (({}, True), (CLIPS, False)):
        names = candidates(Blobs().model(), asked("plain", "sgd", space=space), "cpu", forced=True)
        assert ("linear_blocks" in names) == able


class Grouped(Blobs):
    """Blobs whose layers learn at different rates."""

    def groups(self, model: nn.Module) -> dict[str, float]:
        first, second = ("0.weight", "5") if self.images else ("1.weight", "4")
        return {first: 0.25, second: 3}


FACTORS = {
    False: {"1.weight": 0.25, "4.weight": 3.0, "4.bias": 3.0},
    True: {"0.weight": 0.25, "5.weight": 3.0, "5.bias": 3.0},
}


@pytest.mark.parametrize(("optimizer", "how"), seldom(partly(ENGINES, 8, 1)))
def test_every_rule_learns_at_the_rate_of_the_parameters_group(asked, optimizer, how):
    """With a decoupled decay that is in proportion to the learning rate, too."""
    rates = [rate * RATES.get(optimizer, H["learning_rate"]) for rate in (0.3, 1.0, 2.0)]
    space = {"learning_rate": {"choices": rates}, "weight_decay": 0.3, "l2": 0.1}
    study, workload = asked(how, optimizer, space=space), Grouped(images=how == "vmap")
    factors = FACTORS[workload.images]
    wanted = by_hand(study, "learning_rate", workload, lambda model, h: Rule(model, optimizer, h, factors))
    found = losses(study, "learning_rate", workload)
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE)
    alike = losses(study, "learning_rate", Blobs(images=workload.images))
    assert np.abs(np.subtract(found, alike)).max(1).min() > 10 * TOLERANCE


UNDECAYED = {False: ("1.bias", "4.bias"), True: ("0.bias", "5.bias")}
DECAYED = [each for each in ENGINES if each[0] != "kfac"]


@pytest.mark.parametrize(("optimizer", "how"), seldom(partly(DECAYED, 8, 2)))
def test_no_rule_decays_the_parameters_that_are_left_out(asked, optimizer, how):
    space = {"weight_decay": {"choices": [0.5, 2.0]}, "l2": 0.3}
    study, workload = asked(how, optimizer, space=space, no_decay=["bias"]), Grouped(images=how == "vmap")
    named = FACTORS[workload.images], UNDECAYED[workload.images]
    wanted = by_hand(study, "weight_decay", workload, lambda model, h: Rule(model, optimizer, h, *named))
    found = losses(study, "weight_decay", workload)
    np.testing.assert_allclose(found, wanted, rtol=TOLERANCE)
    assert np.abs(np.subtract(found, losses(replace(study, no_decay=()), "weight_decay", workload))).max() > 2e-3


@pytest.mark.parametrize(
    ("optimizer", "micro_batch"), partly(product(["momentum", "adamw", "torch.optim.RAdam"], [None, 4]), 3)
)
def test_torchs_optimizers_decay_by_groups_in_whole_batches_and_accumulated_ones(asked, optimizer, micro_batch):
    decay = "l2" if optimizer == "momentum" else "weight_decay"
    space = {"learning_rate": {"choices": [0.02, 0.05]}, decay: 0.5}
    study = asked("plain", optimizer, micro_batch=micro_batch, space=space, no_decay=["bias"])

    def build(model: nn.Module, h: dict[str, float]) -> Any:
        matrices, biases = ([p for p in model.parameters() if (p.dim() > 1) == great] for great in (True, False))
        groups, lr = (
            [{"params": matrices, "weight_decay": 0.5}, {"params": biases, "weight_decay": 0.0}],
            h["learning_rate"],
        )
        if optimizer == "momentum":
            return torch.optim.SGD(groups, lr=lr, momentum=h["momentum"])
        if optimizer == "adamw":
            return torch.optim.AdamW(groups, lr=lr, betas=(h["beta1"], h["beta2"]), eps=h["epsilon"])
        return torch.optim.RAdam(groups, lr=lr)

    wanted = by_hand(study, "learning_rate", Blobs(), build)
    np.testing.assert_allclose(losses(study, "learning_rate", Blobs()), wanted, rtol=TOLERANCE)


def in_groups(model: nn.Module, rate: float) -> list[dict[str, Any]]:
    named = dict(model.named_parameters())
    return [{"params": [p], "lr": rate * FACTORS[False].get(name, 1.0)} for name, p in named.items()]


@pytest.mark.parametrize("micro_batch", [None, 4])
@pytest.mark.parametrize("optimizer", ["momentum", "torch.optim.Adagrad"])
def test_groups_reach_torchs_optimizers_in_whole_batches_and_accumulated_ones(asked, optimizer, micro_batch):
    study = asked("plain", optimizer, micro_batch=micro_batch, space={"learning_rate": {"choices": [0.02, 0.05]}})

    def build(model: nn.Module, h: dict[str, float]) -> Any:
        groups = in_groups(model, h["learning_rate"])
        return (
            torch.optim.Adagrad(groups) if "Adagrad" in optimizer else torch.optim.SGD(groups, momentum=h["momentum"])
        )

    wanted = by_hand(study, "learning_rate", Grouped(), build)
    np.testing.assert_allclose(losses(study, "learning_rate", Grouped()), wanted, rtol=TOLERANCE)


LINEAR = {"learning_rate_decay_fraction": 1.0, "end_learning_rate_factor": 0.1}


@pytest.mark.parametrize("how", ["plain", "linear_chain", "linear_blocks"])
def test_a_schedule_multiplies_the_rate_of_every_group(asked, how):
    rates = {"learning_rate": {"choices": [0.02, 0.05]}}
    study = asked(how, "momentum", schedule="linear_decay", space=rates | LINEAR)

    def build(model: nn.Module, h: dict[str, float]) -> Any:
        sgd = torch.optim.SGD(in_groups(model, h["learning_rate"]), momentum=h["momentum"])
        return Scheduled(sgd, lambda step: 1 - 0.9 * step / STEPS)

    wanted = by_hand(study, "learning_rate", Grouped(), build)
    np.testing.assert_allclose(losses(study, "learning_rate", Grouped()), wanted, rtol=TOLERANCE)


class OwnGroups(torch.optim.SGD):
    """Divides the parameters by their names, and learns the biases at a rate of its own."""

    def __init__(self, params: Any, lr: float) -> None:
        biases, rest = [], []
        for name, parameter in params:
            (biases if name.endswith("bias") else rest).append((name, parameter))
        super().__init__([{"params": rest}, {"params": biases, "lr": 10 * lr}], lr=lr)


class Unnamed(torch.optim.SGD):
    """Reads its parameters itself."""

    def __init__(self, params: Any, lr: float) -> None:
        params = list(params)
        assert all(p.numel() for p in params)
        super().__init__(params, lr=lr)


@pytest.mark.parametrize("micro_batch", [None, 4])
def test_the_groups_of_another_class_keep_the_ratios_of_their_rates(asked, micro_batch):
    fields = {"schedule": "linear_decay", "space": {"learning_rate": {"choices": [0.01, 0.02]}} | LINEAR}
    study = asked("plain", f"{__name__}.OwnGroups", micro_batch=micro_batch, **fields)

    def build(model: nn.Module, h: dict[str, float]) -> Any:
        named = model.named_parameters()
        return Scheduled(OwnGroups(named, h["learning_rate"]), lambda step: 1 - 0.9 * step / STEPS)

    wanted = by_hand(study, "learning_rate", Blobs(), build)
    np.testing.assert_allclose(losses(study, "learning_rate", Blobs()), wanted, rtol=TOLERANCE)


def test_classes_that_take_no_names_get_none(asked):
    study = asked("plain", f"{__name__}.Unnamed", space={"learning_rate": {"choices": [0.05]}})
    theirs = losses(study, "learning_rate", Blobs())
    sgd = asked("plain", "sgd", space={"learning_rate": {"choices": [0.05]}})
    np.testing.assert_allclose(theirs, losses(sgd, "learning_rate", Blobs()), rtol=1e-5)
