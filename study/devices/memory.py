"""How many examples fit on the device at once: the micro-batch that a global batch is accumulated from.

The user sets the global batch alone. It is `devices x per-device batch x accumulation steps`; here one device takes it
in accumulation steps of at most one micro-batch, each weighted by its examples, which equals the large batch.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch import Tensor

from study.records import Study
from workloads.base import Workload

T = TypeVar("T")

PROBE_EXAMPLES = 4
WORKING_SET = 3.0
"""Peak memory of a step over what autograd saves: gradients of activations, layout copies, kernels' workspaces."""
SHARE = 0.5
"""Of the device's memory that all steps under way may take; data, evaluation and other programs need the rest."""
OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "STATUS_NOT_INITIALIZED",  # cuBLAS and cuDNN, whose handles want memory, too
    "cusolverDnCreate",
    "STATUS_ALLOC_FAILED",  # cuBLAS, cuSOLVER, and cuDNN up to version 8
    "ALLOCATION_FAILED",  # cuDNN since
    "unable to find an engine to execute this computation",  # torch tries cuDNN's plans, none of which had room
    "Unable to find a valid cuDNN algorithm",
    "canUse32BitIndexMath",  # kernels that count in 32 bits: as with memory, less at once is the cure
    "Expected input.numel() <= int32_t max",
)
"""How errors of other kinds say that memory ran out: kernels' libraries have words of their own for it."""
STEP_SHARE = 1 / 8
"""Of the device's memory that one step may take: fixed, so that the number of workers alters no micro-batch."""


def saved_bytes(
    workload: Workload, inputs: Tensor, targets: Tensor, hyperparameters: Mapping[str, float] | None = None
) -> float:
    """Bytes that each further example's forward pass saves for the backward pass, parameters aside.

    What a batch saves once, whatever its size, is no reason to take it in parts.

    Arguments:
        hyperparameters: of the loss, where they are tuned.
    """
    tuned = hyperparameters or {}
    examples = min(PROBE_EXAMPLES, len(targets))
    # Copied: a slice would count the storage of the whole data set.
    few = inputs[:examples].clone(), targets[:examples].clone()
    more = torch.cat([few[0], few[0]]), torch.cat([few[1], few[1]])
    return (_saved(workload, *more, tuned) - _saved(workload, *few, tuned)) / examples


def _saved(workload: Workload, inputs: Tensor, targets: Tensor, hyperparameters: Mapping[str, float]) -> int:
    model = workload.model().train()
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    saved: dict[int, int] = {}
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            saved[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)  # alive, so that no other tensor takes its address
        return tensor

    with torch.random.fork_rng(devices=[]), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        workload.loss(model(inputs), targets, **hyperparameters).mean()
    return sum(saved.values())


def device_bytes(device: str) -> int:
    """Memory of a device in all: what is free changes by the minute, and the micro-batch must not."""
    if torch.device(device).type == "cuda":
        return torch.cuda.get_device_properties(torch.device(device)).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def micro_batch(batch_size: int, bytes_per_example: float, device_memory: float) -> int:
    """The largest of equal parts of a batch (the last may be smaller) whose step stays within STEP_SHARE.

    >>> micro_batch(55000, bytes_per_example=1e6, device_memory=24e9)
    1000
    """
    most = max(1, int(STEP_SHARE * device_memory / (WORKING_SET * max(bytes_per_example, 1.0))))
    parts = -(-batch_size // most)
    return -(-batch_size // parts)


def most_workers(examples: int, bytes_per_example: float, device_memory: float) -> int:
    """How many workers may take steps of this many examples at once."""
    return max(1, int(SHARE * device_memory / (WORKING_SET * max(bytes_per_example, 1.0) * examples)))


def out_of_memory(error: BaseException) -> bool:
    """Whether an error is a device saying that it has no room left."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(text in str(error) for text in OUT_OF_MEMORY)


def release_cached_memory() -> None:
    """Return what torch keeps of a GPU's memory for later, so that larger pieces fit and others have room."""
    gc.collect()  # models and optimizers of others may hold themselves
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the CPU on a device; a GPU that is at work is not waited for."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def too_large(study: Study, device: str, error: BaseException | None = None) -> str:
    """What to tell a person whose trials do not fit, not even one at a time and example by example.

    Arguments:
        error: the last; other failures of a library may read like it.
    """
    said = str(error).splitlines()[:1] if error else []
    return (
        f"one trial of {study.name} at batch size {study.batch_size} does not fit on {device}: "
        "choose a smaller model, another engine.device or fewer engine.workers."
        + "".join(f" ({line})" for line in said)
    )


def unless_out_of_memory(call: Callable[[], T]) -> T | None:
    """What this call returns; None where memory runs out."""
    try:
        return call()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    release_cached_memory()
    return None
