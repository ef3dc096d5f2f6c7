"""Shared by tests of checkpoints: studies, their trials, and the contents of checkpoints."""

import hashlib
import io
from collections.abc import Callable
from typing import Any

import torch

from study.records import Study, Trial
from study.search.points import point
from study.settings import Evaluation
from study.space import values

STEPS = 12
GRID = Evaluation(first=0.25, ratio=1.5)
RATE = {"low": 1e-3, "high": 0.1, "scale": "log"}
MOMENTUM = {"low": 0.5, "high": 0.99, "scale": "reverse_log"}
BETA = {"low": 0.5, "high": 0.9}
SPACES: dict[str, dict[str, Any]] = {
    "momentum": {"learning_rate": RATE | {"low": 1e-2, "high": 0.3}, "momentum": MOMENTUM, "ema_decay": 0.9},
    "adam": {"learning_rate": RATE, "beta1": BETA, "beta2": {"low": 0.9, "high": 0.99}, "epsilon": 1e-6},
    "soap": {"learning_rate": RATE, "beta1": BETA, "beta2": 0.9, "epsilon": 1e-6, "precondition_frequency": 3},
    "kfac": {"learning_rate": RATE, "momentum": 0.5, "damping": 0.1, "factor_decay": 0.9, "inverse_frequency": 3},
    # Keeps its step count beside the parameters' states.
    "pytorch_optimizer.Lamb": {"learning_rate": RATE},
}
WHOLE = ("kfac", "pytorch_optimizer.Lamb")

CASES = ["plain", "linear_chain", "vmap"]


def asked(make_study: Callable[..., Study], how: str, optimizer: str = "momentum", **fields: Any) -> Study:
    """A study of Blobs in an arithmetic; the plain one accumulates micro-batches."""
    defaults = {"space": SPACES[optimizer], "micro_batch": 3 if how == "plain" else None, "steps": STEPS}
    return make_study(optimizer=optimizer, arithmetic=how, evaluation=GRID, **defaults | fields)


def trial(study: Study, index: int, **changed: float) -> Trial:
    return study.trial(index, values(study.search.space, point(study, index)) | changed)


def held(content: bytes) -> dict[str, Any]:
    return torch.load(io.BytesIO(content[32:]), weights_only=True)


def step(content: bytes) -> int:
    return held(content)["step"]


def saved(content: Any, save: Any = torch.save) -> bytes:
    buffer = io.BytesIO()
    save(content, buffer)
    return hashlib.sha256(buffer.getvalue()).digest() + buffer.getvalue()
