"""Residual networks (He et al. 2016a) of any depth, for photographs and for small images.

Shapes: B examples in a batch, C channels, H x W pixels.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn

from workloads.base import require_one_of, require_whole, with_given
from workloads.images.classification import ImageClassification
from workloads.images.norms import NormLayer, norm_layer
from workloads.layers import GlobalMeanPool


class Size(NamedTuple):
    """The kind of the blocks, their number in each stage, and the filters of the first stage, twice as many in each
    further one."""

    block: str
    blocks: tuple[int, ...]
    width: int


SIZES = {
    18: Size("basic", (2, 2, 2, 2), 64),
    34: Size("basic", (3, 4, 6, 3), 64),
    50: Size("bottleneck", (3, 4, 6, 3), 64),
    101: Size("bottleneck", (3, 4, 23, 3), 64),
    152: Size("bottleneck", (3, 8, 36, 3), 64),
}
"""Depth -> size (He et al. 2016a, table 1). Every other depth of 6n + 2 is a network for CIFAR-10 (section 4.2)."""

STEMS = {"imagenet": (7, 2), "cifar": (3, 1)}
"""Stem -> kernel size and stride of the first convolution."""
SHORTCUTS = ("projection", "padding")


def size_of(depth: int) -> Size:
    """The network with `depth` convolutions and linear layers, not counting those of shortcuts.

    Raises:
        ValueError: there is none.
    """
    if depth in SIZES:
        return SIZES[depth]
    if depth < 8 or depth % 6 != 2:
        raise ValueError(
            f"workload.depth must be {', '.join(map(str, SIZES))} or, for three stages of n blocks, 6n + 2, such as 8, "
            f"20 or 56, but got {depth}; workload.blocks, block and width give any other network."
        )
    return Size("basic", ((depth - 2) // 6,) * 3, 16)


@dataclass(frozen=True, kw_only=True)
class ResNet(ImageClassification):
    """A first convolution, stages of residual blocks, the mean over all pixels and a linear layer.

    Arguments:
        depth: 18, 34, 50, 101 or 152, or 6n + 2 (see `size_of`); `block`, `blocks` and `width` replace parts of it.
        block: `basic`, two 3x3 convolutions, or `bottleneck`, 1x1, 3x3 and 1x1 with four times the filters.
        blocks: number of blocks in each stage.
        width: filters of the first stage.
        stem: `imagenet`, a 7x7 convolution and max pooling that divide height and width by 4, or `cifar`, a 3x3
            convolution.
        shortcut: of blocks that change the shape: `projection`, a 1x1 convolution, or `padding`, every second pixel and
            zeros in the new channels (options B and A of He et al. 2016a).
        norm, ghost_batch, norm_groups: see `workloads.images.norms.norm_layer`.
        zero_init: whether every block starts as its shortcut, see `resnet`.
    """

    depth: int = 50
    block: str | None = None
    blocks: tuple[int, ...] | None = None
    width: int | None = None
    stem: str = "imagenet"
    shortcut: str = "projection"
    norm: str = "ghost"
    ghost_batch: int = 32
    norm_groups: int = 32
    zero_init: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_whole("workload.depth", self.depth, 1)
        for field, known in (("block", BLOCKS), ("stem", STEMS), ("shortcut", SHORTCUTS)):
            if field != "block" or self.block is not None:
                require_one_of(f"workload.{field}", getattr(self, field), known)
        size = self.size
        require_whole("workload.width", size.width, 1)
        for blocks in size.blocks:
            require_whole("each of workload.blocks", blocks, 1)
        norm = norm_layer(self.norm, self.ghost_batch, self.norm_groups)
        norm(size.width)  # further layers have a multiple of its channels

    @property
    def size(self) -> Size:
        """The size of `depth`, with those parts that are given in their place."""
        size: Size = with_given(size_of(self.depth), self)
        return size

    def model(self) -> nn.Module:
        return resnet(
            self.shape[0],
            self.classes,
            self.size,
            stem=self.stem,
            shortcut=self.shortcut,
            norm=norm_layer(self.norm, self.ghost_batch, self.norm_groups),
            zero_init=self.zero_init,
        )


def resnet(
    channels: int,
    outputs: int,
    size: Size,
    *,
    norm: NormLayer,
    stem: str = "imagenet",
    shortcut: str = "projection",
    zero_init: bool = True,
) -> nn.Sequential:
    """A residual network: images [B, C, H, W] -> [B, outputs].

    Convolutions start normal with variance 2 / (kernel height * kernel width * filters) (He et al. 2015, equation 14),
    the last layer normal with standard deviation 0.01, biases at 0 (Goyal et al. 2017, section 5.1). Convolutions have
    biases only without norms.

    Arguments:
        channels: C.
        outputs: numbers for each image, such as the logits of all classes.
        norm: makes the norm layers, see `workloads.images.norms.norm_layer`.
        stem, shortcut: see `ResNet`.
        zero_init: the scale of the last norm of each block starts at 0 (Goyal et al. 2017); without norms, the weights
            of its last convolution (Zhang et al. 2019).
    """
    convolution = partial(_convolution, norm)
    layers: list[nn.Module] = [*convolution(channels, size.width, *STEMS[stem]), nn.ReLU(inplace=True)]
    if stem == "imagenet":
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    width = size.width
    for stage, blocks in enumerate(size.blocks):
        for number in range(blocks):
            filters, stride = size.width * 2**stage, 2 if stage and not number else 1
            branch = BLOCKS[size.block](convolution, width, filters, stride)
            if zero_init:
                nn.init.zeros_(branch[-1].get_parameter("weight"))
            wanted = filters * EXPANSION[size.block]
            layers.append(Block(nn.Sequential(*branch), _shortcut(shortcut, convolution, width, wanted, stride)))
            width = wanted
    classifier = nn.Linear(width, outputs)
    nn.init.normal_(classifier.weight, std=0.01)
    nn.init.zeros_(classifier.bias)
    return nn.Sequential(*layers, GlobalMeanPool(), classifier)


class Block(nn.Module):
    """relu(branch(x) + shortcut(x))."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.branch(x).add_(self.shortcut(x)), inplace=True)


