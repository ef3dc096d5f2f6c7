"""Studies of older versions that this version must not continue, because it computes their steps differently."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from analysis.question import older
from study.engine.fused.layout import is_plain_sequence, is_watched
from study.records import Study
from workloads.user_code.importing import build

LEAST_WEIGHTS = 2**20
"""Older versions factored gradients of linear layers with at least this number of weights."""
MOST_EXAMPLES = 8
"""Largest batch size at which they did so."""
OPTIMIZERS = ("sgd", "momentum", "nesterov", "adam", "adamw")
"""Optimizers with which they did so."""


def refusal(study: Study, runs: Sequence[Mapping[str, Any]]) -> str | None:
    """Why a study on disk cannot be continued; None if it can. `runs`: records of the runs that trained its trials."""
    if study.arithmetic in older.REMOVED_ARITHMETICS:
        return f"they were computed in the arithmetic {study.arithmetic}, which was removed"
    alone = any(
        older.is_older(run) and str(run.get("device")).startswith("cpu") and run.get("devices", 1) == 1 for run in runs
    )
    if alone and factored(study):
        return (
            f"an older version updated their linear layers of {LEAST_WEIGHTS:,} weights or more by factored gradients "
            f"(batch sizes up to {MOST_EXAMPLES} on a CPU), which were removed"
        )
    return None


def factored(study: Study) -> bool:
    """Whether older versions factored gradients of this study when a single process trained it on a CPU."""
    if study.arithmetic != "plain" or study.precision != "fp32" or study.micro_batch is not None:
        return False
    if study.optimizer not in OPTIMIZERS or study.batch_size > MOST_EXAMPLES:
        return False
    model = build(study.workload).model()
    known = ("torch.nn.modules.", "workloads.layers.")
    if not is_plain_sequence(model) or not all(f"{type(m).__module__}.".startswith(known) for m in model.modules()):
        return False
    modules = [module for _, module in model.named_modules(remove_duplicate=False)]
    used = [id(parameter) for module in modules for parameter in module._parameters.values()]
    return any(
        type(layer) is nn.Linear
        and layer.weight.numel() >= LEAST_WEIGHTS
        and layer.weight.requires_grad
        and not is_watched(layer.weight)
        and used.count(id(layer.weight)) == 1
        for layer in model.children()
    )
