"""An update of lanes as a function of tensors alone, so that it can be recorded, replayed and compiled.

Shapes: L rows of the stack that take part in a step, B examples in a batch.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from study.data import trees
from study.data.resident import Data
from study.data.trees import Tree
from study.engine.fused.cross_entropy import CrossEntropy, is_cross_entropy
from study.engine.fused.layout import Loss
from study.engine.fused.stack import Update
from study.user_code.weighting import shares, weigher
from workloads.base import Workload


def of_tensors(workload: Workload, data: Data, rows: int, names: Sequence[str]) -> Callable[..., Tensor]:
    """A function that makes an update with the one of a stack's rows (`Update`) and tensors alone.

    The tensors are the leaves of inputs and targets, keys, learning rates, numbers of the update, and hyperparameters.

    Arguments:
        names: of the hyperparameters, without the learning rate.
    """
    # Close over parts, not lanes: no reference cycle.
    inputs, targets = data.inputs, data.targets
    first, second = (len(trees.leaves(tree)) for tree in (inputs, targets))

    def update(step: Update, *arguments: Tensor) -> Tensor:
        x, y = trees.like(inputs, arguments[:first]), trees.like(targets, arguments[first : first + second])
        keys, rate, count, *constants = arguments[first + second :]
        hyperparameters = dict(zip(names, constants, strict=True))
        loss = _loss(workload, y, hyperparameters, rows)
        return step(x, loss, keys, hyperparameters | {"learning_rate": rate}, count)

    return update


def _loss(workload: Workload, targets: Tree, hyperparameters: Mapping[str, Tensor], rows: int) -> Loss:
    """A function from outputs to the loss of every example [L * B], times its share in the weighted mean of its lane.
    `hyperparameters` [L, 1] hold each lane's tuned parameters of the loss, among others."""
    tuned = {
        name: values.expand(-1, trees.count(targets) // rows).reshape(-1)
        for name, values in hyperparameters.items()
        if name in workload.hyperparameters
    }
    weigh = weigher(workload)
    weights = None if weigh is None else shares(weigh(targets), rows)
    if not tuned and weights is None and is_cross_entropy(workload):
        return CrossEntropy(targets)

    def losses(outputs: Tree) -> Tensor:
        found = workload.loss(trees.mapped(lambda tensor: tensor.flatten(0, 1), outputs), targets, **tuned)
        return found if weights is None else found * weights

    return losses
