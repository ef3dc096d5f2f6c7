"""Rules that scale the update of each layer by the norm of its weights."""

import torch
from torch import Tensor

from study.optimizers.base import Scalars, State
from study.optimizers.elementwise import adam_direction


def lars(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """Layer-wise adaptive rate scaling with momentum (You, Gitman & Ginsburg 2017).

    d = trust_coefficient |w| / (|g| + weight_decay |w|) (g + weight_decay w) for matrices and convolutions, d = g for
    biases; v <- m v + d; w <- w - lr v.
    """
    if w.dim() > 1:
        norm = torch.linalg.vector_norm(w)
        scale = ratio(h["trust_coefficient"] * norm, torch.linalg.vector_norm(g) + h["weight_decay"] * norm)
        g = scale * (g + h["weight_decay"] * w)
    v = h["momentum"] * s["velocity"] + g
    return w - h["learning_rate"] * v, {"velocity": v}


def lamb(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """d = Adam's direction + weight_decay w; w <- w - lr (|w| / |d|) d (You et al. 2020, algorithm 2).

    The ratio |w| / |d| of an all-zero layer is 1.
    """
    direction, state = adam_direction(g, s, h, t)
    d = direction + h["weight_decay"] * w
    return w - h["learning_rate"] * ratio(torch.linalg.vector_norm(w), torch.linalg.vector_norm(d)) * d, state


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """The quotient; 1 where either is 0."""
    usable = (numerator > 0) & (denominator > 0)
    return torch.where(usable, numerator / torch.where(usable, denominator, 1), 1)
