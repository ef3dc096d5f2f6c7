"""Language models in the engines: lanes equal trials alone, and parts with unequal numbers of tokens one batch."""

import pytest
import torch
from helpers.blobs import Blobs
from helpers.desks import Desk, assert_lanes_are_trials_alone, fixed_trial, trained
from helpers.users.windows import LANGUAGE_MODELS
from torch import nn

from study.data.resident import Data
from study.engine import arithmetic
from study.engine.fused import recurrent
from study.engine.lanes import Lanes
from study.engine.run import Run
from study.settings import Evaluation

SPACE = {
    "learning_rate": {"choices": [0.3, 0.05, 0.2, 0.1, 0.5]},
    "momentum": {"choices": [0.0, 0.9, 0.5, 0.8, 0.3]},
    "label_smoothing": {"choices": [0.0, 0.1, 0.2, 0.0, 0.3]},
}
STEPS = 8


@pytest.fixture
def asked(make_study):
    def make(how, **fields):
        grid = Evaluation(first=0.5, ratio=2)
        return make_study(
            **{"space": SPACE, "arithmetic": how, "batch_size": 4, "steps": STEPS, "evaluation": grid} | fields
        )

    return make


SELDOM = {
    **dict.fromkeys(("transformer", "rotary", "untied", "padded"), pytest.mark.slow),
    "padded lstm": pytest.mark.release,  # as "lstm" and "padded" together
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[SELDOM[name]] if name in SELDOM else []) for name in LANGUAGE_MODELS]
)
def test_lanes_are_trials_alone(asked, name):
    assert_lanes_are_trials_alone(asked("vmap"), LANGUAGE_MODELS[name])


@pytest.mark.parametrize("name", ["padded", "padded lstm"])
def test_parts_with_unequal_numbers_of_tokens_are_the_whole_batch(asked, name):
    workload = LANGUAGE_MODELS[name]
    data = workload.data()
    study = asked("plain", batch_size=7)
    trial = fixed_trial(study)
    [whole, *parts] = (Run(study, workload, data, trial, micro_batch) for micro_batch in (None, 3, 2, 1))
    counts = {int(workload.weights(data.targets[i : i + 1])) for i in range(64)}
    assert len(counts) > 5, "windows must have different numbers of tokens"
    whole._descend(0.1)
    inputs, targets = whole.read(0, 0)
    logits = whole.model(inputs).flatten(0, 1)
    by_hand = nn.functional.cross_entropy(logits, targets.flatten())  # torch's mean over all counted tokens
    gradients = torch.autograd.grad(by_hand, list(whole.model.parameters()))
    for run in (whole, *parts):
        run._descend(0.1) if run is not whole else None
        for parameter, gradient in zip(run.model.parameters(), gradients, strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["padded", "padded lstm"])
def test_errors_are_means_over_all_counted_tokens(asked, name):
    study, workload = asked("vmap", steps=1, space={"learning_rate": 1e-9, "momentum": 0.0}), LANGUAGE_MODELS[name]
    curve = trained(study, Desk([study.trial(0, {"learning_rate": 1e-9, "momentum": 0.0})]), (1,), workload)[0]
    torch.manual_seed(study.trial(0, {}).seed)
    model = Run(study, workload, workload.data(), curve.trial).model.eval()
    inputs, targets = workload.splits(torch.device("cpu")).val
    wanted = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
    assert curve.errors["val/loss"][-1] == pytest.approx(wanted.item(), rel=1e-5)


@pytest.mark.parametrize(
    ("name", "batch_size", "device", "how"),
    [
        ("transformer", 2, "cpu", "vmap"),
        ("transformer", 32, "cpu", "plain"),
        ("transformer", 32, "cuda", "vmap"),
        ("lstm", 2, "cpu", "plain"),  # torch's LSTM alone is faster
        ("lstm", 32, "cuda", "vmap"),
    ],
)
def test_the_rule_of_arithmetic_for_language_models(asked, name, batch_size, device, how):
    study = asked("plain", batch_size=batch_size)
    assert arithmetic.candidates(LANGUAGE_MODELS[name].model(), study, device)[0] == how


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_an_lstm_step_by_step_is_that_of_torch(batch_first, bias):
    torch.manual_seed(0)
    layer = nn.LSTM(3, 5, num_layers=2, batch_first=batch_first, bias=bias)
    state = torch.randn(2, 2, 4, 5).unbind()
    x = torch.randn(4, 6, 3) if batch_first else torch.randn(6, 4, 3)
    for given in (None, state):
        one, other = (each.requires_grad_() for each in (x.clone(), x.clone()))
        found, expected = recurrent.lstm(layer, nn.functional.linear, one, given), layer(other, given)
        torch.testing.assert_close(found, expected)
        (found[0].square().sum() + found[1][1].sum()).backward()
        (expected[0].square().sum() + expected[1][1].sum()).backward()
        torch.testing.assert_close(one.grad, other.grad)
    x, given = x[0], tuple(each[:, 0] for each in state)
    if batch_first:
        torch.testing.assert_close(recurrent.lstm(layer, nn.functional.linear, x, given), layer(x, given))


@pytest.mark.parametrize(
    ("layer", "able"),
    [
        (nn.LSTM(3, 5, 2), True),
        (nn.LSTM(3, 5, dropout=0.0), True),
        (nn.LSTM(3, 5, 2, dropout=0.1), False),
        (nn.LSTM(3, 5, bidirectional=True), False),
        (nn.LSTM(3, 5, proj_size=2), False),
        (nn.GRU(3, 5), False),
    ],
)
def test_which_recurrent_layers_lanes_can_train(asked, layer, able):
    names = arithmetic.candidates(layer, asked("plain"), "cpu", forced=True)
    assert ("vmap" in names) is able


def test_lanes_of_padded_windows_descend_the_mean_over_tokens(asked):
    """One step of a lane, against torch's mean over all counted tokens of its batch."""
    study, workload = asked("vmap", space={"learning_rate": 0.1, "momentum": 0.0}), LANGUAGE_MODELS["padded"]
    data: Data = workload.data()
    lanes = Lanes(study, workload, data, (2,), 2)
    for index in range(2):
        lanes.start(study.trial(index, {"learning_rate": 0.1, "momentum": 0.0}))
    lanes.advance(1)
    for index, lane in enumerate(lanes.lanes):
        run = Run(study, workload, data, lane.trial)
        inputs, targets = run.read(0, 0)
        nn.functional.cross_entropy(run.model(inputs).flatten(0, 1), targets.flatten()).backward()
        for name, parameter in run.model.named_parameters():
            moved = (parameter - lanes.stack.views[name][index]).detach() / 0.1
            torch.testing.assert_close(moved, parameter.grad, rtol=1e-3, atol=1e-5)


class Recurrent(Blobs):
    """Blobs as sequences."""

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Unflatten(1, (6, 4)), Last(nn.GRU(4, 8, batch_first=True)), nn.Linear(8, 5))


class Last(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[0][:, -1]


def test_an_evaluation_leaves_the_weights_of_recurrent_layers_to_training(asked):
    """They are in a list of the layer, too, and a copy of it would never be trained."""
    study, workload = asked("plain"), Recurrent()
    runs = [Run(study, workload, workload.data(), fixed_trial(study)) for _ in range(2)]
    inputs = workload.data().evaluated["val"][0]
    for run, evaluates in zip(runs, (False, True), strict=True):
        for _ in range(3):
            run.advance(1)
            if evaluates:
                with torch.no_grad():
                    run.predict(inputs)
    for name, parameter in runs[0].model.named_parameters():
        assert torch.equal(parameter, runs[1].model.get_parameter(name)), name
