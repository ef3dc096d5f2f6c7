"""The kernels of an update that `torch.compile` has fused, without running or even generating them.

The whole update of lanes (forward, backward, optimizer) is traced to one graph, as `engine.compile` does. Inductor
lowers it for a CPU, its scheduler fuses what it can, and a pass after the fusion reads the groups and ends there. A
group is one kernel that reads its inputs and writes its outputs once. A convolution or a product is a group of its own,
and each of the two gradients of a convolution is one. Inductor copies images to channels-last only for the library that
computes convolutions on a CPU; these copies are turned off (`layout_optimization`).
"""

from __future__ import annotations

import math
from collections import Counter as Tally
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._inductor import config, ir
from torch._inductor.compile_fx import compile_fx
from torch._inductor.dependencies import WeakDep
from torch._inductor.virtualized import V
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule

from benchmarks.trace import updates
from benchmarks.trace.counter import META, OURS, PRODUCTS, Kernel, convolution_of_lanes, flop_of_lanes
from benchmarks.trace.updates import LANES, Update, as_a_gpu, started, study_of, trial_of
from study.data import trees
from study.engine.arithmetic import ARITHMETICS
from study.engine.fused.compiled import as_function, traced
from study.engine.fused.update import of_tensors
from study.engine.lanes import Lanes
from study.schedules import OWN

CPU = torch.device("cpu")


class Fused(BaseException):
    """The scheduler has fused the graph. Not an Exception, which Inductor would wrap in one of its own."""


def compiled(model: str, batch_size: int, optimizer: str, lanes: int = LANES, precision: str = "fp32") -> Update:
    """Count the compiled update of the lanes that a GPU would train. The host launches as much as today."""
    today = updates.traced(model, batch_size, optimizer, lanes=lanes, precision=precision)
    study, workload = study_of(model, batch_size, optimizer, None, precision)
    assert ARITHMETICS[study.arithmetic].stack is not None
    with as_a_gpu():
        graph, arguments = whole_update(started(study, workload, lanes), lanes)
    kernels = fused(graph, arguments)
    return replace(today, arithmetic=f"{study.arithmetic} compiled", kernels=tuple(kernels))


def whole_update(made: Lanes, rows: int) -> tuple[GraphModule, list[Tensor]]:
    """The update as a graph of weights, optimizer state and the arguments of an update, and these tensors."""
    study, data = made.study, made.data
    index = torch.zeros(rows * study.batch_size, dtype=torch.int64, device=META)
    scalar = torch.zeros(rows, 1, device=META)
    keys = torch.zeros(rows, made.keyed, dtype=torch.int32, device=META)
    names = sorted(study.resolved(trial_of(study).hyperparameters).keys() - OWN)
    batch = [*trees.leaves(data.gather(index, rows)), *trees.leaves(data.gather_targets(index))]
    update, held = as_function(made.stack, rows, of_tensors(made.workload, data, rows, names))
    tensors = [*held, *batch, keys, *(scalar.clone() for _ in ("learning rates", "counts", *names))]
    return traced(update, tensors), tensors


def fused(graph: GraphModule, arguments: Sequence[Tensor]) -> list[Kernel]:
    """The groups into which Inductor's scheduler fuses a graph of `meta` tensors, on a CPU."""
    for node in graph.graph.nodes:
        if node.kwargs.get("device") is not None:
            node.update_kwarg("device", CPU)
    graph.recompile()
    with FakeTensorMode():
        given = [torch.empty_strided(each.shape, each.stride(), dtype=each.dtype) for each in arguments]
    found: list[Kernel] = []

    def read(nodes: Sequence[Any]) -> None:
        found.extend(kernel for node in nodes for kernel in kernels_of_group(node))
        raise Fused

    options = {"_post_fusion_custom_pass": read, "layout_optimization": False, "fx_graph_cache": False}
    options |= {"cpp.threads": 1}  # with more, Inductor leaves additions at indices to a library
    with suppress(Fused), torch.no_grad(), config.patch(options):
        compile_fx(graph, given)
    return found


