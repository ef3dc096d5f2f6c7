"""Errors that torch raises for models which lanes cannot train are told with what they mean."""

from collections.abc import Callable

import pytest
import torch
from helpers.blobs import Blobs
from helpers.fused import asked
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from study.engine.can_fuse import lanes_fail


class Own(torch.autograd.Function):
    """In the style without setup_context."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient


class Uses(nn.Module):
    """Makes outputs [B, 5] of features [B, 24] by `use`, which gets a layer and the features."""

    def __init__(self, layer: nn.Module, use: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.use, self.last = layer, use, nn.LazyLinear(5)
        self(torch.zeros(1, 24))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.use(self.layer, x.flatten(1)))


def masked(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    y[y > 1] = 1
    return y


def through_numpy(layer: nn.Module, x: Tensor) -> Tensor:
    y = layer(x)
    return y * float(y.detach().numpy().max() > 0)


@pytest.mark.parametrize(
    ("layer", "use", "said"),
    [
        (nn.LSTMCell(24, 8), lambda cell, x: cell(x)[0], "torch.vmap has no rule for lstm_cell; another"),
        (nn.Linear(24, 8), masked, "selects by a boolean mask; torch.where"),
        (nn.Linear(24, 8), lambda layer, x: layer(x) + x[x > 0].sum(), "selects by a boolean mask; torch.where"),
        (
            nn.Linear(24, 8),
            lambda layer, x: checkpoint(layer, x, use_reentrant=False),
            "as with torch.utils.checkpoint",
        ),
        (nn.Linear(24, 8), lambda layer, x: Own.apply(layer(x)), "an autograd.Function of it lacks setup_context"),
        (nn.Embedding(2, 8, sparse=True), lambda rows, x: rows((x > 0).long()).mean(1), "leave out sparse=True"),
        (nn.Linear(24, 8), through_numpy, r"leaves torch, as .numpy() does"),
    ],
)
def test_what_an_error_of_torch_means_is_said(make_study, layer, use, said):
    class Workload(Blobs):
        def model(self) -> nn.Module:
            return Uses(layer, use)

    workload = Workload(False)
    assert said in str(lanes_fail(asked(make_study, "vmap"), workload, workload.data()))
