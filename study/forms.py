"""Gradients of many models of one kind at once, in the two forms that were measured to pay.

`LinearChain` (the arithmetic `bmm`) writes the chain rule out: no autograd graph beyond the loss, gradients in place,
every transpose taken once, since at small batch sizes the calls themselves are what a step costs. `Vmapped` takes any
module that `torch.vmap` does.

Shapes: l lanes, B examples in a batch, N inputs that all lanes share, P parameters of one model, p of some of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call

from workloads.layers import Dropout, keep_mask, keyed_layers

Loss = Callable[[Tensor], Tensor]
"""Outputs [l, B, ...] -> the loss of every example [l * B]."""

CACHE_LINE = 16
"""Floats."""
EVALUATED_LANES = 32
"""Evaluated at once on a GPU, which so many chunks of examples fill; more would want memory that lanes could have."""
OWN_RULE_WEIGHTS = 2**15
"""From so many on, linear layers under `torch.vmap` are faster by a rule of this file's, and below by torch's own."""


class Form(Protocol):
    """The models of l lanes, their parameters cut out of rows [l, P]."""

    @property
    def columns(self) -> Sequence[slice]:
        """The parts of the rows that `backward` has gradients of."""
        ...

    def outputs(self, inputs: Tensor) -> Tensor:
        """What each model computes of the same inputs [N, ...], dropout off: [l, N, ...]."""
        ...

    def backward(self, inputs: Tensor, loss: Loss, keys: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        """(losses [l * B], the gradients [l, p] of each lane's mean loss over its inputs [l, B, ...], by columns).

        Arguments:
            keys: of each keyed layer [l, layers].
        """
        ...


class Layout:
    """Where each parameter of a model lies in a row [P] of its parameters side by side.

    Each starts at a cache line: kernels peel unaligned heads, which would make bits depend on the row.

    Attributes:
        columns: of each parameter.
        gaps: how many floats come after each, up to the next cache line.
    """

    def __init__(self, model: nn.Module) -> None:
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        ends = list(accumulate(-(-shape.numel() // CACHE_LINE) * CACHE_LINE for shape in self.shapes.values()))
        self.width = ends[-1]
        self.columns = [
            slice(start, start + shape.numel()) for start, shape in zip([0, *ends], self.shapes.values(), strict=False)
        ]
        self.gaps = [end - columns.stop for end, columns in zip(ends, self.columns, strict=True)]

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Rows [l, P] as parameter name -> [l, *shape]."""
        parts = zip(self.shapes.items(), self.columns, strict=True)
        return {name: rows[:, columns].unflatten(1, shape) for (name, shape), columns in parts}


def can_vmap(model: nn.Module) -> bool:
    """Whether the model is a function of its parameters and keys alone: no running statistics, no global randomness."""
    ours = {id(layer.key) for layer in keyed_layers(model)}
    stateless = all(id(buffer) in ours for buffer in model.buffers())
    random = (nn.modules.dropout._DropoutNd, nn.RReLU, nn.RNNBase)
    return stateless and not any(isinstance(module, random) for module in model.modules())


class Vmapped:
    """Any module, through `torch.vmap` of its forward pass; autograd sees one graph for all lanes.

    Arguments:
        template: a module for which `can_vmap` holds.
        weights: rows [l, P].
        flat: lay all gradients side by side: an update then is a call for each operation of its rule, and not for each
            of every parameter. On a CPU, which waits for memory and not for calls, that costs a pass for nothing.
    """

    def __init__(self, template: nn.Module, weights: Tensor, layout: Layout, flat: bool = False) -> None:
        self.template, self.columns = template, [slice(None)] if flat else layout.columns
        self.gaps = [weights.new_zeros(len(weights), gap) for gap in layout.gaps] if flat else []
        self.weights = {name: view.detach().requires_grad_() for name, view in layout.views(weights).items()}
        self.keys = [name for name, _ in template.named_buffers() if name.endswith("key")]
        for layer in template.modules():
            if type(layer) is nn.Linear and layer.weight.numel() >= OWN_RULE_WEIGHTS:
                layer.forward = partial(_linear, layer)  # type: ignore[method-assign]
            elif flat and type(layer) is nn.Conv2d and _has_one_channel(layer):
                layer.forward = partial(_by_patches, layer)  # type: ignore[method-assign]

    def outputs(self, inputs: Tensor) -> Tensor:
        self.template.eval()
        if inputs.device.type == "cpu":  # whose grouped convolutions are slow on large batches
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


def is_watched(parameter: Tensor) -> bool:
    """Whether somebody wants to be told of its gradient, which is nobody's where models are fused."""
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def is_plain_sequence(model: nn.Module) -> bool:
    """Whether the model is one layer after the other, each used once and as it was made, and nothing else happens."""
    return (
        type(model) is nn.Sequential  # a class of its own may do more than one layer after the other
        and len({id(layer) for layer in model}) == len(model)  # a layer used twice shares its parameters
        and not has_hooks(model)
    )


def has_hooks(model: nn.Module) -> bool:
    """Whether layers do something besides what the `forward` of their class does."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return nn.modules.module._has_any_global_hook() or any(
        "forward" in vars(module)
        or type(module).__call__ is not nn.Module.__call__
        or any(getattr(module, name) for name in hooks)
        for module in model.modules()
    )


def is_linear_chain(model: nn.Module) -> bool:
    """Whether the model is a plain sequence of layers that are all known here."""
    known = (nn.Linear, nn.ReLU, nn.Flatten, Dropout)
    return (
        is_plain_sequence(model)
        and all(type(layer) in known for layer in model.children())
        and any(isinstance(layer, nn.Linear) for layer in model.children())
        and all(layer.bias is not None for layer in model.children() if isinstance(layer, nn.Linear))
        and all(
            (layer.start_dim, layer.end_dim) == (1, -1) for layer in model.children() if isinstance(layer, nn.Flatten)
        )
    )


def first_linear(chain: nn.Module) -> nn.Linear | None:
    """The linear layer of a chain that sees the examples as they are; None if another layer sees them first."""
    first = next(layer for layer in chain.children() if not isinstance(layer, nn.Flatten))
    return first if isinstance(first, nn.Linear) else None


class LinearChain:
    """Linear layers by batched matrix products; one buffer takes the gradients of all parameters.

    Arguments:
        template: a model for which `is_linear_chain` holds, or one that begins with a `Combination`.
        weights: rows [l, P].
    """

    columns = (slice(None),)

    def __init__(self, template: nn.Module, weights: Tensor, layout: Layout) -> None:
        self.weights, self.layout = weights, layout
        parameters = layout.views(weights)
        self.layers: list[_Layer] = []
        self.linear: dict[str, _Linear] = {}
        dropouts = 0
        for name, layer in template.named_children():
            if isinstance(layer, nn.Linear | Combination):
                own = {key: parameters[f"{name}.{key}"] for key in layer._parameters}
                self.linear[name] = _Linear(own) if isinstance(layer, nn.Linear) else _Combination(own)
                self.layers.append(self.linear[name])
            elif isinstance(layer, Dropout):
                self.layers.append(_Dropout(layer.p, dropouts))
                dropouts += 1
            else:
                self.layers.append(_ReLU() if isinstance(layer, nn.ReLU) else _Flatten())

    def outputs(self, inputs: Tensor) -> Tensor:
        x = inputs.expand(len(self.weights), *inputs.shape)
        for layer in self.layers:
            x = layer.forward(x, None)
        return x

    def backward(self, inputs: Tensor, loss: Loss, keys: Tensor) -> tuple[Tensor, Sequence[Tensor]]:
        gradients, first = self.gradients, next(iter(self.linear.values()))
        x = inputs
        for layer in self.layers:
            x = layer.forward(x, keys)
        losses, [dx] = differentiated(loss, x.requires_grad_(), [x])
        for layer in reversed(self.layers):
            if layer is first:
                first.write_gradients(dx)
                break
            dx = layer.backward(dx)
        return losses, (gradients,)

    @cached_property
    def gradients(self) -> Tensor:
        """What the layers write theirs into [l, P]; evaluations have no use for it."""
        gradients = torch.zeros_like(self.weights)
        for name, view in self.layout.views(gradients).items():
            layer, _, key = name.rpartition(".")
            self.linear[layer].gradients[key] = view
        return gradients


class _Layer(Protocol):
    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        """Outputs, remembering what `backward` needs; without keys as in evaluation."""
        ...

    def backward(self, dy: Tensor) -> Tensor:
        """The gradient of the latest inputs, given that of the outputs."""
        ...


class _Linear:
    """One linear layer of every lane.

    Arguments:
        own: name -> parameter [l, *shape].

    Attributes:
        gradients: name -> where its gradient is to be written.
    """

    def __init__(self, own: Mapping[str, Tensor]) -> None:
        self.weight, self.gradients = own["weight"], dict[str, Tensor]()
        self.transposed, self.bias = self.weight.mT, own["bias"].unsqueeze(1)

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        self.x = x
        return torch.baddbmm(self.bias, x, self.transposed)

    def backward(self, dy: Tensor) -> Tensor:
        self.write_gradients(dy)
        return torch.bmm(dy, self.weight)

    def write_gradients(self, dy: Tensor) -> None:
        torch.bmm(dy.mT, self.x, out=self.gradients["weight"])
        torch.sum(dy, dim=1, out=self.gradients["bias"])


class Combination(nn.Module):
    """A linear layer whose weight is a combination: `mix` [S] times S known matrices, and `weight` [H, n] times n known
    inputs.

    Its own inputs [B, 2 n + S H] are what is known of the layer's: which of the n they are (one-hot), their products
    with each of the n, and what each of the S matrices makes of them. The gradient of its parameters is that of the
    combined matrix, in the same coordinates. It holds parameters; `LinearChain` computes with them.
    """

    def __init__(self, inputs: int, matrices: int, bias: nn.Parameter) -> None:
        super().__init__()
        self.weight = nn.Parameter(bias.new_zeros(len(bias), inputs))
        self.mix = nn.Parameter(bias.new_zeros(matrices))
        self.bias = bias


class _Combination(_Linear):
    """One `Combination` of every lane."""

    def __init__(self, own: Mapping[str, Tensor]) -> None:
        super().__init__(own)
        self.mix = own["mix"][:, :, None, None].unbind(1)
        [_, outputs, inputs] = self.weight.shape
        self.widths = [inputs, inputs, *[outputs] * len(self.mix)]

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        self.x, products, *made = x.split(self.widths, dim=2)
        y = torch.baddbmm(self.bias, products, self.transposed)
        for share, by_matrix in zip(self.mix, made, strict=True):
            y.addcmul_(by_matrix, share)
        return y

    def write_gradients(self, dy: Tensor) -> None:
        super().write_gradients(dy)
        self.gradients["mix"].zero_()  # penalties and rules write into gradients


class _ReLU:
    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        self.y = torch.relu(x)
        return self.y

    def backward(self, dy: Tensor) -> Tensor:
        return torch.ops.aten.threshold_backward(dy, self.y, 0)


class _Dropout:
    def __init__(self, p: float, number: int) -> None:
        self.p, self.number = p, number

    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        if keys is None:
            return x
        self.scale = keep_mask(x.shape[1:], keys[:, self.number], self.p).to(x.dtype) / (1 - self.p)
        return x * self.scale

    def backward(self, dy: Tensor) -> Tensor:
        return dy * self.scale


class _Flatten:
    def forward(self, x: Tensor, keys: Tensor | None) -> Tensor:
        return x.flatten(2)

    def backward(self, dy: Tensor) -> Tensor:
        return dy


def differentiated(loss: Loss, outputs: Tensor, wanted: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """(losses [l * B], the gradients of each lane's mean loss with respect to `wanted`), from outputs [l, B, ...]."""
    with torch.enable_grad():
        losses = loss(outputs)
        gradients = torch.autograd.grad(losses, wanted, torch.full_like(losses, 1 / outputs.shape[1]))
    return losses.detach(), gradients
