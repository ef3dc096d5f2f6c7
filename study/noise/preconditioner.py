"""The factors by which Adam and its relatives scale each number of a gradient, from the state of the optimizer."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from study.engine.run import Run

SQUARES = ("exp_avg_sq", "square")
"""The names of the averaged squares of gradients: in the state of torch's optimizers, and in that of ours."""
OTHERS = ("soap", "muon")
"""They keep such squares of rotated gradients, or of some parameters only."""


def preconditioner(run: Run) -> Tensor | None:
    """1 / (sqrt(v) + epsilon) for each trained number of the model [P]; None if the optimizer divides by no such root.

    As in the update, v is corrected for its start at 0, except in RMSProp.
    """
    trained = [parameter for parameter in run.model.parameters() if parameter.requires_grad]
    if run.study.optimizer in OTHERS or not any(map(run.optimizer.state.get, trained)):
        return None
    groups = {id(parameter): group for group in run.optimizer.param_groups for parameter in group["params"]}
    found = [_factors(run, parameter, groups[id(parameter)]) for parameter in trained]
    known = [each.flatten() for each in found if each is not None]
    return torch.cat(known) if len(known) == len(found) else None


def _factors(run: Run, parameter: Tensor, group: Mapping[str, Any]) -> Tensor | None:
    """The factors of one parameter, in its shape; None if the optimizer keeps no squares of its gradient."""
    state, h = run.optimizer.state.get(parameter), run.hyperparameters
    if not state:
        return torch.ones_like(parameter)  # the loss does not use it
    square = next((state[name] for name in SQUARES if name in state), None)
    beta = group["betas"][1] if "betas" in group else h.get("beta2")
    epsilon = group.get("eps", h.get("epsilon"))
    if square is None or beta is None or epsilon is None or square.shape != parameter.shape:
        return None
    started = 1.0 if run.study.optimizer == "rmsprop" else 1 - beta ** float(state["step"])
    return 1 / ((square / started).sqrt() + epsilon)
