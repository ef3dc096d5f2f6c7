"""Whether the trials of a study can be fused, tried on its own model and optimizer before anything is written."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from study.data.resident import Data
from study.devices.memory import out_of_memory
from study.engine.fused.vmapped import Vmapped
from study.engine.lanes import Lanes
from study.engine.serial import Run
from study.engine.timing import started
from study.records import Study
from study.space import values
from workloads.base import Workload

GRAPH_TOLERANCE = 1e-3
"""How far gradients from a model's graph may lie from the model's own, by norms; rounding leaves some 1e-6."""


def lanes_can(study: Study, workload: Workload, data: Data) -> bool:
    """Whether two lanes of this model can take a step and be measured: `vmap` refuses randomness, unused parameters and
    much else. What is computed from a model's graph must be what the model computes.
    """
    try:
        with warnings.catch_warnings():
            # What `vmap` has no rule for it does lane by lane, which is slower than one model after the other.
            warnings.filterwarnings("error", message="There is a performance drop")
            lanes = started(replace(study, batch_size=2), workload, data, range(2))
            if study.arithmetic == "grouped" and not _as_alone(lanes):
                return False
            lanes.advance(1)
            with torch.no_grad():
                lanes.predictor(range(2))(data.as_model_wants(data.inputs[:2]))
    except (RuntimeError, ValueError, KeyError, IndexError, TypeError, NotImplementedError, UserWarning) as error:
        if out_of_memory(error):  # says nothing of the model, and a full device must not choose an arithmetic
            raise
        return False
    return True


def _as_alone(lanes: Lanes) -> bool:
    """Whether fused models have the outputs and gradients of models alone, of a few examples, but for rounding."""
    stack, count = lanes.stack, len(lanes.lanes)
    form = stack.form(stack.weights[:count])
    assert isinstance(form, Vmapped)
    inputs = lanes.data.gather(torch.arange(2 * count) % len(lanes.data.targets), count)
    keys = torch.arange(count * len(form.keys), dtype=torch.int32).view(count, -1)
    losses, found = form.backward(inputs, _squares, keys)
    for lane in range(count):
        weights = {name: view[lane].clone().requires_grad_() for name, view in stack.views.items()}
        buffers = dict(zip(form.keys, keys[lane], strict=True))
        outputs = torch.func.functional_call(stack.template, (weights, buffers), (inputs[lane],))
        loss = _squares(outputs.unsqueeze(0))
        slopes = torch.autograd.grad(loss.mean(), list(weights.values()), allow_unused=True)
        if any(slope is None for slope in slopes):
            return False
        pairs = [(losses.view(count, -1)[lane], loss.detach())]
        pairs += [(gradient[lane], slope.flatten()) for gradient, slope in zip(found, slopes, strict=True)]
        if not all(torch.linalg.vector_norm(a - b) <= GRAPH_TOLERANCE * torch.linalg.vector_norm(b) for a, b in pairs):
            return False
    return True


def _squares(outputs: Tensor) -> Tensor:
    """A loss of any outputs [l, B, ...]: [l * B]."""
    return outputs.flatten(0, 1).flatten(1).square().sum(1)


def refusal(study: Study, workload: Workload, data: Data) -> str | None:
    """Why an optimizer of whole models cannot take two steps at either end of the space; None if it can.

    Classes of others refuse values, models and ways of being called by whatever errors they raise.
    """
    small = replace(study, batch_size=2, micro_batch=None)
    for unit in (0.0, 1 - 1e-9):
        hyperparameters = values(study.search.space, [unit] * len(study.search.space))
        try:
            run = Run(small, workload, data, small.trial(0, hyperparameters))
            for _ in range(2):
                run.update(run.hyperparameters["learning_rate"])
                run.step += 1
        except Exception as error:
            told = str(error).splitlines()[0] if str(error) else type(error).__name__
            return f"with {', '.join(f'{name}={value:g}' for name, value in hyperparameters.items())}: {told}"
    return None
