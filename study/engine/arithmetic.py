"""How a step is computed: the rule that chooses among the arithmetics, which differ in a curve's last bits."""

from __future__ import annotations

import torch
from torch import nn

from study.engine.fused.layout import is_watched
from study.engine.fused.linear_chain import first_linear, is_linear_chain
from study.engine.fused.vmapped import can_vmap
from study.records import Study

DEFERRED_BATCH_SIZE = 8
"""First layers gain from being written once in a block of steps up to this batch size on a CPU; beyond it the products
take longer than the passes over memory that they save."""


DEFERRED_WEIGHTS = 2**14
"""The least first layer that gains is one of so many weights for each example of a batch."""


VMAP_BATCH_SIZE = 4
"""Convolutions gain from lanes up to this batch size on a CPU; beyond it one model's are as fast as many models'."""


VMAP_PARAMETERS = 2**19
"""Models gain from lanes up to this size on a CPU; beyond it each lane's parameters come from memory all the same."""


def arithmetic(model: nn.Module, study: Study, device: str, forced: bool = False) -> str:
    """The arithmetic that a study of this model is computed in; part of its question.

    `plain`, one model at a time, where batches are accumulated or in bf16, for optimizers that update whole models, and
    for models some of whose weights are frozen or have hooks on their gradients; else `bmm` for chains of linear
    layers, `deferred` where what their first layer moves in memory is all that a step costs, and `vmap` where one model
    alone would leave the device idle. A rule and no measurement, as each differs from the others in the last bits.
    `forced` lanes (`engine=lanes`) are taken wherever the model allows them.
    """
    frozen = not all(parameter.requires_grad for parameter in model.parameters())
    watched = any(map(is_watched, model.parameters()))
    alone = study.algorithm.update is None
    if study.micro_batch is not None or study.precision != "fp32" or frozen or watched or alone:
        return "plain"
    cpu = torch.device(device).type == "cpu"
    parameters = sum(parameter.numel() for parameter in model.parameters())
    if is_linear_chain(model):
        first = first_linear(model)
        great = first is not None and first.weight.numel() >= max(DEFERRED_WEIGHTS * study.batch_size, parameters / 2)
        linear = study.algorithm.linear and not study.averages
        return "deferred" if cpu and great and linear and study.batch_size <= DEFERRED_BATCH_SIZE else "bmm"
    small = study.batch_size <= VMAP_BATCH_SIZE and parameters <= VMAP_PARAMETERS
    if cpu and not small and not forced:
        return "plain"
    return "vmap" if can_vmap(model) else "plain"
