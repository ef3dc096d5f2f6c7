"""What a workload does that its author may not have meant. A sweep says it before it trains and in its report, and
refuses nothing, because it may be meant.

Shapes: N examples in a split, B examples in a batch.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import default_collate

from analysis.labels import listed
from study.data import trees
from study.data.examples import Examples
from study.data.single_pass import alike
from study.data.trees import Tree
from study.devices import generators
from study.user_code import autocast, leaks
from study.user_code.weighting import OwnMeans, weigher
from workloads.base import Workload, optional

DROPOUTS = (F.dropout, F.dropout1d, F.dropout2d, F.dropout3d, F.alpha_dropout, F.feature_alpha_dropout)
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
    passes = Passes(workload, *few, tuned, precision)
    of_splits = [leaks.of_split(workload.name, examples, name) for name in ("val", "test")]
    others = [_of_start(workload), _of_gradients(passes), _of_mixing(workload, examples), _of_dropout(passes)]
    return tuple(filter(None, [*of_splits, *others, *_of_loss(passes)]))


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


@dataclass(frozen=True)
class Passes:
    """Forward passes of a few training examples. Attributes are the arguments of `notes`."""

    workload: Workload
    inputs: Tree
    targets: Tree
    tuned: Mapping[str, float]
    precision: str

    def outputs(self, model: nn.Module) -> Any:
        """The outputs of a model, in training for augmented inputs."""
        augment = optional(self.workload, "augment") if model.training else None
        inputs = trees.cloned(self.inputs)
        if augment is not None:
            inputs = augment(inputs, torch.Generator().manual_seed(0))
        return autocast.computed(self.precision, torch.device("cpu"), lambda: trees.call(model, inputs))

    def losses(self, outputs: Any) -> Tensor:
        """The losses [B] for outputs of a model."""
        return self.workload.loss(outputs, trees.cloned(self.targets), **self.tuned)


def _of_gradients(passes: Passes) -> str | None:
    """A note if a layer is called and its parameters get no gradient. One that is not called may serve other examples,
    as an expert does."""
    called: set[nn.Module] = set()
    with generators.seeded(0):
        model = passes.workload.model().train()
        ends = ((name, layer) for name, layer in model.named_modules() if not [*layer.children()])
        layers = {name: layer for name, layer in ends if not isinstance(layer, torch.jit.ScriptModule)}
        for layer in layers.values():
            layer.register_forward_hook(lambda layer, *_: called.add(layer))
        passes.losses(passes.outputs(model)).mean().backward()
    idle = [
        name or type(layer).__name__
        for name, layer in layers.items()
        if layer in called and any(each.requires_grad and each.grad is None for each in layer.parameters())
    ]
    if not idle:
        return None
    return (
        f"parameters of {listed(idle, most=3)} in the model of {passes.workload.name} get no gradient and are not "
        "trained, although forward calls these layers: their outputs are detached, computed under torch.no_grad(), or "
        "left out of the loss. If this is meant, say so by requires_grad_(False)."
    )


class WatchDropout(TorchFunctionMode):
    """A block that records whether dropout is computed."""

    computed = False

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        named = named or {}
        if function in DROPOUTS:
            bound = inspect.signature(function).bind(*arguments, **named)
            bound.apply_defaults()
            self.computed |= bound.arguments["training"] and bound.arguments["p"] > 0
        elif function is F.scaled_dot_product_attention:
            self.computed |= (arguments[4] if len(arguments) > 4 else named.get("dropout_p", 0)) > 0
        return function(*arguments, **named)


def _of_dropout(passes: Passes) -> str | None:
    """A note if an evaluation computes dropout."""
    with generators.seeded(0), WatchDropout() as dropout:
        passes.outputs(passes.workload.model().eval())
    if not dropout.computed:
        return None
    return (
        f"the model of {passes.workload.name} drops out in evaluations, too, so errors are those of a thinned model; "
        "if this is not meant, write F.dropout(x, p, self.training), and dropout_p=p if self.training else 0."
    )


def _of_loss(passes: Passes) -> Iterator[str]:
    """Notes if the loss has parameters that are not trained, or calls one of torch whose own mean weights examples,
    and the workload gives no weights."""
    name = passes.workload.name
    with generators.seeded(0):
        outputs = trees.mapped(Tensor.detach, passes.outputs(passes.workload.model().train()))
        with OwnMeans(trees.count(passes.targets)) as means:
            losses = passes.losses(outputs)
    if losses.requires_grad:
        yield (
            f"the loss of {name} depends on parameters outside of the model, which no optimizer trains. To train them, "
            "make them parameters of the model, and let forward return what the loss needs of them, once for each "
            "example; if they are not to be trained, say so by requires_grad_(False)."
        )
    if (weigh := weigher(passes.workload)) is not None:
        if means.twice(weigh(passes.targets)):
            yield (
                f"the loss of {name} has the weights that its `weights` gives, too, so that an example counts by the "
                "square of its weight; if this is not meant, leave them out of the loss."
            )
    elif means.weighted or means.uneven:
        how = "return the mean over the counted targets of each example, and `weights(targets) -> [B]` their number"
        if means.weighted:
            how = "leave out its weights w, and `weights(targets) -> [B]` return them, for class weights w[targets]; "
            how += "of examples with several targets, the weighted mean, and the sum of the weights"
        yield (
            f"the loss of {name} {'has weights' if means.weighted else 'ignores targets'}, but a step descends "
            "the plain mean of its losses; with reduction='mean', torch divides by the weights of all counted targets "
            f"of a batch. To train with that mean, let `loss` {how}. If the plain mean is meant, let `weights` return "
            "ones."
        )


def _of_start(workload: Workload) -> str | None:
    """A note if all trials start from the same weights, unless all of them are constants, such as zeros."""
    weights = []
    for seed in (0, 1):
        with generators.seeded(seed):
            weights.append([each for each in workload.model().parameters() if each.requires_grad])
    first, second = weights
    same = len(first) == len(second) and all(map(torch.equal, first, second))  # a model may draw its depth, too
    if not same or all(bool((each == each.flatten()[:1]).all()) for each in first if each.numel()):
        return None
    return (
        f"{workload.name}.model() gives the same weights for every seed, so fresh seeds differ in the order of the "
        "data alone. That is right for weights that it loads; draw others from the global generators of torch, NumPy "
        "or `random`, and seed none of these."
    )
