"""The workloads of docs/guide/adapters.md, as the page prints them, and those of workloads/adapters train on small made
data."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.fused import partly
from house import doc_pages

from analysis import load
from analysis.load import StudyData

PAGE = "docs/guide/adapters.md"
FILES = doc_pages.named_blocks(PAGE)
TINY = [
    "batch_size=16",
    "stopping=budget",
    "budget.epochs=0",
    "budget.steps=100",
    "optimizer=adam",
    "search.space.learning_rate=[0.003,0.01]",
    "search.trials=2",
    "search.reruns=0",
    "engine.workers=1",
]


def tokens(folder: Path) -> None:
    """Rows of 4 to 16 tokens and padding; the label says which half of the vocabulary is more frequent."""
    import datasets

    generator = torch.Generator().manual_seed(0)

    def rows(count: int) -> datasets.Dataset:
        labels = torch.randint(2, (count,), generator=generator)
        likely = torch.rand(count, 16, generator=generator) < 0.8
        half = torch.where(likely, labels[:, None], 1 - labels[:, None])
        mask = torch.arange(16) < torch.randint(4, 17, (count, 1), generator=generator)
        ids = mask * (2 + 49 * half + torch.randint(49, (count, 16), generator=generator))
        held = {"input_ids": ids, "attention_mask": mask.long(), "label": labels}
        return datasets.Dataset.from_dict({name: column.tolist() for name, column in held.items()})

    counts = {"train": 400, "validation": 100, "test": 100}
    splits = {name: rows(count) for name, count in counts.items()}
    datasets.DatasetDict(splits).save_to_disk(folder / "data/reviews")


def backbone(folder: Path) -> None:
    """A small model without a head, with random weights."""
    from transformers import BertConfig, BertModel

    tokens(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    BertModel(BertConfig(vocab_size=100, **size)).save_pretrained(folder / "data/backbone")


def pictures(folder: Path) -> None:
    """Noise of 40 x 36 pixels in one of three colours."""
    from PIL import Image

    generator = np.random.default_rng(0)
    for split, count in {"train": 80, "val": 20, "test": 20}.items():
        for label, name in enumerate(("blue", "green", "red")):
            (folder / f"data/photos/{split}/{name}").mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 200, (40, 36, 3), dtype=np.uint8)
                pixels[:, :, 2 - label] += 55
                Image.fromarray(pixels).save(folder / f"data/photos/{split}/{name}/{number}.png")


def text(folder: Path) -> None:
    """600 lines of two to eight words."""
    generator = np.random.default_rng(0)
    words = (Path(doc_pages.ROOT) / "LICENSE").read_text().split()[:60]
    lines = [" ".join(generator.choice(words, size=generator.integers(2, 9))) for _ in range(600)]
    (folder / "data").mkdir()
    (folder / "data/lines.txt").write_text("\n".join(lines))


def rows(folder: Path) -> None:
    """Rows of the bytes of some words, with a mask over padding."""
    import datasets

    generator = np.random.default_rng(0)
    words = (Path(doc_pages.ROOT) / "LICENSE").read_text().split()[:40]
    lines = [" ".join(generator.choice(words, size=4)).encode()[:40] for _ in range(500)]
    padded = {"input_ids": [[*line, *[0] * (40 - len(line))] for line in lines]}
    mask = {"attention_mask": [[1] * len(line) + [0] * (40 - len(line)) for line in lines]}
    datasets.Dataset.from_dict(padded | mask).save_to_disk(folder / "data/rows")


EXAMPLES: dict[str, tuple[list[str], Callable[[Path], None] | None, list[str]]] = {
    "reviews": (["transformers", "datasets"], tokens, ["classification_error", "cross_entropy_error"]),
    "photos": (["timm", "torchvision"], pictures, ["classification_error", "cross_entropy_error"]),
    "diabetes": ([], None, ["squared_error", "unexplained_variance"]),
    "topics": (["torchmetrics"], None, ["cross_entropy_error", "average_precision_error"]),
    "lines": ([], text, ["cross_entropy_error"]),
    "adapted": (["peft", "transformers", "datasets"], backbone, ["classification_error", "cross_entropy_error"]),
    "hf_causal_lm": (["transformers", "datasets"], rows, ["classification_error", "cross_entropy_error"]),
    "timm_image_folder": (["timm", "torchvision"], pictures, ["classification_error", "cross_entropy_error"]),
}
"""Workload -> the packages it needs, the function that makes its data, and its errors, the one of its goal last."""

SHIPPED = {
    "hf_causal_lm": [
        "workload.dataset=input_ids",
        "workload.path=data/rows",
        "workload.context=16",
        "workload.train_examples=400",
        "workload.validation_examples=30",
        "workload.arguments={vocab_size:128,n_embd:32,n_layer:2,n_head:2}",
    ],
    "timm_image_folder": [
        "workload.path=data/photos",
        "workload.image_size=32",
        "workload.augmentation=crop_flip",
        "workload.train_examples=240",
        "workload.validation_examples=30",
        "workload.model_name=vit_tiny_patch16_224",
        "workload.arguments={img_size:32,patch_size:8,embed_dim:48,depth:2,num_heads:3}",
        "schedule=constant",
        "goal=val/cross_entropy_error < 0.5",
    ],
}
"""Workload of conf/workload -> the words that make it small."""

VISION = Path(sysconfig.get_path("purelib")) / "vision"
"""Where .ci/run puts timm and torchvision if torchvision is not compiled for the build of torch."""
OPERATORS = """
import torch
for name in ("nms", "qnms"):  # torchvision cannot be imported without them; the example does not call them
    torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
