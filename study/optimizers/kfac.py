"""Kronecker-factored approximate curvature (K-FAC).

Hooks collect the inputs of each linear layer and the gradients of its outputs during the backward pass, so only the
serial engine can run it.

Shapes: B examples, m inputs of a layer (and 1, for its bias), n outputs; its parameters are one matrix [n, m + 1].
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from study.optimizers.base import State, Values
from study.optimizers.per_parameter import ALL_USUAL, Treatments, param_groups


def kfac_state(w: Tensor) -> State:
    """State of a layer [n, m + 1]: velocity, both factors and their damped inverses."""
    n, m = w.shape
    state = {"velocity": torch.zeros_like(w)}
    for side, size in (("inputs", m), ("outputs", n)):
        state |= {side: w.new_zeros(size, size), f"{side}_inverse": torch.eye(size, device=w.device)}
    return state


def kfac(
    w: Tensor, g: Tensor, s: State, h: Values, step: int, inputs: Tensor, outputs: Tensor, rate: float | Tensor
) -> tuple[Tensor, State]:
    """v <- m v + G^-1 g A^-1; w <- w - lr v (Martens & Grosse 2015, without their rescaling and their momentum).

    A = E[a a^T] and G = E[d d^T] are moving averages over batches with factor_decay. The damping is split so that
    (A + pi sqrt(damping)) x (G + sqrt(damping) / pi) is about A x G + damping (their section 6.3). a are the inputs of
    a layer, and d the gradients of its outputs for the true labels, not for labels drawn from the model: G belongs to
    the empirical Fisher matrix.

    Arguments:
        inputs, outputs: this batch's A [m + 1, m + 1] and G [n, n].
        rate: the learning rate, or one for each column [m + 1].
    """
    keep = min(1 - 1 / step, h["factor_decay"])
    state = {"inputs": s["inputs"].lerp(inputs, 1 - keep), "outputs": s["outputs"].lerp(outputs, 1 - keep)}
    for side, inverse in damped_inverses(state, h).items() if (step - 1) % int(h["inverse_frequency"]) == 0 else ():
        state[f"{side}_inverse"] = inverse
    state = {**s, **state}
    v = h["momentum"] * s["velocity"] + state["outputs_inverse"] @ g @ state["inputs_inverse"]
    return w - rate * v, {**state, "velocity": v}


def damped_inverses(factors: State, h: Values) -> dict[str, Tensor]:
    """(A + pi sqrt(damping) I)^-1 and (G + sqrt(damping) / pi I)^-1, pi^2 the ratio of their mean eigenvalues."""
    mean = {side: factors[side].diagonal().mean() for side in ("inputs", "outputs")}
    positive = (mean["inputs"] > 0) & (mean["outputs"] > 0)
    pi = torch.where(positive, mean["inputs"] / torch.where(positive, mean["outputs"], 1), 1).sqrt()
    found = {}
    for side, share in (("inputs", pi), ("outputs", 1 / pi)):
        damping = share * h["damping"] ** 0.5 * torch.eye(len(factors[side]), device=share.device)
        found[side] = torch.linalg.inv_ex(factors[side] + damping).inverse  # does not raise when a trial has diverged
    return found


Collected = dict[int, tuple[Tensor, Tensor, int]]


def _collect(found: Collected, number: int, layer: nn.Linear, inputs: tuple[Tensor, ...], outputs: Tensor) -> None:
    """Forward hook: have the backward pass add this batch's outer products to `found`."""
    if not outputs.requires_grad:
        return
    a = inputs[0].detach().flatten(0, -2).float()  # bf16 sums would keep only two digits
    a = a if layer.bias is None else torch.cat([a, a.new_ones(len(a), 1)], 1)

    def add(gradient: Tensor) -> None:
        """Add the sums of this backward pass, one of several when micro-batches accumulate."""
        d = gradient.flatten(0, -2).float()
        before = found.get(number, (0, 0, 0))
        found[number] = before[0] + a.mT @ a, before[1] + d.mT @ d, before[2] + len(a)

    outputs.register_hook(add)


class KFAC(torch.optim.Optimizer):
    """K-FAC for every linear layer of a model; heavy-ball momentum at the same learning rate for the rest."""

    def __init__(self, model: nn.Module, hyperparameters: Values, treatments: Treatments = ALL_USUAL) -> None:
        rate = hyperparameters["learning_rate"]
        super().__init__(param_groups(model, rate, treatments), {"lr": rate})
        self.hyperparameters = hyperparameters
        linear = (layer for layer in model.modules() if type(layer) is nn.Linear)
        self.layers = [layer for layer in linear if all(p.requires_grad for p in layer.parameters())]
        self.collected: Collected = {}
        """Index of a layer -> (sum of outer products of inputs, of output gradients, number of examples)."""
        for number, layer in enumerate(self.layers):
            # The hook holds neither `self` nor the layer: a cycle would keep the model alive after its trial.
            layer.register_forward_hook(partial(_collect, self.collected, number))

    @torch.no_grad()
    def step(self, closure: Any) -> Any:  # type: ignore[override]
        """One update with the gradients and factors that `closure` computes; returns its loss."""
        self.collected.clear()
        with torch.enable_grad():
            loss = closure()
        rates = {parameter: group["lr"] for group in self.param_groups for parameter in group["params"]}
        done = set()
        for number, layer in enumerate(self.layers):
            if number in self.collected:
                done |= set(layer.parameters())
                self._update(layer, *self.collected[number], rates)
        for parameter, rate in rates.items():
            if parameter.grad is not None and parameter not in done:
                held = self.state[parameter] or {"velocity": torch.zeros_like(parameter)}
                held["velocity"] = self.hyperparameters["momentum"] * held["velocity"] + parameter.grad
                parameter.sub_(rate * held["velocity"])
                self.state[parameter] = held
        return loss

    def _update(self, layer: nn.Linear, a: Tensor, d: Tensor, count: int, rates: Mapping[Tensor, float]) -> None:
        parts = [layer.weight] if layer.bias is None else [layer.weight, layer.bias.unsqueeze(1)]
        matrix = torch.cat(parts, 1)
        slopes = torch.cat([p.grad.view(len(matrix), -1) for p in layer.parameters() if p.grad is not None], 1)
        held = self.state[layer.weight] or {"step": 0, **kfac_state(matrix)}
        step = held.pop("step") + 1
        rate: float | Tensor = rates[layer.weight]
        if layer.bias is not None and rates[layer.bias] != rate:
            rate = torch.full_like(matrix[0], rates[layer.weight])
            rate[-1] = rates[layer.bias]
        # Gradients are those of the mean loss; gradients of single examples are `count` times as large.
        new, state = kfac(matrix, slopes, held, self.hyperparameters, step, a / count, d * count, rate)
        layer.weight.copy_(new[:, : layer.in_features])
        if layer.bias is not None:
            layer.bias.copy_(new[:, -1])
        self.state[layer.weight] = {"step": step, **state}
