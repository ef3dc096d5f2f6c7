"""Open Images: labels from CSV files, average precision as in scikit-learn, and the loss of several labels."""

import pytest
import torch
import torch.nn.functional as F
from helpers.pictures.made import open_images, pixels, write
from sklearn.metrics import average_precision_score

from workloads.data.fetching import DataError
from workloads.data.images import open_images as data
from workloads.images.open_images import average_precision_error, binary_cross_entropy
from workloads.user_code.importing import build

pytestmark = pytest.mark.usefixtures("cache")
COUNTS = {"train": 30, "validation": 12, "test": 6}


def split(path, **arguments):
    usual = {"image_size": 12, "train_examples": 29, "validation_examples": 11}
    return data.splits("image_folder", path=str(path), **usual | arguments)


@pytest.fixture
def folder(tmp_path):
    return open_images(tmp_path / "made", COUNTS)


@pytest.mark.parametrize("prefix", ["", "oidv6-"])
def test_images_have_the_labels_that_judges_saw(tmp_path, prefix):
    """Not those that they judged to be absent; the first image of each part has none, and is left out."""
    found = split(open_images(tmp_path, COUNTS, prefix=prefix))
    assert [tuple(part[0].shape) for part in found] == [(29, 3, 12, 12), (11, 3, 12, 12), (5, 3, 12, 12)]
    assert found.test[1].tolist() == [
        [float(label in (number % 5, (number + 2) % 5)) for label in range(5)] for number in range(1, 6)
    ]
    assert (found.train[1].sum(1) == 2).all()


def test_labels_of_a_file_of_trainable_ones_and_of_a_description_with_a_header(folder):
    text = (folder / "class-descriptions.csv").read_text()
    (folder / "class-descriptions.csv").write_text("LabelName,DisplayName\n" + text)
    assert data.label_names(folder) == [f"/m/0{number}" for number in range(5)]
    (folder / "classes-trainable.txt").write_text("/m/03\n/m/01\n")
    assert data.label_names(folder) == ["/m/03", "/m/01"]
    found = split(folder, train_examples=18, validation_examples=6)
    assert found.test[1].tolist() == [[float(3 in pair), float(1 in pair)] for pair in ({1, 3}, {3, 0}, {4, 1})]


def test_fewer_labels_are_nested(folder):
    usual = {"train_examples": 10, "validation_examples": 4}
    (_, two), (_, three) = (split(folder, class_count=count, **usual).test for count in (2, 3))
    assert (two.shape[1], three.shape[1]) == (2, 3)
    assert (two.sum(1) > 0).all()
    assert len(two) <= len(three)


def test_labels_of_images_that_are_not_there_are_left_out(folder, caplog):
    (folder / f"test/{3:016x}.jpg").unlink()
    with caplog.at_level("INFO"):
        assert len(split(folder).test[1]) == 4
    assert "left out 2 labels of images that are not in" in caplog.text


def without(name):
    return lambda root: [path.unlink() for path in root.glob(name)]


REFUSED = {
    "no labels": (without("*train-*labels.csv"), r"must have one file \*train-annotations.*labels.csv, but has none\."),
    "no classes": (without("class-*"), r"must have one file \*class-descriptions\*.csv, but has none\. The files come"),
    "other columns": (
        lambda root: (root / "test-annotations-human-imagelabels.csv").write_text("ImageID,Label\n1,2\n"),
        "test-annotations-human-imagelabels.csv must have the columns ImageID, LabelName, Confidence: ",
    ),
    "other names": (
        lambda root: [path.rename(path.with_stem(f"x{path.stem}")) for path in (root / "test").iterdir()],
        r"test has 6 images, but .*test-annotations-human-imagelabels.csv has a label for none of them",
    ),
    "the same name twice": (
        lambda root: write(root / f"test/below/{2:016x}.jpg", pixels(0, 0)),
        f"has several images named {2:016x}: each needs a name of its own",
    ),
}


@pytest.mark.parametrize(("change", "said"), REFUSED.values(), ids=REFUSED)
def test_incomplete_folders_are_refused(folder, change, said):
    change(folder)
    with pytest.raises(DataError, match=said):
        split(folder)


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_is_that_of_scikit_learn(ties, monkeypatch):
    monkeypatch.setattr("workloads.images.open_images.AT_ONCE", 3)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(50, 8, generator=generator)
    targets = (torch.rand(50, 8, generator=generator) < 0.2).float()
    if ties:
        logits = logits.round()
    for average in ("micro", "macro"):
        expected = 1 - average_precision_score(targets, logits, average=average)
        assert float(average_precision_error(logits, targets, average)) == pytest.approx(expected)
    targets[:, 2] = 0  # a label that no image has
    others = [0, 1, 3, 4, 5, 6, 7]
    expected = 1 - average_precision_score(targets[:, others], logits[:, others], average="macro")
    assert float(average_precision_error(logits, targets, "macro")) == pytest.approx(expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, torch.tensor(0.1), torch.full((4,), 0.1)], ids=str)
def test_the_loss_is_a_binary_cross_entropy_of_each_label(smoothing):
    logits, targets = torch.randn(4, 5), torch.eye(5)[:4]
    eps = float(torch.as_tensor(smoothing).flatten()[0])
    probabilities, moved = logits.sigmoid(), targets * (1 - eps) + (1 - targets) * 0 + eps / 2
    expected = -(moved * probabilities.log() + (1 - moved) * (1 - probabilities).log()).sum(1)
    torch.testing.assert_close(binary_cross_entropy(logits, targets, smoothing), expected)
    torch.testing.assert_close(
        binary_cross_entropy(logits, targets),
        F.binary_cross_entropy_with_logits(logits, targets, reduction="none").sum(1),
    )


NETWORK = {
    "_target_": "workloads.images.open_images.OpenImagesResNet",
    "name": "x",
    "dataset": "image_folder",
    "image_size": 12,
    "train_examples": 29,
    "validation_examples": 11,
    "depth": 8,
    "stem": "cifar",
}


def test_a_network_has_an_output_for_each_label(folder):
    workload = build(NETWORK | {"path": str(folder)})
    assert workload.model().eval()(torch.zeros(2, 3, 12, 12)).shape == (2, 5)
    assert build(NETWORK | {"path": str(folder), "class_count": 3}).classes == 3


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"dataset": "cifar10"}, "unknown data set 'cifar10'; there are: image_folder, open_images"),
        ({"path": "x", "average": "mean"}, "unknown workload.average 'mean'; there are: macro, micro"),
        ({}, "image_folder needs workload.path"),
        ({"path": "x", "class_count": 1}, "workload.class_count must be a whole number of at least 2"),
    ],
)
def test_impossible_arguments_are_refused(changed, said):
    with pytest.raises(ValueError, match=said):
        build(NETWORK | changed)
