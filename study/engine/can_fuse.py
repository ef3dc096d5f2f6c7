"""Whether trials of a study can train as lanes side by side, found by steps of its own model before a sweep."""

import itertools
import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from study.data import trees
from study.data.resident import Data
from study.devices import generators
from study.devices.memory import out_of_memory
from study.engine.fused.vmapped import Vmapped
from study.engine.lanes import Lanes
from study.engine.timing import started
from study.engine.trial.evaluation import initial_model, measure
from study.records import Study
from study.space import middle, values
from study.user_code import snapshots
from study.user_code.kept import Kept
from workloads.base import Workload
from workloads.layers import ghost_layers, keyed_layers
from workloads.user_code.errors import text_of

TOLD = (
    (r"called random operation", "it draws random numbers; workloads.layers.Dropout makes masks without a generator"),
    (
        r"[Bb]atching rule (?:not implemented )?for (?:aten::)?(\w+)",
        "torch.vmap has no rule for {0}; another operation may have one",
    ),
    (r"operators that can support dynamic shape", "its code selects by a boolean mask; torch.where keeps the shape"),
    (
        r"must override the setup_context",
        "an autograd.Function of it lacks setup_context, as do checkpoints",
    ),
    (r"may have escaped from inside", "a tensor outlives the call that made it, as with torch.utils.checkpoint"),
    (r"not implemented for sparse tensors", "its gradients are sparse; leave out sparse=True"),
    (r"Cannot access data pointer", "its code leaves torch, as .numpy() does; keep the value as a tensor"),
    (r"appears to not have been used in the graph", "some parameters do not contribute to the loss; leave them out"),
    (r"data-dependent control flow", "its code branches on the values of a tensor; torch.where does not"),
    (r"\.item\(\) on a Tensor", "its code calls .item() on a tensor; keep the value as a tensor"),
)
"""Texts of torch's errors -> what they mean, with the cure."""

DIVERGED = (float("nan"), 1e30)
"""Factors of the outputs of trials that diverge."""


def lanes_fail(
    study: Study, workload: Workload, data: Data, device: str | None = None, fresh: Kept | None = None
) -> str | None:
    """Why two lanes of this model cannot take a step and be measured, with the cure; None if they can.

    Arguments:
        data: on the CPU where the process must not open a GPU.
        device: that trains; None: the device of the data.
        fresh: what the user's code keeps in a new process, whose first call is a step of lanes; None: as it is.

    Raises:
        RuntimeError, MemoryError: memory runs out.
    """
    try:
        if study.arithmetic == "vmap" and (why := _alone(workload, data, study)):
            return why
        for differs in (_of_the_seed, _elsewhere, _other_loss):
            if why := differs(workload, data, study):
                return why
        with warnings.catch_warnings():
            # An operation without a rule for `vmap` runs lane by lane, slower than training one model after another.
            warnings.filterwarnings("error", message="There is a performance drop")
            lanes = started(replace(study.constant, batch_size=min(2, data.examples)), workload, data, range(2))
            lanes.stack.predict_as_on(data.device if device is None else torch.device(device))
            before = _generators(data.device)
            if fresh is not None:
                fresh.put_back()
            lanes.advance(1)
            logs = [lane.log for lane in lanes.lanes]
            few = min(2, data.counts["val"])
            measure(logs, "val", lanes.predictor(range(2)), few, with_metrics=False)
            warnings.simplefilter("ignore")
            with suppress(Exception):  # a metric may be undefined for two examples, but whether it draws counts
                measure(logs, "val", lanes.predictor(range(2)), few)
        if before != _generators(data.device):
            return "its model, loss or errors draw from a global generator, which trials side by side would share"
        if why := _beside_diverged(workload, data, study):
            return why
        return _other_gradient(lanes, workload, data, study) if study.arithmetic == "vmap" else None
    except Exception as error:  # code of users may raise any
        if out_of_memory(error):  # a full device must not determine the arithmetic
            raise
        return told(error)


def _generators(device: torch.device) -> list[Any]:
    """The states of all global generators."""
    found = generators.states()
    return [*found, torch.cuda.get_rng_state(device).tolist()] if device.type == "cuda" else found


def told(error: BaseException) -> str:
    """Why two lanes failed with this error, with the cure where one is known."""
    text = " ".join(text_of(error).split())
    for pattern, meaning in TOLD:
        if found := re.search(pattern, text):
            return meaning.format(*found.groups())
    return f"two trials side by side raise {type(error).__name__}: {shorten(text, 200, placeholder=' …')}".rstrip(". ")


