"""What is special about single parameters of a model: a factor on the learning rate, or no weight decay."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from analysis.labels import listed
from workloads.base import Workload, optional
from workloads.suggest import suggest

DECAYS = ("l2", "weight_decay")
"""The hyperparameters that `optimizer.no_decay` keeps from parameters."""
FEW_DIMENSIONS = "ndim<2"
"""The pattern of `optimizer.no_decay` that stands for all parameters with fewer than two dimensions."""


class Treatment(NamedTuple):
    """How one parameter is updated.

    Attributes:
        rate: factor on the learning rate.
        decays: l2 and weight decay apply to it.
    """

    rate: float = 1.0
    decays: bool = True

    def of(self, hyperparameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The hyperparameters of this parameter, given those of its model."""
        if self == USUAL:
            return hyperparameters
        kept = () if self.decays else DECAYS
        zeros = {name: torch.zeros_like(value) for name, value in hyperparameters.items() if name in kept}
        return {**hyperparameters, **zeros, "learning_rate": hyperparameters["learning_rate"] * self.rate}


Treatments = Mapping[str, Treatment]
"""Parameter name -> its treatment; all other parameters have the usual one."""
USUAL = Treatment()
ALL_USUAL: Treatments = {}


def treatments(model: nn.Module, workload: Workload, no_decay: Sequence[str] = ()) -> dict[str, Treatment]:
    """The special treatments of a model's trained parameters.

    Arguments:
        no_decay: patterns of parameters without weight decay, see `patterns`.

    Raises:
        ValueError: `groups(model)` of the workload is faulty, or a pattern matches no parameter.
    """
    factors, undecayed = _factors(model, workload), _undecayed(model, workload, no_decay)
    trained = (name for name, parameter in model.named_parameters() if parameter.requires_grad)
    found = {name: Treatment(factors.get(name, 1.0), name not in undecayed) for name in trained}
    return {name: treatment for name, treatment in found.items() if treatment != USUAL}


def patterns(given: Sequence[str]) -> tuple[str, ...]:
    """The patterns of `optimizer.no_decay` in a fixed form: lower case, sorted, each once.

    A pattern matches the parameters whose names contain it, in upper or lower case; `ndim<2` matches the parameters
    with fewer than two dimensions.

    >>> patterns(["norm", "Bias", "ndim < 2", "bias"])
    ('bias', 'ndim<2', 'norm')

    Raises:
        ValueError: a pattern is no text, or empty.
    """
    found = ["".join(each.lower().split()) if isinstance(each, str) else "" for each in given]
    if not all(found):
        raise ValueError(f"optimizer.no_decay lists parts of parameter names, such as bias, but got {list(given)}.")
    return tuple(sorted({*found}))


def _undecayed(model: nn.Module, workload: Workload, no_decay: Sequence[str]) -> set[str]:
    """The names of the parameters that a pattern matches."""
    names, found = _all_names(model) if no_decay else {}, set[str]()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    for pattern in no_decay:
        matched = {
            name
            for name, all_ in names.items()
            if (len(shapes[name]) < 2 if pattern == FEW_DIMENSIONS else any(pattern in each.lower() for each in all_))
        }
        if not matched:
            raise ValueError(
                f"optimizer.no_decay has {pattern!r}, which matches no parameter of {workload.name}; these are "
                f"{listed(names, most=12)}. {FEW_DIMENSIONS!r} matches those with fewer than two dimensions."
            )
        found |= matched
    return found


def _all_names(model: nn.Module) -> dict[str, list[str]]:
    """Name of each parameter -> all its names; a tied parameter has several."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {first: [first, *others] for first, *others in names.values()}


def _factors(model: nn.Module, workload: Workload) -> dict[str, float]:
    """Parameter name -> factor on its learning rate, as `groups(model)` of the workload says."""
    if (groups := optional(workload, "groups")) is None:
        return {}
    given, what, names = groups(model), f"{workload.name}.groups(model)", _all_names(model)
    if not isinstance(given, Mapping):
        raise ValueError(
            f"{what} must return a mapping from names to learning-rate factors, such as {{'backbone': 0.1}}, but got a "
            f"{type(given).__name__}."
        )
    groups_of: dict[str, list[str]] = {}
    for group, factor in given.items():
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor < math.inf:
            raise ValueError(
                f"factors of {what} must be numbers above 0, but got {group!r}: {factor!r}; requires_grad=False "
                "freezes a parameter."
            )
        inside = [first for first, all_ in names.items() if any(_is_in(name, group) for name in all_)]
        if not inside:
            raise ValueError(
                f"{what} names {group!r}, but the model has no such parameter{suggest(group, _paths(names))}"
            )
        for name in inside:
            groups_of.setdefault(name, []).append(group)
    for name, holding in groups_of.items():
        if len(holding) > 1:
            raise ValueError(
                f"{what} puts {name} into the groups {' and '.join(map(repr, holding))}; leave one of them."
            )
    return {name: float(given[group]) for name, [group] in groups_of.items()}


def _is_in(name: str, group: str) -> bool:
    """Whether `group` is this parameter or a module that contains it."""
    return name == group or name.startswith(f"{group}.")


def _paths(names: Iterable[str]) -> list[str]:
    """All parameters and all modules that contain one."""
    parts = [name.split(".") for name in names]
    return list(dict.fromkeys(".".join(each[:length]) for each in parts for length in range(1, len(each) + 1)))


def param_groups(
    model: nn.Module, learning_rate: float, treatments: Treatments = ALL_USUAL, named: bool = False
) -> list[Any]:
    """The trained parameters as a torch optimizer takes them: one list, or a group for each treatment if there are any.

    Arguments:
        named: (name, parameter) in place of parameters.
    """
    groups: dict[Treatment, list[Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            group = groups.setdefault(treatments.get(name, USUAL), [])
            group.append((name, parameter) if named else parameter)
    if not treatments:
        return groups.get(USUAL, [])
    return [
        {"params": group, "lr": learning_rate * each.rate, **({} if each.decays else {"weight_decay": 0.0})}
        for each, group in groups.items()
    ]


def decayed(model: nn.Module, treatments: Treatments) -> list[tuple[float, list[Tensor]]]:
    """(factor on the learning rate, the trained parameters that have it) of all parameters with weight decay."""
    found: dict[float, list[Tensor]] = {}
    for name, parameter in model.named_parameters():
        treatment = treatments.get(name, USUAL)
        if parameter.requires_grad and treatment.decays:
            found.setdefault(treatment.rate, []).append(parameter)
    return list(found.items())
