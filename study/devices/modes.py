"""Settings of torch that hold for a whole process, and which a user's code may leave changed."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch

THREADS = "torch.set_num_threads"
PRECISION = "torch.set_float32_matmul_precision"


def _products() -> str:
    """The precisions of products. torch's own function fails once code has assigned `fp32_precision`."""
    own: Any = torch.backends
    found = {each.matmul.fp32_precision for each in (own.cuda, own.mkldnn)}
    return " and ".join(sorted({"ieee" if each == "none" else each for each in found}))


MODES: Mapping[str, Callable[[], Any]] = {
    "torch.inference_mode": torch.is_inference_mode_enabled,
    "torch.set_grad_enabled": torch.is_grad_enabled,
    "torch.autocast": lambda: torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"),
    "torch.set_default_dtype": torch.get_default_dtype,
    "torch.set_default_device": torch.get_default_device,
    THREADS: torch.get_num_threads,
    PRECISION: _products,
}
"""The function that changes a setting -> the one that reads it. Inference mode changes that of gradients, too."""
AT_IMPORT = {
    "torch.inference_mode": False,
    "torch.set_grad_enabled": True,
    "torch.autocast": False,
    "torch.set_default_device": torch.device("cpu"),
}
"""The values that training needs. Another default dtype at import is the same in all processes, and may be meant."""
INSTEAD = {
    "torch.set_grad_enabled": "put the computation without gradients into `with torch.no_grad():`",
    "torch.inference_mode": "put the computation without gradients into `with torch.no_grad():`",
    "torch.autocast": "precision=bf16 trains under autocast",
    "torch.set_default_dtype": "call it at the top of the file, or give tensors a dtype",
    "torch.set_default_device": "engine.device=cuda moves model and data",
    THREADS: "each worker trains with one thread",
    PRECISION: "precision=tf32 trains with TF32",
}


def read(but: Collection[str] = ()) -> dict[str, Any]:
    """The settings now, by the function that changes each, without those named in `but`."""
    return {name: get() for name, get in MODES.items() if name not in but}


def left_changed(before: Mapping[str, Any]) -> str | None:
    """What is said of the first setting that is another one now, with the cure; None if all are as before."""
    now = read()
    for name, value in before.items():
        if now[name] != value:
            return (
                f"must leave the settings of torch as they are for the rest of the process, but changes {name} "
                f"({value} before, {now[name]} now); leave it out: {INSTEAD[name]}."
            )
    return None
