"""Image models of timm, on image folders and built-in data sets.

Shapes: B images in a batch, C channels, H x W pixels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from workloads.adapters.packages import package, require_local
from workloads.images.classification import ImageClassification
from workloads.suggest import suggest

CURE = (
    "pip install --no-deps timm 'torchvision==0.28.*' huggingface_hub safetensors, in the build of your torch, see "
    "docs/guide/adapters.md"
)


@dataclass(frozen=True, kw_only=True)
class TimmClassifier(ImageClassification):
    """Any classifier of the package timm, with a new last layer; nothing is downloaded.

    Arguments:
        model_name: one of `timm.list_models()`.
        arguments: further arguments of `timm.create_model`, such as `img_size` (a Vision Transformer for images of
            another size than its own), `depth` or `drop_path_rate`.
        checkpoint: a file of weights (.pth, .safetensors) that every trial starts from; None: drawn for each trial.
    """

    model_name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if ":" in self.model_name:
            raise ValueError(
                f"workload.model_name must be the name of an architecture, but {self.model_name!r} would be "
                "downloaded; give its name alone, and its weights as a file in workload.checkpoint."
            )
        own = {"pretrained": "workload.checkpoint", "num_classes": "the data set", "in_chans": "the data set"}
        for name in self.arguments:
            if name in own:
                raise ValueError(f"workload.arguments.{name} is given by {own[name]}; leave it out.")

    def model(self) -> nn.Module:
        timm = package("timm", CURE)
        if not timm.is_model(self.model_name):
            raise ValueError(f"timm has no model {self.model_name!r}{suggest(self.model_name, timm.list_models())}")
        loading: dict[str, Any] = {}
        if self.checkpoint is not None:
            require_local("workload.checkpoint", self.checkpoint)
            loading = {"pretrained": True, "pretrained_cfg_overlay": {"file": self.checkpoint}}
        sizes = {"num_classes": self.classes, "in_chans": self.shape[0]}
        model: nn.Module = timm.create_model(self.model_name, **sizes, **loading, **self.arguments)
        return model
