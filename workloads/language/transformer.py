"""Decoder-only Transformers (Vaswani et al. 2017): the sizes of Shallue et al. 2019, and any other.

Shapes: B examples in a batch, T tokens of an example, W numbers of a token (the width), V tokens of the vocabulary.
"""

import math
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from workloads.base import require_fraction, require_one_of, require_whole, with_given
from workloads.language.modelling import LanguageModelling
from workloads.layers import Dropout
from workloads.transformer_layers import (
    ACTIVATIONS,
    NORM_PLACES,
    NORMS,
    Layer,
    Rotary,
    SelfAttention,
    Size,
    sinusoids,
    start_as_gpt_2,
)

SIZES = {
    "base": Size(512, 6, 8, 2048),
    "shallow": Size(512, 2, 8, 2048),
    "narrow_and_shallow": Size(256, 2, 4, 1024),
    "wide": Size(1024, 6, 16, 4096),
    "small": Size(128, 2, 4, 512),
}
"""`base` is that of Vaswani et al. 2017, table 3. The next three are named by Shallue et al. 2019, figure 4; their
numbers are from memory of the text, not checked against it: `shallow` has two of the six layers, `narrow` half and
`wide` twice the width, heads and hidden units. `small` is ours, for a CPU."""

POSITIONS = ("learned", "sinusoidal", "rotary")


@dataclass(frozen=True, kw_only=True)
class TransformerLm(LanguageModelling):
    """Layers of causal self-attention and of a two-layer network, each with a residual connection and a norm.

    Dropout is that of Vaswani et al. 2017, section 5.4: of the embeddings and of each residual branch, not of the
    attention weights.

    Arguments:
        size: one of SIZES; `width`, `depth`, `heads` and `mlp_width` replace numbers of it.
        norm_place: `pre`, in front of each branch and after the last layer (GPT-2), or `post`, after each addition
            (Vaswani et al. 2017). It also determines the initial weights, see `Transformer`.
        norm: one of NORMS.
        positions: one of POSITIONS.
        activation: one of ACTIVATIONS.
        tied: whether the last layer has the weights of the embedding.
        dropout: a rate in [0, 1).
    """

    size: str = "base"
    width: int | None = None
    depth: int | None = None
    heads: int | None = None
    mlp_width: int | None = None
    norm_place: str = "pre"
    norm: str = "layer"
    positions: str = "learned"
    activation: str = "gelu"
    tied: bool = True
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        choices = {"size": SIZES, "positions": POSITIONS, "norm_place": NORM_PLACES, "norm": NORMS}
        for field, known in {**choices, "activation": ACTIVATIONS}.items():
            require_one_of(f"workload.{field}", getattr(self, field), known)
        shape = self.shape
        for field, value in shape._asdict().items():
            require_whole(f"workload.{field}", value, 1)
        least = 2 if self.positions == "rotary" else 1
        if shape.width % (shape.heads * least) or (self.positions == "sinusoidal" and shape.width % 2):
            even = {"rotary": ", an even number of times", "sinusoidal": ", and even"}.get(self.positions, "")
            raise ValueError(
                f"workload.width must be divisible by workload.heads{even} (positions={self.positions}), "
                f"but got width={shape.width} and heads={shape.heads}."
            )
        require_fraction("workload.dropout", self.dropout)

    @property
    def shape(self) -> Size:
        """The numbers of `size`, with those that are given in their place."""
        size: Size = with_given(SIZES[self.size], self)
        return size

    def model(self) -> nn.Module:
        return Transformer(self)


class Transformer(nn.Module):
    """Tokens [B, T] -> logits [B, T, V] of the token that follows each; T is at most the context.

    With norms in front (`pre`), weights start as in GPT-2, see `start_as_gpt_2`. With norms behind (`post`), they
    start as in the authors' code of Vaswani et al. 2017: embeddings normal with variance 1 / W, all others by Glorot's
    uniform rule, with queries, keys and values as matrices of their own. Sinusoidal positions are added to embeddings
    times sqrt(W) (Vaswani et al. 2017, section 3.4).
    """

    places: Tensor | None

    def __init__(self, workload: TransformerLm) -> None:
        super().__init__()
        width, _, heads, _ = workload.shape
        context, positions, pre = workload.context, workload.positions, workload.norm_place == "pre"
        self.embedding = nn.Embedding(workload.tokens, width)
        self.positions = nn.Embedding(context, width) if positions == "learned" else None
        places = sinusoids(context, width) if positions == "sinusoidal" else None
        self.register_buffer("places", places, persistent=False)
        rotary = Rotary(context, width // heads) if positions == "rotary" else None
        self.dropout = Dropout(workload.dropout)
        layer = partial(
            Layer,
            workload.shape,
            norm=workload.norm,
            activation=workload.activation,
            pre=pre,
            dropout=workload.dropout,
            rotary=rotary,
        )
        self.layers = nn.Sequential(*(layer() for _ in range(workload.shape.depth)))
        self.norm = NORMS[workload.norm](width) if pre else nn.Identity()
        self.head = nn.Linear(width, workload.tokens, bias=False)
        if pre:
            start_as_gpt_2(self, workload.shape.depth)
        else:
            self.apply(_vaswani)
        if workload.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x, length = self.embedding(tokens), tokens.shape[-1]
        if self.positions is not None:
            x = x + self.positions.weight[:length]
        elif self.places is not None:
            x = x * math.sqrt(x.shape[-1]) + self.places[:length]
        logits: Tensor = self.head(self.norm(self.layers(self.dropout(x))))
        return logits


def _vaswani(module: nn.Module) -> None:
    if isinstance(module, nn.Embedding):
        nn.init.normal_(module.weight, std=module.embedding_dim**-0.5)
    elif isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, SelfAttention):  # its linear layers have come before it
        for matrix in module.qkv.weight.detach().chunk(3):
            nn.init.xavier_uniform_(matrix)
