"""LSTM language models (Hochreiter and Schmidhuber 1997): one layer is the LSTM of Shallue et al. 2019.

Shapes: B examples in a batch, T tokens of an example, V tokens of the vocabulary.
"""

from dataclasses import dataclass

from torch import Tensor, nn

from workloads.base import require_fraction, require_whole
from workloads.language.modelling import LanguageModelling
from workloads.layers import Dropout

RANGE = 0.1
"""Embeddings and the weights of the last layer start uniform between this and minus this (Zaremba et al. 2014)."""


@dataclass(frozen=True, kw_only=True)
class LstmLm(LanguageModelling):
    """An embedding, LSTM layers and a linear layer. Every window starts from a state of zeros.

    Arguments:
        width: of each LSTM layer.
        depth: number of LSTM layers.
        embedding_width: numbers of a token; None: `width`.
        tied: whether the last layer has the weights of the embedding (Press and Wolf 2017).
        dropout: a rate in [0, 1), of the embeddings and of the outputs of each layer, not from step to step (Zaremba et
            al. 2014).
    """

    width: int
    depth: int = 1
    embedding_width: int | None = None
    tied: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field in ("width", "depth"):
            require_whole(f"workload.{field}", getattr(self, field), 1)
        if self.embedding_width is not None:
            require_whole("workload.embedding_width", self.embedding_width, 1)
        if self.tied and self.embedding_width not in (None, self.width):
            raise ValueError(
                f"workload.tied=true needs an embedding as wide as the LSTM: leave out workload.embedding_width or set "
                f"it to {self.width}, but got {self.embedding_width}."
            )
        require_fraction("workload.dropout", self.dropout)

    def model(self) -> nn.Module:
        return Lstm(self)


class Lstm(nn.Module):
    """Tokens [B, T] -> logits [B, T, V] of the token that follows each.

    The weights of an LSTM layer start uniform between 1 / sqrt(width) and minus that, as torch's do; its biases are 0,
    but 1 for the forget gates (Jozefowicz et al. 2015).
    """

    def __init__(self, workload: LstmLm) -> None:
        super().__init__()
        embedding_width = workload.embedding_width or workload.width
        widths = [embedding_width, *[workload.width] * workload.depth]
        self.embedding = nn.Embedding(workload.tokens, embedding_width)
        self.lstms = nn.ModuleList(nn.LSTM(inputs, workload.width, batch_first=True) for inputs in widths[:-1])
        self.dropouts = nn.ModuleList(Dropout(workload.dropout) for _ in widths)
        self.head = nn.Linear(workload.width, workload.tokens)
        for layer in (self.embedding, self.head):
            nn.init.uniform_(layer.weight, -RANGE, RANGE)
        nn.init.zeros_(self.head.bias)
        for lstm in self.lstms:
            for name, parameter in lstm.named_parameters():
                if name.startswith("bias"):
                    nn.init.zeros_(parameter)
            forget = slice(workload.width, 2 * workload.width)  # gates: input, forget, cell, output
            nn.init.ones_(lstm.get_parameter("bias_ih_l0").detach()[forget])
        if workload.tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        first, *rest = self.dropouts
        x = first(self.embedding(tokens))
        for lstm, dropout in zip(self.lstms, rest, strict=True):
            x = dropout(lstm(x)[0])
        logits: Tensor = self.head(x)
        return logits
