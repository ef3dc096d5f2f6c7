"""What a user's code keeps between calls: variables of modules, attributes, closures, defaults, and what these hold."""

import collections
import functools
import itertools
import operator
import sys
from collections.abc import Iterable
from types import CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from study.user_code.snapshots import MOST, SIMPLE, is_theirs, modules_of

NUMBERS = 2**24
"""Most numbers of tensors and arrays together that are copied; what is larger is data rather than state."""

MEMORY = type(functools.cache(str))
"""The class of functions with a memory of results."""


class Kept:
    """All that the functions of a workload and of its author's modules may change, as it is now.

    Objects of other classes than the author's, such as those of torch, are left alone: their parts belong together.
    """

    def __init__(self, workload: Any) -> None:
        self.seen: dict[int, Any] = {}
        """By their addresses, which no other object can take as long as they are here."""
        self.held: list[tuple[Any, Any]] = []
        """Each object that may change, and its content."""
        left = NUMBERS
        waiting = collections.deque([getattr(workload, "__dict__", None), workload, *modules_of(workload)])
        while waiting and len(self.seen) < MOST:
            value = waiting.popleft()
            if isinstance(value, SIMPLE) or id(value) in self.seen:
                continue
            self.seen[id(value)] = value
            content = _content(value)
            if isinstance(content, Tensor | np.ndarray):
                size = int(np.prod(content.shape))
                if size <= left:
                    left -= size
                    self.held.append((value, content.clone() if isinstance(content, Tensor) else content.copy()))
                continue
            if content is not None:
                self.held.append((value, content))
            waiting.extend(itertools.islice(_parts(value, content), MOST))

    def differs(self) -> bool:
        """Whether something is other than it was."""
        return any(not _same(_content(value), content) for value, content in self.held)

    def memories(self) -> list[str]:
        """The functions whose memory held results, such as `mine.scale` under `functools.cache`."""
        filled = (value for value, content in self.held if isinstance(value, MEMORY) and content[0])
        return [f"results of {value.__module__}.{value.__qualname__}()" for value in filled]

    def put_back(self) -> None:
        """Let everything be as it was."""
        for value, content in self.held:
            if not _same(now := _content(value), content):
                _put(value, now, content)


def _content(value: Any) -> Any:
    """The objects that an object holds now; of tensors and arrays the numbers. None if nothing of it can change."""
    if isinstance(value, Tensor):
        usual = value.layout == torch.strided and not (value.is_meta or value.is_nested or value.is_quantized)
        return value.detach() if usual else None
    if isinstance(value, np.ndarray):
        return value if value.flags.writeable and not value.dtype.hasobject else None
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, list | set | collections.deque):
        return list(value)
    if isinstance(value, CellType):
        try:
            return [value.cell_contents]
        except ValueError:  # its variable is not set yet
            return []
    if not _is_theirs(value) or isinstance(value, ModuleType | FunctionType):
        return None
    if isinstance(value, MEMORY):
        return [value.cache_info().currsize > 0]
    if isinstance(value, type):
        return {name: each for name, each in vars(value).items() if not name.startswith("__")}
    slots = {name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())} - {"__dict__"}
    return {name: getattr(value, name) for name in slots if hasattr(value, name)}


def _parts(value: Any, content: Any) -> Iterable[Any]:
    """The objects that an object holds."""
    if isinstance(value, tuple | frozenset):
        return value
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, staticmethod | classmethod):
        return [value.__func__]
    if isinstance(value, property):
        return [value.fget]
    if isinstance(value, MEMORY):
        return [value.__wrapped__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    own = [*content.values()] if isinstance(content, dict) else content or []
    if isinstance(value, type) or not _is_theirs(value):
        return own
    if isinstance(value, FunctionType):
        own += [*(value.__closure__ or ()), value.__defaults__, value.__kwdefaults__]
    return [*own, getattr(value, "__dict__", None)]


def _is_theirs(value: Any) -> bool:
    """Whether this is a module, class or function of the author's, or an object of such a class."""
    if isinstance(value, ModuleType):
        return is_theirs(value)
    kind = value if isinstance(value, type | FunctionType | MEMORY) else type(value)
    return isinstance(value, SimpleNamespace) or is_theirs(sys.modules.get(str(kind.__module__)))


def _same(now: Any, content: Any) -> bool:
    if isinstance(content, Tensor | np.ndarray):
        return now.shape == content.shape and bool((now == content).all())
    if isinstance(content, dict):
        return now.keys() == content.keys() and all(now[name] is each for name, each in content.items())
    return len(now) == len(content) and all(map(operator.is_, now, content))


def _put(value: Any, now: Any, content: Any) -> None:
    """Let an object with the content `now` have another one."""
    if isinstance(value, Tensor):
        with torch.no_grad():
            value.copy_(content)
    elif isinstance(value, np.ndarray | list):
        value[:] = content
    elif isinstance(value, set | collections.deque):
        value.clear()
        value.extend(content) if isinstance(value, collections.deque) else value.update(content)
    elif isinstance(value, MEMORY):
        value.cache_clear()  # its results come again
    elif isinstance(value, CellType):
        if content:
            value.cell_contents = content[0]
        else:
            del value.cell_contents
    else:
        names = value if isinstance(value, dict) else None
        for name in now.keys() - content.keys():
            delattr(value, name) if names is None else names.pop(name)
        for name, each in content.items():
            if name not in now or now[name] is not each:
                setattr(value, name, each) if names is None else names.update({name: each})
