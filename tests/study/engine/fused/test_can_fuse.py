"""What lanes would train as another model than one alone is found beforehand, or trains as one alone."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.blobs import WORKLOADS, Blobs
from helpers.desks import assert_lanes_are_trials_alone, desk, trained
from torch import Tensor, nn

from study.engine import can_fuse, lane_count
from study.errors import Failed
from study.user_code import kept
from workloads.base import Splits, cross_entropy_error


class Kept(nn.Module):
    """A function of a value that `model()` draws."""

    def __init__(self, value: Any, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.value, self.function = value, function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.value, x)


def closed_over(scale: Tensor) -> nn.Module:
    return Kept(None, lambda _, x: x * scale)


def hooked(scale: Tensor) -> nn.Module:
    layer = nn.Identity()
    layer.register_forward_hook(lambda module, inputs, outputs: outputs * scale)
    return layer


def drawn() -> Tensor:
    return torch.rand(5)


OF_THE_SEED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "permutation": (lambda: Kept(torch.randperm(5), lambda order, x: x[:, order]), "attribute 5.value"),
    "number": (lambda: nn.LeakyReLU(float(torch.rand(()))), "attribute 5.negative_slope"),
    "list": (lambda: Kept([float(drawn()[0])], lambda scales, x: scales[0] * x), "attribute 5.value"),
    "closure": (lambda: closed_over(drawn()), "attribute 5.function"),
    "hook": (lambda: hooked(drawn()), "attribute 5._forward_hooks"),
    "fixed": (lambda: Kept(torch.arange(5).flip(0), lambda order, x: x[:, order]), ""),
    "fixed hook": (lambda: hooked(torch.ones(5)), ""),
}


def built(layer: Callable[[], nn.Module], images: bool = False) -> Any:
    class Workload(Blobs):
        def model(self) -> nn.Module:
            return nn.Sequential(*super().model(), layer())

    return Workload(images)


@pytest.mark.parametrize(("layer", "said"), OF_THE_SEED.values(), ids=OF_THE_SEED)
def test_models_that_differ_between_seeds_train_alone(question, layer, said):
    workload = built(layer)
    found = can_fuse.lanes_fail(question("vmap"), workload, workload.data())
    assert found is None if not said else re.match(f"its {said} differs between seeds.*a generator of a fixed", found)


def test_the_activations_of_a_chain_may_not_differ_between_seeds(question):
    class Workload(Blobs):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(24, 8), nn.LeakyReLU(float(torch.rand(()))), nn.Linear(8, 5))

    found = can_fuse.lanes_fail(question("linear_chain"), Workload(), Workload().data())
    assert found is not None
    assert found.startswith("its attribute 1.negative_slope differs between seeds")


@pytest.mark.parametrize("name", ["attribute 5.value", "buffer 5.mask"])
def test_a_later_model_that_differs_is_refused(question, monkeypatch, name):
    class Third(nn.Module):
        """Differs in the model that is made last."""

        made = 0

        def __init__(self) -> None:
            super().__init__()
            Third.made += 1
            late = float(Third.made > 3)
            if name.startswith("buffer"):
                self.register_buffer("mask", torch.tensor(late))
            else:
                self.value = late

        def forward(self, x: Tensor) -> Tensor:
            return x

    study = question("vmap")
    with pytest.raises(Failed, match=rf"the {name} is equal in .* choose engine=serial and another results=DIR"):
        trained(study, desk(study), workload=built(Third))


def scaled(gradient: Tensor) -> Tensor:
    return gradient * 0.1


class Zero(nn.Module):
    """A gradient hook below a layer that passes no gradient at first."""

    def __init__(self, last: float) -> None:
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(24, 8), nn.Parameter(torch.full((8,), last)), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.first(x.flatten(1)))
        if y.requires_grad:
            y.register_hook(scaled)
        return self.last(self.scale * y + x.flatten(1)[:, :8])


@pytest.mark.parametrize("last", [1.0, 1e-9, 0.0])
def test_gradient_hooks_below_layers_that_start_at_zero_are_found(question, last):
    class Workload(Blobs):
        def model(self) -> nn.Module:
            return Zero(last)

    found = can_fuse.lanes_fail(question("vmap"), Workload(), Workload().data())
    assert found is not None
    assert found.startswith("the gradient of its parameter first.weight differs")


class Padded(nn.Module):
    """Embeddings of whole numbers; 0 is padding."""

    def __init__(self, by_function: bool) -> None:
        super().__init__()
        self.by_function = by_function
        self.tokens, self.last = nn.Embedding(6, 8, padding_idx=0), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        if self.by_function:
            return self.last(nn.functional.embedding(x, self.tokens.weight, 0).mean(1))
        return self.last(self.tokens(x).mean(1))


class Tokens(Blobs):
    by_function = False

    def splits(self, device: torch.device) -> Splits:
        return Splits(*((each.flatten(1)[:, :8].long().clamp(0, 5), labels) for each, labels in super().splits(device)))

    def model(self) -> nn.Module:
        return Padded(self.by_function)


def test_padding_gets_no_gradient_in_any_lane(question):
    assert_lanes_are_trials_alone(question("vmap"), Tokens())


def test_rules_of_torch_that_hold_for_the_first_lane_only_are_found(question, monkeypatch):
    monkeypatch.setattr(Tokens, "by_function", True)
    found = can_fuse.lanes_fail(question("vmap"), Tokens(), Tokens().data())
    assert found is not None
    assert found.startswith("the gradient of its parameter tokens.weight differs")


def test_a_height_that_torch_cannot_compute_is_not_admitted(question):
    """One row of a group norm after a convolution, in the channels-last layout."""

    class Workload(Blobs):
        def model(self) -> nn.Module:
            return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(48, 5))

    workload, study = Workload(images=True), question("vmap", batch_size=2)
    heights = list(lane_count.admitted(study, workload, workload.data(), most=4))
    assert 4 in heights
    assert 1 not in heights
    assert_lanes_are_trials_alone(study, workload)


def test_the_loss_is_tried_at_outputs_that_are_not_all_zero(question):
    class Workload(Blobs):
        """One output, whose scale is tuned and broadcast to all pairs of examples."""

        errors = {"classification_error": lambda outputs, targets: outputs.squeeze(1) + targets}  # noqa: RUF012

        def model(self) -> nn.Module:
            model = nn.Sequential(nn.Flatten(), nn.Linear(24, 1, bias=False))
            nn.init.zeros_(model[1].weight)
            return model

        def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: Any = 0.0) -> Tensor:
            return (outputs / (1 + label_smoothing)).mean(1)

    study = question("vmap")
    tuned = {"label_smoothing": study.search.space["momentum"]}
    study = replace(study, search=replace(study.search, space={**study.search.space, **tuned}))
    found = can_fuse.lanes_fail(study, Workload(), Workload().data())
    assert found is not None
    assert found.startswith("its loss does not take a tensor")


class OfOneNumber(nn.Module):
    """A temperature, which has no axis, and a parameter without numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.none = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * x + self.none.sum()


