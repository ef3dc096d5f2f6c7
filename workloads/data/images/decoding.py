"""Decodes image files with Pillow: every kind of image becomes three channels of bytes.

Shapes: H x W pixels.
"""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workloads.data.fetching import DataError

WHITE = (255, 255, 255, 255)


def decode(path: Path) -> Tensor:
    """The image in a file, uint8 [3, H, W], a view of [H, W, 3].

    It stands upright (the orientation of its EXIF data is applied). Grey, palette and CMYK images become RGB,
    transparent ones lie on white, of 16 bits of grey the upper 8 are kept, and of an animation the first image.

    Raises:
        DataError: the file is no image, or damaged; the message names it.
    """
    library = _library()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged EXIF data, and of very large images
            with library.open(path) as image:
                pixels = np.array(_rgb(library, _upright(image)))
    except DataError:
        raise
    except Exception as error:  # damaged files make decoders raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} cannot be decoded: {reason}. Replace the file, or remove it.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _upright(image: Any) -> Any:
    from PIL import ImageOps

    return ImageOps.exif_transpose(image)


def _rgb(library: Any, image: Any) -> Any:
    if image.mode.startswith("I"):
        grey = np.asarray(image)
        return library.fromarray((grey.clip(0, 65535) // 256).astype(np.uint8)).convert("RGB")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        return library.alpha_composite(library.new("RGBA", image.size, WHITE), image).convert("RGB")
    return image.convert("RGB")


def _library() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise DataError(
            "image files need a package that is not installed: pip install 'batch-size-study[images]'."
        ) from error
    return Image
