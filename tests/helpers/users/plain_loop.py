"""A plain training loop for the workloads of users, written without the engines."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from helpers.users.workloads import CPU
from study.data.order import epoch_permutation
from study.devices import generators
from study.records import Study, Trial
from workloads.base import cross_entropy_error


def _mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return losses.mean()
    return (losses * weights).sum() / weights.sum() if weights.sum() > 0 else (losses * weights).sum()


def _evaluated(workload: Any, model: nn.Module, split: tuple[Any, Any], take: Callable[[Any, Any], Any]) -> dict:
    with torch.no_grad():
        model.eval()
        inputs, targets = split
        outputs = _call(model, take(inputs, slice(None)))
        fresh = lambda: take(targets, slice(None))  # noqa: E731
        model.train()
        weigh = getattr(workload, "error_weights", None)
        found = {}
        for name, error in workload.errors.items():
            each = error(take(outputs, slice(None)), fresh())
            found[name] = float(each.mean() if weigh is None else (weigh(fresh()) * each).sum() / weigh(fresh()).sum())
        for name, metric in getattr(workload, "metrics", {}).items():  # a new object at each access
            if hasattr(metric, "update"):
                metric.update(take(outputs, slice(None)), fresh())
                found[name] = float(metric.compute())
            else:
                found[name] = float(metric(take(outputs, slice(None)), fresh()))
    return found


def _call(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, dict):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _take(tree: Any, index: Any) -> Any:
    """A copy of some examples."""
    if isinstance(tree, dict):
        return {key: _take(value, index) for key, value in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_take(value, index) for value in tree)
    return tree[index].clone() if isinstance(tree, Tensor) else tree


def by_hand(study: Study, workload: Any, trial: Trial) -> dict[str, list[float]]:
    """The validation errors of a trial at each evaluation, by a plain loop of SGD with momentum."""
    splits = workload.splits(CPU)
    with generators.seeded(trial.seed):
        model = workload.model()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=trial.hyperparameters["learning_rate"], momentum=trial.hyperparameters["momentum"]
    )
    orders = {epoch: epoch_permutation(trial.order_seed, epoch, 500) for epoch in range(20)}
    order = torch.cat(list(orders.values()))
    found: dict[str, list[float]] = {}
    for step in range(study.train_steps):
        index = order[step * study.batch_size : (step + 1) * study.batch_size]
        inputs, targets = (_take(tree, index) for tree in splits.train)
        if hasattr(workload, "augment"):
            key = generators.key_of("augment", trial.order_seed, step)
            inputs = workload.augment(inputs, torch.Generator().manual_seed(key))
        weights = workload.weights(_take(targets, slice(None))) if hasattr(workload, "weights") else None
        optimizer.zero_grad()
        _mean(workload.loss(_call(model, inputs), targets), weights).backward()
        optimizer.step()
        if step + 1 in study.evaluation_steps:
            for name, value in _evaluated(workload, model, splits.val, _take).items():
                found.setdefault(name, []).append(value)
    return found


def with_random_items(study: Study, workload: Any, trial: Trial) -> list[float]:
    """The validation losses of `by_hand` for a data set with a random `__getitem__`, seeded before each example."""

    def read(split: Dataset, indices: Any, key: int) -> tuple[Tensor, Tensor]:
        found = []
        for index in indices:
            generators.seed(generators.key_of(key, int(index)))
            found.append(split[int(index)])
        inputs, targets = zip(*found, strict=True)
        return torch.stack(inputs), torch.stack(targets)

    splits = workload.splits(CPU)
    with generators.seeded(trial.seed):
        model = workload.model()
    rates = trial.hyperparameters
    optimizer = torch.optim.SGD(model.parameters(), lr=rates["learning_rate"], momentum=rates["momentum"])
    order, losses = torch.cat([epoch_permutation(trial.order_seed, epoch, 500) for epoch in range(3)]), []
    with generators.restored():
        for step in range(study.train_steps):
            index = order[step * study.batch_size : (step + 1) * study.batch_size]
            inputs, targets = read(splits.train, index, generators.key_of("example", trial.order_seed, step))
            optimizer.zero_grad()
            workload.loss(model(inputs), targets).mean().backward()
            optimizer.step()
            if step + 1 in study.evaluation_steps:
                inputs, targets = read(splits.val, range(200), 0)
                with torch.no_grad():
                    losses.append(float(cross_entropy_error(model(inputs), targets).mean()))
    return losses
