"""The fingerprint of a workload: numbers that change when its code, its data or its initial weights change.

Trials are mixed only if their fingerprints agree. Keys that only one of two fingerprints has, because another version
wrote it, are not compared.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import nn

from study import store
from study.checks.calling import in_the_loss
from study.config.code_fingerprint import code
from study.config.jobs import Job
from study.data import digest, trees
from study.devices import generators
from study.records import Study
from workloads.base import PerExample, Splits, Workload

TOLERANCE = 1e-3
"""Relative, for the means of an untrained model. They differ by rounding between machines."""
OF_OPTIMIZER = "optimizer "
"""Prefix of the keys that only trials of one optimizer share."""

Fingerprint = Mapping[str, float]


def fingerprint(study: Study, workload: Workload, few: tuple[trees.Tree, trees.Tree], splits: Splits) -> Fingerprint:
    """The fingerprint of a workload, equal for all its studies.

    Arguments:
        few: inputs and targets of the first training examples.
    """
    inputs, targets = few
    with generators.seeded(0), torch.no_grad():
        model = workload.model().train()
        weights = _weights(model)
        outputs = trees.call(model, trees.cloned(inputs))
        # The loss is left out if it is tuned: it then depends on the search space.
        judged = dict(workload.errors) if in_the_loss(study, workload) else {**workload.errors, "loss": workload.loss}
        found = {name: _judged(judge, outputs, targets) for name, judge in judged.items()}
        untrained = {f"untrained {name}": mean for name, mean in found.items() if mean is not None}
    parts = [type(workload), study.workload["_target_"].rpartition(".")[0], *map(type, model.modules())]
    return {
        "parameters": float(sum(parameter.numel() for parameter in model.parameters())),
        "mean input": _mean(inputs),
        "mean target": _mean(targets),
        **untrained,
        **weights,
        **code(parts),
        **digest.digest(workload, splits),
    }


def of_optimizer(study: Study) -> Fingerprint:
    """The hashes of the code of a user's own optimizer class; empty for other optimizers."""
    module, _, _ = study.optimizer.rpartition(".")
    return {f"{OF_OPTIMIZER}{key}": value for key, value in code([module] if module else []).items()}


def _judged(judge: PerExample, outputs: trees.Tree, targets: trees.Tree) -> float | None:
    """The mean of an error of outputs in training; None if it takes those of evaluations alone, such as a tensor where
    a model in training returns more, for an auxiliary loss."""
    try:
        return _mean(judge(outputs, targets))
    except Exception:  # the check before a sweep has called the loss in training, and the errors in evaluation
        return None


def _mean(tree: trees.Tree) -> float:
    means = [float(leaf.real.double().mean()) for leaf in trees.leaves(tree)]  # the digest of the data has all parts
    return sum(means) / max(1, len(means))


def _weights(model: nn.Module) -> dict[str, float]:
    """Projections of all parameters and buffers, each normalised for itself: none hides behind a larger one."""
    found = [digest.numbers([[each]]) for each in (*model.parameters(), *model.buffers()) if each.numel()]
    names = ["size", *(f"projection {k}" for k in range(digest.PROJECTIONS))]
    # A weight for each place, so that two tensors that changed places are noticed.
    scales = [math.cos(place) + 2 for place in range(len(found))]
    return {
        f"weights {name}": sum(scale * each.get(f"0 {name}", 0.0) for scale, each in zip(scales, found, strict=True))
        for name in names
    }


def changes(jobs: Iterable[Job]) -> dict[tuple[Path, str, str], str]:
    """(results folder, workload, optimizer) -> what changed since trials in that folder were trained, if something did.

    An example is `its code changed (mine.py)`.
    """
    recorded: dict[tuple[Path, str], list[tuple[str, dict[str, float]]]] = {}
    found = {}
    for job in jobs:
        results, name, optimizer = job.results, job.study.name, job.study.series
        if (results, name) not in recorded:
            recorded[results, name] = store.fingerprints(results, name)
        said: list[str] = []
        for trained_with, held in recorded[results, name]:
            with_other = trained_with != optimizer
            ours = {key: value for key, value in held.items() if not (with_other and key.startswith(OF_OPTIMIZER))}
            said += compared(ours, job.fingerprint)
        if said:
            found[results, name, optimizer] = " and ".join(dict.fromkeys(said))
    return found


def compared(held: Fingerprint, known: Fingerprint) -> list[str]:
    """A phrase for each part of a workload that differs between two fingerprints."""
    said = []
    for prefix, whose in (("", "its code"), (OF_OPTIMIZER, "the code of its optimizer")):
        if files := _files_changed(held, known, f"{prefix}code"):
            said.append(f"{whose} changed ({', '.join(files)})")
    if splits := digest.changed(held, known):
        said.append(f"its data changed ({digest.named(splits)})")
    pairs = [(held[key], known[key]) for key in held.keys() & known.keys() if key.startswith("weights ")]
    if not all(math.isclose(*pair, rel_tol=digest.TOLERANCE, abs_tol=digest.TOLERANCE) for pair in pairs):
        said.append("the initial weights of its model changed")
    # Older fingerprints have only these. They follow from code, data and weights.
    keys = [key for key in held if key in known and key.startswith(("parameters", "mean ", "untrained "))]
    differing = [key for key in keys if not _alike(held[key], known[key])]
    if differing and not said:
        details = ", ".join(f"{key} {held[key]:.6g}, now {known[key]:.6g}" for key in sorted(differing))
        said.append(f"its code or data changed ({details})")
    return said


def _files_changed(held: Fingerprint, known: Fingerprint, key: str) -> list[str]:
    """The files whose code changed, or which only one of two fingerprints has; empty if `key` is not in both."""
    if not (key in held and key in known) or held[key] == known[key]:
        return []
    names = [each for each in {**held, **known} if each.startswith(f"{key} ")]
    return [each.removeprefix(f"{key} ") for each in sorted(names) if held.get(each) != known.get(each)]


def _alike(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE) or (math.isnan(one) and math.isnan(other))
