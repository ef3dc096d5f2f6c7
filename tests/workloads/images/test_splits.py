"""Splits of image folders: parts, nested subsets of images and classes, tensors or data sets, and the cache."""

import os
import shutil

import numpy as np
import pytest
import torch
from helpers.pictures.made import CLASSES, class_folders, imagenet, pixels, write

from workloads.data import datasets, images, prepared
from workloads.data.fetching import DataError
from workloads.data.images import layouts, sets, transforms
from workloads.data.images.decoding import decode
from workloads.data.images.pixels import stored

pytestmark = pytest.mark.usefixtures("cache")


def split(path, **arguments):
    usual = {"image_size": 12, "train_examples": 20, "validation_examples": 8}
    return images.splits("image_folder", path=str(path), **usual | arguments)


def marks(part):
    """Whether two images are the same one: their pixels as bytes."""
    inputs, labels = part if isinstance(part, tuple) else default(part)
    return [(image.numpy().tobytes(), int(label)) for image, label in zip(inputs, labels, strict=True)]


def default(part):
    inputs, labels = zip(*(part[index] for index in range(len(part))), strict=True)
    return torch.stack(inputs), torch.stack(labels)


@pytest.fixture
def folder(tmp_path):
    return imagenet(tmp_path / "imagenet")


def test_validation_and_test_images_come_from_the_validation_part(folder):
    found = split(folder)
    assert [len(part[1]) for part in found] == [20, 8, 12]
    train, val, test = (set(marks(part)) for part in found)
    own = {(normalised(folder, "val", index), index // 5) for index in range(20)}
    assert len(val | test) == 20
    assert val | test == own
    assert not train & own


def normalised(folder, part, index):
    """The pixels of the middle of an image."""
    image = transforms.centre_crop(decode(layouts.read(folder).parts[part].path(index)), 12)
    return transforms.normalised(image).contiguous().numpy().tobytes()


def test_one_folder_is_divided_in_three(tmp_path):
    class_folders(tmp_path / "all", dict.fromkeys(CLASSES, 10))
    found = split(tmp_path / "all", train_examples=24)
    assert [len(part[1]) for part in found] == [24, 8, 8]
    everything = [mark for part in found for mark in marks(part)]
    assert len(set(everything)) == 40
    other = split(tmp_path / "all", train_examples=24, split_seed=1)
    assert set(marks(other.val)) != set(marks(found.val))


def test_a_part_of_its_own_is_the_test_set(folder):
    shutil.copytree(folder / "val", folder / "test")
    shutil.rmtree(folder / "val")
    found = split(folder)
    assert [len(part[1]) for part in found] == [20, 8, 20]
    assert not set(marks(found.train)) & set(marks(found.val))


@pytest.mark.parametrize("layout", ["imagenet", "all"])
def test_smaller_training_sets_are_nested_and_share_the_rest(tmp_path, layout):
    place = tmp_path / layout
    imagenet(place) if layout == "imagenet" else class_folders(place, dict.fromkeys(CLASSES, 10))
    large, small = (split(place, train_examples=count) for count in (24, 9))
    assert marks(small.train) == marks(large.train)[:9]
    assert marks(small.val) == marks(large.val)
    assert marks(small.test) == marks(large.test)


def test_fewer_classes_are_nested_and_numbered_from_zero(folder):
    def shown(count):
        found = split(folder, class_count=count, train_examples=10, validation_examples=4)
        return [{mark for mark, _ in marks(part)} for part in found], {label for _, label in marks(found.train)}

    (two, labels), (three, more) = shown(2), shown(3)
    assert (labels, more) == ({0, 1}, {0, 1, 2})
    of_class = {label: {normalised(folder, "train", 10 * label + i) for i in range(10)} for label in range(4)}
    kept, of_three = ({label for label in range(4) if of_class[label] & held[0]} for held in (two, three))
    assert len(kept) == 2 < len(of_three) == 3
    assert kept < of_three
    assert [len(part) for part in two] == [10, 4, 6]


def test_fewer_classes_of_a_built_in_data_set():
    found = images.splits("digits", class_count=3, train_examples=100, validation_examples=50)
    everything = datasets.splits("digits", train_examples=1000, validation_examples=400, split_seed=0, device="cpu")
    assert set(found.train[1].tolist()) == set(found.test[1].tolist()) == {0, 1, 2}
    chosen = sorted(datasets.permutation(10, 0)[:3].tolist())
    expected = {
        (image.numpy().tobytes(), label)
        for image, label in zip(everything.test[0], everything.test[1].tolist(), strict=True)
        if label in chosen
    }
    # Mean and deviation are those of the kept classes, so that pixels differ; their number and labels do not.
    assert len(found.test[1]) == len(expected)
    assert np.bincount(found.test[1]).tolist() == [sum(label == each for _, label in expected) for each in chosen]


REFUSED = {
    "too many images": (
        {"train_examples": 41},
        r"train_examples must be at most 40 \(.*imagenet has 40 for training\), but got 41",
    ),
    "no test image left": (
        {"validation_examples": 20},
        r"at most 19 \(.* has 20 for it \(one is left for the test set\)\)",
    ),
    "too many classes": ({"class_count": 5}, r"class_count must be at most 4 \(there are 4 classes\), but got 5"),
    "augmentation": ({"augmentation": "crop"}, "unknown workload.augmentation 'crop'; did you mean 'crop_flip'"),
    "size": ({"image_size": None}, "image_folder needs workload.image_size: a side in pixels, such as 224"),
}


@pytest.mark.parametrize(("arguments", "said"), REFUSED.values(), ids=REFUSED)
def test_impossible_numbers_are_refused(folder, arguments, said):
    with pytest.raises(ValueError, match=said):
        split(folder, **arguments)


def test_one_folder_holds_out_as_many_test_images(tmp_path):
    class_folders(tmp_path / "all", dict.fromkeys(CLASSES, 10))
    with pytest.raises(
        ValueError, match=r"at most 19 \(.*all has 40 for it \(as many are the test set\)\), but got 20"
    ):
        split(tmp_path / "all", validation_examples=20)
    with pytest.raises(ValueError, match=r"at most 24 \(.*all has 40 for training, less 16 held out\), but got 25"):
        split(tmp_path / "all", train_examples=25)


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("size", [12, 8, 20])
def test_large_sets_are_read_image_by_image_with_the_same_values(folder, size, cached, monkeypatch):
    held = split(folder, image_size=size, cache=cached)
    monkeypatch.setattr(sets, "RESIDENT_BYTES", 0)
    read = split(folder, image_size=size, cache=not cached)
    for one, other in zip(held, read, strict=True):
        assert isinstance(one, tuple)
        inputs, labels = default(other)
        assert torch.equal(one[0], inputs)
        assert torch.equal(one[1], labels)
        assert one[0].shape[1:] == (3, size, size)
        assert (one[0].dtype, one[1].dtype) == (torch.float32, torch.int64)
    with pytest.raises(IndexError, match="numbered 0 to 19, but got 20"):
        read.train[20]


def test_random_training_images_and_the_middle_of_the_others(folder):
    found = split(folder, augmentation="resized_crop_flip")
    torch.manual_seed(0)
    one, other = found.train[3], found.train[3]
    torch.manual_seed(0)
    assert torch.equal(found.train[3][0], one[0])
    assert not torch.equal(one[0], other[0])
    assert torch.equal(found.val[3][0], found.val[3][0])
    index, pixels = found.val.index[3], layouts.read(folder).parts["val"]
    larger = transforms.resize_shorter(decode(pixels.path(index)), 14)  # 12 / 0.875
    assert torch.equal(found.val[3][0], transforms.normalised(transforms.centre_crop(larger, 12)))


def test_upsampled_images_of_a_built_in_data_set():
    usual = {"train_examples": 30, "validation_examples": 10}
    small = images.splits("digits", **usual)
    large = images.splits("digits", image_size=16, **usual)
    assert large.train[0].shape == (30, 1, 16, 16)
    torch.testing.assert_close(large.val[0][2], transforms.resize(small.val[0][2], 16, 16))
    assert torch.equal(large.train[1], small.train[1])
    random = images.splits("digits", image_size=16, augmentation="resized_crop_flip", **usual)
    assert random.train[0][0].shape == (1, 16, 16)


# The cache.


def kept(cache):
    return sorted(path for path in (cache / "images").iterdir())


def of_train(folder, shorter=8):
    return stored(layouts.read(folder).parts["train"], shorter)


def test_the_cache_holds_decoded_images_whose_shorter_side_is_reduced(folder, cache):
    train = layouts.read(folder).parts["train"]
    for shorter in (8, 30):
        found = stored(train, shorter)
        for index in range(40):
            image = decode(train.path(index))
            assert torch.equal(found[index], transforms.resize_shorter(image, 8) if shorter == 8 else image)
    assert len(kept(cache)) == 2
    assert sorted(path.name for path in kept(cache)[0].iterdir()) == ["manifest.json", "pixels.bin", "sizes.npy"]


def test_images_are_decoded_once_and_once_more_when_a_file_changes(folder, cache, monkeypatch):
    first = of_train(folder)[0]
    with monkeypatch.context() as patched:
        patched.setattr("workloads.data.images.pixels.decode", lambda _: pytest.fail("it is in the cache"))
        assert torch.equal(of_train(folder)[0], first)
    write(folder / "train/cat/000.jpg", pixels(3, 99))
    assert not torch.equal(of_train(folder)[0], first)
    moved = folder.rename(folder.with_name("moved"))
    of_train(moved)
    assert len(kept(cache)) == 2, "the folder's own place does not count"


def test_a_damaged_cache_is_written_once_more(folder, cache):
    first = of_train(folder)[5].clone()
    [place] = kept(cache)
    content = bytearray((place / "pixels.bin").read_bytes())
    content[-1] ^= 1
    os.unlink(place / "pixels.bin")
    (place / "pixels.bin").write_bytes(content)
    assert not prepared.is_intact(place)
    assert torch.equal(of_train(folder)[5], first)
    assert prepared.is_intact(place)


@pytest.mark.parametrize("alone", [1000, 1], ids=["alone", "with processes"])
def test_all_damaged_files_are_named_and_nothing_is_kept(folder, cache, alone, monkeypatch):
    monkeypatch.setattr("workloads.data.images.pixels.ALONE", alone)
    names = ["train/cat/003.jpg", *(f"train/dog/{number:03}.jpg" for number in range(10))]
    for name in names:
        (folder / name).write_bytes(b"no image")
    with pytest.raises(
        DataError, match=r"(?s)^11 of 40 images are damaged:\n  .*cat/003.jpg cannot be decoded.*and 1 more$"
    ):
        of_train(folder)
    assert not kept(cache)


def test_processes_decode_in_order(folder, monkeypatch):
    expected = [of_train(folder)[index].clone() for index in range(40)]
    monkeypatch.setattr("workloads.data.images.pixels.ALONE", 1)
    monkeypatch.setattr("workloads.data.images.pixels.VERSION", 2)
    assert all(torch.equal(of_train(folder)[index], image) for index, image in enumerate(expected))
