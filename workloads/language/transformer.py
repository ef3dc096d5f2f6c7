"""Decoder-only Transformers (Vaswani et al. 2017): the sizes of Shallue et al. 2019, and any other.

Shapes: B examples in a batch, T tokens of an example, W numbers of a token (the width), V tokens of the vocabulary.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from workloads.base import require_fraction, require_whole
from workloads.language.attention import Rotary, SelfAttention, sinusoids
from workloads.language.modelling import LanguageModelling
from workloads.layers import Dropout
from workloads.suggest import suggest


class Size(NamedTuple):
    """W, the number of layers, the heads of each, and the hidden units of the two-layer network in each."""

    width: int
    depth: int
    heads: int
    mlp_width: int


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
NORM_PLACES = ("pre", "post")
NORMS = {"layer": nn.LayerNorm, "rms": nn.RMSNorm, "none": nn.Identity}
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}

DEVIATION = 0.02
"""Standard deviation of the initial weights of GPT-2."""


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
            if (value := getattr(self, field)) not in known:
                raise ValueError(f"unknown workload.{field} {value!r}{suggest(str(value), known)}")
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
        given = {name: getattr(self, name) for name in Size._fields}
        return SIZES[self.size]._replace(**{name: value for name, value in given.items() if value is not None})

    def model(self) -> nn.Module:
        return Transformer(self)


class Transformer(nn.Module):
    """Tokens [B, T] -> logits [B, T, V] of the token that follows each; T is at most the context.

    With norms in front (`pre`), weights start as in GPT-2 (Radford et al. 2019): normal with standard deviation 0.02,
    divided by sqrt(2 depth) in the last layer of each residual branch; biases are 0. With norms behind (`post`), they
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
        self.layers = nn.Sequential(*(Layer(workload, rotary) for _ in range(workload.shape.depth)))
        self.norm = NORMS[workload.norm](width) if pre else nn.Identity()
        self.head = nn.Linear(width, workload.tokens, bias=False)
        self.apply(_gpt_2 if pre else _vaswani)
        for name, parameter in self.named_parameters() if pre else ():
            if name.endswith(("attention.out.weight", "mlp.2.weight")):
                nn.init.normal_(parameter, std=DEVIATION / math.sqrt(2 * workload.shape.depth))
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


class Layer(nn.Module):
    """Attention, then a two-layer network: x + branch(norm(x)) with norms in front, else norm(x + branch(x))."""

    def __init__(self, workload: TransformerLm, rotary: Rotary | None) -> None:
        super().__init__()
        width, _, heads, mlp_width = workload.shape
        norm, activation = NORMS[workload.norm], ACTIVATIONS[workload.activation]
        self.pre = workload.norm_place == "pre"
        self.attention = SelfAttention(width, heads, rotary)
        self.mlp = nn.Sequential(nn.Linear(width, mlp_width), activation(), nn.Linear(mlp_width, width))
        self.norms = nn.ModuleList([norm(width), norm(width)])
        self.dropouts = nn.ModuleList([Dropout(workload.dropout), Dropout(workload.dropout)])

    def forward(self, x: Tensor) -> Tensor:
        for branch, norm, dropout in zip((self.attention, self.mlp), self.norms, self.dropouts, strict=True):
            x = x + dropout(branch(norm(x))) if self.pre else norm(x + dropout(branch(x)))
        return x


def _gpt_2(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=DEVIATION)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)


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
