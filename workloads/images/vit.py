"""Vision Transformers (Dosovitskiy et al. 2021): an image is a sequence of patches.

Shapes: B examples in a batch, C channels, H x W pixels, P pixels along a side of a patch, T patches of an image, D
numbers of a token (the width).
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.base import require_fraction, require_one_of, require_whole, with_given
from workloads.images.classification import ImageClassification
from workloads.layers import Dropout
from workloads.transformer_layers import DEVIATION, NORMS, Layer, Size, start_as_gpt_2

SIZES = {
    "tiny": Size(192, 12, 3, 768),
    "small": Size(384, 12, 6, 1536),
    "base": Size(768, 12, 12, 3072),
}
"""`tiny` and `small` are those of Touvron et al. 2021, table 1; `base` is that of Dosovitskiy et al. 2021, table 1."""

POOLS = ("token", "mean")


@dataclass(frozen=True, kw_only=True)
class Vit(ImageClassification):
    """Patches with learned positions, and layers of self-attention with norms in front.

    Arguments:
        size: one of SIZES; `width`, `depth`, `heads` and `mlp_width` replace numbers of it.
        patch: P; it divides H and W.
        pool: the last layer sees the output of a further, learned token (`token`) or the mean over those of all patches
            (`mean`).
        norm: `layer`, `rms` or `none`; a norm over examples or groups of channels is not usual in this family.
        dropout: a rate in [0, 1), of the embedded patches and of each residual branch.
    """

    size: str = "small"
    width: int | None = None
    depth: int | None = None
    heads: int | None = None
    mlp_width: int | None = None
    patch: int = 16
    pool: str = "token"
    norm: str = "layer"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, known in (("size", SIZES), ("pool", POOLS), ("norm", NORMS)):
            require_one_of(f"workload.{field}", getattr(self, field), known)
        for field, number in self.numbers._asdict().items():
            require_whole(f"workload.{field}", number, 1)
        require_whole("workload.patch", self.patch, 1)
        if self.numbers.width % self.numbers.heads:
            raise ValueError(
                f"workload.width must be divisible by workload.heads, but got width={self.numbers.width} and "
                f"heads={self.numbers.heads}."
            )
        _, height, width = self.shape
        if height % self.patch or width % self.patch:
            raise ValueError(
                f"workload.patch must divide the height and width of the images, {height} x {width} pixels, but got "
                f"{self.patch}."
            )
        require_fraction("workload.dropout", self.dropout)

    @property
    def numbers(self) -> Size:
        """The numbers of `size`, with those that are given in their place."""
        size: Size = with_given(SIZES[self.size], self)
        return size

    def model(self) -> nn.Module:
        return VisionTransformer(
            self.shape,
            self.classes,
            self.numbers,
            patch=self.patch,
            pool=self.pool,
            norm=self.norm,
            dropout=self.dropout,
        )


class VisionTransformer(nn.Module):
    """Images [B, C, H, W] -> [B, outputs].

    Weights start as in GPT-2, see `start_as_gpt_2`, and so do the learned token and the positions; the patches are
    embedded by weights of variance 1 / (C * P * P), and the last layer starts at 0 (Dosovitskiy et al. 2021).

    Arguments:
        shape: (C, H, W).
        outputs: numbers for each image, such as the logits of all classes.
        size, patch, pool, norm, dropout: see `Vit`.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        outputs: int,
        size: Size,
        *,
        patch: int,
        pool: str = "token",
        norm: str = "layer",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        channels, height, width = shape
        patches, inputs = (height // patch) * (width // patch), channels * patch**2
        self.patch = patch
        self.token = nn.Parameter(torch.empty(1, size.width)) if pool == "token" else None
        self.positions = nn.Parameter(torch.empty(patches + (self.token is not None), size.width))
        self.embedding = nn.Linear(inputs, size.width)
        self.dropout = Dropout(dropout)
        layers = (Layer(size, norm=norm, dropout=dropout, causal=False) for _ in range(size.depth))
        self.layers = nn.Sequential(*layers)
        self.norm = NORMS[norm](size.width)
        self.head = nn.Linear(size.width, outputs)
        start_as_gpt_2(self, size.depth)
        for parameter in (self.token, self.positions):
            if parameter is not None:
                nn.init.normal_(parameter, std=DEVIATION)
        nn.init.kaiming_normal_(self.embedding.weight, nonlinearity="linear")
        nn.init.zeros_(self.head.weight)

    def forward(self, images: Tensor) -> Tensor:
        x = self.embedding(patches_of(images, self.patch))
        if self.token is not None:
            x = torch.cat([self.token.expand(len(x), -1, -1), x], dim=1)
        x = self.norm(self.layers(self.dropout(x + self.positions)))
        logits: Tensor = self.head(x.mean(1) if self.token is None else x[:, 0])
        return logits


def patches_of(images: Tensor, side: int) -> Tensor:
    """Images [B, C, H, W] -> patches [B, T, C * P * P], row by row; P = `side`.

    A linear layer on them is a convolution with kernel and stride P. Lanes compute it as one product.
    """
    rows = images.unflatten(3, (-1, side)).unflatten(2, (-1, side))
    return rows.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
