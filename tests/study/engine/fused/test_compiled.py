"""A compiled update is the update as it is, to rounding; what cannot be compiled, or differs, stays as it is."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.blobs import WORKLOADS, Blobs
from helpers.desks import Curves, assert_near, assert_same_bits, full
from helpers.fused import Queue, partly
from torch import Tensor

from analysis.question.batch_schedules import BatchSchedule
from study.engine import lanes
from study.engine.fused import compiled
from study.engine.lanes import Lanes
from study.optimizers import OPTIMIZERS
from study.records import Study

NORMED = Blobs(images=True, normed=True)
CASES = {
    "chain": ("linear_chain", "momentum", WORKLOADS["linear_chain"]),
    "chain, Nesterov": ("linear_chain", "nesterov", WORKLOADS["linear_chain"]),
    "images": ("vmap", "nesterov", WORKLOADS["vmap"]),
    "ghost norm": ("vmap", "momentum", NORMED),
    "moments": ("vmap", "adam", WORKLOADS["vmap"]),
    "parameter by parameter": ("vmap", "lars", WORKLOADS["vmap"]),
    "matrices": ("linear_chain", "muon", WORKLOADS["linear_chain"]),
    "bases that are refreshed": ("linear_chain", "soap", WORKLOADS["linear_chain"]),
}
Backend = Callable[[Any, Sequence[Tensor]], Callable[..., Tensor]]
RARE = pytest.mark.release
REFUSED = "updates are not compiled, as with engine.compile=false: "


@pytest.fixture
def traced_alone(monkeypatch):
    """Graphs are traced, and computed operation by operation, which has the same bits."""
    made: list[Any] = []

    def backend(graph: Any, tensors: Sequence[Tensor]) -> Any:
        made.append(graph)
        return graph

    monkeypatch.setattr(compiled, "inductor", backend)
    return made


@pytest.fixture
def compiler(monkeypatch, tmp_path_factory):
    """Graphs are compiled for the CPU, and kept in a folder of the test."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("compiled")))


@pytest.fixture(autouse=True)
def _rules_of_gpus(monkeypatch):
    """On a CPU, Adam is a kernel of torch for each row, which reads its learning rate."""
    monkeypatch.setitem(OPTIMIZERS, "adam", replace(OPTIMIZERS["adam"], stacked=None))


def started(study: Study, workload: Blobs, compiles: bool, count: int = 4) -> Lanes:
    """Lanes in the lower half of a stack."""
    fused = Lanes(study, workload, workload.data(), [2, 4, 8], 4, compiles)
    for trial in Queue(study, range(count)).trials:
        fused.start(trial)
    return fused


def trained(study: Study, workload: Blobs, compiles: bool) -> Curves:
    """Seven trials in four lanes, of which the third diverges."""
    queue = Queue(study, range(7), learning_rate=1e38)
    curves = lanes.train(study, workload, workload.data(), queue, (1, 2, 4), 4, compiles)
    return {curve.trial.index: curve for curve in curves}


def rows(fused: Lanes) -> dict[str, Tensor]:
    return {"weights": fused.stack.weights, **fused.stack.state}


def assert_alike(question, case: str, **tolerance: float) -> None:
    """Updates with other learning rates each, then some of fewer lanes."""
    how, optimizer, workload = CASES[case]
    study = question(how, optimizer, "linear_decay", steps=12)
    found, expected = (started(study, workload, compiles) for compiles in (True, False))
    for each in (found, expected):
        each.advance(5)
        each.end(3)
        each.end(2)
        each.advance(2)
    for name, tensor in rows(expected).items():
        torch.testing.assert_close(rows(found)[name], tensor, **tolerance, msg=lambda told, of=name: f"{of}: {told}")


@pytest.mark.slow
@pytest.mark.parametrize("case", partly(CASES, 4))
def test_the_traced_update_is_the_update_as_it_is(question, traced_alone, case):
    assert_alike(question, case, rtol=0, atol=0)
    assert len(traced_alone) == 1  # that of a full stack


@pytest.mark.parametrize("case", partly(["chain", "ghost norm"], 2))
def test_curves_of_the_traced_update_are_those_of_the_update_as_it_is(question, traced_alone, case):
    how, optimizer, workload = CASES[case]
    study = question(how, optimizer, steps=12)
    assert_same_bits(trained(study, workload, True), trained(study, workload, False))