class Every(nn.Module):
    """Every `stride`-th pixel of each row and column, followed by `channels` channels of zeros."""

    def __init__(self, stride: int, channels: int = 0) -> None:
        super().__init__()
        self.stride, self.channels = stride, channels

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, 0, self.channels)) if self.channels else x


def _convolution(norm: NormLayer, inputs: int, filters: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    """A convolution that keeps height and width, divided by the stride and rounded up, and its norm, if any."""
    after = norm(filters)
    alone = isinstance(after, nn.Identity)
    layer = nn.Conv2d(inputs, filters, kernel, stride, padding=kernel // 2, bias=alone)
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return [layer] if alone else [layer, after]


Convolution = Callable[..., list[nn.Module]]
"""(inputs, filters, kernel, stride) -> a convolution and its norm."""


def _shortcut(kind: str, convolution: Convolution, inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    if kind == "padding":
        return Every(stride, outputs - inputs)
    # Not a 1x1 convolution with a stride: on CPUs its gradient may write outside of its memory if there are fewer than
    # 16 inputs (https://github.com/uxlfoundation/oneDNN/issues/6035).
    return nn.Sequential(Every(stride), *convolution(inputs, outputs, 1))


def _basic(convolution: Convolution, inputs: int, filters: int, stride: int) -> list[nn.Module]:
    return [*convolution(inputs, filters, 3, stride), nn.ReLU(inplace=True), *convolution(filters, filters, 3)]


def _bottleneck(convolution: Convolution, inputs: int, filters: int, stride: int) -> list[nn.Module]:
    """The 3x3 convolution has the stride, as in Goyal et al. 2017; in He et al. 2016a the first one has it."""
    return [
        *convolution(inputs, filters, 1),
        nn.ReLU(inplace=True),
        *convolution(filters, filters, 3, stride),
        nn.ReLU(inplace=True),
        *convolution(filters, filters * EXPANSION["bottleneck"], 1),
    ]


BLOCKS = {"basic": _basic, "bottleneck": _bottleneck}
EXPANSION = {"basic": 1, "bottleneck": 4}
"""Kind of block -> its channels, as a multiple of its filters."""
