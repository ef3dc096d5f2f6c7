"""Classification of images of a known shape, for models that are built for any shape.

Shapes: C channels, H x W pixels.
"""

from dataclasses import dataclass

from workloads.classification import Classification
from workloads.data.datasets import DATASETS


@dataclass(frozen=True, kw_only=True)
class ImageClassification(Classification):
    """A data set of images; subclasses add the model."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images that the model sees."""
        return DATASETS[self.dataset].shape

    @property
    def classes(self) -> int:
        """The number of labels."""
        return DATASETS[self.dataset].classes
