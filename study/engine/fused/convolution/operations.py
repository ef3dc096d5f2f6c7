"""Convolutions of many lanes as operations of torch, which can be traced, recorded and compiled around.

On a GPU they are kernels of our own, if Triton is there; elsewhere, torch's convolutions of groups.

Shapes: l lanes, N images of each lane, C channels and O filters. Images are as `shapes` has them: [l, N, C, H, W], or
[1, N, C, H, W] if they are those of all lanes.
"""

import os
import shutil
from functools import cache
from importlib.util import find_spec
from math import prod
from types import ModuleType

import torch
from torch import Tensor
from torch.nn import functional

from study.engine.fused.convolution.shapes import new, results_size

MOST_NUMBERS = 2**31
"""Kernels index the images of a lane by 32 bits."""


@torch.library.custom_op("study::filtered", mutates_args=())
def filtered(
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    rectified: bool = False,
    plus: Tensor | None = None,
) -> Tensor:
    """Each lane's images convolved with its filters [l, O, C, height, width] and biases [l, O].

    Arguments:
        rectified: convolve the ReLU of the images.
        plus: of the shape of the results, to which it is added; None: nothing.
    """
    found = _results(images, weight, bias, stride, padding)
    if (launch := _launch(images, found)) is not None:
        return launch.filtered(found, images, weight, bias, stride, padding, rectified, plus)
    lanes = len(weight)
    given = _grouped(images, lanes, rectified), weight.flatten(0, 1), None if bias is None else bias.flatten()
    results = functional.conv2d(*given, stride, padding, groups=lanes)
    found.copy_(results.unflatten(1, (lanes, -1)).movedim(1, 0))
    return found if plus is None else found.add_(plus)


@filtered.register_fake
def _results(
    images: Tensor, weight: Tensor, bias: Tensor | None, stride: list[int], padding: list[int], *beside: object
) -> Tensor:
    return new(images, len(weight), images.shape[1], weight.shape[1], *results_size(images, weight, stride, padding))


@torch.library.custom_op("study::spread", mutates_args=())
def spread(
    slopes: Tensor,
    weight: Tensor,
    size: list[int],
    stride: list[int],
    padding: list[int],
    signs: Tensor | None = None,
    plus: Tensor | None = None,
) -> Tensor:
    """The gradient of images [l, N, C, *size] from that of the results of `filtered` [l, N, O, ...].

    Arguments:
        signs: the images, if the convolution took their ReLU; None: it took them as they are.
        plus: another gradient of the images, to which this one is added; None: there is none.
    """
    found = _spread(slopes, weight, size)
    if (launch := _launch(slopes, found)) is not None:
        return launch.spread(found, slopes, weight, stride, padding, signs, plus)
    lanes = len(weight)
    given = _grouped(slopes, lanes), _grouped(found, lanes), weight.flatten(0, 1)
    gradient, _, _ = _backward(*given, stride, padding, [True, False, False])
    found.copy_(gradient.unflatten(1, (lanes, -1)).movedim(1, 0))
    if signs is not None:
        found.masked_fill_(signs <= 0, 0.0)
    return found if plus is None else found.add_(plus)


@spread.register_fake
def _spread(slopes: Tensor, weight: Tensor, size: list[int], *beside: object) -> Tensor:
    return new(slopes, len(weight), slopes.shape[1], weight.shape[2], *size)


@torch.library.custom_op("study::differentiated", mutates_args=())
def differentiated(
    images: Tensor,
    slopes: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    biased: bool,
    rectified: bool = False,
) -> Tensor:
    """The gradients of filters [l, height * width * C, O] from those of the results of `filtered` [l, N, O, ...]; with
    `biased`, another row has those of biases. `rectified` is as in `filtered`."""
    if (launch := _launch(images, slopes)) is not None:
        return launch.differentiated(images, slopes, kernel, stride, padding, biased, rectified)
    lanes, filters = len(slopes), slopes.shape[2]
    weight = slopes.new_empty(lanes * filters, images.shape[2], *kernel)
    given = _grouped(slopes, lanes), _grouped(images, lanes, rectified), weight
    _, gradient, _ = _backward(*given, stride, padding, [False, True, False])
    rows = gradient.unflatten(0, (lanes, filters)).permute(0, 3, 4, 2, 1).flatten(1, 3)
    return torch.cat([rows, slopes.sum((1, 3, 4)).unsqueeze(1)], 1) if biased else rows.clone()


@differentiated.register_fake
def _differentiated(
    images: Tensor,
    slopes: Tensor,
    kernel: list[int],
    stride: list[int],
    padding: list[int],
    biased: bool,
    *beside: object,
) -> Tensor:
    return slopes.new_empty(len(slopes), images.shape[2] * prod(kernel) + biased, slopes.shape[2])


def _grouped(images: Tensor, lanes: int, rectified: bool = False) -> Tensor:
    """The images, or their ReLU, as those of groups [N, l * C, H, W]."""
    images = images.relu() if rectified else images
    return images.expand(lanes, *images.shape[1:]).movedim(0, 1).flatten(1, 2)


def _backward(
    slopes: Tensor, images: Tensor, weight: Tensor, stride: list[int], padding: list[int], wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of images, filters and biases of a convolution of groups."""
    groups = images.shape[1] // weight.shape[1]
    return torch.ops.aten.convolution_backward(
        slopes, images, weight, None, stride, padding, [1, 1], False, [0, 0], groups, wanted
    )


def _launch(*images: Tensor) -> ModuleType | None:
    """The module that launches our kernels on the device of these images; None if they cannot run there."""
    fits = all(each[0].numel() < MOST_NUMBERS for each in images)
    return _of_gpu(images[0].device) if images[0].is_cuda and fits else None


@cache
def _of_gpu(device: torch.device) -> ModuleType | None:
    """Triton needs a GPU of NVIDIA's since Ampere, and the compiler of C that starts its kernels."""
    compiler = any(map(shutil.which, filter(None, (os.environ.get("CC"), "cc", "gcc", "clang"))))
    recent = torch.version.cuda is not None and torch.cuda.get_device_capability(device) >= (8, 0)
    if not (recent and compiler and find_spec("triton")):
        return None
    from study.engine.fused.convolution import launch

    return launch