@pytest.mark.parametrize("optimizer", ["adam", "lamb", "muon"])
def test_parameters_may_have_no_axis(question, optimizer):
    assert_lanes_are_trials_alone(question("vmap", optimizer), built(OfOneNumber, images=True))


def test_losses_that_draw_are_told_so(question):
    class Workload(Blobs):
        hyperparameters = ()

        def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: Any = 0.0) -> Tensor:
            return super().loss(outputs + torch.rand_like(outputs), targets, label_smoothing)

    found = can_fuse.lanes_fail(question("vmap"), Workload(images=True), Workload(images=True).data())
    assert found is not None
    assert found.startswith("its model, loss or errors draw from a global generator")


def test_the_usual_models_fuse(question):
    for how in ("vmap", "linear_chain"):
        assert can_fuse.lanes_fail(question(how), WORKLOADS[how], WORKLOADS[how].data()) is None


def skipping(losses: Tensor) -> Tensor:
    return torch.zeros_like(losses) if losses.isnan().any() else losses


def leaving_out_large_ones(losses: Tensor) -> Tensor:
    return losses * 0 if losses.max() > 1e6 else losses


def ending(losses: Tensor) -> Tensor:
    assert losses.isfinite().all()
    return losses


@pytest.mark.parametrize("kind", ["linear_chain", "vmap"])
@pytest.mark.parametrize(
    ("member", "function", "fails"),
    [
        ("loss", skipping, True),
        ("loss", leaving_out_large_ones, True),
        ("loss", ending, True),
        ("loss", torch.nan_to_num, False),
        ("loss", lambda losses: losses.clamp(max=1e6), False),
        ("errors", skipping, True),
        ("errors", torch.nan_to_num, False),
    ],
)
def test_a_trial_must_not_depend_on_one_that_diverges(question, kind, member, function, fails):
    class Workload(Blobs):
        def loss(self, *given: Any, **tuned: Any) -> Tensor:
            losses = super().loss(*given, **tuned)
            return function(losses) if member == "loss" else losses

        @property
        def errors(self) -> Any:
            held = super().errors
            return (
                held if member == "loss" else dict.fromkeys(held, lambda *given: function(cross_entropy_error(*given)))
            )

    workload = Workload()
    found = can_fuse.lanes_fail(question(kind), workload, workload.data())
    if not fails:
        assert found is None
        return
    assert found is not None
    assert "of one trial depends on whether another one diverges" in found


FIXED: dict[str, nn.Module] = {}
SCALE = None


def fixed_network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Linear(5, 5).requires_grad_(False)


def drawn_at_the_first_call(x: Tensor) -> Tensor:
    if "network" not in FIXED:
        FIXED["network"] = fixed_network()
    return x + FIXED["network"](x).tanh()


def of_the_first_outputs(x: Tensor) -> Tensor:
    """Keeps a tensor of all lanes, which those of an evaluation cannot use."""
    global SCALE
    SCALE = x.detach().std() if SCALE is None else SCALE
    return x * SCALE


def constant_of_the_first_call(x: Tensor) -> Tensor:
    if "one" not in FIXED:
        FIXED["one"] = nn.Identity()
    return FIXED["one"](x)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (drawn_at_the_first_call, "it draws random numbers"),
        (of_the_first_outputs, "a tensor outlives the call that made it"),
        (constant_of_the_first_call, None),
    ],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_lanes_are_tried_as_the_first_call_of_a_process(question, function, said):
    """The checks before have made what the code keeps of its first call."""

    class Workload(Blobs):
        def model(self) -> nn.Module:
            return nn.Sequential(*super().model(), Kept(None, lambda _, x: function(x)))

    workload, fresh = Workload(), kept.Kept(Workload())
    workload.model()(torch.randn(4, 24))
    found = can_fuse.lanes_fail(question("vmap"), workload, workload.data(), fresh=fresh)
    fresh.put_back()
    assert found is None if said is None else said in str(found)
