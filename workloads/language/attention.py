"""The parts of a Transformer's layers: causal attention of several heads, and rotary positions.

Shapes: B examples in a batch, T tokens of an example, W numbers of a token (the width), h heads, d = W / h.
"""

import torch
from torch import Tensor, nn

from workloads.layers import CausalAttention

ROTARY_BASE = 10_000.0
"""Of the wave lengths of rotary and of sinusoidal positions, which rise from 2 pi to this times 2 pi tokens."""


def sinusoids(context: int, width: int) -> Tensor:
    """The positions of Vaswani et al. 2017, section 3.5 [context, width]: sines in even columns, cosines in odd ones.

    >>> sinusoids(2, 2)
    tensor([[0.0000, 1.0000],
            [0.8415, 0.5403]])
    """
    return torch.stack(_waves(context, width), dim=-1).flatten(1)


def _waves(context: int, width: int) -> tuple[Tensor, Tensor]:
    """Sines and cosines [context, width / 2] of the positions at each wave length, rounded once from doubles."""
    rates = ROTARY_BASE ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    angles = torch.arange(context, dtype=torch.float64).unsqueeze(1) * rates
    return angles.sin().float(), angles.cos().float()


class Rotary(nn.Module):
    """Rotary positions (Su et al. 2021): number i of a head and number i + d / 2 are rotated by the token's angle.

    A score then depends on the distance of two tokens alone.
    """

    sines: Tensor
    cosines: Tensor

    def __init__(self, context: int, head_width: int) -> None:
        super().__init__()
        sines, cosines = _waves(context, head_width)
        self.register_buffer("sines", sines, persistent=False)
        self.register_buffer("cosines", cosines, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Queries or keys [B, h, T, d]."""
        sines, cosines = self.sines[: x.shape[-2]], self.cosines[: x.shape[-2]]
        real, imaginary = x.chunk(2, dim=-1)
        return torch.cat([real * cosines - imaginary * sines, imaginary * cosines + real * sines], dim=-1)


class SelfAttention(nn.Module):
    """Causal self-attention of several heads (Vaswani et al. 2017, section 3.2), of inputs [B, T, W].

    Arguments:
        rotary: rotates queries and keys; None: positions are in the inputs.
    """

    def __init__(self, width: int, heads: int, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attend = CausalAttention()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))
