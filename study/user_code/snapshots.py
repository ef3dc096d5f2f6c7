"""Snapshots of state that is neither parameter nor buffer, so that two moments of a program can be compared.

A snapshot maps the name of each variable to a digest of its value. Digests do not depend on addresses, so equal values
have equal digests.
"""

import collections
import functools
import hashlib
import inspect
import itertools
import logging
import random
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from workloads import layers
from workloads.base import metrics_of, optional
from workloads.user_code.ownership import is_users

Snapshot = dict[str, Any]
"""Name, such as `Model.calls` -> digest."""

WHOLE = 2**22
"""Numbers of a tensor up to which all of them count; of larger ones about as many at equal distances."""
MAPPED = 2**10
"""The same for arrays in mapped files, which are read from a disk."""
MOST = 100_000
"""Objects in a snapshot, and entries of a list or mapping, that count."""
DEEPEST = 24
"""Depth to which a value is looked into."""
OF_A_MODULE = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training", "_compiled_call_impl"}
"""Attributes of every `nn.Module` that are no state of the user's."""
SIMPLE = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size, np.generic, range)


def of_model(model: nn.Module, digest: "Digest | None" = None) -> Snapshot:
    """The attributes of a model's modules that are neither parameters, buffers nor modules, not of our own layers; and
    those of its parameters, such as `requires_grad`.

    Hooks count, because a hook may change what it holds.
    """
    digest = digest or Digest(model)
    return {name: digest(value) for name, value in attributes(model).items()}


def beside_parameters(model: nn.Module) -> Snapshot:
    """The classes of a model's modules, their attributes and buffers, to compare models that were made apart: not those
    of our own layers, nor the keys of hooks, which are numbers in the order in which a process registers them."""
    found: Snapshot = {}
    for name, module in model.named_modules():
        found[f"module {name}"] = type(module).__qualname__
        if type(module).__module__ != layers.__name__:
            own = module.named_buffers(name, recurse=False, remove_duplicate=False)
            found |= {f"buffer {each}": _of_numbers(buffer) for each, buffer in own}
    digest = Digest(model)
    for name, value in attributes(model).items():
        of_hooks = isinstance(value, collections.OrderedDict) and "_hooks" in name
        found[f"attribute {name}"] = digest([*value.values()] if of_hooks else value)
    return found


def attributes(model: nn.Module) -> dict[str, Any]:
    """The attributes of `of_model` with their values."""
    found: dict[str, Any] = {}
    for name, module in model.named_modules():
        if type(module).__module__ == layers.__name__:
            continue
        derived = _recomputed(module)
        for key, value in vars(module).items():
            if key not in OF_A_MODULE and key not in derived:
                found[f"{name}.{key}" if name else key] = value
    for name, parameter in model.named_parameters():
        own = vars(parameter) if type(parameter) is nn.Parameter else {}  # other classes may keep their values there
        of_one = {**own, "requires_grad": parameter.requires_grad}
        found |= {f"{name}.{key}": value for key, value in of_one.items()}
    return found


def owner(model: nn.Module, name: str) -> tuple[Any, str]:
    """The module or parameter that has the attribute of this name in `attributes`, and its name there."""
    *path, attribute = name.split(".")
    return functools.reduce(getattr, path, model), attribute


def of_program(workload: Any, model: nn.Module, digest: "Digest | None" = None) -> Snapshot:
    """The workload's attributes, and the variables and class attributes of the modules that its author wrote.

    `Mine().x` is an attribute of the workload, `Mine.x` one of its class.
    """
    digest = digest or Digest(model)
    own = getattr(workload, "__dict__", {})
    found = {f"{type(workload).__name__}().{name}": digest(value) for name, value in own.items()}
    classes = {type(workload), *(type(module) for module in model.modules())}
    found |= _of_each(modules_of(workload, classes), digest)
    for kind in classes:  # classes that a function made
        for each in kind.__mro__:
            if is_theirs(sys.modules.get(each.__module__)):
                found = of_class(each, digest) | found  # a digest takes each object once
    return found


