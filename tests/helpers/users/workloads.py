"""Workloads as users write them, each with one habit, on the same small blobs."""

import collections
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from workloads.base import Splits, classification_error, cross_entropy_error

CPU = torch.device("cpu")
COUNTS = (500, 200, 200)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 4))


def blobs() -> Splits:
    """500 / 200 / 200 Gaussian blobs in 10 dimensions, 4 classes."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 10, generator=generator)

    def draw(count: int) -> tuple[Tensor, Tensor]:
        targets = torch.randint(4, (count,), generator=generator)
        return centres[targets] + torch.randn(count, 10, generator=generator), targets

    return Splits(*map(draw, COUNTS))


@dataclass
class Base:
    """The workload without habits."""

    name: str = "blobs"
    train_examples: int = COUNTS[0]
    hyperparameters = ()

    @property
    def errors(self) -> Mapping[str, Callable[[Any, Any], Tensor]]:
        return {"classification_error": classification_error, "loss": cross_entropy_error}

    def splits(self, device: torch.device) -> Splits:
        return blobs()

    def model(self) -> nn.Module:
        return mlp()

    def loss(self, outputs: Any, targets: Any) -> Tensor:
        return cross_entropy_error(outputs, targets)


CLASS_WEIGHTS = torch.tensor([0.0, 0.5, 1.0, 4.0])


class ClassWeights(Base):
    """The batch's loss is a weighted mean; some batches of two examples weigh nothing."""

    def weights(self, targets: Tensor) -> Tensor:
        return CLASS_WEIGHTS[targets]


class ErrorWeights(Base):
    def error_weights(self, targets: Tensor) -> Tensor:
        return 1.0 + targets


class MeanLoss:
    """A metric with `update` and `compute`, as those of torchmetrics."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.total, self.count = 0.0, 0

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.total += float(F.cross_entropy(outputs, targets, reduction="sum"))
        self.count += len(targets)

    def compute(self) -> Tensor:
        return torch.tensor(self.total / self.count)


def average_precision_error(outputs: Tensor, targets: Tensor) -> float:
    """1 - the average precision of class 0: a property of the whole split."""
    order = outputs[:, 0].argsort(descending=True)
    hits = (targets[order] == 0).double()
    precision = hits.cumsum(0) / torch.arange(1, len(hits) + 1)
    return float(1 - (precision * hits).sum() / hits.sum())


class Metrics(Base):
    @property
    def metrics(self) -> Mapping[str, Any]:
        return {"average_precision_error": average_precision_error, "mean_loss": MeanLoss()}


class Counting(nn.Module):
    """Counts its forward passes in training, and cools down with them."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.n = mlp(), 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.n += 1
        return torch.tanh(self.inner(x) * 0.99**self.n)


class Stateful(Base):
    def model(self) -> nn.Module:
        return Counting()


