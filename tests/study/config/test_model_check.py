"""Models in each layout, mode and size of training and evaluation; those that cannot be trained are refused."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from study.config.model_check import check_evaluation, check_model
from study.config.state_check import State, stateful
from study.errors import UsageError

CONTIGUOUS = torch.contiguous_format


class Made:
    """A workload of made examples whose model is given."""

    hyperparameters = ()
    errors = {"wrong": lambda outputs, targets: (outputs.argmax(-1) != targets).float()}  # noqa: RUF012
    name = "made"

    def __init__(self, model):
        self.model = model

    def loss(self, outputs, targets):
        return F.cross_entropy(outputs, targets, reduction="none")


class Model(nn.Module):
    """One linear layer and a function of the model and its outputs."""

    def __init__(self, act):
        super().__init__()
        self.layer, self.act = nn.Linear(6, 2), act

    def forward(self, x):
        return self.act(self, self.layer(x))


class Viewing(nn.Module):
    """Flattens images with `view` after a convolution, which channels-last images do not allow, in some modes."""

    def __init__(self, modes):
        super().__init__()
        self.conv, self.layer, self.modes = nn.Conv2d(3, 4, 3), nn.Linear(16, 2), modes

    def forward(self, x):
        y = self.conv(x)
        return self.layer(y.view(len(y), -1) if self.training in self.modes else y.flatten(1))


@pytest.mark.parametrize(
    ("modes", "layouts"),
    [
        ((True, False), (CONTIGUOUS, CONTIGUOUS)),
        ((True,), (CONTIGUOUS, CONTIGUOUS)),
        ((False,), (torch.channels_last, CONTIGUOUS)),
        ((), (torch.channels_last, torch.channels_last)),
    ],
)
def test_models_that_take_one_layout_of_images(make_study, modes, layouts):
    workload, study = Made(lambda: Viewing(modes)), make_study()
    few = torch.randn(8, 3, 4, 4), torch.arange(8) % 2
    trains = check_model(study, workload, *few)
    evaluates = check_evaluation(study, workload, *few, trains, [8])
    assert (trains, evaluates) == layouts
    assert stateful(study, workload, *few, evaluates) == State()


def test_the_last_part_of_an_evaluation_may_hold_one_example(make_study):
    def of_several(self, y):
        assert self.training or len(y) > 1
        return y

    def model():
        return Model(of_several)

    few = torch.randn(8, 6), torch.arange(8) % 2
    layout = check_evaluation(make_study(), Made(model), *few, CONTIGUOUS, [1024, 50])
    with pytest.raises(UsageError, match="of 1 example"):
        check_evaluation(make_study(), Made(model), *few, layout, [1024, 1025])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "compiled",
    [
        lambda: torch.compile(nn.Linear(6, 2)),
        lambda: nn.Sequential(torch.compile(nn.Linear(6, 2))),
        lambda: Model(torch.compile(lambda self, y: y)),
    ],
)
def test_compiled_models_are_refused_before_they_compile(make_study, compiled):
    with pytest.raises(UsageError, match=r"tiny uses torch.compile .*; leave it out"):
        check_model(make_study(), Made(compiled), torch.randn(8, 6), torch.arange(8) % 2)


def test_sparse_gradients_are_refused(make_study):
    workload = Made(lambda: nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Flatten(), nn.Linear(12, 2)))
    with pytest.raises(UsageError, match=r"momentum needs dense gradients, but .* 0.weight .* leave out sparse=True"):
        check_model(make_study(), workload, torch.arange(24).view(8, 3) % 9, torch.arange(8) % 2)
