"""State of a model that is neither parameter nor buffer, such as a counter that `forward` increases.

Attributes have names such as `layers.0.calls` or `layers.0.weight.requires_grad`.
"""

import collections
import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
from torch import Tensor, nn

from study.user_code.snapshots import Digest, Snapshot, attributes, changed, of_model, owner

T = TypeVar("T")


def changed_attributes(model: nn.Module, before: Snapshot) -> dict[str, Any]:
    """The attributes that differ from an earlier `snapshots.of_model`."""
    values = attributes(model)
    return {name: values[name] for name in changed(before, of_model(model)) if name in values}


def is_plain(value: Any) -> bool:
    """Whether a checkpoint can hold the value: numbers, texts, tensors, and lists and dicts of them."""
    if isinstance(value, Mapping):
        return type(value) is dict and all(map(is_plain, [*value, *value.values()]))
    if isinstance(value, list | tuple):
        return type(value) in (list, tuple) and all(map(is_plain, value))
    return value is None or type(value) in (bool, int, float, str, Tensor)


def copied(value: Any) -> Any:
    """A copy of a plain value, of an array, or of a container of plain values; other objects are kept as they are.

    So are parameters: torch's recurrent layers hold theirs in a list, too, and compute with those in the list.
    """
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        return value.detach().clone()
    if type(value) is dict:
        return {key: copied(each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, collections.deque):
        return type(value)(map(copied, value), value.maxlen)
    if type(value) in (set, collections.Counter, collections.defaultdict):
        return copy.copy(value)
    return value


def put(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Set these attributes to copies."""
    for name, value in state.items():
        setattr(*owner(model, name), copied(value))


def watched(model: nn.Module, call: Callable[[], T]) -> tuple[T, bool]:
    """(the result of `call`, whether it changes attributes or buffers of the model); they are put back."""

    def state() -> Any:
        return of_model(model), Digest(nn.Module())(dict(model.named_buffers()))

    before = state()
    with untouched(model):
        result = call()
        return result, state() != before


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """A block after which attributes and buffers of the model are as before."""
    before = {name: copied(value) for name, value in attributes(model).items()}
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    yield
    after = attributes(model)
    for name in after.keys() - before.keys():
        delattr(*owner(model, name))
    put(model, {name: value for name, value in before.items() if name not in after or after[name] is not value})
    for name, buffer in model.named_buffers():
        if name in buffers:
            buffer.copy_(buffers[name])
