"""CIFAR-10 as JPEG files, written by the program of docs/guide/images.md, and a plain training loop on them."""

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from house import doc_pages
from PIL import Image
from torch import Tensor

from study.data.order import epoch_permutation
from study.devices import generators
from study.records import Study, Trial
from workloads.data.datasets import permutation

PAGE = "docs/guide/images.md"
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def make(folder: Path, count: int | None = None) -> Path:
    """The first `count` training images in a folder for each class; None: all images, in train/ and test/."""
    program = folder.with_name("make_photos.py")
    program.write_text(doc_pages.named_blocks(PAGE)["make_photos.py"])
    runpy.run_path(str(program))["make"](folder, count)
    return folder


def examples(folder: Path) -> tuple[Tensor, Tensor]:
    """All images of class folders, in the order of their names, standardised by the constants of ImageNet."""
    files = sorted(folder.glob("*/*.jpg"))
    classes = sorted({file.parent.name for file in files})
    pixels = torch.from_numpy(np.stack([np.asarray(Image.open(file)) for file in files])).float()
    mean, deviation = 255 * torch.tensor(MEAN), 255 * torch.tensor(DEVIATION)
    labels = torch.tensor([classes.index(file.parent.name) for file in files])
    return ((pixels - mean) / deviation).permute(0, 3, 1, 2), labels


def losses_by_hand(study: Study, workload: Any, trial: Trial, folder: Path, steps: int) -> list[float]:
    """The mean loss before each of the first steps: decoded, divided, batched and descended without the package's data
    and engines."""
    inputs, labels = examples(folder / "train" if (folder / "train").is_dir() else folder)
    held_out = workload.validation_examples * (1 if (folder / "test").is_dir() else 2)
    training = torch.from_numpy(permutation(len(labels), workload.split_seed))[held_out:][: workload.train_examples]
    epochs = -(-steps * study.batch_size // len(training))
    order = torch.cat([epoch_permutation(trial.order_seed, epoch, len(training)) for epoch in range(epochs)])
    with generators.seeded(trial.seed):
        model = workload.model().to(memory_format=torch.channels_last)
    rates = trial.hyperparameters
    optimizer = torch.optim.SGD(
        model.parameters(), rates["learning_rate"], momentum=rates["momentum"], nesterov=True, fused=True
    )
    found = []
    for step in range(steps):
        index = training[order[step * study.batch_size : (step + 1) * study.batch_size]]
        batch = inputs[index].contiguous(memory_format=torch.channels_last)
        if workload.augmentation == "crop_flip":
            key = generators.key_of("augment", trial.order_seed, step)
            batch = workload.augment(batch, torch.Generator().manual_seed(key))
        loss = torch.nn.functional.cross_entropy(model(batch), labels[index], reduction="none").mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found
