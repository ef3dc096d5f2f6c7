"""Checks what is special about single parameters of a workload's model, before anything trains."""

from collections.abc import Collection, Iterator, Sequence

from torch import Tensor, nn

from study.checks.calling import calling
from study.data import trees
from study.data.trees import Tree
from study.errors import UsageError
from study.optimizers.per_parameter import USUAL, Treatments, treatments
from study.records import Study
from workloads.base import Workload


def check_treatments(study: Study, workload: Workload) -> None:
    """Raise an error if `groups(model)` of the workload fails or is faulty, or `optimizer.no_decay` matches nothing.

    Raises:
        UsageError: `groups(model)` raised an error.
        ValueError: any other fault.
    """
    _special(study, workload, workload.model())


def mean_factor(study: Study, workload: Workload) -> dict[str, float]:
    """A number for the workload's fingerprint: the mean learning-rate factor of the trained parameters."""
    model = workload.model()
    special = _special(study, workload, model)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
    total = sum(size * special.get(name, USUAL).rate for name, size in sizes.items())
    return {"mean learning-rate factor": total / sum(sizes.values())}


def _special(study: Study, workload: Workload, model: nn.Module) -> Treatments:
    if callable(groups := getattr(workload, "groups", None)):
        with calling(study, "groups(model)"):
            groups(model)
    return treatments(model, workload, study.no_decay)


def check_registered(study: Study, model: nn.Module, trained: Collection[nn.Parameter], outputs: Tree) -> None:
    """Raise UsageError if the outputs depend on a weight that is not trained: layers in a list or dictionary of Python,
    layers or parameters that `forward` makes, and tensors with gradients that are no `nn.Parameter`.

    Arguments:
        trained: the parameters of the model before its forward pass.
    """
    known = set(map(id, trained))
    held = {id(value) for module in model.modules() for value in vars(module).values()}
    for leaf in _leaves(trees.leaves(outputs)):
        if id(leaf) not in known and (isinstance(leaf, nn.Parameter) or id(leaf) in held):
            raise UsageError(
                f"the outputs of {study.name}'s model depend on a weight {list(leaf.shape)} that is none of its "
                "parameters, so no optimizer would train it; make it in __init__ as an nn.Parameter or a layer, and "
                "keep layers in an nn.ModuleList or nn.ModuleDict, not in a list or dictionary."
            )


def _leaves(outputs: Sequence[Tensor]) -> Iterator[Tensor]:
    """The tensors with gradients that outputs depend on and that nothing computed."""
    left, seen = [output.grad_fn for output in outputs], set()
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        left += [function for function, _ in node.next_functions]
