"""Rules for matrices. A convolution counts as a matrix [output channels, the rest]; vectors use an elementwise rule."""

import torch
from torch import Tensor

from study.optimizers.base import Scalars, State, Values
from study.optimizers.elementwise import adam, adam_state, averaged, started

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5
LARGEST_BASIS = 4096
"""SOAP does not rotate longer sides of a matrix: the basis would be larger than most models."""


def muon_state(w: Tensor) -> State:
    """State of Muon for matrices, of AdamW for the rest."""
    return {"mean": torch.zeros_like(w)} if w.dim() > 1 else adam_state(w)


def muon(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """Orthogonalised Nesterov momentum for matrices (Jordan et al. 2024), Adam for vectors.

    The update of a matrix [m, n] is scaled by 0.2 sqrt(max(m, n)), to the size of Adam's, so that one learning rate
    serves both (Liu et al. 2025). With decoupled `weight_decay`, vectors use AdamW.
    """
    if w.dim() < 2:
        return adam(w, g, s, h, t)
    mean = averaged(s["mean"], g, h["momentum"])
    ahead = torch.lerp(g, mean, h["momentum"]).flatten(1)
    size = 0.2 * max(ahead.shape) ** 0.5
    return w - h["learning_rate"] * size * _orthogonal(ahead).view(w.shape), {"mean": mean}


def _orthogonal(matrix: Tensor) -> Tensor:
    """Newton-Schulz iteration: brings all singular values close to 1."""
    a, b, c = NEWTON_SCHULZ
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.mT if tall else matrix
    x = x / torch.linalg.vector_norm(x).clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


def soap_state(w: Tensor) -> State:
    """Adam's moments; for each side of a matrix, the average of its outer products and their eigenvectors."""
    state = dict(adam_state(w))
    for side, length in _sides(w).items():
        state[side], state[f"{side}_basis"] = w.new_zeros(length, length), torch.eye(length, device=w.device)
    return state


def soap(w: Tensor, g: Tensor, s: State, h: Scalars, t: Tensor) -> tuple[Tensor, State]:
    """Adam in the eigenbasis of Shampoo's preconditioner (Vyas et al. 2024).

    The first gradient only sets the basis and changes no weight; `refresh_soap` updates the basis later. If the first
    gradient has a null space (a batch smaller than the layer, the outputs of a softmax), rounding decides the
    eigenvectors in it: equal bits give equal results, but two arithmetics or devices agree only to about 10 %.
    """
    gradient = g.flatten(1) if g.dim() > 1 else g
    rotated = _rotated(gradient, s).view(g.shape)
    mean = averaged(s["mean"], g, h["beta1"])
    square = averaged(s["square"], rotated * rotated, h["beta2"])
    seen = t - 1
    size = h["learning_rate"] * started(h["beta2"], seen).sqrt() / started(h["beta1"], seen)
    flat = mean.flatten(1) if g.dim() > 1 else mean
    direction = _rotated(flat, s).view(g.shape) / (square.sqrt() + h["epsilon"])
    direction = _rotated(direction.flatten(1) if g.dim() > 1 else direction, s, back=True).view(w.shape)
    moves = seen > 0
    state = {
        "mean": torch.where(moves, mean, s["mean"]),
        "square": torch.where(moves, square, s["square"]),
        **{name: basis for name, basis in s.items() if name.endswith("_basis")},
    }
    for side in _sides(w):
        outer = gradient @ gradient.mT if side == "left" else gradient.mT @ gradient
        state[side] = averaged(s[side], outer, h["beta2"])
    return torch.where(moves, w - size * direction, w), state


def soap_is_due(h: Values, step: int) -> bool:
    """Whether `refresh_soap` follows update number `step`: the first, then every `precondition_frequency` updates."""
    return (step - 1) % int(h["precondition_frequency"]) == 0


def refresh_soap(s: State, h: Values, step: int) -> State:
    """Set the basis at the first update; when it is due later, make one step of power iteration."""
    sides = [side for side in ("left", "right") if side in s]
    if not soap_is_due(h, step):
        return s
    state = dict(s)
    for side in sides:
        if not s[side].isfinite().all():  # diverged: the engine will notice
            return s
        if step == 1:
            state[f"{side}_basis"] = _eigenvectors(s[side]).flip(1)
            continue
        product = s[side] @ s[f"{side}_basis"]
        order = (s[f"{side}_basis"] * product).sum(0).argsort(descending=True)
        state[f"{side}_basis"] = torch.linalg.qr(product[:, order])[0]
        square = state["square"].flatten(1)
        square = square[order] if side == "left" else square[:, order]
        state["square"] = square.view_as(s["square"])
    return state


def _eigenvectors(matrix: Tensor) -> Tensor:
    """Eigenvectors of a symmetric matrix, by increasing eigenvalue."""
    try:
        return torch.linalg.eigh(matrix)[1]
    except torch.linalg.LinAlgError:  # GPU libraries may not converge when there is a null space
        return torch.linalg.eigh(matrix.cpu().double())[1].to(matrix)


def _sides(w: Tensor) -> dict[str, int]:
    """Name -> length of the sides of a matrix that SOAP rotates."""
    lengths = {} if w.dim() < 2 else {"left": w.shape[0], "right": w[0].numel()}
    return {side: length for side, length in lengths.items() if length <= LARGEST_BASIS}


def _rotated(matrix: Tensor, s: State, back: bool = False) -> Tensor:
    """Rotate into the eigenbasis, or back."""
    if "left_basis" in s:
        matrix = (s["left_basis"] if back else s["left_basis"].mT) @ matrix
    if "right_basis" in s:
        matrix = matrix @ (s["right_basis"].mT if back else s["right_basis"])
    return matrix
