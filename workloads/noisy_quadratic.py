"""The noisy quadratic model of Zhang et al. 2019 as a workload, which calibrates the sweep: its S(B) is known exactly.

Shapes: R replicas, d coordinates, B examples in a batch.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.base import PerExample, Splits, require_whole
from workloads.layers import GradientNoise


@dataclass(frozen=True, kw_only=True)
class NoisyQuadraticModel:
    """L = 1/2 sum_i theta_i^2 / i; at batch size B the gradient has noise of covariance diag(1/i) / B.

    Examples are empty: only their number in a batch matters. The loss is the mean over replicas that train side by
    side, each with its own start and noise. A single replica would not do: noise takes its loss below a goal a few
    percent before the expected loss. `workloads.noisy_quadratic_exact` solves the same model.

    Arguments:
        train_examples: nominal size of an epoch, at least the largest batch size.
        dimensions: d.
        replicas: R.
        preconditioner_power: p of the preconditioner P = diag(1/i)^-p, theta <- theta - learning_rate P g.
    """

    name: str
    train_examples: int
    dimensions: int = 1000
    replicas: int = 64
    preconditioner_power: float = 0.0

    hyperparameters = ()

    def __post_init__(self) -> None:
        for field in ("train_examples", "dimensions", "replicas"):
            require_whole(f"workload.{field}", getattr(self, field), 1)
        power = self.preconditioner_power
        if not isinstance(power, int | float) or not 0 <= power <= 1:
            raise ValueError(f"workload.preconditioner_power must be a number in [0, 1], but got {power!r}.")

    @property
    def errors(self) -> Mapping[str, PerExample]:
        return {"loss": lambda outputs, targets: outputs}

    def splits(self, device: torch.device) -> Splits:
        def empty(examples: int) -> tuple[Tensor, Tensor]:
            return torch.zeros(examples, 1, device=device), torch.zeros(examples, dtype=torch.int64, device=device)

        return Splits(empty(self.train_examples), empty(1), empty(1))

    def model(self) -> nn.Module:
        return Replicas(self.dimensions, self.replicas, self.preconditioner_power)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        # A sum over replicas, so that each follows its own gradient.
        return outputs * self.replicas


class Replicas(nn.Module):
    """Parameters phi [R, d] with theta = h^(-p/2) phi. A plain gradient step on phi is a step with P on theta.

    Inputs [B, ...] give outputs [B]; every output is the loss. In training, the gradient gets additional noise.
    """

    def __init__(self, dimensions: int, replicas: int, power: float) -> None:
        super().__init__()
        self.dimensions, self.power = dimensions, power
        self.phi = nn.Parameter(torch.randn(replicas, dimensions))
        self.noise = GradientNoise()
        with torch.no_grad():
            self.phi.div_(self.scale)

    @property
    def scale(self) -> Tensor:
        """h^(-p/2) [d]."""
        return self.curvatures ** (-self.power / 2)

    @property
    def curvatures(self) -> Tensor:
        """h [d], computed at each call: a buffer would be state, and fused models have none."""
        return 1 / torch.arange(1, self.dimensions + 1, dtype=torch.float32, device=self.noise.key.device)

    def forward(self, inputs: Tensor) -> Tensor:
        h, theta = self.curvatures, self.phi * self.scale if self.power else self.phi
        slope = 0.5 * h * theta
        if self.training:
            slope = slope + self.noise(theta.shape, (h / len(inputs)).sqrt())
        return ((slope * theta).sum() / len(theta)).expand(len(inputs))