def modules_of(workload: Any, classes: Iterable[type] = ()) -> list[ModuleType]:
    """The modules that the author of a workload wrote: those of its class, of these classes and of its functions, and
    what these import."""
    functions = [workload.loss, *workload.errors.values(), *metrics_of(workload).values()]
    functions += filter(None, (optional(workload, name) for name in ("weights", "error_weights", "augment", "collate")))
    names = {kind.__module__ for one in (type(workload), *classes) for kind in one.__mro__}
    names |= {str(getattr(inspect.unwrap(each), "__module__", "")) for each in functions if callable(each)}
    return _with_imported(filter(None, map(sys.modules.get, names)))


def of_modules(names: Iterable[str], digest: "Digest") -> Snapshot:
    """The variables and class attributes of those of these modules that a user wrote, and of those that they import."""
    return _of_each(_with_imported(filter(None, map(sys.modules.get, names))), digest)


def _of_each(modules: Iterable[ModuleType], digest: "Digest") -> Snapshot:
    """The variables and class attributes of modules."""
    found: Snapshot = {}
    for module in modules:
        for name, value in list(vars(module).items()):
            if name.startswith("__") or isinstance(value, ModuleType):
                continue
            if inspect.isclass(value):
                if value.__module__ == module.__name__:
                    found |= of_class(value, digest)
            else:
                found[f"{module.__name__}.{name}"] = digest(value)
    return found


def changed(before: Snapshot, after: Snapshot) -> list[str]:
    """The names whose digests differ, or that only one of two snapshots has."""
    names = dict.fromkeys([*after, *before])
    return [name for name in names if before.get(name, Digest) != after.get(name, Digest)]


def of_class(kind: type, digest: "Digest") -> Snapshot:
    """The attributes of a class that are neither special nor properties."""
    return {
        f"{kind.__qualname__.rpartition('<locals>.')[2]}.{name}": digest(value)
        for name, value in list(vars(kind).items())
        if not (name.startswith("__") or name == "_abc_impl" or isinstance(value, property))
    }


def _recomputed(module: nn.Module) -> set[str]:
    """Attributes that torch's hooks for weight norm and spectral norm compute from parameters at each forward pass."""
    hooks = [hook for hook in module._forward_pre_hooks.values() if type(hook).__module__.startswith("torch.nn.utils")]
    return {str(getattr(hook, "name", "")) for hook in hooks}


def is_theirs(module: ModuleType | None) -> bool:
    """Whether the author of a workload may have written this module: it is none of ours, of torch's, or installed."""
    if module is None or module.__name__ == "builtins":
        return False
    file = getattr(module, "__file__", None)
    return module.__name__ == "__main__" if file is None else is_users(file)


def _with_imported(modules: Iterator[ModuleType]) -> list[ModuleType]:
    """Their own modules among these, and those that these import."""
    found: dict[str, ModuleType] = {}
    left = list(modules)
    while left:
        module = left.pop()
        if module.__name__ in found or not is_theirs(module):
            continue
        found[module.__name__] = module
        for value in list(vars(module).values()):
            name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
            other = sys.modules.get(name) if isinstance(name, str) else None
            left += [other] if other is not None else []
    return list(found.values())


