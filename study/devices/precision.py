"""The precision in which a device computes products and convolutions; weights and updates are always in fp32.

`tf32` lets GPUs round the factors of products and convolutions to 10 bits of mantissa; a CPU computes in fp32 all the
same. `bf16` is bfloat16 autocast, on every device (`study.user_code.autocast`).
"""

from typing import Any

import torch

TOLERANCE = {"fp32": 1e-2, "tf32": 0.1, "bf16": 0.2}
"""On devices other than CPUs: largest distance between two rows of a stack that train the same trial, relative to the
distance that updates moved them. The check must catch a wrong row, whose distance is about 1, and must tolerate signs
that rounding flips (each moves a weight by twice the learning rate). Activations and pooling compare numbers: where
kernels round by a share e of a number, about a share e of the comparisons go the other way, which moves the gradient by
some multiple of sqrt(e): 0.02 for TF32 and 0.04 for bfloat16."""


_settled: str | None = None
"""The precision that this process settled last."""


def settle(precision: str) -> None:
    """Let this process compute products and convolutions of fp32 tensors in this precision, and with one thread, from
    now on, whatever the user's code has asked of torch."""
    global _settled
    _settled = precision
    torch.set_num_threads(1)  # several would compute other bits, and take the cores of the other workers
    own: Any = torch.backends
    for each in (own, own.cudnn, own.mkldnn, own.mkldnn.matmul, own.mkldnn.conv, own.mkldnn.rnn):
        each.fp32_precision = "none"  # as torch begins; the two flags below leave these alone, and may defer to them
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision == "tf32"


def settle_again() -> None:
    """Settle again what this process has settled, if anything, after the user's code may have changed it."""
    if _settled is not None:
        settle(_settled)


def uses_tf32(device: str, precision: str) -> bool:
    """Whether products and convolutions use TF32."""
    return precision == "tf32" and torch.device(device).type == "cuda"
