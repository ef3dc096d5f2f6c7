"""Checks that a batch may be split, over devices or into micro-batches."""

from torch import nn

from study.checks.calling import FEW
from study.data.order import places
from study.engine.fused.layout import watched
from study.errors import UsageError
from study.records import Study
from workloads.layers import together, whole_batch_layers


def check_parts(
    study: Study, model: nn.Module, devices: int, stateful: str | None = None, weighted: bool = False
) -> None:
    """Raise UsageError if splitting a batch would change its update.

    Arguments:
        stateful: why the model keeps state that a split changes; None: it keeps none.
        weighted: the workload has `weights`.
    """
    if devices == 1 and study.micro_batch is None:
        return
    parts = f"micro-batches of {study.micro_batch} examples, because of limited memory"
    split = f"batches of {study.batch_size} are split into {f'parts on {devices} devices' if devices > 1 else parts}"
    if whole_batch_layers(model):
        raise UsageError(
            f"{study.name} has batch norm over the whole batch, but {split}; "
            "workloads.layers.GhostBatchNorm(channels, group=32) gives the same result for every split."
        )
    if (name := watched(model)) is not None:  # few hooks are linear
        raise UsageError(
            f"a batch of {study.name} must be one backward pass, because its parameter {name} has gradient hooks, "
            f"which would see the gradients of parts, but {split}; leave the hooks out: search.space.clip_norm clips "
            "the gradient of the whole batch."
        )
    if stateful:
        raise UsageError(
            f"a batch of {study.name} must be one forward pass, because {stateful}, but {split}; keep the state in a "
            "buffer that does not depend on the split, or leave it out."
        )
    if weighted and study.algorithm.sees_examples:
        raise UsageError(
            f"{study.optimizer} collects the gradients of single examples, whose `weights` are relative to the whole "
            f"batch, but {split}; choose another optimizer."
        )
    if devices > 1 and study.algorithm.sees_examples:
        raise UsageError(
            f"{study.optimizer} collects the gradients of single examples, but each of {devices} devices has only its "
            "own examples; leave out engine.devices or choose another optimizer."
        )


def small_parts(study: Study, model: nn.Module, devices: int) -> list[int]:
    """The sizes below FEW of the parts of a split batch: many models fail on one example."""
    sizes = set()
    for whole in study.batch_sizes:
        shares = places(whole, devices, study.micro_batch, together(model, whole))
        sizes |= {part.stop - part.start for share in shares for part in share} - {whole}
    return sorted(size for size in sizes if size < FEW)
