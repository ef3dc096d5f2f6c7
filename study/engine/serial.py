"""The plain engine: one trial at a time, with `nn.Module` and `torch.optim`; the reference for faster engines."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from study.data.resident import Source
from study.devices.distributed import Team
from study.devices.memory import out_of_memory, release_cached_memory
from study.engine.fused.layout import watched
from study.engine.run import Run
from study.engine.trial.proposals import Proposals
from study.records import Curve, Study, Trial
from workloads.base import Workload
from workloads.layers import together

T = TypeVar("T")


def train(study: Study, workload: Workload, data: Source, proposals: Proposals) -> Iterator[Curve]:
    """Train proposed trials one after the other, on the device of the data or with the team that shares them.

    Raises:
        RuntimeError, MemoryError: out of memory with the smallest micro-batch that the model allows.
    """
    micro_batch = study.micro_batch
    while (trial := proposals.ask(wait=True)) is not None:
        attempt = partial(_curve, study, workload, data, proposals, trial)
        curve, micro_batch = fitting(study, workload, data.team, micro_batch, attempt)
        yield curve


def _curve(
    study: Study, workload: Workload, data: Source, proposals: Proposals, trial: Trial, micro_batch: int | None
) -> Curve:
    run = Run(study, workload, data, trial, micro_batch)
    if not run.restore(proposals.checkpoint):
        run = Run(study, workload, data, trial, micro_batch)
        run.restore(proposals.checkpoint, own=False)
    return run.finish(proposals)


def fitting(
    study: Study, workload: Workload, team: Team, micro_batch: int | None, attempt: Callable[[int | None], T]
) -> tuple[T, int | None]:
    """Call `attempt`, and halve the micro-batch until memory suffices; returns (the result, the micro-batch).

    The size changes the last bits, so each attempt starts from step 0 or from a checkpoint with its own size.

    Arguments:
        micro_batch: the first one to attempt; None: the whole batch, or a rank's share of it.
        attempt: micro-batch -> result.

    Raises:
        RuntimeError, MemoryError: out of memory with the smallest micro-batch that the model allows.
    """
    while True:
        try:
            return attempt(micro_batch), micro_batch
        except (RuntimeError, MemoryError) as error:
            share = -(-study.batch_sizes[-1] // team.size)
            examples = min(share, micro_batch or share)
            model = workload.model()
            least = share if watched(model) else together(model, study.batch_sizes[-1])
            if examples <= least or not (out_of_memory(error) and team.agreed(error)):
                raise
            micro_batch = -(-examples // 2)
        release_cached_memory()
