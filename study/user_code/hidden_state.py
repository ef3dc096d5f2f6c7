"""State of a model that is neither parameter nor buffer, such as a counter that `forward` increases.

Attributes have names such as `layers.0.calls` or `layers.0.weight.requires_grad`.
"""

import collections
import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from study.user_code.snapshots import DEEPEST, Digest, Snapshot, attributes, changed, of_class, of_model, owner

T = TypeVar("T")


def changed_attributes(model: nn.Module, before: Snapshot) -> dict[str, Any]:
    """The attributes that differ from an earlier `snapshots.of_model`."""
    now = attributes(model)
    return {name: now[name] for name in changed(before, of_model(model)) if name in now}


class _Tied(Digest):
    """A digest that also says which tensors share memory, with each other or with the parameters, and which numbers are
    addresses of parameters. A tuple counts wherever it is, because it cannot change."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.memory: dict[int, int] = {}
        self.addresses = {id(parameter): place for place, parameter in enumerate(model.parameters())}
        for parameter in model.parameters():
            self._place(parameter)

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if type(value) is int and value in self.addresses:
            return "address", self.addresses[value]
        if type(value) is tuple and depth < DEEPEST:
            return self._content(value, depth + 1)
        if isinstance(value, Tensor) and id(value) not in self.held and value.layout == torch.strided:
            return self._content(value, depth), self._place(value)
        return super().__call__(value, depth)

    def _place(self, tensor: Tensor) -> int:
        try:
            address = tensor.untyped_storage().data_ptr()
        except (NotImplementedError, RuntimeError):  # classes of tensors that hold others have no memory of their own
            address = -id(tensor)
        return self.memory.setdefault(address, len(self.memory))


def seal(optimizer: torch.optim.Optimizer, model: nn.Module) -> str:
    """A digest of what the next update depends on beside weights and batch: what the optimizer holds, what hangs on
    the parameters, and the variables of its classes.

    An optimizer that a checkpoint has restored in full has the seal of the one that was saved. Empty if `of_optimizer`
    looks at nothing.
    """
    if _is_known(optimizer):
        return ""
    digest = _Tied(model)
    # The keys of hooks count all hooks of a process.
    held: dict[str, Any] = {
        name: [*each.values()] if name.endswith("_hooks") else each for name, each in vars(optimizer).items()
    }
    if type(held.get("defaults")) is dict:  # torch adds this one to those that it restores
        held["defaults"] = {"differentiable": False} | held["defaults"]
    parts = [digest(held[name]) for name in sorted(held)]
    parts += [digest(vars(parameter)) for parameter in model.parameters()]
    # The optimizer's own class may be our subclass of a user's: `type(self).t += 1` writes into it.
    parts += [of_class(kind, digest) for kind in dict.fromkeys([type(optimizer), *_theirs(optimizer)])]
    return hashlib.sha256(repr((sorted(held), parts)).encode()).hexdigest()


def _is_known(optimizer: torch.optim.Optimizer) -> bool:
    """Whether an optimizer keeps nothing beside its `state_dict`, or says with one of its own what its state is."""
    return not _theirs(optimizer) or type(optimizer).state_dict is not torch.optim.Optimizer.state_dict


def _theirs(optimizer: torch.optim.Optimizer) -> list[type]:
    """The classes of an optimizer that are neither ours nor torch's."""
    return [kind for kind in type(optimizer).__mro__[:-1] if not kind.__module__.startswith(("study.", "torch."))]


def of_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> Snapshot:
    """The attributes of an optimizer that its `state_dict` leaves out; none of one that `_is_known`."""
    if _is_known(optimizer):
        return {}
    digest, kept = Digest(model), ("state", "param_groups", "defaults")
    return {name: digest(value) for name, value in vars(optimizer).items() if name not in kept}


def changed_in(optimizer: torch.optim.Optimizer, model: nn.Module, before: Snapshot) -> dict[str, Any]:
    """The attributes of an optimizer that differ from an earlier `of_optimizer`."""
    now = vars(optimizer)
    return {name: now[name] for name in changed(before, of_optimizer(optimizer, model)) if name in now}


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

    def now() -> Any:
        return of_model(model), Digest(nn.Module())(dict(model.named_buffers()))

    before = now()
    with untouched(model):
        result = call()
        return result, now() != before


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
