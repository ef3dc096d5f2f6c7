"""A workload of made images, as a user would write it: its file and its YAML."""

from __future__ import annotations

IMAGES = """
from dataclasses import dataclass

import torch

from workloads.base import Splits, classification_error, cross_entropy_error


@dataclass(frozen=True)
class Images:
    name: str
    train_examples: int
    errors = {"classification_error": classification_error, "cross_entropy_error": cross_entropy_error}
    hyperparameters = ()

    def splits(self, device):
        generator = torch.Generator().manual_seed(0)
        inputs, labels = torch.randn(200, 1, 4, 4, generator=generator), torch.arange(200) % 2
        return Splits(*zip((inputs + 0.5 * labels.view(-1, 1, 1, 1)).split([100, 50, 50]), labels.split([100, 50, 50])))

    def model(self):
        return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 2))

    def loss(self, outputs, targets):
        return cross_entropy_error(outputs, targets)
"""


YAML = """# @package _global_
workload: {_target_: made_images.Images, name: images, train_examples: 100}
goal: val/classification_error < 0.3
batch_sizes: [2, 4, 8, 16]
budget: {epochs: 0, steps: 60}
search: {trials: 3}
"""
