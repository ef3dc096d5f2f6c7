"""Rules that treat every number alike.

Here and in the other families: w parameter, g gradient, s state, h hyperparameters, t number of the update.
"""

import torch
from torch import Tensor

from study.optimizers.base import Scalars, State


def sgd(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """w <- w - lr g (Robbins & Monro 1951)."""
    return w - h["learning_rate"] * g, {}


def momentum_state(w: Tensor) -> State:
    """State of momentum."""
    return {"velocity": torch.zeros_like(w)}


def momentum(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """v <- m v + g; w <- w - lr v (Polyak 1964)."""
    v = h["momentum"] * s["velocity"] + g
    return w - h["learning_rate"] * v, {"velocity": v}


def nesterov(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """v <- m v + g; w <- w - lr (g + m v) (Sutskever et al. 2013, in the variables of Bengio et al. 2013)."""
    v = h["momentum"] * s["velocity"] + g
    return w - h["learning_rate"] * (g + h["momentum"] * v), {"velocity": v}


def folded_momentum_state(w: Tensor) -> State:
    """State of momentum with the learning rate folded into the velocity."""
    return {"velocity": torch.zeros_like(w), "learning_rate": w.new_zeros(())}


def folded_momentum(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """v <- m v + lr g; w <- w - v: the learning rate folded into the velocity (Goyal et al. 2017, section 3).

    With `momentum_correction` 1, v <- m (lr / previous lr) v + lr g, which equals `momentum` whenever the learning
    rate changes. With 0, past gradients keep the learning rate of their own step.
    """
    rate, before = h["learning_rate"], s["learning_rate"]
    known = (before > 0) & (h["momentum_correction"] > 0)
    correction = torch.where(known, rate / torch.where(known, before, 1), 1)
    v = h["momentum"] * correction * s["velocity"] + rate * g
    return w - v, {"velocity": v, "learning_rate": rate}


def rmsprop_state(w: Tensor) -> State:
    """State of RMSProp."""
    return {"square": torch.zeros_like(w), "velocity": torch.zeros_like(w)}


def rmsprop(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """q <- beta2 q + (1 - beta2) g^2; v <- m v + g / (sqrt(q) + epsilon); w <- w - lr v (Tieleman & Hinton 2012)."""
    square = averaged(s["square"], g * g, h["beta2"])
    v = h["momentum"] * s["velocity"] + g / (square.sqrt() + h["epsilon"])
    return w - h["learning_rate"] * v, {"square": square, "velocity": v}


def adam_state(w: Tensor) -> State:
    """State of Adam: averages of the gradient and of its square."""
    return {"mean": torch.zeros_like(w), "square": torch.zeros_like(w)}


def adam(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """Adam with bias correction (Kingma & Ba 2015)."""
    direction, state = adam_direction(g, s, h, t)
    return w - h["learning_rate"] * direction, state


def adamw(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """Adam with decoupled decay: w <- (1 - lr weight_decay) w, then Adam (Loshchilov & Hutter 2019)."""
    return adam((1 - h["learning_rate"] * h["weight_decay"]) * w, g, s, h, t)


def adam_direction(g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """(mean / (sqrt(square) + epsilon), both corrected for their start at 0; the new moments)."""
    mean, square = averaged(s["mean"], g, h["beta1"]), averaged(s["square"], g * g, h["beta2"])
    deviation = (square / started(h["beta2"], t)).sqrt() + h["epsilon"]
    return mean / started(h["beta1"], t) / deviation, {"mean": mean, "square": square}


def started(beta: Tensor, t: Tensor) -> Tensor:
    """1 - beta^t: the total weight of t values in a moving average that began at 0."""
    return (1 - beta.double() ** t).float()  # at beta 0.9999 and t = 1, float32 keeps three digits


def nadam_state(w: Tensor) -> State:
    """State of NAdam: Adam's moments and the product of the momenta so far."""
    return {**adam_state(w), "product": w.new_ones(())}


def nadam(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """Adam with Nesterov momentum, mu_t = beta1 (1 - 0.96^(0.004 t) / 2) (Dozat 2016)."""
    now, following = (h["beta1"] * (1 - 0.5 * 0.96 ** (0.004 * (t + later))) for later in (0, 1))
    mean, square = averaged(s["mean"], g, h["beta1"]), averaged(s["square"], g * g, h["beta2"])
    product = s["product"] * now
    ahead = g * ((1 - now) / (1 - product)) + mean * (following / (1 - product * following))
    deviation = (square / started(h["beta2"], t)).sqrt() + h["epsilon"]
    state = {"mean": mean, "square": square, "product": product}
    return w - h["learning_rate"] * ahead / deviation, state


def lion_state(w: Tensor) -> State:
    """State of Lion."""
    return {"mean": torch.zeros_like(w)}


def lion(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """w <- w - lr sign(beta1 m + (1 - beta1) g); m <- beta2 m + (1 - beta2) g (Chen et al. 2023)."""
    direction = averaged(s["mean"], g, h["beta1"]).sign()
    return w - h["learning_rate"] * direction, {"mean": averaged(s["mean"], g, h["beta2"])}


def averaged(old: Tensor, new: Tensor, beta: Tensor) -> Tensor:
    """beta old + (1 - beta) new."""
    return torch.lerp(old, new, 1 - beta)
