"""Checks what is special about single parameters of a workload's model, before anything trains."""

from torch import nn

from study.checks.calling import calling
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