def _of_the_seed(workload: Workload, data: Data, study: Study) -> str | None:
    """Why models of two seeds differ beside their parameters, which alone have rows of their own; None if they are
    alike. A stack compares the models of later trials with the first."""
    one, other = (initial_model(workload, study.trial(index, {}), data.device, data.layout) for index in range(2))
    for name in snapshots.changed(snapshots.beside_parameters(one), snapshots.beside_parameters(other)):
        return (
            f"its {name} differs between seeds, and trials side by side share it; leave it out if no output needs it, "
            "such as a time or a name, draw it from a generator of a fixed seed, or keep floats in a parameter with "
            "requires_grad=False: each trial has its own parameters"
        )
    return None


def _elsewhere(workload: Workload, data: Data, study: Study) -> str | None:
    """Why the outputs do not follow from the parameters by name, which lanes replace; None if they do.

    Weights may be tied by their memory, or reach `forward` by another way: a list, a closure. A change in place reaches
    all places where a weight is used, a replaced parameter only its own.
    """
    model = initial_model(workload, study.trial(0, {}), data.device, data.layout).eval()
    few = range(min(3, data.counts["val"]))
    with torch.no_grad(), generators.seeded(0, data.device):
        moved = {
            name: each + torch.randn_like(each) * (0.1 * each.abs().mean() + 1e-3)
            for name, each in model.named_parameters()
            if each.is_floating_point()
        }
        given = {name: each.clone() for name, each in moved.items()}  # `forward` may write into weights
        for inputs, _ in data.chunks("val", few, len(few)):
            arguments, keywords = trees.arguments(model, trees.cloned(inputs))
            with generators.seeded(0, data.device):
                replaced = functional_call(model, given, arguments, keywords)
            for name, parameter in model.named_parameters():
                if name in moved:
                    parameter.copy_(moved[name])
            with generators.seeded(0, data.device):
                changed = trees.call(model, trees.cloned(inputs))
            pairs = zip(trees.leaves(replaced), trees.leaves(changed), strict=True)
            if not all(torch.allclose(one, other, rtol=1e-3, atol=1e-5, equal_nan=True) for one, other in pairs):
                return (
                    "its outputs depend on weights that are not parameters of their own, such as a weight kept in a "
                    "list or a closure, or tied by its memory (`.data`); assign the parameter itself to tie it"
                )
    return None


def _other_gradient(lanes: Lanes, workload: Workload, data: Data, study: Study) -> str | None:
    """Why two lanes have other gradients than each of their models alone; None if they have the same.

    `torch.vmap` calls no hook on a gradient within the forward pass, so hooks that change gradients have no effect, and
    some of torch's rules hold for the first lane only. Each lane has its own weights and examples.
    """
    tuned = {name: value for name, value in middle(study.search.space).items() if name in workload.hyperparameters}
    stack, examples = lanes.stack, data.counts["train"]
    count = min(4, examples)
    [(inputs, targets)] = data.chunks("train", [example % examples for example in range(2 * count)], 2 * count)
    inputs, targets = (trees.mapped(lambda leaf: leaf.unflatten(0, (2, -1)), each) for each in (inputs, targets))
    weights = stack.first(2)[0].clone()
    with generators.seeded(0, data.device):
        for name in stack.layout.trained:
            (view := stack.layout.views(weights)[name]).copy_(_moved(view))

    def gradients(rows: slice) -> Sequence[Tensor]:
        form = Vmapped(stack.template, weights[rows].clone(), stack.layout, stack.half)
        form.separate()
        some, wanted = (trees.mapped(lambda leaf: leaf[rows].clone(), each) for each in (inputs, targets))
        chosen = len(weights[rows])
        form.alone = chosen == 1
        keys = torch.zeros(chosen, lanes.keyed, dtype=torch.int32, device=lanes.device)

        def loss(outputs: trees.Tree) -> Tensor:
            flat, labels = (trees.mapped(lambda leaf: leaf.flatten(0, 1), each) for each in (outputs, wanted))
            return workload.loss(flat, labels, **tuned)

        with generators.seeded(0, data.device):
            return form.backward(some, loss, keys)[1]

    near, together = 0.1 if stack.half else 0.02, gradients(slice(0, 2))
    for row in range(2):
        alone = gradients(slice(row, row + 1))
        least = 1e-5 * max(float(gradient.norm()) for gradient in alone)
        for name, one, two in zip(stack.layout.trained, alone, together, strict=True):
            if not (one[0] - two[row]).norm() <= near * one[0].norm() + least:
                return (
                    f"the gradient of its parameter {name} differs from that of a model alone; hooks on tensors or "
                    "modules that change gradients (register_hook, register_full_backward_hook) have no effect on "
                    "trials side by side; a torch.autograd.Function with setup_context and generate_vmap_rule = True "
                    "has"
                )
    return None


def _moved(weights: Tensor) -> Tensor:
    """Weights near these: at the initial ones, layers that start at zero hide what the layers before them do."""
    return weights + torch.randn_like(weights) * (0.1 * weights.abs() + 1e-2)


