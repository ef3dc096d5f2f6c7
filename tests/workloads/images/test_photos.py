"""A folder of 512 JPEG files made of CIFAR-10: its first 50 steps are those of a plain torch loop."""

import pytest
from helpers.pictures import photos

from study.data import streaming
from study.devices import generators
from study.engine.run import Run
from workloads.data import fetching
from workloads.data.images import sets
from workloads.user_code.importing import build

pytestmark = pytest.mark.data
STEPS = 50
COMMON = {
    "name": "photos",
    "dataset": "image_folder",
    "image_size": 32,
    "train_examples": 352,
    "validation_examples": 80,
}
NETWORKS = {
    "resnet": {"_target_": "workloads.images.resnet.ResNet", "depth": 8, "stem": "cifar", "norm": "none"},
    "resnet50": {"_target_": "workloads.images.resnet.ResNet", "depth": 50, "width": 8},
    "vgg11": {"_target_": "workloads.images.vgg.Vgg", "filters": [8, 16, 32, 32, 32], "units": [64], "dropout": 0.0},
    "vit": {"_target_": "workloads.images.vit.Vit", "patch": 8, "width": 24, "depth": 2, "heads": 3, "mlp_width": 48},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return photos.make(tmp_path_factory.mktemp("made") / "photos", 512)


CASES = [
    *((name, "none", "tensors") for name in NETWORKS),
    ("resnet", "none", "cached"),
    ("resnet", "crop_flip", "tensors"),
    ("resnet", "crop_flip", "read one by one"),
]


@pytest.mark.parametrize(("network", "augmentation", "held"), CASES)
def test_the_first_steps_are_those_of_a_plain_loop(
    make_study, folder, network, augmentation, held, monkeypatch, tmp_path
):
    monkeypatch.setattr(fetching, "cache_folder", lambda name: tmp_path / name)
    config = COMMON | NETWORKS[network] | {"path": str(folder), "augmentation": augmentation}
    config["cache"] = held == "cached"
    if held != "tensors":
        monkeypatch.setattr(sets, "RESIDENT_BYTES", 0)
    workload = build(config)
    study = make_study(workload=config, optimizer="nesterov", batch_size=16, steps=STEPS)
    trial = study.trial(0, {"learning_rate": 0.02, "momentum": 0.9})
    data = streaming.of_workload(workload, "cpu", None, 0)
    with generators.restored():
        run = Run(study, workload, data, trial)
        found = [run.update(0.02).item() for run.step in range(STEPS)]
    expected = photos.losses_by_hand(study, workload, trial, folder, STEPS)
    assert found == expected, "bit by bit"
    assert found[-1] < found[0]
