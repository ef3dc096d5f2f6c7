"""Image folders: the layouts that are read, in which order, and what is refused."""

from contextlib import nullcontext

import pytest
from helpers.pictures.made import CLASSES, class_folders, imagenet, pixels, write

from workloads.data.fetching import DataError
from workloads.data.images import layouts


def listed(root, name, lines):
    (root / name).write_text("".join(f"{line}\n" for line in lines))
    return root / name


def files(images):
    return [str(images.path(index).relative_to(images.root)) for index in range(len(images))]


def test_folders_of_train_and_val_in_the_order_of_their_names(tmp_path):
    found = layouts.read(imagenet(tmp_path, train=2, val=1))
    assert found.classes == CLASSES
    assert list(found.parts) == ["train", "val"]
    train, val = found.parts.values()
    assert files(train) == [f"{name}/{number:03}.jpg" for name in CLASSES for number in range(2)]
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert val.labels.tolist() == [0, 1, 2, 3]
    assert layouts.class_names(tmp_path) == list(CLASSES)


def test_one_folder_of_class_folders(tmp_path):
    found = layouts.read(class_folders(tmp_path, {"b": 1, "a": 2}))
    assert files(found.parts["all"]) == ["a/000.jpg", "a/001.jpg", "b/000.jpg"]


def test_images_below_a_class_folder_and_files_that_are_no_images(tmp_path):
    class_folders(tmp_path, {"a": 1, "b": 1})
    write(tmp_path / "a/images/x.PNG", pixels(0, 0))
    for other in ("a/notes.txt", "a/.hidden.jpg", ".cache/x.jpg", "readme.txt"):
        (tmp_path / other).parent.mkdir(exist_ok=True)
        (tmp_path / other).touch()
    assert files(layouts.read(tmp_path).parts["all"]) == ["a/000.jpg", "a/images/x.PNG", "b/000.jpg"]


@pytest.mark.parametrize(
    ("labels", "classes", "numbers"),
    [(["10", "9", "10"], ("9", "10"), [1, 0, 1]), (["b", "9", "b"], ("9", "b"), [1, 0, 1])],
    ids=["whole numbers", "names"],
)
def test_a_list_file(tmp_path, labels, classes, numbers):
    names = ["x y.jpg", "a.jpg", "below/z.jpg"]
    for name in names:
        write(tmp_path / name, pixels(0, 0))
    place = listed(tmp_path, "mine.txt", [f"{name} {label}" for name, label in zip(names, labels, strict=True)] + [""])
    found = layouts.read(place)
    assert files(found.parts["all"]) == names
    assert (found.classes, found.parts["all"].labels.tolist()) == (classes, numbers)
    assert layouts.class_names(place) == list(classes)


def test_list_files_of_parts_beside_a_folder(tmp_path):
    class_folders(tmp_path / "test", {"a": 1, "b": 1})
    for name in "xyz":
        write(tmp_path / f"{name}.jpg", pixels(0, 0))
    listed(tmp_path, "train.txt", ["z.jpg b", "x.jpg a"])
    listed(tmp_path, "validation.txt", ["y.jpg a"])
    found = layouts.read(tmp_path)
    assert {part: files(images) for part, images in found.parts.items()} == {
        "train": ["z.jpg", "x.jpg"],
        "val": ["y.jpg"],
        "test": ["a/000.jpg", "b/000.jpg"],
    }
    assert found.parts["train"].labels.tolist() == [1, 0]


def only(**counts):
    return lambda root: class_folders(root, counts)


def without_train(root):
    class_folders(root / "val", {"a": 1, "b": 1})


def loose_val(root):
    imagenet(root, 1, 1)
    for path in sorted((root / "val").rglob("*.jpg")):
        path.rename(root / "val" / f"{path.parent.name}.jpg")
    for folder in (root / "val").iterdir():
        folder.is_dir() and folder.rmdir()


def empty_class(root):
    class_folders(root, {"a": 1, "b": 1})
    (root / "c").mkdir()


def unknown_class(root):
    imagenet(root, 1, 1)
    (root / "val/fox").rename(root / "val/ape")


