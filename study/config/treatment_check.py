"""Checks what is special about single parameters of a workload's model, before anything trains."""

from study.config.workload_check import calling
from study.optimizers.per_parameter import treatments
from study.records import Study
from workloads.base import Workload


def check_treatments(study: Study, workload: Workload) -> None:
    """Raise UsageError if `groups(model)` of the workload fails or is faulty."""
    model, groups = workload.model(), getattr(workload, "groups", None)
    if callable(groups):
        with calling(study, "groups(model)"):
            groups(model)
    treatments(model, workload)


def mean_factor(workload: Workload) -> dict[str, float]:
    """A number for the workload's fingerprint: the mean learning-rate factor of the trained parameters."""
    model = workload.model()
    special = treatments(model, workload)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
    total = sum(size * (special[name].rate if name in special else 1.0) for name, size in sizes.items())
    return {"mean learning-rate factor": total / sum(sizes.values())}
