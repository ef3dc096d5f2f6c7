"""LSTM layers step by step, for `torch.vmap`, which has no rule for torch's own.

Shapes: B examples in a batch, T steps, D inputs and H outputs of a layer.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

State = tuple[Tensor, Tensor]
"""Outputs and cells [layers, B, H]."""


def can(layer: nn.RNNBase) -> bool:
    """Whether `lstm` computes this layer."""
    plain = not (layer.bidirectional or layer.proj_size or (layer.dropout and layer.num_layers > 1))
    return type(layer) is nn.LSTM and plain


def lstm(
    layer: nn.LSTM,
    product: Callable[[Tensor, Tensor, Tensor | None], Tensor],
    x: Tensor,
    state: State | None = None,
) -> tuple[Tensor, State]:
    """What the layer computes, to rounding; the products of all inputs are made at once.

    Arguments:
        product: (x, weight, bias) -> x weight^T + bias.
        x: [B, T, D] with `batch_first`, otherwise [T, B, D]; or [T, D], with a state [layers, H].
    """
    time = -2 if layer.batch_first else 0
    zero = x.new_zeros(*x.select(time, 0).shape[:-1], layer.hidden_size)
    ends: list[State] = []
    for number in range(layer.num_layers):
        weight, recurrent, *biases = (getattr(layer, name) for name in layer._all_weights[number])
        h, c = (zero, zero) if state is None else (state[0][number], state[1][number])
        outputs = []
        for gates in product(x, weight, sum(biases) if biases else None).unbind(time):
            i, f, g, o = (gates + h @ recurrent.mT).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        x = torch.stack(outputs, dim=time)
        ends.append((h, c))
    hs, cs = zip(*ends, strict=True)
    return x, (torch.stack(hs), torch.stack(cs))
