"""Crops, flips and resizing of tensors, against Pillow and by hand, with the generators they must draw from."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from helpers.pictures.made import pixels
from PIL import Image

from workloads.data.images import transforms

PHOTO = torch.from_numpy(pixels(1, 0, 48, 64)).permute(2, 0, 1)


@pytest.mark.parametrize("size", [(12, 16), (24, 20), (96, 128)], ids=str)
def test_resizing_is_that_of_pillow(size):
    expected = np.asarray(Image.fromarray(pixels(1, 0, 48, 64)).resize(size[::-1], Image.Resampling.BILINEAR))
    found = transforms.resize(PHOTO, *size)
    assert found.dtype == torch.uint8
    assert (found.float() - torch.tensor(expected).permute(2, 0, 1).float()).abs().max() <= 1


def test_the_shorter_side_and_the_middle():
    assert transforms.resize_shorter(PHOTO, 24).shape == (3, 24, 32)
    assert transforms.resize_shorter(PHOTO.transpose(1, 2), 10).shape == (3, 13, 10)
    assert transforms.resize_shorter(PHOTO, 48) is PHOTO
    assert torch.equal(transforms.centre_crop(PHOTO, 40), PHOTO[:, 4:44, 12:52])


@pytest.mark.parametrize(("height", "width"), [(48, 64), (64, 48), (20, 200), (1, 1)], ids=str)
def test_random_parts_lie_within_the_image(height, width):
    torch.manual_seed(0)
    for top, left, h, w in (transforms._random_part(height, width) for _ in range(300)):
        assert 0 <= top <= top + h <= height
        assert 0 <= left <= left + w <= width
        assert h > 0 < w


def test_random_parts_have_the_published_distribution():
    """Areas uniform in [0.08, 1] and logarithms of the aspect ratio uniform, as long as the part fits."""
    torch.manual_seed(0)
    parts = [transforms._random_part(1000, 1000) for _ in range(4000)]
    areas, ratios = zip(*((h * w / 1e6, math.log(w / h)) for _, _, h, w in parts), strict=True)
    assert min(areas) == pytest.approx(0.08, abs=0.005)
    assert (min(ratios), max(ratios)) == (
        pytest.approx(-math.log(4 / 3), abs=0.01),
        pytest.approx(math.log(4 / 3), abs=0.01),
    )
    small = [area for area in areas if area < 0.7]  # which fit at every aspect ratio
    assert np.quantile(small, [0.25, 0.5, 0.75]) == pytest.approx(0.08 + 0.62 * np.array([0.25, 0.5, 0.75]), abs=0.02)
    starts = [top / (1000 - h) for top, _, h, _ in parts if h < 500]
    assert np.quantile(starts, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.04)


def test_a_part_that_cannot_be_found_is_the_largest_in_the_middle():
    assert transforms._random_part(10, 1000) == (0, 493, 10, 13)
    assert transforms._random_part(1000, 10) == (493, 0, 13, 10)


def test_random_crops_are_parts_of_the_image_from_the_global_generator():
    torch.manual_seed(3)
    first, second = (transforms.random_resized_crop(PHOTO, 16) for _ in range(2))
    torch.manual_seed(3)
    top, left, h, w = transforms._random_part(48, 64)
    assert torch.equal(first, transforms.resize(PHOTO[:, top : top + h, left : left + w], 16, 16))
    assert not torch.equal(first, second)


def test_half_of_the_images_are_mirrored():
    torch.manual_seed(0)
    flips = [torch.equal(transforms.random_flip(PHOTO), PHOTO.flip(2)) for _ in range(400)]
    assert 160 < sum(flips) < 240


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("side", [32, 6])
def test_crops_and_flips_of_a_batch_by_hand(side, channels_last):
    images = torch.randn(200, 2, side, side)
    images = images.to(memory_format=torch.channels_last) if channels_last else images
    before = images.clone()
    found = transforms.random_crops_and_flips(images, torch.Generator().manual_seed(5))
    assert found.stride() == images.stride()
    assert torch.equal(images, before)
    padding = max(1, side // 8)
    seen = set()
    for one, image in zip(found, images, strict=True):
        padded = F.pad(image, (padding,) * 4)
        for down, right, flip in (
            (d, r, f) for d in range(2 * padding + 1) for r in range(2 * padding + 1) for f in (0, 1)
        ):
            part = padded[:, down : down + side, right : right + side]
            if torch.equal(one, part.flip(2) if flip else part):
                seen.add((down, right, flip))
                break
        else:
            pytest.fail("no crop of the image")
    assert {flip for *_, flip in seen} == {0, 1}
    for axis in (0, 1):
        assert {each[axis] for each in seen} == set(range(2 * padding + 1))
    again = transforms.random_crops_and_flips(images, torch.Generator().manual_seed(5))
    assert torch.equal(found, again)


def test_normalisation_by_the_constants_of_imagenet():
    found = transforms.normalised(torch.tensor([0, 127, 255], dtype=torch.uint8).repeat(3, 1)[:, None])
    expected = [
        [(value / 255 - m) / d for value in (0, 127, 255)]
        for m, d in zip(transforms.MEAN, transforms.DEVIATION, strict=True)
    ]
    torch.testing.assert_close(found[:, 0], torch.tensor(expected))
