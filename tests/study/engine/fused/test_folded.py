"""ReLUs, sums and the gradients of pooling take forms that can be fused, with the same numbers; others stay."""

from collections import Counter

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from study.engine.fused import compiled
from study.engine.fused.layout import Layout
from study.engine.fused.vmapped import Vmapped

LANES, IMAGES = 2, 3
aten = torch.ops.aten


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
    "pooled": (behind(nn.ReLU(), nn.MaxPool2d(2)), 1, 0),
    "before the first": (nn.Sequential(nn.ReLU(), nn.Conv2d(2, 4, 3)), 1, 0),
    "behind the last": (nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU()), 1, 1),
    "another function": (behind(nn.LeakyReLU()), 0, 0),
    "another threshold": (behind(nn.Threshold(0.1, 0.0)), 0, 1),
    "other values below it": (behind(nn.Threshold(0.0, 5.0)), 0, 0),
}
"""(layers, ReLUs that stay, and gradients of ReLUs and thresholds that stay)."""


class Added(nn.Module):
    """Adds the mean of all pixels to the maxima of windows of 2 x 2."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(x, 2) + x.mean((-2, -1), keepdim=True)


POOLED = {
    "of a ReLU": (behind(nn.ReLU(), nn.MaxPool2d(2)), 0, 0),
    "of a ReLU in place": (behind(nn.ReLU(inplace=True), nn.MaxPool2d(2)), 0, 0),
    "tall windows": (behind(nn.ReLU(), nn.MaxPool2d((4, 2))), 0, 0),
    "before a ReLU": (behind(nn.MaxPool2d(2), nn.ReLU()), 0, 0),
    "twice": (behind(nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2)), 0, 1),
    "before a linear layer": (nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(2)), 0, 1),
    "of another layout": (nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2)), 0, 1),
    "of another function": (behind(nn.LeakyReLU(), nn.MaxPool2d(2)), 0, 0),
    "of another threshold": (behind(nn.Threshold(0.1, 0.0), nn.MaxPool2d(2)), 0, 1),
    "of a ReLU that others read, too": (behind(nn.ReLU(), Added()), 0, 1),
    "windows that overlap": (behind(nn.ReLU(), nn.MaxPool2d(3, 2, 1)), 1, 0),
    "windows that leave pixels out": (behind(nn.ReLU(), nn.MaxPool2d(3)), 1, 0),
    "windows with gaps": (behind(nn.ReLU(), nn.MaxPool2d(2, 4)), 1, 0),
    "windows beyond the images": (behind(nn.ReLU(), nn.MaxPool2d(3, ceil_mode=True)), 1, 0),
    "dilated windows": (behind(nn.ReLU(), nn.MaxPool2d(2, dilation=2)), 1, 0),
}
"""(layers, gradients of pooling that stay, and those of ReLUs and thresholds)."""


def counted(layers: nn.Module, size: tuple[int, int], half: bool) -> Counter[object]:
    """The operations of a traced update of models with these layers, which computes the same as the update."""
    torch.manual_seed(0)
    model = nn.Sequential(layers, nn.Flatten(), nn.LazyLinear(5))
    x, targets = torch.randn(LANES, IMAGES, 2, *size), torch.randint(5, (LANES * IMAGES,))
    x[0, 0] = 0  # all pixels are maxima
    x[1, 0, 0, 0, 0] = torch.nan
    model(x[0])
    layout = Layout(model)
    rows = torch.randn(LANES, layout.width) / 4

    def losses(outputs: Tensor) -> Tensor:
        return functional.cross_entropy(outputs.flatten(0, 1), targets, reduction="none")

    def update(rows: Tensor, images: Tensor) -> Tensor:
        form = Vmapped(model, rows, layout, half, flat=True)
        found, [gradient] = form.backward(images, losses, torch.zeros(LANES, 0))
        return torch.cat([found.view(LANES, -1), gradient], 1)

    graph = compiled.traced(update, [rows, x])
    torch.testing.assert_close(graph(rows, x), update(rows, x), rtol=0, atol=0, equal_nan=True)
    return Counter(node.target for node in graph.graph.nodes)


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", MODELS)
def test_the_update_is_the_same(name, half):
    layers, relus, gradients = MODELS[name]
    count = counted(layers, (9, 8), half)
    assert (count[aten.relu.default], count[aten.threshold_backward.default]) == (relus, gradients)


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", POOLED)
def test_pooling_is_the_same(name, half):
    layers, pools, gradients = POOLED[name]
    count = counted(layers, (10, 10), half)
    found = count[aten.max_pool2d_with_indices_backward.default], count[aten.threshold_backward.default]
    assert found == (pools, gradients)
