"""Every kind of image becomes three channels of bytes, upright; damaged files are named."""

import numpy as np
import pytest
import torch
from helpers.pictures.made import pixels, write
from PIL import Image

from workloads.data.fetching import DataError
from workloads.data.images.decoding import decode

PICTURE = Image.fromarray(pixels(1, 0))
GREY = np.arange(192, dtype=np.uint8).reshape(12, 16)


def saved(path, image, **options):
    image.save(path, **options)
    return path


def shown(image):
    """What a viewer shows, uint8 [3, H, W]."""
    return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1)


def transparent():
    """The left half of the picture on nothing."""
    alpha = np.zeros((12, 16, 1), dtype=np.uint8)
    alpha[:, :8] = 255
    return Image.fromarray(np.concatenate([pixels(1, 0), alpha], axis=2))


def on_white():
    array = pixels(1, 0)
    array[:, 8:] = 255
    return Image.fromarray(array)


def palette_with_transparency():
    image = Image.new("P", (16, 12), 0)
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.paste(1, (0, 0, 8, 12))
    image.info["transparency"] = 0
    return image


def palette_on_white():
    image = Image.new("RGB", (16, 12), (255, 255, 255))
    image.paste((200, 100, 50), (0, 0, 8, 12))
    return image


KINDS = {
    "RGB": ("png", PICTURE, PICTURE),
    "grey": ("png", Image.fromarray(GREY), Image.fromarray(GREY)),
    "grey of 16 bits": ("png", Image.fromarray(GREY.astype(np.uint16) * 256 + 7), Image.fromarray(GREY)),
    "black and white": ("png", Image.fromarray(GREY > 99), Image.fromarray((GREY > 99).astype(np.uint8) * 255)),
    "palette": ("gif", PICTURE.quantize(), PICTURE.quantize()),
    "RGBA": ("png", transparent(), on_white()),
    "grey with transparency": (
        "png",
        Image.fromarray(np.stack([GREY, 0 * GREY], axis=2)),
        Image.new("L", (16, 12), 255),
    ),
    "palette with transparency": ("png", palette_with_transparency(), palette_on_white()),
    "TIFF": ("tif", PICTURE, PICTURE),
}


@pytest.mark.parametrize(("ending", "image", "expected"), KINDS.values(), ids=KINDS)
def test_every_kind_of_image_becomes_rgb(tmp_path, ending, image, expected):
    found = decode(saved(tmp_path / f"x.{ending}", image))
    assert found.dtype == torch.uint8
    assert torch.equal(found, shown(expected))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_jpeg_of_each_kind(tmp_path, mode):
    flat = Image.new("RGB", (16, 12), (200, 60, 60))  # a flat colour survives the compression
    found = decode(saved(tmp_path / "x.jpg", flat.convert(mode), quality=95)).float()
    expected = shown(flat.convert("L") if mode == "L" else flat).float()
    assert (found - expected).abs().max() <= 3


@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_stand_upright(tmp_path, orientation):
    """As a viewer turns them; the orientations 5 to 8 exchange height and width."""
    turned = {1: (), 2: ("h",), 3: ("h", "v"), 4: ("v",), 5: ("t",), 6: ("v", "t"), 7: ("h", "v", "t"), 8: ("h", "t")}
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = decode(saved(tmp_path / "x.png", PICTURE, exif=exif))
    expected = shown(PICTURE)
    for turn in turned[orientation]:
        expected = {"h": lambda x: x.flip(2), "v": lambda x: x.flip(1), "t": lambda x: x.transpose(1, 2)}[turn](
            expected
        )
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("damage", "reason"),
    [(lambda content: content[:-80], "truncated"), (lambda content: b"no image", "cannot identify image file")],
)
def test_a_damaged_file_is_named(tmp_path, damage, reason):
    path = write(tmp_path / "x.jpg", pixels(0, 0))
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(DataError, match=rf"^{path} cannot be decoded: .*{reason}.*Replace the file, or remove it\.$"):
        decode(path)


def test_a_missing_library_is_named_with_its_cure(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "PIL", None)
    with pytest.raises(DataError, match=r"not installed: pip install 'batch-size-study\[images\]'"):
        decode(tmp_path / "x.jpg")


@pytest.mark.parametrize(
    ("array", "said"),
    [
        (GREY.astype(np.float32) / 255, "floating-point numbers"),
        (GREY.astype(np.float32), "floating-point numbers"),
        (GREY.astype(np.int32), "32 bits"),
    ],
)
def test_pixels_of_an_unknown_range_are_refused(tmp_path, array, said):
    """Those from 0 to 1, and whole numbers up to 255 in 32 bits, would be black."""
    path = saved(tmp_path / "x.tif", Image.fromarray(array))
    with pytest.raises(DataError, match=f"x.tif has pixels of {said}, .*save all files with 8 or 16 bits"):
        decode(path)


def test_grey_of_16_bits_in_a_portable_graymap(tmp_path):
    """Pillow holds it in 32 bits."""
    path = saved(tmp_path / "x.pgm", Image.fromarray(GREY.astype(np.uint16) * 257))
    assert torch.equal(decode(path)[0], torch.from_numpy(GREY))
