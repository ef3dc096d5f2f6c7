"""Autocast for `meta` tensors casts what torch's does, in lanes and in one model alone."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.engine import MODELS
from benchmarks.trace.__main__ import NOT_IN_BF16
from benchmarks.trace.autocast import Autocast
from benchmarks.trace.updates import study_of
from study.engine.fused.layout import Layout
from study.engine.fused.vmapped import Vmapped
from workloads.data.datasets import DATASETS

LANES, EXAMPLES = 2, 3


class Types(TorchDispatchMode):
    """Notes each operation with the types of its tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, found)) if isinstance(leaf, torch.Tensor)]
        if not function.is_view:
            self.seen.append((function.name(), [tensor.dtype for tensor in tensors]))
        return found


@contextmanager
def ours() -> Iterator[None]:
    """A block in which `torch.autocast` is that for `meta` tensors."""
    with (
        mock.patch("torch.autocast", Autocast),
        mock.patch("torch.is_autocast_enabled", Autocast.enabled),
        mock.patch("torch.get_autocast_dtype", Autocast.innermost),
    ):
        yield


def seen(model: str, lanes: int, how: AbstractContextManager[None]) -> list[Any]:
    """The operations of losses and gradients, with the rules for lanes on a GPU."""
    workload: Any = study_of(model, EXAMPLES, "momentum", "vmap", "bf16")[1]
    torch.manual_seed(0)
    template = workload.model()
    layout = Layout(template)
    rows = torch.randn(lanes, layout.width) / 9
    x = torch.randn(lanes, EXAMPLES, *DATASETS[workload.dataset].shape)
    form = Vmapped(template, rows, layout, half=True, flat=True)
    keys = torch.zeros(lanes, len(form.keys), dtype=torch.int32)
    with how, Types() as types:
        form.backward(x, lambda outputs: outputs.flatten(0, 1).square().sum(1), keys)
    return types.seen


@pytest.mark.parametrize("lanes", [1, LANES])
@pytest.mark.parametrize("model", [name for name in MODELS if name not in NOT_IN_BF16])
def test_the_same_is_cast(model, lanes):
    assert seen(model, lanes, ours()) == seen(model, lanes, nullcontext())
