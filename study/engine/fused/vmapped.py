"""The arithmetic `vmap`: any module that `torch.vmap` takes, with rules of its own where torch's are slow.

Shapes: l lanes, B examples in a batch, N inputs that all lanes share, P parameters of one model.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any
from weakref import proxy  # a layer that held itself would keep models of ended trials on the device

import torch
from torch import Tensor, nn
from torch.func import functional_call

from study.engine.fused.layout import Layout, Loss, differentiated
from study.engine.fused.stack import Stack
from study.records import Study
from workloads.layers import keyed_layers

EVALUATED_LANES = 32
"""Lanes that a GPU evaluates at once: they fill it, and more would take memory from training."""
OWN_RULE_WEIGHTS = 2**15
"""Linear layers of at least this size are faster under `torch.vmap` by a rule of this file, smaller ones by torch's."""

SMALL_BATCH = 4
"""Convolutions gain from lanes up to this batch size on a CPU; beyond it one model's are as fast as many models'."""
SMALL_MODEL = 2**19
"""Parameters up to which models gain from lanes on a CPU; those of larger ones come from memory all the same."""


def can(model: nn.Module, study: Study) -> bool:
    """Whether the model is a function of its parameters and keys alone: no running statistics, no global randomness."""
    ours = {id(layer.key) for layer in keyed_layers(model)}
    stateless = all(id(buffer) in ours for buffer in model.buffers())
    random = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.RNNBase)
    return stateless and not any(isinstance(module, random) for module in model.modules())


def pays(model: nn.Module, study: Study, device: str) -> bool:
    """Whether one model alone would leave the device idle."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    small = study.batch_size <= SMALL_BATCH and parameters <= SMALL_MODEL
    return small or torch.device(device).type != "cpu"


def stack(template: nn.Module, study: Study, rows: int) -> Stack:
    """A stack with room for `rows` trials."""
    return Stack(template, study.algorithm, rows, Vmapped, study.averages)


class Vmapped:
    """Any module, through `torch.vmap` of its forward pass; autograd sees one graph for all lanes.

    Arguments:
        template: a module for which `can` holds.
        weights: rows [l, P].
        flat: lay all gradients side by side: an update then is a call for each operation of its rule, and not for each
            of every parameter. On a CPU, which waits for memory and not for calls, that costs a pass for nothing. None:
            on other devices than CPUs.
    """

    def __init__(self, template: nn.Module, weights: Tensor, layout: Layout, flat: bool | None = None) -> None:
        flat = weights.device.type != "cpu" if flat is None else flat
        self.template, self.columns = template, [slice(None)] if flat else layout.columns
        self.gaps = [weights.new_zeros(len(weights), gap) for gap in layout.gaps] if flat else []
        self.weights = {name: view.detach().requires_grad_() for name, view in layout.views(weights).items()}
        self.keys = [name for name, _ in template.named_buffers() if name.endswith("key")]
        for layer in template.modules():
            held: Any = proxy(layer)
            if type(layer) is nn.Linear and layer.weight.numel() >= OWN_RULE_WEIGHTS:
                layer.forward = partial(_linear, held)  # type: ignore[method-assign]
            elif flat and type(layer) is nn.Conv2d and _has_one_channel(layer):
                layer.forward = partial(_by_patches, held)  # type: ignore[method-assign]

    @staticmethod
    def predicts_alone(device: torch.device) -> bool:
        return device.type == "cpu"

    def outputs(self, inputs: Tensor) -> Tensor:
        self.template.eval()
        if self.predicts_alone(inputs.device):  # a CPU's grouped convolutions are slow on large batches
            lanes = [dict(zip(self.weights, lane, strict=True)) for lane in zip(*self.weights.values(), strict=True)]
            found = torch.stack([functional_call(self.template, lane, (inputs,)) for lane in lanes])
        else:
            predict = torch.vmap(lambda w: functional_call(self.template, w, (inputs,)), chunk_size=EVALUATED_LANES)
            found = predict(self.weights)
        self.template.train()
        return found

    def backward(self, inputs: Tensor, loss: Loss, keys: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        with torch.enable_grad():
            outputs = self._forward(inputs, keys)
        losses, gradients = differentiated(loss, outputs, list(self.weights.values()))
        each = [gradient.flatten(1) for gradient in gradients]
        if self.gaps:
            each = [torch.cat([part for pair in zip(each, self.gaps, strict=True) for part in pair], dim=1)]
        return losses, each

    def _forward(self, inputs: Tensor, keys: Tensor) -> Tensor:
        """What each model computes of its own inputs [l, B, ...]: [l, B, ...]."""
        buffers = {name: keys[:, number] for number, name in enumerate(self.keys)}

        def forward(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
            return functional_call(self.template, (parameters, buffers), (x,))

        return torch.vmap(forward)(self.weights, buffers, inputs)


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    if torch.is_autocast_enabled(x.device.type):
        return nn.functional.linear(x, layer.weight, layer.bias)
    return _Product.apply(x, layer.weight, layer.bias)


def _has_one_channel(layer: nn.Conv2d) -> bool:
    """Whether its inputs do, in a way that `_by_patches` knows."""
    return layer.in_channels == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"


def _by_patches(layer: nn.Conv2d, x: Tensor) -> Tensor:
    """A convolution of one channel as a product with patches [..., kernel] of its inputs [B, 1, H, W].

    Many models' would be a depthwise convolution, for which torch has kernels of its own on GPUs: one thread for each
    output, and no more outputs than 32 bits count.
    """
    if torch.is_autocast_enabled(x.device.type):
        return nn.Conv2d.forward(layer, x)
    patches = nn.functional.pad(x, layer._reversed_padding_repeated_twice).squeeze(-3)
    for size, stride in zip(layer.kernel_size, layer.stride, strict=True):
        patches = patches.unfold(-2, size, stride)  # what is taken apart goes last
    y = _Product.apply(patches.flatten(-2), layer.weight.flatten(1), layer.bias)
    return y.movedim(-1, -3).contiguous()  # of a view that is then changed in place autograd would make three copies


class _Product(torch.autograd.Function):
    """x W^T + b, whose weight gradient is laid out as W is; autograd's own comes transposed, 17 times slower to copy.

    Under `torch.vmap` W is [l, H, D], by a rule that is written out: those generated take a millisecond a layer.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        product = torch.matmul(x, weight.mT)
        return product if bias is None else product.add_(bias if weight.dim() == 2 else bias.unsqueeze(-2))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.biased = inputs[2] is not None

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor, Tensor | None]:
        x, weight = ctx.saved_tensors
        [dy] = gradients
        rows, inputs = (_rows(each, weight) for each in (dy, x))
        needs_x = ctx.needs_input_grad[0]
        return dy @ weight if needs_x else None, rows.mT @ inputs, rows.sum(-2) if ctx.biased else None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, int]:
        def lanes(tensor: Tensor, dim: int | None) -> Tensor:
            return tensor.expand(info.batch_size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)

        x, weight = lanes(x, in_dims[0]), lanes(weight, in_dims[1])
        bias = None if bias is None else lanes(bias, in_dims[2])
        y = _Product.apply(_rows(x, weight), weight, bias)
        return y.view(*x.shape[:-1], y.shape[-1]), 0


def _rows(x: Tensor, weight: Tensor) -> Tensor:
    """x [*lanes, ..., D] as [*lanes, n, D], lanes being those of the weight [*lanes, H, D]."""
    return x.reshape(*weight.shape[:-2], -1, x.shape[-1])