class Writing(nn.Module):
    """Writes into its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, x: Tensor) -> Tensor:
        x -= 0.05
        x.mul_(1.5)
        return self.inner(x)


class WritingModel(Base):
    def model(self) -> nn.Module:
        return Writing()


def writing(function: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    """The same function, which then spoils its arguments."""

    def spoiling(outputs: Tensor, targets: Tensor) -> Any:
        found = function(outputs.clone(), targets.clone())
        with torch.no_grad():
            targets.fill_(0)
            if not outputs.requires_grad:
                outputs.fill_(7)
        return found

    return spoiling


class WritingFunctions(Metrics):
    @property
    def errors(self) -> Mapping[str, Callable[[Any, Any], Tensor]]:
        return {name: writing(error) for name, error in super().errors.items()}

    @property
    def metrics(self) -> Mapping[str, Any]:
        return {"average_precision_error": writing(average_precision_error)}

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return writing(cross_entropy_error)(outputs, targets)

    def weights(self, targets: Tensor) -> Tensor:
        found = CLASS_WEIGHTS[targets] + 1
        targets.fill_(0)
        return found


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp()

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.inner(torch.cat([left, right], dim=-1))


def _each(splits: Splits, change: Callable[[Tensor, Tensor], tuple[Any, Any]]) -> Splits:
    return Splits(*(change(*split) for split in splits))


class DictInputs(Base):
    def splits(self, device: torch.device) -> Splits:
        return _each(blobs(), lambda x, y: ({"right": x[:, 4:], "left": x[:, :4]}, y))

    def model(self) -> nn.Module:
        return TwoInputs()


class TupleInputs(DictInputs):
    def splits(self, device: torch.device) -> Splits:
        return _each(blobs(), lambda x, y: ((x[:, :4], x[:, 4:]), y))


class Outputs(NamedTuple):
    logits: Tensor
    hidden: Tensor


@dataclass
class Answer:
    """Outputs as a dataclass; the auxiliary logits are there in training alone."""

    logits: Tensor
    auxiliary: Tensor | None = None


class Answering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.side = mlp(), nn.Linear(10, 4)

    def forward(self, x: Tensor) -> Answer:
        return Answer(self.inner(x), self.side(x) if self.training else None)


class TreeOutputs(Base):
    """Outputs and targets are trees, and outputs differ between training and evaluation."""

    def splits(self, device: torch.device) -> Splits:
        return _each(blobs(), lambda x, y: (x, {"label": y, "weight": 1.0 + y}))

    @property
    def errors(self) -> Mapping[str, Callable[[Any, Any], Tensor]]:
        return {
            "classification_error": lambda o, t: classification_error(o.logits, t["label"]),
            "loss": lambda o, t: cross_entropy_error(o.logits, t["label"]),
        }

    def model(self) -> nn.Module:
        return Answering()

    def loss(self, outputs: Answer, targets: Mapping[str, Tensor]) -> Tensor:
        assert outputs.auxiliary is not None
        side = cross_entropy_error(outputs.auxiliary, targets["label"])
        return targets["weight"] * cross_entropy_error(outputs.logits, targets["label"]) + 0.3 * side


class Augmenting(Base):
    def augment(self, inputs: Tensor, generator: torch.Generator) -> Tensor:
        return inputs + torch.randn(inputs.shape, generator=generator, device=inputs.device)


class Attending(nn.Module):
    """Attention over five pairs of features, with a mask as a constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(2, 8), nn.Linear(40, 4)
        self.register_buffer("mask", torch.ones(5, 5, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x.view(*x.shape[:-1], 5, 2))
        return self.head(F.scaled_dot_product_attention(h, h, h, attn_mask=self.mask).flatten(-2))


class Masked(Base):
    def model(self) -> nn.Module:
        return Attending()


class Viewing(nn.Module):
    """Flattens with `view` after a convolution, which fails in the channels-last layout."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.head = nn.Conv2d(1, 3, (1, 2)), nn.Linear(3 * 2 * 4, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.convolution(x))
        return self.head(h.view(h.size(0), -1))


class Images(Base):
    def splits(self, device: torch.device) -> Splits:
        return _each(blobs(), lambda x, y: (x.view(-1, 1, 2, 5), y))

    def model(self) -> nn.Module:
        return Viewing()


class Jittered(Dataset):
    """A random `__getitem__`, with every global generator."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        noise = torch.randn(10) + np.random.normal()  # noqa: NPY002
        return self.inputs[index] + 0.1 * noise, self.targets[index]


class RandomItems(Base):
    def splits(self, device: torch.device) -> Splits:
        return Splits(*(Jittered(*split) for split in blobs()))


class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.gain = mlp(), random.random() + np.random.rand()  # noqa: NPY002

    def forward(self, x: Tensor) -> Tensor:
        return self.gain * self.inner(x) + random.random() + 0.1 * np.random.rand() + 0.1 * torch.rand(())  # noqa: NPY002


class Drawing(RandomItems):
    """Draws from every global generator wherever it can, in evaluation, too."""

    @property
    def errors(self) -> Mapping[str, Callable[[Any, Any], Tensor]]:
        return {
            "loss": lambda o, t: cross_entropy_error(o + torch.rand_like(o), t) + np.random.rand(),  # noqa: NPY002
            "classification_error": classification_error,
        }

    def model(self) -> nn.Module:
        return Noisy()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy_error(outputs, targets) * (0.5 + random.random())


class Remembering(Base):
    """The model keeps state of a class that no checkpoint holds."""

    def model(self) -> nn.Module:
        model = Counting()
        model.seen = collections.deque([0], maxlen=3)  # type: ignore[assignment]
        model.register_forward_hook(lambda *_: model.seen.append(model.n))
        return model


class CountingAlways(Stateful):
    def model(self) -> nn.Module:
        model = super().model()
        model.register_forward_pre_hook(lambda module, _: setattr(module, "n", module.n + 1))
        return model