def list_of(*lines):
    return lambda root: write(root / "x.jpg", pixels(0, 0)) and listed(root, "train.txt", lines)


REFUSED = {
    "nothing": (
        lambda root: root.rmdir(),
        r"the image folder .*made does not exist \(seen from /.*\)\. It may be\n  a",
    ),
    "empty": (lambda root: None, "made has no folder of a class. It may be"),
    "loose images": (lambda root: write(root / "x.jpg", pixels(0, 0)), "has 1 images in no folder of a class"),
    "one class": (only(a=1), "has 1 classes, 'a', but at least two are needed"),
    "no training part": (without_train, r"has val, but no train/. It may be"),
    "ImageNet's validation images as they are unpacked": (loose_val, "val has 4 images, but no folder of a class"),
    "a class without images": (empty_class, r"made/c is the folder of a class, but has no image \(.jpg, "),
    "a class of validation images alone": (unknown_class, "val has the class 'ape', but .*train has none of this name"),
    "a line without a label": (list_of("x.jpg 0", "x.jpg"), "line 2 of .*train.txt must be a path and a label, but is"),
    "an empty list": (list_of(), "train.txt must have a path and a label in each line, but is empty"),
    "files that are not there": (list_of("x.jpg 0", "y.jpg 1"), "names 1 files of 2 that are not there, such as y.jpg"),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_other_layouts_are_refused(tmp_path, make, said):
    (tmp_path / "made").mkdir()
    make(tmp_path / "made")
    with pytest.raises(DataError, match=f"(?s){said}"):
        layouts.read(tmp_path / "made")


def test_hidden_folders_are_no_classes(tmp_path):
    class_folders(tmp_path, {"a": 1, ".b": 1, "c": 1})
    assert layouts.class_names(tmp_path) == ["a", "c"]


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"all": ["x.jpg a", "y.jpg b", "./x.jpg a"]}, "all.txt names x.jpg 2 times, and is divided into training and"),
        ({"train": ["x.jpg a", "y.jpg b", "x.jpg b"], "test": ["z.jpg a"]}, "train.txt names x.jpg 2 times, and is"),
        ({"train": ["x.jpg a", "y.jpg b"], "val": ["z.jpg a", "z.jpg a"]}, "val.txt names z.jpg 2 times, and is"),
        (
            {"train": ["x.jpg a", "y.jpg b"], "val": ["z.jpg a", "./y.jpg b"]},
            r"train.txt and .*val.txt both name .*y",
        ),
        ({"train": ["x.jpg a", "y.jpg b", "x.jpg a"], "val": ["z.jpg a"]}, None),  # more often in an epoch
    ],
)
def test_an_image_is_not_both_trained_on_and_evaluated(tmp_path, lists, said):
    for name in "xyz":
        write(tmp_path / f"{name}.jpg", pixels(0, 0))
    places = [listed(tmp_path, f"{name}.txt", lines) for name, lines in lists.items()]
    with nullcontext() if said is None else pytest.raises(DataError, match=said):
        layouts.read(places[0] if "all" in lists else tmp_path)


def test_linked_folders_below_a_class_are_read_once(tmp_path):
    class_folders(tmp_path / "photos", {"a": 1, "b": 1})
    write(tmp_path / "more/x.png", pixels(0, 0))
    (tmp_path / "photos/a/more").symlink_to(tmp_path / "more")
    (tmp_path / "photos/a/back").symlink_to(tmp_path / "photos/a")
    found = layouts.read(tmp_path / "photos").parts["all"]
    assert files(found) == ["a/000.jpg", "a/more/x.png", "b/000.jpg"]


def test_a_byte_order_mark_is_no_part_of_a_path(tmp_path):
    class_folders(tmp_path, {"a": 1, "b": 1})
    (tmp_path / "all.txt").write_text("a/000.jpg a\nb/000.jpg b\n", "utf-8-sig")
    assert files(layouts.read(tmp_path / "all.txt").parts["all"]) == ["a/000.jpg", "b/000.jpg"]
