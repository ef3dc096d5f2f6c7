"""The rule by which `torch.vmap` computes layers of convolutions: all lanes at once, each with filters of its own.

Shapes: l lanes, N images, C channels and O filters.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from study.engine.fused.convolution import operations
from study.engine.fused.convolution.shapes import by_pixels


def can(layer: nn.Conv2d) -> bool:
    """Whether `convolved` supports the options of the layer."""
    right, left, bottom, top = layer._reversed_padding_repeated_twice
    symmetric = right == left and bottom == top
    simple = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
    return simple and symmetric and top < layer.kernel_size[0] and left < layer.kernel_size[1]


def convolved(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """The outputs of a layer for which `can` holds, in the precision of autocast; for images [N, C, H, W] or
    [C, H, W]."""
    weight, bias = layer.weight, layer.bias
    if torch.is_autocast_enabled(x.device.type):
        half = torch.get_autocast_dtype(x.device.type)
        x, weight, bias = x.to(half), weight.to(half), None if bias is None else bias.to(half)
    images = x if x.dim() == 4 else x.unsqueeze(0)
    _, left, _, top = layer._reversed_padding_repeated_twice
    y = _Convolution.apply(images, weight, bias, list(layer.stride), [top, left])
    return y if x.dim() == 4 else y.squeeze(0)


class _Convolution(torch.autograd.Function):
    """A convolution of images [N, C, H, W] with filters [O, C, height, width] or, under `torch.vmap`, of the images of
    each lane with its filters."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int]) -> Tensor:
        if weight.dim() == 4:
            return functional.conv2d(x, weight, bias, stride, padding)
        return operations.filtered(by_pixels(x), weight, bias, stride, padding)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, weight, bias, ctx.stride, ctx.padding = inputs
        ctx.save_for_backward(x, weight)
        ctx.biased = bias is not None

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        [dy] = gradients
        needs_x, how = ctx.needs_input_grad[0], (ctx.stride, ctx.padding)
        if weight.dim() == 4:
            rest = [1, 1], False, [0, 0], 1, [needs_x, True, ctx.biased]
            return *torch.ops.aten.convolution_backward(dy, x, weight, [len(weight)], *how, *rest), None, None
        dy, size = by_pixels(dy), list(x.shape[-2:])
        dx = operations.spread(dy, weight, size, *how) if needs_x else None
        rows = operations.differentiated(by_pixels(x), dy, list(weight.shape[-2:]), *how, ctx.biased)
        dw = rows[:, : prod(weight.shape[2:])].unflatten(1, (*weight.shape[-2:], -1)).permute(0, 4, 3, 1, 2)
        return dx, dw, rows[:, -1] if ctx.biased else None, None, None

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        padding: list[int],
    ) -> tuple[Tensor, int]:
        def lanes(tensor: Tensor, dim: int | None) -> Tensor:
            return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

        given = lanes(x, in_dims[0]), lanes(weight, in_dims[1]), None if bias is None else lanes(bias, in_dims[2])
        return _Convolution.apply(*given, stride, padding), 0
