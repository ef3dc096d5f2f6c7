"""The paper's workloads of photographs, composed from their files and trained on made images of their kind."""

import numpy as np
import pytest
from helpers.desks import Desk, trained
from helpers.pictures.made import imagenet, open_images

from study.config.jobs import parse_jobs
from study.data import streaming
from workloads.user_code.importing import build

SMALL = ["workload.image_size=32", "workload.blocks=[1,1,1,1]", "workload.width=8"]
KINDS = {
    "resnet50_imagenet": (imagenet, 40, 12, SMALL),
    "vgg11_imagenet": (
        imagenet,
        40,
        12,
        ["workload.image_size=32", "workload.filters=[4,8,8,8,8]", "workload.units=[16]"],
    ),
    "resnet50_open_images": (lambda root: open_images(root, {"train": 41, "validation": 13, "test": 8}), 40, 12, SMALL),
}
SEARCH = ["search=sobol", "search.trials=1", "search.reruns=0", "search.space.learning_rate={low:0.01,high:0.02}"]
BUDGET = ["batch_size=8", "budget={epochs:0,steps:6}", "stopping=budget"]


@pytest.fixture
def words(tmp_path, cache, monkeypatch):
    """The command line of a small network on made images."""
    monkeypatch.setenv("STUDY_DATA", str(tmp_path))

    def of(name):
        make, train, validation, network = KINDS[name]
        make(tmp_path / name.split("_", 1)[1])
        counts = [f"workload.train_examples={train}", f"workload.validation_examples={validation}"]
        return [f"workload={name}", *counts, *network, *SEARCH, *BUDGET]

    return of


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_each_workload_trains_on_made_images(words, name):
    [job] = parse_jobs(words(name))
    assert job.study.search.space["label_smoothing"].choices == (0.0, 0.01, 0.1)
    workload = build(job.study.workload)
    data = streaming.of_workload(workload, "cpu", None, 0)
    rates = {
        "learning_rate": 0.02,
        "momentum": 0.9,
        "learning_rate_decay_fraction": 1.0,
        "end_learning_rate_factor": 0.1,
    }
    trial = job.study.trial(0, rates | {"label_smoothing": 0.1})
    [curve] = trained(job.study, Desk([trial]), workload=workload, data=data).values()
    assert curve.first_bad_step is None
    assert len(curve.steps) > 2
    for metric in (job.study.goal.metric, "val/cross_entropy_error"):
        assert np.isfinite(curve.errors[metric]).all()
    assert len(set(curve.errors["val/cross_entropy_error"])) == len(curve.steps)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "open" in name else pytest.mark.release) for name in KINDS]
)
def test_each_workload_is_swept(words, name, says, tmp_path, monkeypatch):
    """With two loader processes, and a cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))  # of the workers
    said = says("sweep", *words(name), "workload.cache=true", "engine.loaders=2", f"results={tmp_path / 'results'}")
    assert "report" in said
