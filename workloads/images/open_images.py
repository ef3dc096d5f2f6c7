"""Open Images: a residual network that predicts all labels of a photograph, judged by average precision.

Shapes: B examples in a batch, N examples in a split, C labels.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import Metric, PerExample, Splits, require_one_of
from workloads.data.images import open_images, places
from workloads.images.resnet import ResNet

AVERAGES = ("micro", "macro")
AT_ONCE = 256
"""Labels whose average precisions are computed at once."""


@dataclass(frozen=True, kw_only=True)
class OpenImagesResNet(ResNet):
    """A residual network with a logit for each label, each trained by its own binary cross entropy.

    Label smoothing with eps moves the targets 1 and 0 to 1 - eps / 2 and eps / 2.

    Arguments:
        dataset: `open_images`, or `image_folder` for a folder of the same layout at `path`.
        average: of `average_precision_error`: `micro` ranks all pairs of an image and a label, `macro` is the mean over
            the labels of the average precision of each.
    """

    KNOWN: ClassVar[Collection[str]] = places.SEVERAL
    READ: ClassVar[Callable[..., Splits]] = staticmethod(open_images.splits)

    average: str = "micro"

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of("workload.average", self.average, AVERAGES)

    @property
    def classes(self) -> int:
        """C."""
        return self.class_count or len(open_images.label_names(places.folder(self.dataset, self.path)))

    @property
    def errors(self) -> Mapping[str, PerExample]:
        return {"cross_entropy_error": binary_cross_entropy}

    @property
    def metrics(self) -> Mapping[str, Metric]:
        return {"average_precision_error": partial(average_precision_error, average=self.average)}

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float | Tensor | None = None) -> Tensor:
        return binary_cross_entropy(
            outputs, targets, self.label_smoothing if label_smoothing is None else label_smoothing
        )


def binary_cross_entropy(logits: Tensor, targets: Tensor, label_smoothing: float | Tensor = 0.0) -> Tensor:
    """The sum over the labels of the binary cross entropy in nats [B], for logits and targets [B, C].

    Arguments:
        label_smoothing: eps, a number or one for each example [B].
    """
    if isinstance(label_smoothing, Tensor) and label_smoothing.dim():
        label_smoothing = label_smoothing.unsqueeze(1)
    smoothed = targets * (1 - label_smoothing) + label_smoothing / 2
    return F.binary_cross_entropy_with_logits(logits, smoothed, reduction="none").sum(1)


def average_precision_error(logits: Tensor, targets: Tensor, average: str = "micro") -> Tensor:
    """1 - average precision of logits [N, C], where targets [N, C] are 1 for the labels of an image.

    Average precision is the sum over the thresholds of precision times the recall that this threshold adds; equal
    logits are one threshold (as in scikit-learn). Labels without a positive example are left out of `macro`.

    Arguments:
        average: see `OpenImagesResNet`.

    >>> average_precision_error(torch.tensor([[2.0, 1.0], [0.0, 3.0]]), torch.tensor([[1, 0], [1, 1]]))
    tensor(0.0833, dtype=torch.float64)
    """
    if average == "micro":
        logits, targets = logits.reshape(-1, 1), targets.reshape(-1, 1)
    parts = zip(logits.split(AT_ONCE, dim=1), targets.split(AT_ONCE, dim=1), strict=True)
    found = torch.cat([_average_precisions(*part) for part in parts])
    return 1 - found[found.isfinite()].mean()


def _average_precisions(logits: Tensor, targets: Tensor) -> Tensor:
    """Of each column [C]; NaN for a column without a positive example."""
    ranked, order = logits.sort(dim=0, descending=True)
    positive = targets.gather(0, order).double()
    found = positive.cumsum(0)
    places = torch.arange(1, len(ranked) + 1, device=ranked.device, dtype=torch.float64).unsqueeze(1)
    last = torch.ones_like(ranked, dtype=torch.bool)  # of its equal logits
    last[:-1] = ranked[1:] != ranked[:-1]
    # The precision at a place is that of the next place where a threshold can lie.
    end = torch.where(last, places, len(ranked)).flip(0).cummin(0).values.flip(0)
    precision = found.gather(0, end.long() - 1) / end
    return (positive * precision).sum(0) / found[-1]
