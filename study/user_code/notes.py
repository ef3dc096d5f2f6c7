"""What a workload does that its author may not have meant. A sweep says it before it trains and in its report, and
refuses nothing, because it may be meant.

Shapes: N examples in a split, B examples in a batch.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from analysis.labels import listed
from study.data import trees
from study.data.examples import Examples
from study.data.single_pass import alike
from study.data.trees import Tree
from study.devices import generators
from study.user_code import autocast, leaks
from study.user_code.weighting import OwnMeans
from workloads.base import Workload, optional

KEPT, SEEDS = 4, 4
"""Examples that stay in two batches which tell whether `collate` mixes examples, and the number of such pairs."""


def notes(
    workload: Workload, examples: Examples, few: tuple[Tree, Tree], tuned: Mapping[str, float], precision: str
) -> tuple[str, ...]:
    """Sentences about a workload that the checks before a sweep accept.

    Arguments:
        few: inputs and targets of training examples.
        tuned: arguments of the loss.
        precision: of forward passes, see `study.user_code.autocast`.
    """
    found = [leaks.of_split(workload.name, examples, name) for name in ("val", "test")]
    found += [_of_start(workload), _of_gradients(workload, *few, tuned, precision), _of_mixing(workload, examples)]
    found += [_of_mean(workload, *few, tuned, precision)]
    return tuple(filter(None, found))


def _of_mixing(workload: Workload, examples: Examples) -> str | None:
    """A note if `collate` draws random numbers that mix validation examples, as mixup does: it then gives other
    examples beside others. Examples of several shapes are left out, because they change what is drawn."""
    count = min(KEPT, examples.count("val") // 3)
    if examples.collate is default_collate or isinstance(examples.splits["val"], tuple) or not count:
        return None
    alone = [trees.leaves(examples.read("val", [number])) for number in range(3 * count)]
    if len({tuple(leaf.shape for leaf in leaves) for leaves in alone}) > 1:
        return None
    items = examples.items("val", range(3 * count))
    for seed in range(SEEDS):
        batches = [_drawn(examples, items[:count] + items[start:][:count], seed) for start in (count, 2 * count)]
        if None not in batches and not alike(*(trees.part(batch, slice(count)) for batch in batches)):
            return (
                f"{workload.name}.collate mixes examples at random, those of evaluations, too, so val/ errors are of "
                "mixed examples. If this is not meant, let __getitem__ of the training data set draw and mix them."
            )
    return None


def _drawn(examples: Examples, items: list[Any], seed: int) -> Any:
    """The batch of some items; None if `collate` draws no random numbers for it."""
    with generators.seeded(seed):
        before = generators.states()
        batch = examples.collate(items)
        return None if generators.states() == before else tuple(batch)


def _of_gradients(
    workload: Workload, inputs: Tree, targets: Tree, tuned: Mapping[str, float], precision: str
) -> str | None:
    """A note if a layer is called and its parameters get no gradient. One that is not called may serve other examples,
    as an expert does."""
    called: set[nn.Module] = set()
    with generators.seeded(0):
        model = workload.model().train()
        layers = {name: layer for name, layer in model.named_modules() if not [*layer.children()]}
        for layer in layers.values():
            layer.register_forward_hook(lambda layer, *_: called.add(layer))
        outputs = _outputs(workload, model, inputs, precision)
        workload.loss(outputs, trees.cloned(targets), **tuned).mean().backward()
    idle = [
        name or type(layer).__name__
        for name, layer in layers.items()
        if layer in called and any(each.requires_grad and each.grad is None for each in layer.parameters())
    ]
    if not idle:
        return None
    return (
        f"parameters of {listed(idle, most=3)} in the model of {workload.name} get no gradient and are not trained, "
        "although forward calls these layers: their outputs are detached, computed under torch.no_grad(), or left out "
        "of the loss. If this is meant, say so by requires_grad_(False)."
    )


def _outputs(workload: Workload, model: nn.Module, inputs: Tree, precision: str) -> Any:
    """The outputs of a model in training."""
    augment = optional(workload, "augment") or (lambda inputs, _: inputs)
    given = augment(trees.cloned(inputs), torch.Generator().manual_seed(0))
    return autocast.computed(precision, torch.device("cpu"), lambda: trees.call(model, given))


def _of_mean(workload: Workload, inputs: Tree, targets: Tree, tuned: Mapping[str, float], precision: str) -> str | None:
    """A note if the loss calls one of torch whose own mean weights examples, and the workload gives no weights."""
    if optional(workload, "weights") is not None:
        return None
    with generators.seeded(0):
        outputs = _outputs(workload, workload.model().train(), inputs, precision)
        with OwnMeans(trees.count(targets)) as means:
            workload.loss(outputs, trees.cloned(targets), **tuned)
    if not (means.weighted or means.uneven):
        return None
    return (
        f"the loss of {workload.name} {'has class weights' if means.weighted else 'ignores targets'}, but a step "
        "descends the plain mean of its losses; reduction='mean' of torch divides by the weights of all counted "
        "targets in a batch. To train with that mean, let `loss` return the mean over the targets of each example, "
        "weighted if there are several, and `weights(targets) -> [B]` the sum of their weights. If the plain mean is "
        "meant, let `weights` return ones."
    )


def _of_start(workload: Workload) -> str | None:
    """A note if all trials start from the same weights, unless all of them are constants, such as zeros."""
    weights = []
    for seed in (0, 1):
        with generators.seeded(seed):
            weights.append([each for each in workload.model().parameters() if each.requires_grad])
    ones, others = weights
    same = len(ones) == len(others) and all(map(torch.equal, ones, others))  # a model may draw its depth, too
    if not same or all(bool((one == one.flatten()[:1]).all()) for one in ones if one.numel()):
        return None
    return (
        f"{workload.name}.model() gives the same weights for every seed, so fresh seeds differ in the order of the "
        "data alone. That is right for weights that it loads; draw others from the global generators of torch, NumPy "
        "or `random`, and seed none of these."
    )