@pytest.mark.slow
def test_each_size_of_a_growing_batch_is_compiled_once(question, traced_alone):
    workload = WORKLOADS["linear_chain"]
    grows = BatchSchedule("listed", switches=(18, 42), sizes=(8, 16))
    study = replace(question("linear_chain", "momentum", steps=12), batch_schedule=grows)
    assert_same_bits(trained(study, workload, True), trained(study, workload, False))
    assert len(traced_alone) == 3


@pytest.mark.parametrize(
    "case", partly(["chain", "ghost norm", "moments", "parameter by parameter"], 4, kept=[pytest.mark.slow], rest=RARE)
)
def test_the_compiled_update_is_the_update_as_it_is(question, compiler, case):
    assert_alike(question, case, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_curves_of_the_compiled_update_are_those_of_the_update_as_it_is(question, compiler):
    """The second time, the compiled update comes from the disk."""
    from torch._dynamo.utils import counters

    how, optimizer, workload = CASES["images"]
    study = question(how, optimizer, steps=12)
    expected = trained(study, workload, False)
    for hits in (0, 1):
        counters.clear()
        assert_near(trained(study, workload, True), expected, 1e-3)
        assert counters["inductor"]["fxgraph_cache_hit"] == hits


@dataclass
class Looking(Blobs):
    """Its loss branches on its own value."""

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: Any = 0.0) -> Tensor:
        found = super().loss(outputs, targets, label_smoothing)
        return found if found.sum() > 0 else -found