class Digest:
    """Values -> digests, which are equal if the values are. Each object counts once."""

    def __init__(self, model: nn.Module) -> None:
        self.held = {id(each): each for each in (*model.parameters(), *model.buffers(), *model.modules())}
        """The objects that were seen. It keeps them alive: another one must not take their address."""

    def __call__(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, SIMPLE):
            return type(value).__name__, repr(value)
        if id(value) in self.held or depth > DEEPEST or len(self.held) > MOST:
            return type(value).__name__
        self.held[id(value)] = value
        try:
            return type(value).__name__, self._content(value, depth + 1)
        except Exception:  # objects of any library, which may be closed or half built
            return type(value).__name__

    def _content(self, value: Any, depth: int) -> Any:
        if isinstance(value, Tensor | np.ndarray):
            return _of_numbers(value)
        if (state := _of_generator(value)) is not None:
            return state
        if isinstance(value, Mapping):
            few = itertools.islice(list(value.items()), MOST)
            return len(value), [(self(key, depth), self(each, depth)) for key, each in few]
        if isinstance(value, list | tuple | collections.deque):
            return len(value), [self(each, depth) for each in [*itertools.islice(value, MOST), *list(value)[-1:]]]
        if isinstance(value, set | frozenset):
            return sorted(repr(each) if isinstance(each, SIMPLE) else type(each).__name__ for each in value)
        if type(value).__module__ in ("builtins", "itertools") and isinstance(value, Iterator):
            return self(_place_of(value), depth)
        return self._of_object(value, depth)

    def _of_object(self, value: Any, depth: int) -> Any:
        """The parts of a function or of an object with attributes; nothing of others, such as files."""
        if isinstance(value, type | ModuleType | BuiltinFunctionType | logging.Logger):
            return getattr(value, "__name__", "")
        parts: list[Any] = []
        if isinstance(value, staticmethod | classmethod):
            parts = [value.__func__]
        elif isinstance(value, MethodType):
            parts = [value.__func__, value.__self__]
        elif isinstance(value, functools.partial):
            parts = [value.func, value.args, value.keywords]
        elif isinstance(value, FunctionType):
            if (inner := getattr(value, "_torchdynamo_orig_callable", None)) is not None:
                return self(inner, depth)  # the compiler's memory is no state
            cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
            parts = [value.__qualname__, value.__defaults__, value.__kwdefaults__, value.__dict__, cells]
        elif isinstance(value, nn.Module):
            parts = [{**vars(value), "_forward_hooks": None}]
        elif not hasattr(value, "cache_info"):  # a memory of results is no state
            slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
            slots = [getattr(value, name, None) for name in slots if isinstance(name, str) and name != "__weakref__"]
            parts = [getattr(value, "__dict__", None), slots]
        return [self(part, depth) for part in parts]


def _place_of(iterator: Iterator[Any]) -> Any:
    """What decides which values an iterator of Python's own gives next."""
    if isinstance(iterator, GeneratorType):
        frame = iterator.gi_frame
        return None if frame is None else [frame.f_lasti, frame.f_locals]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # those of itertools cannot be pickled from Python 3.14 on
        return iterator.__reduce__()[1:]


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _of_generator(value: Any) -> Any:
    """The state of a random generator; None for other objects."""
    if isinstance(value, torch.Generator):
        return _hashed(value.get_state().numpy().tobytes())
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    return _hashed(repr(value.getstate()).encode()) if isinstance(value, random.Random) else None


def _of_numbers(value: Tensor | np.ndarray) -> Any:
    """Shape, type and a hash of the numbers of a tensor or array."""
    shape, kind = tuple(value.shape), str(value.dtype)
    if isinstance(value, Tensor):
        if value.is_sparse or value.is_nested or value.is_quantized or value.is_meta:
            return shape, kind
        value = value.detach().cpu().resolve_conj().resolve_neg()
        few = value if value.numel() <= WHOLE else value.flatten()[:: -(-value.numel() // WHOLE)]
        return shape, kind, _hashed(few.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    if value.dtype.hasobject:
        return shape, kind, repr(value) if value.size <= MOST else ""
    most = MAPPED if isinstance(value, np.memmap) else WHOLE
    few_numbers = value if value.size <= most else value.reshape(-1)[:: -(-value.size // most)]
    return shape, kind, _hashed(few_numbers.tobytes())


def _hashed(content: bytes) -> str:
    """Alike in all processes, unlike `hash`."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()
