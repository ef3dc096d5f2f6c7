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
        DataError: the file is no image, damaged, or has numbers of an unknown range; the message names it.
    """
    library = _library()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of damaged EXIF data, and of very large images
            with library.open(path) as image:
                if kind := _unbounded(image):
                    raise DataError(
                        f"{path} has pixels of {kind}, and nothing tells which of them is white; save all files with 8 "
                        "or 16 bits a channel, after multiplying their pixels by one number, such as 255."
                    )
                pixels = np.array(_rgb(library, _upright(image)))
    except DataError:
        raise
    except Exception as error:  # damaged files make decoders raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path} cannot be decoded: {reason}. Replace the file, or remove it.") from error
    return torch.from_numpy(pixels).permute(2, 0, 1)


def _unbounded(image: Any) -> str:
    """What the pixels are if their range is unknown: a photograph from 0 to 1 would become black. Otherwise empty."""
    if image.mode == "F":
        return "floating-point numbers"
    return "32 bits" if image.mode == "I" and image.format == "TIFF" else ""  # elsewhere `I` holds 16 bits


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
