"""Forward passes of models in a precision."""

from collections.abc import Callable

import torch

from study.data import trees
from study.data.trees import Tree


def computed(precision: str, device: torch.device, call: Callable[[], Tree]) -> Tree:
    """The result of `call`, a forward pass. With `bf16` it runs under bfloat16 autocast, and its result is fp32."""
    if precision != "bf16":
        return call()
    with torch.autocast(device.type, torch.bfloat16, cache_enabled=False):
        outputs = call()
        return trees.mapped(lambda tensor: tensor.float() if tensor.is_floating_point() else tensor, outputs)