def _other_loss(workload: Workload, data: Data, study: Study) -> str | None:
    """Why the loss cannot take the tuned arguments of several trials at once, as tensors with a value for each example;
    None if it can. Two batch sizes are tried, because one may be the length of another axis of the outputs."""
    ends = [values(study.search.space, [unit] * len(study.search.space)) for unit in (0.25, 0.75)]
    tuned = [{name: float(end[name]) for name in end if name in workload.hyperparameters} for end in ends]
    if not tuned[0]:
        return None
    model = initial_model(workload, study.trial(0, {}), data.device, data.layout)
    with torch.no_grad(), generators.seeded(0, data.device):
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.copy_(_moved(parameter))
    for count in (2, 3):
        few = range(min(count, data.counts["train"]))
        held = {name: [each[name] for each in tuned for _ in few] for name in tuned[0]}
        [(inputs, targets)] = data.chunks("train", few, len(few))
        with torch.no_grad(), generators.seeded(0, data.device):
            outputs = trees.call(model, trees.cloned(inputs))
            apart = torch.cat([workload.loss(*map(trees.cloned, (outputs, targets)), **each) for each in tuned])
            try:
                together = workload.loss(
                    *(trees.cat([trees.cloned(each)] * 2) for each in (outputs, targets)),
                    **{name: torch.tensor(of_each, device=data.device) for name, of_each in held.items()},
                )
                found = torch.allclose(apart, together, rtol=1e-3, atol=1e-6, equal_nan=True)
            except Exception:  # code of users may raise any
                found = False
        if not found:
            name = next(iter(held))
            return (
                f"its loss does not take a tensor with a value of {name} for each example [B] as it takes a number; "
                f"give it the axes of the outputs, such as {name} = torch.as_tensor({name}).to(outputs).view(-1, 1)"
            )
    return None


def _beside_diverged(workload: Workload, data: Data, study: Study) -> str | None:
    """Why the loss or the errors of a trial depend on whether another one diverges; None if they do not. A loss that
    looks at its batch, as with `if losses.isnan().any()`, looks at the batches of all lanes."""
    tuned = {name: value for name, value in middle(study.search.space).items() if name in workload.hyperparameters}
    model = initial_model(workload, study.trial(0, {}), data.device, data.layout)
    few = range(min(3, data.counts["train"]))
    [(inputs, targets)] = data.chunks("train", few, len(few))
    for training, functions in ((True, {"loss": partial(workload.loss, **tuned)}), (False, dict(workload.errors))):
        with torch.no_grad(), generators.seeded(0, data.device):
            outputs = trees.call(model.train(training), trees.cloned(inputs))
        for (name, function), bad in itertools.product(functions.items(), DIVERGED):
            other = trees.mapped(partial(_diverged, factor=bad), outputs)
            with torch.no_grad(), generators.seeded(0, data.device):
                alone = function(*map(trees.cloned, (outputs, targets)))
                try:
                    both = function(trees.cat([trees.cloned(outputs), other]), trees.cat([trees.cloned(targets)] * 2))
                    found = torch.allclose(alone, both[: len(few)], rtol=1e-3, atol=1e-6, equal_nan=True)
                except Exception:  # code of users may raise any
                    found = False
            if not found:
                return (
                    f"its {name} of one trial depends on whether another one diverges; let each example have its own, "
                    "as with torch.where(losses.isnan(), 0, losses) in place of `if losses.isnan().any()`"
                )
    return None


def _diverged(leaf: Tensor, factor: float) -> Tensor:
    return torch.randn_like(leaf) * factor if leaf.is_floating_point() else leaf.clone()


def _alone(workload: Workload, data: Data, study: Study) -> str | None:
    """Why models must not be stacked, found on models that run alone.

    Lanes share buffers, and split every tensor of the outputs by examples.
    """
    one = initial_model(workload, study.trial(0, {}), data.device, data.layout)
    ours = {id(layer.key) for layer in keyed_layers(one)}
    ours |= {id(buffer) for layer in ghost_layers(one) for buffer in layer.buffers()}
    constant = {name: buffer.clone() for name, buffer in one.named_buffers() if id(buffer) not in ours}
    few = range(min(3, data.counts["val"]))
    with torch.no_grad(), generators.seeded(0, data.device):
        for mode in (True, False):
            for inputs, _ in data.chunks("val", few, len(few)):
                outputs = trees.call(one.train(mode), trees.cloned(inputs))
                if odd := [leaf for leaf in trees.leaves(outputs) if leaf.shape[:1] != (len(few),)]:
                    return f"its outputs hold a tensor without an axis of examples, {trees.described(odd[0])}"
    after = dict(one.named_buffers())
    for name, buffer in constant.items():
        if name not in after or not torch.equal(buffer, after[name]):
            return f"its buffer {name} changes in a forward pass; trials side by side share constant buffers only"
    return None
