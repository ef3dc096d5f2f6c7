"""A simulated device that any machine has: its tensors hold values that, as on a GPU, CPU operations cannot touch.

What is computed of them is computed by the CPU. An operation on tensors of both devices is an error, and every time
that one has to wait for the other is counted. So what is written for GPUs is run, and its results compared, where
there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, ClassVar
from unittest import mock

import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only

from study.engine.fused import cuda_graph

NAME = "pretended"

READS = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::equal"}
"""Operations that make the host wait for values or shapes."""
COPIES = {"aten::_to_copy", "aten::copy_"}


class Held(Tensor):
    """A tensor of the device; `raw` is its value on the CPU."""

    raw: Tensor

    @staticmethod
    def __new__(cls, raw: Tensor) -> Held:
        held: Held = Tensor._make_wrapper_subclass(
            cls, raw.shape, raw.stride(), raw.storage_offset(), dtype=raw.dtype, layout=raw.layout, device=DEVICE
        )
        held.raw = raw
        return held

    def __init__(self, raw: Tensor) -> None:
        pass

    def __repr__(self, **_: Any) -> str:
        return f"{type(self).__name__}({self.raw})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        given = (self.raw.detach(), self.dtype, str(self.device), self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, given  # as torch does for devices without storage

    def tolist(self) -> Any:
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        return Device.current().run(function, arguments, keywords or {})


class Device(TorchDispatchMode):
    """The simulated device, active within `device()`.

    Attributes:
        meetings: how often the host read a value or one of them took the other's.
        launches: operations that compute, a replayed graph being one.
        recording: the graph that is being recorded.
    """

    there: ClassVar[list[Device]] = []

    def __init__(self) -> None:
        super().__init__()
        self.meetings = self.launches = 0
        self.recording: Graph | None = None

    @classmethod
    def current(cls) -> Device:
        """The active device."""
        return cls.there[-1]

    def counted(self, what: str, work: Callable[[], object]) -> int:
        """How many `meetings` or `launches` the work takes."""
        before = getattr(self, what)
        work()
        return getattr(self, what) - before

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        keywords = keywords or {}
        leaves = tree_leaves((arguments, keywords))
        here = _is_here(keywords.get("device")) or any(isinstance(leaf, Held) for leaf in leaves)
        return self.run(function, arguments, keywords) if here else function(*arguments, **keywords)

    def run(self, function: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
        """Run the operation on the CPU; its results belong to this device unless it copies them to another."""
        name = function.name()
        tensors = _tensors((arguments, keywords))
        held = [isinstance(tensor, Held) for tensor in tensors]
        # A GPU accepts only numbers from the CPU.
        if any(held) and name not in COPIES and any(t.dim() > 0 for t, h in zip(tensors, held, strict=True) if not h):
            raise RuntimeError(f"{name}: tensors of two devices")
        asked = keywords.get("device")
        leaves = (asked is not None and not _is_here(asked)) or (name == "aten::copy_" and not held[0])
        self.meetings += name in READS or leaves or (name in COPIES and not all(held))
        raw = tree_map_only(Held, lambda tensor: tensor.raw, (arguments, keywords))
        if _is_here(asked):
            raw[1]["device"] = torch.device("cpu")
        if self.recording is not None and (name in READS or leaves or (name in COPIES and not all(held))):
            raise RuntimeError(f"{name}: operation not permitted when stream is capturing")
        found = self.recording.noted(function, *raw) if self.recording is not None else function(*raw[0], **raw[1])
        self.launches += self.recording is None and not function.is_view
        if leaves:
            return arguments[0] if name == "aten::copy_" else found
        wrapped = tree_map_only(Tensor, Held, found)
        return return_and_correct_aliasing(function, arguments, keywords, wrapped) if any(held) else wrapped


class Graph:
    """A simulated CUDA graph: records operations on fixed addresses without running them; each replay runs them."""

    def __init__(self, *_: Any) -> None:
        self.calls: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def run(self, function: Callable[[], Tensor]) -> Tensor:
        return function()

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        device = Device.current()
        device.recording = self
        try:
            return function()
        finally:
            device.recording = None
            for tensor, content in reversed(self.before):
                tensor.copy_(content)

    def noted(self, function: Any, arguments: Any, keywords: Any) -> Any:
        """Record an operation: only the addresses of its results remain."""
        told = zip(function._schema.arguments, arguments, strict=False)
        written = [value for argument, value in told if argument.is_write]
        written += [keywords[a.name] for a in function._schema.arguments if a.is_write and a.name in keywords]
        self.before += [(tensor, tensor.clone()) for tensor in tree_leaves(written)]
        found = function(*arguments, **keywords)
        self.calls.append((function, arguments, keywords, [] if function.is_view or written else _tensors(found)))
        return found

    def replay(self) -> None:
        Device.current().launches += 1
        for function, arguments, keywords, fresh in self.calls:
            found = function(*arguments, **keywords)
            for here, new in zip(fresh, _tensors(found) if fresh else [], strict=True):
                here.copy_(new)


@contextmanager
def device() -> Iterator[Device]:
    """Activate the device within this block."""
    make = torch.tensor

    def tensor(data: Any, *, device: Any = None, **keywords: Any) -> Tensor:
        made = make(data, **keywords)  # bypasses every mode
        return made if device is None else made.to(device)

    known = mock.patch.dict(cuda_graph.GRAPHS, {NAME: Graph})
    with known, mock.patch.object(torch, "tensor", tensor), Device() as found:
        Device.there.append(found)
        yield found
        Device.there.pop()


def _tensors(found: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(found) if isinstance(leaf, Tensor)]


def _is_here(device: torch.device | None) -> bool:
    return device is not None and device.type == NAME


def _is_active(*_: Any) -> bool:
    return bool(Device.there)


def _module() -> ModuleType:
    """`torch.pretended`: an accelerator that exists only while the device is active."""
    module = ModuleType(NAME)
    module.is_available = _is_active
    module.device_count = lambda: len(Device.there)
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None  # the device draws from the CPU's generator
    return module


class Hooks(torch._C._acc.PrivateUse1Hooks):
    """The same module for torch's compiled code."""

    is_available = has_primary_context = _is_active

    def is_built(self) -> bool:
        return True


def _register() -> None:
    if not hasattr(torch, NAME):
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, _module())
        torch._C._acc.register_python_privateuseone_hook(Hooks())
        torch._C._acc.register_python_privateuseone_device_guard(backend_registration._DummyDeviceGuard())


_register()
DEVICE = torch.device(NAME, 0)
