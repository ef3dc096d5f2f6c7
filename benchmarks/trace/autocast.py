"""Autocast for `meta` tensors, which `torch.autocast` refuses: products and convolutions take factors in half."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

LINEAR = torch._C._nn.linear
HALVED = {LINEAR, torch.conv2d, torch.mm, torch.bmm, torch.matmul, torch.Tensor.matmul}
"""Functions whose arguments autocast casts. It casts those of others, too, such as attention, LSTMs and norms, which
the models of `benchmarks.trace` that are counted in bf16 do not call."""


class Autocast(TorchFunctionMode):
    """A block of `torch.autocast`, with the same arguments. It casts before autograd sees the call, as torch does, so
    that gradients are cast back."""

    dtypes: ClassVar[list[torch.dtype]] = []
    """Of the blocks that are open, from the outermost to the innermost."""

    def __init__(self, device_type: str, dtype: torch.dtype, cache_enabled: bool = False) -> None:
        super().__init__()
        self.dtype = dtype

    def __enter__(self) -> Autocast:
        self.dtypes.append(self.dtype)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self.dtypes.pop()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in HALVED:
            # `torch.vmap` comes first: of a linear layer, it leaves a product for autocast, and a sum with biases.
            apart = 2 if function is LINEAR and any(map(is_batchedtensor, args[:2])) else len(args)
            cast, kwargs = tree_map_only(Tensor, self._cast, (args[:apart], kwargs))
            args = (*cast, *args[apart:])
        return function(*args, **kwargs)

    def _cast(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.dtype) if tensor.dtype == torch.float32 else tensor

    @classmethod
    def enabled(cls, device_type: str | None = None) -> bool:
        """As `torch.is_autocast_enabled`."""
        return bool(cls.dtypes)

    @classmethod
    def innermost(cls, device_type: str) -> torch.dtype:
        """As `torch.get_autocast_dtype`."""
        return cls.dtypes[-1]
