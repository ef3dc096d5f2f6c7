"""Trees of tensors: inputs, targets and outputs are a tensor, or tuples, lists, mappings and dataclasses of trees.

Shapes: N examples; every tensor of a tree of examples has them as its first axis.
"""

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

Tree = Any
"""A tensor, or a tuple, list, mapping or dataclass of trees. Other objects in it are kept as they are."""


def mapped(function: Callable[[Tensor], Any], tree: Tree) -> Tree:
    """The same tree with `function` applied to every tensor."""
    if isinstance(tree, Tensor):
        return function(tree)
    if type(tree) is dict:
        return {key: mapped(function, value) for key, value in tree.items()}
    if isinstance(tree, Mapping):  # such as the outputs of Hugging Face models: keep their class
        held: Any = copy.copy(tree)
        for key, value in tree.items():
            held[key] = mapped(function, value)
        return held
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(mapped(function, each) for each in tree))
    if isinstance(tree, tuple | list):
        return type(tree)(mapped(function, each) for each in tree)
    if _is_dataclass(tree):
        held = copy.copy(tree)  # not `dataclasses.replace`, which calls its constructor
        for name, value in _attributes(tree).items():
            object.__setattr__(held, name, mapped(function, value))
        return held
    return tree


def leaves(tree: Tree) -> list[Tensor]:
    """All tensors of a tree, in a fixed order."""
    return list(_leaves(tree))


def _leaves(tree: Tree) -> Iterator[Tensor]:
    return (end for end in ends(tree) if isinstance(end, Tensor))


def ends(tree: Tree) -> Iterator[Any]:
    """The parts of a tree that are no trees: its tensors and all other objects, in a fixed order."""
    parts: Iterable[Any]
    if isinstance(tree, Mapping):
        parts = tree.values()
    elif isinstance(tree, tuple | list):
        parts = tree
    elif _is_dataclass(tree):
        parts = _attributes(tree).values()
    else:
        yield tree
        return
    for part in parts:
        yield from ends(part)


def _is_dataclass(tree: Tree) -> bool:
    return dataclasses.is_dataclass(tree) and not isinstance(tree, type)


def _attributes(tree: Tree) -> dict[str, Any]:
    """The fields of a dataclass, also one with slots, and its other attributes."""
    names = [each.name for each in dataclasses.fields(tree) if hasattr(tree, each.name)]
    return {name: getattr(tree, name) for name in [*names, *getattr(tree, "__dict__", ())]}


def count(tree: Tree) -> int:
    """N, the number of examples in a tree of examples. Raises ValueError if it holds no tensor."""
    for leaf in _leaves(tree):
        return len(leaf)
    raise ValueError(f"a tree of examples must hold a tensor, but got {described(tree)}.")


def nbytes(tree: Tree) -> int:
    """Bytes of all tensors."""
    return sum(leaf.nbytes for leaf in _leaves(tree))


def device_of(tree: Tree) -> torch.device:
    """The device of the first tensor."""
    return next(_leaves(tree)).device


def cloned(tree: Tree) -> Tree:
    """A copy that user code may write into. Strides are kept: they determine which kernels torch chooses."""
    return mapped(Tensor.clone, tree)


def part(tree: Tree, index: slice | Tensor) -> Tree:
    """Some examples of a tree: views for a slice, copies for indices."""
    return mapped(lambda tensor: tensor[index], tree)


def cat(trees: Sequence[Tree]) -> Tree:
    """Trees of one structure joined along the axis of examples."""
    parts = [leaves(tree) for tree in trees]
    return trees[0] if len(trees) == 1 else like(trees[0], [torch.cat(each) for each in zip(*parts, strict=True)])


def like(tree: Tree, tensors: Sequence[Tensor]) -> Tree:
    """A tree of the same structure that holds these tensors, in the order of `leaves`."""
    coming = iter(tensors)
    return mapped(lambda _: next(coming), tree)


def described(tree: Tree) -> str:
    """Types and shapes as text: `float32 [8, 10]`, `{ids: int64 [8, 32]}`."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')} {list(tree.shape)}"
    if isinstance(tree, Mapping):
        return f"{{{', '.join(f'{key}: {described(value)}' for key, value in tree.items())}}}"
    if isinstance(tree, tuple | list):
        return f"({', '.join(map(described, tree))})"
    return f"a {type(tree).__name__}"


def call(model: nn.Module, inputs: Tree) -> Any:
    """The model's outputs for a tree of inputs: a mapping by keyword, a tuple or list as several
    arguments: `default_collate` makes lists of tuples.

    If `forward` cannot take them so (its names or number of arguments differ), the tree is its one argument.
    """
    args, kwargs = arguments(model, inputs)
    return model(*args, **kwargs)


def arguments(model: nn.Module, inputs: Tree) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The positional and keyword arguments with which `call` calls the model."""
    if isinstance(inputs, Tensor):
        return (inputs,), {}
    inner = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    forward = getattr(inner.forward, "__func__", inner.forward)
    if isinstance(inputs, Mapping):
        by_name = _binds(forward, inner.forward is not forward, 0, tuple(map(str, inputs)))
        return ((), dict(inputs)) if by_name else ((inputs,), {})
    if isinstance(inputs, tuple | list):
        apart = _binds(forward, inner.forward is not forward, len(inputs), ())
        return (tuple(inputs), {}) if apart else ((inputs,), {})
    return (inputs,), {}


@lru_cache(maxsize=256)
def _binds(forward: Callable[..., Any], bound: bool, positional: int, names: tuple[str, ...]) -> bool:
    """Whether a function takes this number of positional arguments and these names; `bound`: it is a method."""
    try:
        inspect.signature(forward).bind(*[None] * (positional + bound), **dict.fromkeys(names))
    except TypeError:
        return False
    except ValueError:  # a function without a signature
        return True
    return True
