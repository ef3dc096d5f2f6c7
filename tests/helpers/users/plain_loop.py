"""A plain training loop for the workloads of users, written without the engines."""

from typing import Any

import torch
from torch import Tensor, nn

from helpers.users.workloads import CPU
from study.data.order import epoch_permutation
from study.devices import generators
from study.records import Study, Trial


def _mean(losses: Tensor, weights: Tensor | None) -> Tensor:
    if weights is None:
        return losses.mean()
    return (losses * weights).sum() / weights.sum() if weights.sum() > 0 else (losses * weights).sum()


def _evaluated(workload: Any, model: nn.Module, inputs: Any, targets: Any) -> dict[str, float]:
    with torch.no_grad():
        model.eval()
        outputs = _call(model, inputs)
        fresh = lambda: _take(targets, slice(None))  # noqa: E731
        model.train()
        weigh = getattr(workload, "error_weights", None)
        found = {}
        for name, error in workload.errors.items():
            each = error(_take(outputs, slice(None)), fresh())
            found[name] = float(each.mean() if weigh is None else (weigh(fresh()) * each).sum() / weigh(fresh()).sum())
        for name, metric in getattr(workload, "metrics", {}).items():  # a new object at each access
            if hasattr(metric, "update"):
                metric.update(_take(outputs, slice(None)), fresh())
                found[name] = float(metric.compute())
            else:
                found[name] = float(metric(_take(outputs, slice(None)), fresh()))
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


def _read(split: Any, key: int, index: Tensor | None = None) -> Any:
    """The inputs and targets of some examples or all; a `__getitem__` draws from generators seeded before each."""
    if isinstance(split, tuple):
        return _take(split, slice(None) if index is None else index)
    found = []
    with generators.restored():
        for number in range(len(split)) if index is None else index.tolist():
            generators.seed(generators.key_of(key, number))
            found.append(split[number])
    return tuple(map(torch.stack, zip(*found, strict=True)))


def by_hand(study: Study, workload: Any, trial: Trial) -> dict[str, list[float]]:
    """The validation errors of a trial at each evaluation, by a plain loop of SGD with momentum."""
    splits = workload.splits(CPU)
    with generators.seeded(trial.seed):
        model = workload.model()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=trial.hyperparameters["learning_rate"], momentum=trial.hyperparameters["momentum"]
    )
    order = torch.cat([epoch_permutation(trial.order_seed, epoch, 500) for epoch in range(20)])
    found: dict[str, list[float]] = {}
    for step in range(study.train_steps):
        index = order[step * study.batch_size : (step + 1) * study.batch_size]
        inputs, targets = _read(splits.train, generators.key_of("example", trial.order_seed, step), index)
        if hasattr(workload, "augment"):
            key = generators.key_of("augment", trial.order_seed, step)
            inputs = workload.augment(inputs, torch.Generator().manual_seed(key))
        weights = workload.weights(_take(targets, slice(None))) if hasattr(workload, "weights") else None
        optimizer.zero_grad()
        _mean(workload.loss(_call(model, inputs), targets), weights).backward()
        optimizer.step()
        if step + 1 in study.evaluation_steps:
            for name, value in _evaluated(workload, model, *_read(splits.val, 0)).items():
                found.setdefault(name, []).append(value)
    return found