class Unknown(torch.autograd.Function):
    """Reads its input on the host, where a graph has no number."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * (2.0 if x.detach().numpy().max() > 1e9 else 1.0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


@dataclass
class Foreign(Blobs):
    """Its loss has an operation that no graph can hold."""

    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: Any = 0.0) -> Tensor:
        return super().loss(Unknown.apply(outputs), targets, label_smoothing)


def wrong(graph: Any, tensors: Sequence[Tensor]) -> Callable[..., Tensor]:
    """Computes an update that moves the last row by a tenth too much."""

    def update(*tensors: Tensor) -> Tensor:
        weights = tensors[0]
        before = weights[-1].clone()
        losses: Tensor = graph(*tensors)
        weights[-1] += 0.1 * (weights[-1] - before)
        return losses

    return update


def wrong_losses(graph: Any, tensors: Sequence[Tensor]) -> Callable[..., Tensor]:
    """Computes losses that are not numbers."""
    return lambda *tensors: graph(*tensors) * torch.nan


def broken(graph: Any, tensors: Sequence[Tensor]) -> Callable[..., Tensor]:
    """A compiler that fails, after it has said so at length."""
    raise OSError("no compiler\nand much more")


@pytest.mark.parametrize("compiles", [True, False])
def test_an_update_is_compiled_once_however_often_the_stack_is_full(question, monkeypatch, compiles):
    """Several trials may end at one evaluation, and others take their places later."""
    made: list[Any] = []

    def backend(graph: Any, tensors: Sequence[Tensor]) -> Any:
        made.append(graph)
        if compiles:
            return graph
        raise OSError("no compiler")

    monkeypatch.setattr(compiled, "inductor", backend)
    workload = WORKLOADS["linear_chain"]
    study = question("linear_chain", "nesterov", "linear_decay", steps=12)
    found, expected = (started(study, workload, each) for each in (True, False))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for each in (found, expected):
            for _ in range(3):
                each.advance(2)
                each.end(3)
                each.end(2)
                each.advance(1)
                for trial in Queue(study, range(4)).trials[2:]:
                    each.start(trial)
    assert (len(made), len(told)) == (1, 0 if compiles else 1)
    for name, tensor in rows(expected).items():
        torch.testing.assert_close(rows(found)[name], tensor, rtol=0, atol=0)


REFUSALS: dict[str, tuple[Blobs, Backend | None, str]] = {
    "a branch": (Looking(), None, "DataDependentOutputException: aten._local_scalar_dense"),
    "an operation of others": (Foreign(), None, "RuntimeError: "),
    "no compiler": (Blobs(), broken, "OSError: no compiler$"),
    "no memory": (Blobs(), full, "OutOfMemoryError: no room"),
    "a wrong row": (Blobs(), wrong, r"a compiled one ends 0\.1 of its way from one as it is; allowed are 0\.01$"),
    "wrong losses": (Blobs(), wrong_losses, "a compiled one ends nan of its way from one as it is"),
}


@pytest.mark.parametrize("case", partly(REFUSALS, 2))
def test_what_cannot_be_compiled_or_differs_stays_as_it_is(question, traced_alone, monkeypatch, case):
    workload, backend, why = REFUSALS[case]
    if backend is not None:
        monkeypatch.setattr(compiled, "inductor", backend)
    study = question("linear_chain", steps=12)
    expected = trained(study, workload, False)
    with pytest.warns(UserWarning, match=REFUSED + why) as told:
        assert_same_bits(trained(study, workload, True), expected)
    assert len(told) == 1


def test_an_update_without_room_for_its_check_stays_as_it_is(question, traced_alone, monkeypatch):
    """Fewer lanes would take much longer than an update that is not compiled."""
    monkeypatch.setattr(compiled, "copies", lambda tensors: full())
    fused = started(question("linear_chain"), WORKLOADS["linear_chain"], True)
    with pytest.warns(UserWarning, match=REFUSED + "OutOfMemoryError: no room"):
        fused.advance(2)
    assert not traced_alone


def test_large_graphs_are_not_compiled(question, traced_alone, monkeypatch):
    monkeypatch.setattr(compiled, "MOST_OPERATIONS", 20)
    with pytest.warns(UserWarning, match=r"ValueError: its graph has \d+ operations, and at most 20 are compiled"):
        started(question("linear_chain"), Blobs(), True).advance(1)
    assert not traced_alone


@pytest.mark.parametrize(
    ("found", "expected", "apart"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0),
        ([1.0, 2.01], [1.0, 2.0], 0.01),  # a hundredth of the distance that the update moved it
        ([1.0, torch.nan], [1.0, 2.0], torch.nan),
        ([1.0, 2.0], [1.0, torch.nan], 0.0),  # diverged
        ([0.0, 0.0], [torch.inf, 2.0], 0.0),
    ],
)
def test_how_far_rows_are_apart(found, expected, apart):
    rows = torch.tensor([[1.0, 2.0], found]), torch.tensor([[1.0, 2.0], expected])
    assert compiled._apart(*rows, torch.ones(2, 2)) == pytest.approx(apart, abs=1e-5, nan_ok=True)


def test_rounding_of_an_update_that_moves_nothing_is_nothing():
    row = torch.full((1, 9), 3.0)
    assert compiled._apart(row * (1 + 2**-24), row, row) == 0
    assert compiled._apart(row * (1 + 2**-20), row, row) == torch.inf


OPTIONS = {
    "cpu": {"triton.cudagraphs": False, "compile_threads": 1},
    "cuda": {"triton.cudagraphs": False, "compile_threads": 3},
}


@pytest.mark.parametrize("device", OPTIONS)
def test_options_of_the_compiler(monkeypatch, compiler, device):
    from torch import _inductor

    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setattr(_inductor, "compile", lambda graph, tensors, options: options)
    monkeypatch.setattr(compiled, "cores", lambda: 6)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr("torch._subclasses.fake_tensor.FakeTensorMode.from_tensor", lambda mode, tensor: tensor)
    tensors: Any = [SimpleNamespace(device=torch.device(device))]
    assert compiled.inductor(torch.fx.GraphModule({}, torch.fx.Graph()), tensors) == OPTIONS[device]
    assert {*OPTIONS[device]} <= {*_inductor.list_options()}


@pytest.mark.parametrize(("first", "second"), [(0.003, 0.001), (0.001, 0.003)])
def test_the_faster_update_is_kept_without_a_word(question, traced_alone, monkeypatch, first, second):
    times = iter([first, second])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(compiled, "repeat", lambda call, **_: [next(times), call() or 1.0])
    timed = partial(compiled.slower, device=torch.device("cuda"))
    monkeypatch.setattr(compiled, "slower", lambda calls, device: timed(calls))
    how, optimizer, workload = CASES["chain"]
    fused = started(question(how, optimizer, steps=3), workload, compiles=True)
    before = rows(fused)["weights"].clone()
    fused.advance(1)
    assert next(times, None) is None
    assert fused._updated is not None
    later = fused._updated[1]._later
    assert (getattr(later, "func", None) in traced_alone) == (first < second)
    assert not torch.equal(rows(fused)["weights"], before)
