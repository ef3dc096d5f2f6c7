"""The cross entropy of image classification with its gradient written out: autograd takes a third of a small step.

Shapes: N examples of all lanes, C classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from workloads.base import IGNORED, Workload
from workloads.classification import Classification

aten = torch.ops.aten
NO_REDUCTION = 0
_LOSS = Classification.loss


@dataclass(frozen=True)
class CrossEntropy:
    """Outputs [l, B, C] -> the cross entropy of every example [l * B]. `targets` [l * B]."""

    targets: Tensor

    def __call__(self, outputs: Tensor) -> Tensor:
        return F.cross_entropy(outputs.flatten(0, 1), self.targets, reduction="none", ignore_index=IGNORED)

    def differentiated(self, outputs: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """(losses [l * B], gradient [l, B, C] of `scale` times their sum), by the operations of `__call__` and of its
        backward pass: every bit is theirs."""
        logits = outputs.detach().flatten(0, 1)
        how = self.targets, None, NO_REDUCTION, IGNORED
        logarithms = aten._log_softmax(logits, 1, False)
        losses, total = aten.nll_loss_forward(logarithms, *how)
        gradient = aten.nll_loss_backward(torch.full_like(losses, scale), logarithms, *how, total)
        gradient = aten._log_softmax_backward_data(gradient, logarithms, 1, logits.dtype)
        return losses, gradient.view(outputs.shape)


def is_cross_entropy(workload: Workload) -> bool:
    """Whether the loss of a workload without tuned hyperparameters is nothing but the cross entropy: that of
    `Classification`, which no subclass replaces, without label smoothing."""
    if not isinstance(workload, Classification) or "loss" in vars(workload):
        return False
    return type(workload).loss is _LOSS and workload.label_smoothing == 0
