"""The layers of Transformers (Vaswani et al. 2017): attention of several heads, positions, norms.

Shapes: B examples in a batch, T tokens of an example, W numbers of a token (the width), h heads, d = W / h.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from workloads.layers import Attention, CausalAttention, Dropout

NORM_PLACES = ("pre", "post")
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "none": nn.Identity}
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}

DEVIATION = 0.02
"""Standard deviation of the initial weights of GPT-2."""

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
    """Self-attention of several heads (Vaswani et al. 2017, section 3.2), of inputs [B, T, W].

    Arguments:
        causal: whether each token attends to those up to it alone.
        rotary: rotates queries and keys; None: positions are in the inputs.
    """

    def __init__(self, width: int, heads: int, causal: bool = True, rotary: Rotary | None = None) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.attend = CausalAttention() if causal else Attention()

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        if self.rotary is not None:
            q, k = self.rotary(q), self.rotary(k)
        return self.out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class Size(NamedTuple):
    """W, the number of layers, the heads of each, and the hidden units of the two-layer network in each."""

    width: int
    depth: int
    heads: int
    mlp_width: int


class Layer(nn.Module):
    """Attention, then a two-layer network: x + branch(norm(x)) with norms in front, else norm(x + branch(x)).

    Arguments:
        norm, activation: one of NORMS and ACTIVATIONS.
        pre: whether norms are in front.
        dropout: a rate in [0, 1), of each residual branch.
        causal, rotary: see `SelfAttention`.
    """

    def __init__(
        self,
        size: Size,
        *,
        norm: str = "layer",
        activation: str = "gelu",
        pre: bool = True,
        dropout: float = 0.0,
        causal: bool = True,
        rotary: Rotary | None = None,
    ) -> None:
        super().__init__()
        width, _, heads, mlp_width = size
        self.pre = pre
        self.attention = SelfAttention(width, heads, causal, rotary)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_width), ACTIVATIONS[activation](), nn.Linear(mlp_width, width))
        self.norms = nn.ModuleList([NORMS[norm](width), NORMS[norm](width)])
        self.dropouts = nn.ModuleList([Dropout(dropout), Dropout(dropout)])

    def forward(self, x: Tensor) -> Tensor:
        for branch, norm, dropout in zip((self.attention, self.mlp), self.norms, self.dropouts, strict=True):
            x = x + dropout(branch(norm(x))) if self.pre else norm(x + dropout(branch(x)))
        return x


def start_as_gpt_2(model: nn.Module, depth: int) -> None:
    """Weights as in GPT-2 (Radford et al. 2019): normal with standard deviation 0.02, divided by sqrt(2 depth) in the
    last layer of each residual branch; biases are 0."""
    model.apply(_gpt_2)
    for name, parameter in model.named_parameters():
        if name.endswith(("attention.out.weight", "mlp.2.weight")):
            nn.init.normal_(parameter, std=DEVIATION / math.sqrt(2 * depth))


def _gpt_2(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