"""


def missing(packages: list[str]) -> list[str]:
    return [package for package in packages if importlib.util.find_spec(package) is None]


def swept(folder: Path, name: str) -> StudyData:
    """The study of a sweep of the workload `name` at one batch size, by the command line in an empty folder."""
    packages, make, _ = EXAMPLES[name]
    absent = missing(packages)
    apart = bool(absent) and all((VISION / package).exists() for package in absent)
    if absent and not apart:
        pytest.skip(f"needs {' and '.join(absent)}")
    for file, content in FILES.items():
        (folder / "mine" / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / "mine" / file).write_text(content)
    if apart:
        (folder / "start").mkdir()
        (folder / "start/sitecustomize.py").write_text(OPERATORS)
    if make is not None:
        make(folder)
    command = [sys.executable, "-m", "study", "sweep", "--config-dir", "mine", f"workload={name}", *TINY]
    command += SHIPPED.get(name, [])
    places = [doc_pages.ROOT, *sys.path, *([folder / "start", VISION] if apart else [])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [study] = load.load(folder / "results" / name)
    return study


@pytest.mark.slow
@pytest.mark.parametrize("name", partly(EXAMPLES, 2, rest=pytest.mark.release))
def test_the_workload_trains_and_its_error_falls(tmp_path, name):
    study = swept(tmp_path, name)
    _, _, judges = EXAMPLES[name]
    assert set(study.metrics) == {f"{split}/{judge}" for split in ("train", "val", "test") for judge in judges}
    assert study.goal.metric == f"val/{judges[-1]}"
    assert (study.trials["first_bad_step"].isna()).all()
    for split in ("train", "val", "test"):
        errors = study.measurements.dropna(subset=f"{split}/{judges[-1]}").groupby("trial")[f"{split}/{judges[-1]}"]
        assert errors.last().min() < 0.9 * errors.first().min()


def test_the_class_weights_of_the_page_are_those_of_cross_entropy():
    [block] = [block for block in doc_pages.blocks(PAGE, "python") if block.startswith("def weights")]
    names: dict = {"torch": torch}
    exec(block, names)
    outputs, targets = torch.randn(8, 2), torch.arange(8) % 3 % 2
    weights = names["weights"](None, targets)
    losses = torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
    wanted = torch.nn.functional.cross_entropy(outputs, targets, weight=torch.tensor([1.0, 4.0]))
    assert torch.allclose((weights * losses).sum() / weights.sum(), wanted)
