"""Memory: how many examples fit on the device at once, and how to recognise that it ran out.

The user sets only the global batch = devices x per-device batch x accumulation steps. A device accumulates gradients
over micro-batches, each weighted by its number of examples, which gives the gradient of the whole batch.
"""

import gc
import os
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from study.records import Study
from workloads.user_code.errors import text_of

T = TypeVar("T")

WORKING_SET = 3.0
"""Peak memory of a step, as a multiple of the bytes that autograd saves: adds gradients, layout copies, workspaces."""
SHARE = 0.5
"""Share of the device's memory for all steps in progress; data, evaluation and other programs need the rest."""
OUT_OF_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "STATUS_NOT_INITIALIZED",  # cuBLAS and cuDNN: their handles need memory, too
    "cusolverDnCreate",
    "STATUS_ALLOC_FAILED",  # cuBLAS, cuSOLVER, and cuDNN up to version 8
    "ALLOCATION_FAILED",  # later versions of cuDNN
    "unable to find an engine to execute this computation",  # no plan of cuDNN had enough memory
    "Unable to find a valid cuDNN algorithm",
    "canUse32BitIndexMath",  # kernels with 32-bit indices: smaller micro-batches help here, too
    "Expected input.numel() <= int32_t max",
)
"""Texts by which libraries report, in errors of other types, that memory ran out."""
STEP_SHARE = 1 / 8
"""Share of the device's memory for one step; fixed, so that the number of workers changes no micro-batch."""
SHORT = 0.5
"""Memory of a GPU is short if less than this share of it is free."""


def device_bytes(device: str) -> int:
    """Total memory of a device. Free memory varies by the minute, and micro-batches must not.

    It opens no GPU: torch reads the properties of all GPUs when it starts to use one of them, and its own
    test/test_cuda_primary_ctx.py asserts that the others then have no CUDA context.
    """
    there = torch.device(device)
    if there.type == "cuda":
        return torch.cuda.get_device_properties(there.index or 0).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_bytes(device: str) -> int:
    """Memory of a GPU that this process can still use: what no process holds, and what torch keeps here for reuse.

    It varies by the minute, so only numbers that change no curve may depend on it. It opens the GPU. On other devices:
    the total memory.
    """
    if torch.device(device).type != "cuda":
        return device_bytes(device)
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def micro_batch(batch_size: int, bytes_per_example: float, device_memory: float) -> int:
    """The largest equal part of a batch (the last may be smaller) whose step stays within STEP_SHARE.

    >>> micro_batch(55000, bytes_per_example=1e6, device_memory=24e9)
    1000
    """
    most = max(1, int(STEP_SHARE * device_memory / (WORKING_SET * max(bytes_per_example, 1.0))))
    parts = -(-batch_size // most)
    return -(-batch_size // parts)


def most_workers(examples: int, bytes_per_example: float, device_memory: float) -> int:
    """How many workers may train at once with steps of this many examples."""
    return max(1, int(SHARE * device_memory / (WORKING_SET * max(bytes_per_example, 1.0) * examples)))


def out_of_memory(error: BaseException) -> bool:
    """True if the error says that a device ran out of memory."""
    text = text_of(error)
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or any(part in text for part in OUT_OF_MEMORY)


def release_cached_memory() -> None:
    """Return torch's cached GPU memory, so that larger blocks fit and other processes get room."""
    gc.collect()  # third-party models and optimizers may be in reference cycles
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def release_if_short(device: str) -> None:
    """Return torch's cached memory of this device if its memory is SHORT: other processes may need it. Otherwise the
    next tensors take it, which is faster than new memory."""
    if torch.device(device).type == "cuda" and torch.cuda.is_initialized():
        gc.collect()
        free, total = torch.cuda.mem_get_info(device)
        if free >= SHORT * total:
            return
    release_cached_memory()


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device, without waiting for a busy GPU."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def fetched(tensor: Tensor) -> Callable[[], Tensor]:
    """Start to copy a tensor to the host. The function waits for the copy and returns it. It does not wait for work
    that a GPU is given in between."""
    if tensor.device.type != "cuda":
        return tensor.cpu
    copied = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    copied.copy_(tensor, non_blocking=True)
    made = torch.cuda.current_stream(tensor.device).record_event()

    def arrived() -> Tensor:
        made.synchronize()
        return copied

    return arrived


def too_large(study: Study, device: str, error: BaseException | None = None) -> str:
    """The message for a trial that does not fit even alone and with micro-batches of one example.

    It quotes the last `error`, because other failures of libraries can look like lack of memory.
    """
    said = str(error).splitlines()[:1] if error else []
    return (
        f"one trial of {study.name} at batch size {study.batch_size} does not fit on {device}: "
        "choose a smaller model, another engine.device or fewer engine.workers."
        + "".join(f" ({line})" for line in said)
    )


def unless_out_of_memory(call: Callable[[], T]) -> T | None:
    """The result of `call`; None if memory runs out."""
    try:
        return call()
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
    release_cached_memory()
    return None
