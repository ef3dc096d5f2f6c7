"""ReLUs and sums become parts of the convolutions beside them, with the same numbers; others stay."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from study.engine.fused import compiled
from study.engine.fused.layout import Layout
from study.engine.fused.vmapped import Vmapped

LANES, IMAGES = 2, 3


class Residual(nn.Module):
    """x + second(between(first(before(x))))."""

    def __init__(self, before: nn.Module, between: nn.Module) -> None:
        super().__init__()
        self.before, self.between = before, between
        self.first, self.second = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.between(self.first(self.before(x)))) + x


class Changed(nn.Module):
    """Adds 1 to what it is given, in place."""

    def forward(self, x: Tensor) -> Tensor:
        return x.add_(1)


def behind(*layers: nn.Module) -> nn.Module:
    """These layers between two convolutions."""
    return nn.Sequential(nn.Conv2d(2, 4, 3), *layers, nn.Conv2d(4, 4, 3, stride=2, padding=1))


MODELS = {
    "between two": (behind(nn.ReLU()), 0, 0),
    "in place": (behind(nn.ReLU(inplace=True)), 0, 0),
    "twice": (behind(nn.ReLU(), nn.ReLU()), 1, 1),
    "residual": (behind(Residual(nn.ReLU(), nn.ReLU(inplace=True)), nn.ReLU()), 0, 0),
    "its input is changed before": (behind(Changed(), nn.ReLU()), 0, 0),
    "read by a sum, too": (behind(nn.ReLU(), Residual(nn.Identity(), nn.ReLU())), 1, 1),
    "pooled": (behind(nn.ReLU(), nn.MaxPool2d(2)), 1, 1),
    "before the first": (nn.Sequential(nn.ReLU(), nn.Conv2d(2, 4, 3)), 1, 0),
    "behind the last": (nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()), 1, 1),
    "another function": (behind(nn.LeakyReLU()), 0, 0),
    "another threshold": (behind(nn.Threshold(0.1, 0.0)), 0, 1),
    "other values below it": (behind(nn.Threshold(0.0, 5.0)), 0, 0),
}
"""(layers, ReLUs that stay, and gradients of ReLUs and thresholds that stay)."""


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_update_is_the_same(name):
    layers, relus, gradients = MODELS[name]
    torch.manual_seed(0)
    model = nn.Sequential(layers, nn.Flatten(), nn.LazyLinear(5))
    x, targets = torch.randn(LANES, IMAGES, 2, 9, 8), torch.randint(5, (LANES * IMAGES,))
    model(x[0])
    layout = Layout(model)
    rows = torch.randn(LANES, layout.width) / 4

    def losses(outputs: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets, reduction="none")

    def update(rows: Tensor, images: Tensor) -> Tensor:
        found, [gradient] = Vmapped(model, rows, layout, flat=True).backward(images, losses, torch.zeros(LANES, 0))
        return torch.cat([found.view(LANES, -1), gradient], 1)

    graph = compiled.traced(update, [rows, x])
    count = Counter(node.target for node in graph.graph.nodes)
    aten = torch.ops.aten
    assert (count[aten.relu.default], count[aten.threshold_backward.default]) == (relus, gradients)
    torch.testing.assert_close(graph(rows, x), update(rows, x), rtol=0, atol=0)
