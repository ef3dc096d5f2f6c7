"""The arithmetic `linear_chain`: linear layers by batched matrix products, with the chain rule written out.

No autograd graph beyond the loss, gradients in place, every transpose taken once: at small batch sizes the calls
themselves are what a step costs.

Shapes: l lanes, B examples in a batch, P parameters of one model; D inputs and H outputs of a layer.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor, nn

from study.engine.fused.layout import Layout, Loss, differentiated, is_plain_sequence
from study.engine.fused.stack import Stack
from study.records import Study
from workloads.layers import Dropout, keep_mask


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


def can(model: nn.Module, study: Study) -> bool:
    """Whether it computes this model."""
    return is_linear_chain(model)


def pays(model: nn.Module, study: Study, device: str) -> bool:
    """Always: it was the fastest at every batch size, on CPUs and GPUs."""
    return True


def stack(template: nn.Module, study: Study, rows: int) -> Stack:
    """A stack with room for `rows` trials."""
    return Stack(template, study.algorithm, rows, LinearChain, study.averages)


class LinearChain:
    """Linear layers by batched matrix products; one buffer takes the gradients of all parameters. `template`: a model
    for which `is_linear_chain` holds, or one that begins with a `Combination`; `weights`: rows [l, P]."""

    columns = (slice(None),)

    @staticmethod
    def predicts_alone(device: torch.device) -> bool:
        return False

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
    """One linear layer of every lane; `own`: name -> parameter [l, *shape]; `gradients`: name -> where its gradient is
    to be written."""

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
