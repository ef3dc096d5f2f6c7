"""Updates as a GPU makes them, on tensors without values: lanes of one study, or one model alone."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

from torch import Tensor, nn

from benchmarks.engine import MODELS, RATE, WRITTEN, made_up_splits, made_up_windows
from benchmarks.trace.autocast import Autocast
from benchmarks.trace.counter import META, Counter, Kernel
from study.config.jobs import parse_jobs
from study.data.resident import Data
from study.engine.arithmetic import ARITHMETICS, candidates
from study.engine.fused import cuda_graph
from study.engine.lanes import SEGMENT_STEPS, Lanes
from study.engine.run import Run
from study.engine.trial.evaluation import initial_model
from study.records import Study, Trial
from study.search.points import point
from study.space import values
from workloads.base import Workload
from workloads.language.modelling import LanguageModelling
from workloads.user_code.importing import build

LANES = 64


@dataclass(frozen=True)
class Update:
    """One update of all lanes.

    Attributes:
        precision: `fp32`, in which numbers are stored with `tf32`, too, or `bf16`.
        kernels: of the update; where lanes are recorded as a CUDA graph, of the graph.
        launches: launches from Python at every step, a replayed graph being one.
        meetings: how often the host waits for the device in a segment of `SEGMENT_STEPS` steps.
    """

    model: str
    optimizer: str
    batch_size: int
    precision: str
    arithmetic: str
    lanes: int
    kernels: tuple[Kernel, ...]
    launches: int
    meetings: int

    @property
    def bytes(self) -> float:
        """Bytes that the update of one lane reads and writes."""
        return sum(kernel.bytes for kernel in self.kernels) / self.lanes

    @property
    def flop(self) -> float:
        """FLOP of the update of one lane."""
        return sum(kernel.flop for kernel in self.kernels) / self.lanes

    def row(self) -> dict[str, Any]:
        """The update as a record: kernels are counted, in all and by kind."""
        held = asdict(replace(self, kernels=()))
        kinds = Tally(kernel.kind for kernel in self.kernels)
        counts = {"kernels": len(self.kernels), "kinds": dict(sorted(kinds.items()))}
        return held | counts | {"bytes": round(self.bytes), "flop": round(self.flop)}


def traced(
    model: str,
    batch_size: int,
    optimizer: str,
    arithmetic: str | None = None,
    lanes: int = LANES,
    precision: str = "fp32",
) -> Update:
    """Count an update. `arithmetic`: None: the one that is chosen on a GPU."""
    study, workload = study_of(model, batch_size, optimizer, arithmetic, precision)
    fused = ARITHMETICS[study.arithmetic].stack is not None
    with as_a_gpu() as graphs, Counter() as counter:
        made = started(study, workload, lanes) if fused else alone(study, workload)
        made.advance(1)  # records the graph, and reads the order of the examples
        one, two = (counter.counted(partial(made.advance, steps)) for steps in (1, 2))
        launches, meetings = two.launches - one.launches, two.meetings - one.meetings
        kernels = graphs[-1].kernels if isinstance(made, Lanes) else counter.counted(partial(made.update, RATE)).kernels
    segment = one.meetings + (SEGMENT_STEPS - 1) * meetings
    height = lanes if fused else 1
    counted = tuple(kernels), launches, segment
    return Update(model, optimizer, batch_size, precision, study.arithmetic, height, *counted)


def study_of(
    model: str, batch_size: int, optimizer: str, arithmetic: str | None, precision: str
) -> tuple[Study, Workload]:
    """A study with whole batches, and its workload."""
    held = {"learning_rate": RATE, **WRITTEN[optimizer][0]}
    fixed = [f"search.space.{name}={value}" for name, value in held.items()]
    where = ["stopping=budget", f"batch_size={batch_size}", f"precision={precision}", "engine.device=cpu"]
    [job] = parse_jobs([*MODELS[model], f"optimizer={optimizer}", *fixed, *where])
    study, workload = replace(job.study, micro_batch=None), build(job.study.workload)
    chosen = arithmetic or candidates(workload.model(), study, "cuda")[0]
    return replace(study, arithmetic=chosen), workload


def made_up(workload: Any) -> Data:
    """Data of the shape of the workload's."""
    if isinstance(workload, LanguageModelling):
        return Data.of(made_up_windows(workload, META))
    return Data.of(made_up_splits(workload.dataset, workload.train_examples, META))


def started(study: Study, workload: Workload, lanes: int) -> Lanes:
    """Lanes in a stack of this height. One trial runs; the engine fills the other rows with it."""
    made = Lanes(study, workload, made_up(workload), [lanes], lanes)
    made.start(trial_of(study))
    return made


def alone(study: Study, workload: Workload) -> Run:
    """One model alone."""
    return Run(study, workload, made_up(workload), trial_of(study))


def trial_of(study: Study) -> Trial:
    """Its first trial."""
    return study.trial(0, values(study.search.space, point(study, 0)))


@contextmanager
def as_a_gpu() -> Iterator[list[Graph]]:
    """A block in which `meta` tensors are treated as those of a GPU; yields the graphs that are recorded."""
    graphs: list[Graph] = []

    def graph(*_: Any) -> Graph:
        graphs.append(Graph())
        return graphs[-1]

    def model(*arguments: Any) -> nn.Module:
        with META:  # a move to `meta` would break ties between parameters
            return initial_model(*arguments)

    with (
        mock.patch.dict(cuda_graph.GRAPHS, {"meta": graph}),
        mock.patch("study.engine.lanes.initial_model", model),
        mock.patch("study.engine.run.initial_model", model),
        mock.patch("torch.autocast", Autocast),  # torch's does not know `meta`
        mock.patch("torch.is_autocast_enabled", Autocast.enabled),
        mock.patch("torch.get_autocast_dtype", Autocast.innermost),
        mock.patch("torch.optim.optimizer._get_fused_kernels_supported_devices", return_value=["meta"]),
    ):
        yield graphs


class Graph:
    """A recording of the kernels that the active counter sees."""

    def __init__(self) -> None:
        self.kernels: list[Kernel] = []

    def run(self, function: Callable[[], Tensor]) -> Tensor:
        return function()

    def record(self, function: Callable[[], Tensor]) -> Tensor:
        found, self.kernels = Counter.active().record(function)
        return found

    def replay(self) -> None:
        Counter.active().replay(self.kernels)
