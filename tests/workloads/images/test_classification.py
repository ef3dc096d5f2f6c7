"""The arguments of image workloads: shapes, classes, refusals, and crops that do not depend on reader processes."""

import pytest
import torch
from helpers.pictures.made import CLASSES, class_folders, imagenet

from study.data import streaming
from study.data.order import Batches
from workloads.data.datasets import DATASETS
from workloads.data.images import places
from workloads.data.images.transforms import random_crops_and_flips
from workloads.user_code.importing import build

pytestmark = pytest.mark.usefixtures("cache")
COMMON = {
    "_target_": "workloads.images.resnet.ResNet",
    "name": "x",
    "dataset": "image_folder",
    "image_size": 12,
    "train_examples": 24,
    "validation_examples": 8,
    "depth": 8,
    "stem": "cifar",
}


@pytest.fixture
def folder(tmp_path):
    return class_folders(tmp_path / "made", dict.fromkeys(CLASSES, 10))


@pytest.mark.parametrize(
    ("changed", "shape", "classes"),
    [
        ({}, (3, 12, 12), 4),
        ({"class_count": 3}, (3, 12, 12), 3),
        ({"dataset": "cifar10", "path": None, "image_size": None}, (3, 32, 32), 10),
        ({"dataset": "mnist", "path": None, "image_size": 16, "class_count": 2}, (1, 16, 16), 2),
    ],
    ids=str,
)
def test_models_see_the_shape_and_the_classes(folder, changed, shape, classes):
    workload = build(COMMON | {"path": str(folder)} | changed)
    assert (workload.shape, workload.classes) == (shape, classes)
    assert workload.model().eval()(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"path": None}, "workload.dataset=image_folder needs workload.path: a folder of images, or a list file"),
        ({"dataset": "cifar10", "path": "x"}, "workload.path belongs to workload.dataset=image_folder, but .* cifar10"),
        ({"dataset": "imagenet", "path": None, "image_size": None}, "imagenet needs workload.image_size"),
        ({"dataset": "open_images", "path": None}, "unknown data set 'open_images'"),
        ({"dataset": "imagnet"}, "unknown data set 'imagnet'; did you mean 'imagenet'"),
        ({"image_size": 0}, "workload.image_size must be a whole number of at least 1"),
        ({"class_count": 1}, "workload.class_count must be a whole number of at least 2"),
        ({"augmentation": "flip"}, "unknown workload.augmentation 'flip'"),
    ],
)
def test_impossible_arguments_are_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        build(COMMON | {"path": "x"} | changed)


def test_crops_and_flips_change_batches_on_the_device(folder):
    usual = COMMON | {"path": str(folder)}
    assert build(usual).augment is None
    assert build(usual | {"augmentation": "crop_flip"}).augment is random_crops_and_flips
    assert build(usual | {"augmentation": "resized_crop_flip"}).augment is None


@pytest.mark.slow
def test_reader_processes_change_no_random_part(folder):
    workload = build(COMMON | {"path": str(folder), "augmentation": "resized_crop_flip"})
    found = []
    for loaders in (0, 2):
        source = streaming.of_workload(workload, "cpu", None, loaders)
        read = source.reader(Batches(7, 24, 8, torch.device("cpu")), [slice(0, 8)])
        found.append([read(step, 0)[0] for step in range(4)])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    other_trial = source.reader(Batches(8, 24, 8, torch.device("cpu")), [slice(0, 8)])
    assert not torch.equal(other_trial(0, 0)[0], found[0][0])


def test_large_data_sets_are_listed_with_their_directions(says, tmp_path, monkeypatch):
    said = says("data", "list", "imagenet", "open_images")
    assert said.count("not here The files come from") == 2
    said = says("data", "fetch", "imagenet", status=2)
    assert "STUDY_DATA is not set; $STUDY_DATA/imagenet is found too" in said
    assert "imagenet: no train" in said
    assert places.FOLDERS["imagenet"].directions in said
    monkeypatch.setenv("STUDY_DATA", str(tmp_path))
    (tmp_path / "imagenet/train").mkdir(parents=True)
    assert f"{tmp_path / 'imagenet'}: no val" in says("data", "fetch", "imagenet", status=2)
    imagenet(tmp_path / "imagenet", 1, 1)
    assert says("data", "fetch", "imagenet") == f"imagenet: {tmp_path / 'imagenet'}"
    assert {*DATASETS} <= {*says("data", "list").replace(":", "").split()}