def kernels_of_group(group: Any) -> Iterator[Kernel]:
    """The kernels of one group of Inductor's scheduler."""
    if isinstance(group.node, ir.MultiOutput | ir.NopKernel):  # a part of a result; a buffer that others fill
        return
    if isinstance(group.node, ir.ExternKernel):
        yield from _library(group)
        return
    parts = group.get_nodes()
    own = {name for part in parts for name in part.get_buffer_names()}
    readers = {name: {user.get_name() for user in group.scheduler.name_to_buf[name].users} for name in own}
    kept = [name for name in own if readers[name] - {part.get_name() for part in parts}]
    read = Tally[str]()
    for part in parts:
        for dependency in part.read_writes.reads:
            if dependency.name not in own and not isinstance(dependency, WeakDep):
                read[dependency.name] += _numbers(part, dependency)
    layouts = {name: _layout(V.graph.get_buffer(name)) for name in read}
    bytes_read = sum(min(count, _count(layouts[name])) * layouts[name].dtype.itemsize for name, count in read.items())
    operations = {operation for part in parts for operation in part._body.op_counts}
    pure = len(parts) == 1 and operations <= {"load", "store", "output", "get_index"} and len(read) == 1
    kind = "copy" if pure else "sum" if group.is_reduction() else "element-wise"
    yield Kernel(_told(parts), kind, bytes_read, sum(_bytes(V.graph.get_buffer(name)) for name in kept))


def _library(group: Any) -> Iterator[Kernel]:
    """The kernels of a call of a library."""
    node = group.node
    name, inputs = node.op_overload._opname, [each for each in node.inputs if isinstance(each, ir.IRNode)]
    users = (user.node.node for user in group.scheduler.name_to_buf[node.get_name()].users if user.node is not None)
    results = {
        each.indices[0][1] if each.indices else 0: each for each in users if isinstance(each, ir.MultiOutput)
    } or {0: node}
    read = [_bytes(each) for each in inputs]
    if name == "convolution_backward":
        [dy, _, weight] = inputs
        flop = 2 * _count(_layout(dy)) * _inner(weight)
        for number, others, kind in ((0, read[2], "convolution_input"), (1, read[1], "convolution_weight")):
            if number in results:
                yield Kernel(kind, "convolution", read[0] + others, _bytes(results[number]), flop)
        return
    written = sum(map(_bytes, results.values()))
    if name in OURS:
        yield from convolution_of_lanes(name, read, written, _flop_of_lanes(name, node, inputs, results[0]))
        return
    flop, kind = 0, "element-wise"
    if name == "convolution":
        flop, kind = 2 * _count(_layout(node)) * _inner(inputs[1]), "convolution"
    elif name in PRODUCTS:
        flop, kind = 2 * _count(_layout(node)) * int(inputs[-1].get_size()[-2]), "product"
    yield Kernel(name, kind, sum(read), written, flop)


def _flop_of_lanes(name: str, node: Any, inputs: Sequence[Any], result: Any) -> int:
    sizes = [[int(size) for size in each.get_size()] for each in inputs]
    if name == "differentiated":
        return flop_of_lanes(math.prod(sizes[1]), sizes[0][2], node.constant_args[:2])
    results = _count(_layout(result)) if name == "filtered" else math.prod(sizes[0])
    return flop_of_lanes(results, sizes[1][2], sizes[1][3:])


def _numbers(part: Any, dependency: Any) -> int:
    """How many numbers an access reads; at most one for each iteration where addresses are computed."""
    if dependency.is_indirect():
        return math.prod(int(size) for sizes in part.get_ranges() for size in sizes)
    return int(dependency.get_numel())


def _inner(weight: Any) -> int:
    return math.prod(int(size) for size in weight.get_size()[1:])


def _layout(buffer: Any) -> Any:
    while not hasattr(buffer, "layout"):
        buffer = buffer.data
    layout = buffer.layout
    return layout.real_layout() if isinstance(layout, ir.MutationLayoutSHOULDREMOVE) else layout


def _count(layout: Any) -> int:
    return math.prod(int(size) for size in layout.size)


def _bytes(buffer: Any) -> int:
    return _count(_layout(buffer)) * _layout(buffer).dtype.itemsize


def _told(parts: Sequence[Any]) -> str:
    """The operations of a group, each once, in their order."""
    origins = [origin for part in parts for origin in part.node.origins if origin.op == "call_function"]
    names = [str(getattr(origin.target, "_opname", origin.target)) for origin in origins]
    return " ".join(dict.fromkeys(name for name in names if name not in VIEWS))


VIEWS = {"permute", "reshape", "slice", "unsqueeze", "squeeze", "expand", "view", "alias", "full", "select"}
