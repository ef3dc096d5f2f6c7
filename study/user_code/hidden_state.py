"""State of a model that is neither parameter nor buffer, such as a counter that `forward` increases."""

import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workloads import layers

INTERNAL = frozenset(vars(nn.Module())) | {"call_super_init", "dump_patches"}
"""Attributes that every module has."""

State = dict[tuple[str, str], Any]
"""(name of the module, name of the attribute) -> value."""


def attributes(model: nn.Module) -> State:
    """All own attributes of all modules, except of our layers, whose attributes the engine sets."""
    return {
        (name, key): value
        for name, module in model.named_modules()
        if type(module).__module__ != layers.__name__
        for key, value in vars(module).items()
        if key not in INTERNAL
    }


def digests(state: Mapping[Any, Any]) -> dict[Any, Any]:
    """The same keys with values that can be compared with `==`, whatever the state holds."""
    return {key: digest(value) for key, value in state.items()}


def digest(value: Any, seen: frozenset[int] = frozenset()) -> Any:
    """A value that changes when the content of `value` does."""
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value).__name__, repr(value)
    if id(value) in seen:
        return "cycle"
    seen = seen | {id(value)}
    if isinstance(value, Tensor):
        dense = value.detach().to_dense() if value.layout != torch.strided else value.detach()
        return "tensor", value.dtype, tuple(value.shape), dense.cpu().flatten().view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray | np.generic):
        return "array", str(value.dtype), np.shape(value), np.asarray(value).tobytes()
    if isinstance(value, torch.Generator):
        return "generator", bytes(value.get_state().numpy())
    if isinstance(value, np.random.Generator | np.random.RandomState):
        bits = value.bit_generator if isinstance(value, np.random.Generator) else value
        return "generator", repr(bits.state if hasattr(bits, "state") else bits.get_state())
    if isinstance(value, random.Random):
        return "generator", value.getstate()
    if isinstance(value, Mapping):
        return "mapping", [(digest(key, seen), digest(each, seen)) for key, each in value.items()]
    if isinstance(value, set | frozenset):
        return "set", sorted(map(repr, value))
    if isinstance(value, list | tuple):
        return "sequence", [digest(each, seen) for each in value]
    if isinstance(value, nn.Module):
        return "module", id(value)
    if hasattr(value, "__dict__") and not callable(value):
        return type(value).__name__, digest(vars(value), seen)
    try:  # iterables of another kind, such as a deque
        return type(value).__name__, [digest(each, seen) for each in value.copy()]
    except (AttributeError, TypeError):
        return type(value).__name__, id(value)


def is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold the value: numbers, texts, tensors, and lists and dicts of them."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str, Tensor)


def copied(value: Any) -> Any:
    """A copy of a plain value, also of plain values in lists and dicts; other objects are kept as they are."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return value


def put(model: nn.Module, state: State) -> None:
    """Set these attributes."""
    modules = dict(model.named_modules())
    for (name, key), value in state.items():
        setattr(modules[name], key, copied(value))


def changes(model: nn.Module, call: Callable[[], object]) -> bool:
    """Whether `call` changes attributes or buffers of the model; they are put back."""

    def now() -> Any:
        return digests(attributes(model)), digests(dict(model.named_buffers()))

    before = now()
    with untouched(model):
        call()
        return now() != before


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """A block after which attributes and buffers of the model are as before."""
    before = {key: copied(value) for key, value in attributes(model).items()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    after = attributes(model)
    modules = dict(model.named_modules())
    for name, key in after.keys() - before.keys():
        delattr(modules[name], key)
    put(model, {key: value for key, value in before.items() if key not in after or after[key] is not value})
    for name, buffer in model.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
