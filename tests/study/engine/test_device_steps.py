"""What is written for GPUs, on a device that any machine has: curves are the CPU's, and updates leave the host out."""

import gc
import re
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
import torch
from helpers import checkpointed, desks, pretended
from helpers.blobs import CPU, WORKLOADS
from helpers.desks import Counting, Curves, Desk, Killed, full
from helpers.fused import FUSING, Queue, each_once, partly, seldom
from helpers.pretended import DEVICE

from analysis.counting import Goal
from study.data import streaming
from study.data.streaming import Streamed
from study.devices.distributed import Team
from study.devices.placement import Placement
from study.engine import can_fuse, lane_count, lanes, timing, train
from study.engine.fused import stack
from study.engine.fused.stack import Stack
from study.engine.lanes import Lanes
from study.engine.run import Run
from study.errors import Failed, UsageError
from study.optimizers import OPTIMIZERS
from study.records import Study, Trial
from study.settings import Evaluation
from study.workers import messages, process
from workloads.user_code import importing

FREE = [name for name in FUSING if OPTIMIZERS[name].refresh is None]
"""What is done now and then, by factors of matrices, looks at them first."""
TOLERANCE = 1e-4
"""Relative, of losses: CPUs alone have some fused kernels of torch."""


@pytest.fixture
def device():
    with pretended.device() as there:
        yield there


def trials(study: Study, **changed: float) -> list[Trial]:
    """Three, some hyperparameters of the second being others."""
    return [checkpointed.trial(study, index, **(changed if index == 1 else {})) for index in range(3)]


def trained(study: Study, data: object, desk: Desk | None = None) -> Curves:
    return desks.trained(study, desk or Desk(trials(study)), data=data)


assert_near = partial(desks.assert_near, tolerance=TOLERANCE, metrics="")


def test_it_keeps_to_itself_and_counts(device):
    ours = torch.ones(2, 3, device=DEVICE)
    with pytest.raises(RuntimeError, match="two devices"):
        ours + torch.ones(3)
    assert device.counted("meetings", lambda: ours @ ours.T + 1) == 0
    for look in (ours.sum().item, ours.nonzero, ours.cpu, ours.tolist, lambda: ours.copy_(torch.ones(2, 3))):
        assert device.counted("meetings", look) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "how"), partly(each_once(FREE, ["linear_chain", "vmap"]), 3))
def test_steps_of_lanes_wait_for_nothing(device, question, optimizer, how):
    study = question(how, optimizer)
    fused = Lanes(study, WORKLOADS[how], WORKLOADS[how].data(DEVICE), [4], 4)
    for trial in Queue(study, range(4)).trials:
        fused.start(trial)
    fused._segment(2)  # reads the order of the examples
    few, many = (device.counted("meetings", lambda steps=steps: fused._segment(steps)) for steps in (2, 9))
    assert few == many  # tables of a segment alone, however long it is


@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
def test_an_update_of_lanes_is_one_of_all_parameters(device, question, how):
    """Else each operation of its rule is a launch for every parameter."""
    study = question(how, "adam")
    data = WORKLOADS[how].data(DEVICE)
    assert len(Lanes(study, WORKLOADS[how], data, [4], 4).stack.step(4).parts) == 1


@pytest.mark.parametrize(("optimizer", "micro_batch"), each_once(FREE, [None, 4]))
def test_steps_of_a_trial_alone_wait_for_nothing(device, question, optimizer, micro_batch):
    study = question("vmap", optimizer)
    data = WORKLOADS["vmap"].data(DEVICE)
    run = Run(study, WORKLOADS["vmap"], data, Queue(study, [0]).trials[0], micro_batch)

    def update() -> None:
        assert run.update(0.1).device == DEVICE
        run.step += 1

    update()  # reads the order of the examples
    assert device.counted("meetings", update) == 0


def test_the_host_prepares_steps_while_others_are_made(device, question, monkeypatch):
    monkeypatch.setattr(lanes, "SEGMENT_STEPS", 2)
    fused = Lanes(question("vmap"), WORKLOADS["vmap"], WORKLOADS["vmap"].data(DEVICE), [4], 4)
    for trial in Queue(fused.study, range(4)).trials:
        fused.start(trial)
    fused.advance(2)
    one, two = (device.counted("meetings", lambda steps=steps: fused.advance(steps)) for steps in (2, 4))
    tables = device.counted("meetings", lambda: fused._segment(2))
    assert (one, two) == (tables + 1, 2 * tables + 1)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["linear_chain", "plain"])
def test_evaluations_that_end_early_wait_twice_more(device, resumable, how):
    """For the sums of two pieces; moving a piece's indices there waits, too."""
    exact = resumable(how, stopping="goal", goal=Goal("val/classification_error", 0.3))
    early = replace(exact, evaluation=replace(exact.evaluation, exact=False))
    workload = replace(WORKLOADS[how], validation=160)
    made: list[Curves] = []

    def train_there(study: Study) -> None:
        made.append(desks.trained(study, Desk(trials(study)), workload=workload, data=workload.data(DEVICE)))

    few, more = (device.counted("meetings", partial(train_there, study)) for study in (exact, early))
    evaluations = sum(len(curve.steps) for curve in made[0].values())
    assert more <= few + 4 * evaluations
    assert_near(made[1], desks.trained(early, Desk(trials(early)), workload=workload))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "optimizer"),
    seldom(
        [
            *partly([(how, name) for how in checkpointed.CASES for name in ("momentum", "adam")], 6, 2),
            *(("plain", name) for name in ("soap", *checkpointed.WHOLE)),
        ]
    ),
)
def test_curves_are_those_of_the_cpu_whatever_was_killed(device, resumable, how, optimizer):
    study = resumable(how, optimizer)
    whole, killed, again = (Desk(trials(study)) for _ in range(3))
    killed.pace, killed.lives = Counting(0.0), 3
    expected = trained(study, WORKLOADS[how].data(), whole)
    with pytest.raises(Killed):
        trained(study, WORKLOADS[how].data(DEVICE), killed)
    again.kept = killed.kept
    assert_near(trained(study, WORKLOADS[how].data(DEVICE), again), expected)
    assert again.pace.made < whole.pace.made


@pytest.mark.parametrize("segment", partly([1, 128], 2))
@pytest.mark.parametrize("how", partly(checkpointed.CASES, 3, 1))
def test_they_diverge_at_the_same_step(device, resumable, monkeypatch, how, segment):
    monkeypatch.setattr(lanes, "SEGMENT_STEPS", segment)
    study = resumable(how)
    found, expected = (
        trained(study, WORKLOADS[how].data(where), Desk(trials(study, learning_rate=1e38))) for where in (DEVICE, CPU)
    )
    assert [expected[index].first_bad_step is None for index in range(3)] == [True, False, True]
    assert_near(found, expected)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["linear_chain", "vmap"])
@pytest.mark.parametrize("together", partly([((32, 4, 1),), ((2, 1),), ((1,),)], 3))
def test_some_lanes_at_once_are_evaluated_as_all_are(device, resumable, monkeypatch, how, together):
    study = resumable(how)
    monkeypatch.setattr(stack, "EVALUATED_TOGETHER", together)
    assert_near(trained(study, WORKLOADS[how].data(DEVICE)), trained(study, WORKLOADS[how].data()))


def test_an_evaluation_is_replayed_and_met_once(device, question):
    """For each chunk, inputs are copied, the outputs are copied out, and errors are computed and added."""
    fused = replace(WORKLOADS["vmap"], validation=40)
    study = question("vmap", evaluation_chunk=8, stopping="goal", evaluation=Evaluation(first=1, ratio=1.5))
    made = Lanes(study, fused, fused.data(DEVICE), [4], 4)
    for trial in Queue(study, range(4)).trials:
        made.start(trial)

    def evaluated() -> None:
        for lane in made.lanes:
            lane.log.steps.clear()
        made.evaluate(range(4))

    made.advance(1)
    first, again = (device.counted("launches", evaluated) for _ in range(2))
    assert again < first - 4  # kernels of a forward pass
    assert again <= 5 * 21
    assert device.counted("meetings", evaluated) == 2  # numbers of the rows there, errors back
    few = device.counted("meetings", lambda: made.advance(1))
    assert few == device.counted("meetings", lambda: made._segment(1)) + 1


class Writing(torch.nn.Module):
    """Writes into its inputs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 1
        return x


@pytest.mark.slow
def test_a_replayed_evaluation_of_a_model_that_writes_into_its_inputs(device, resumable, monkeypatch):
    workload = WORKLOADS["vmap"]
    model = workload.model
    monkeypatch.setattr(workload, "model", lambda: torch.nn.Sequential(Writing(), model()), raising=False)
    monkeypatch.setattr(stack, "EVALUATED_TOGETHER", (1,))  # the same inputs again and again
    study = resumable("vmap")
    assert_near(trained(study, workload.data(DEVICE)), trained(study, workload.data()))


def test_blocks_that_a_cpu_began_go_on_as_a_chain(device, question):
    study = question("linear_blocks")
    started = timing.started(study, WORKLOADS["linear_blocks"], WORKLOADS["linear_blocks"].data(DEVICE), range(4))
    assert (type(started.stack), started.stack.replayable) == (Stack, True)


class Looking(torch.nn.Module):
    """Looks at what it is given, in evaluations: lanes that are measured one by one may."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.training or x.isfinite().all() else x * 0


def test_what_lanes_cannot_measure_there_is_found_out_there(device, resumable, monkeypatch):
    workload = WORKLOADS["vmap"]
    model = workload.model
    monkeypatch.setattr(workload, "model", lambda: torch.nn.Sequential(model(), Looking()), raising=False)
    assert can_fuse.lanes_fail(resumable("vmap"), workload, WORKLOADS["vmap"].data()) is None
    assert can_fuse.lanes_fail(resumable("vmap"), workload, WORKLOADS["vmap"].data(DEVICE))
    # On the CPU, too, for a process that must not open the device:
    assert can_fuse.lanes_fail(resumable("vmap"), workload, WORKLOADS["vmap"].data(), "cuda")


class Elsewhere(torch.nn.Module):
    """Fails on any device but the CPU, as an operation without a kernel there."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.device.type != "cpu":
            raise NotImplementedError("no kernel for this device")
        return x


@pytest.mark.parametrize(
    ("how", "optimizer", "said"),
    [
        ("vmap", "momentum", "cannot train side by side on pretended:0, although they can on the CPU: two trials side"),
        ("plain", "pytorch_optimizer.Lamb", "Lamb cannot train tiny with learning_rate=0.001: no kernel"),
    ],
)
def test_what_a_device_alone_cannot_do_is_told_by_the_worker(device, resumable, monkeypatch, how, optimizer, said):
    workload = WORKLOADS[how]
    model = workload.model
    monkeypatch.setattr(workload, "model", lambda: torch.nn.Sequential(model(), Elsewhere()), raising=False)
    monkeypatch.setattr(importing, "build", lambda _: workload)
    study = resumable(how, optimizer, micro_batch=None)
    worker = process._Worker(None, process.Setting(Placement(), None, 0), Team(), str(DEVICE))
    with pytest.raises((Failed, UsageError), match=re.escape(said)):
        worker._measured(messages.Measure(study, 4, None), Team())


def test_a_full_device_says_nothing_of_a_model(device, resumable, monkeypatch):
    monkeypatch.setattr(Lanes, "advance", full)
    with pytest.raises(torch.OutOfMemoryError):
        can_fuse.lanes_fail(resumable("vmap"), WORKLOADS["vmap"], WORKLOADS["vmap"].data(DEVICE))


@pytest.mark.slow
def test_a_stack_keeps_one_height_of_steps(device, resumable):
    """Each may hold memory of the recording that it was made in."""
    how = "linear_chain"
    stack = timing.started(resumable(how), WORKLOADS[how], WORKLOADS[how].data(DEVICE), range(4)).stack
    before = weakref.ref(stack.step(4))
    assert stack.step(4) is before()
    stack.step(2)
    gc.collect()
    assert before() is None


@pytest.mark.slow
def test_streamed_data_make_the_same_curves(device, resumable):
    study = resumable("plain")
    data = streaming.source(WORKLOADS["plain"].splits(CPU), str(DEVICE), 0.0, loaders=0)
    assert isinstance(data, Streamed)
    assert_near(trained(study, data), trained(study, WORKLOADS["plain"].data()))


@pytest.fixture
def recordings(monkeypatch):
    """The graphs recorded."""
    made: list[pretended.Graph] = []
    record = pretended.Graph.record
    monkeypatch.setattr(pretended.Graph, "record", lambda graph, call: made.append(graph) or record(graph, call))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("how", partly(["linear_chain", "vmap"], 2))
@pytest.mark.parametrize("trials", partly([1, 3, 20, 100], 2, 1))
def test_measuring_records_few_heights(device, resumable, recordings, how, trials):
    cost = train.measure(resumable(how), WORKLOADS[how], WORKLOADS[how].data(DEVICE), most=trials)
    assert len(recordings) <= 6
    assert cost.lanes in {1, min(4, trials), -(-trials // 2), trials}  # by the stopwatch
    assert cost.heights == tuple(lane_count.rungs(cost.lanes))
    assert min(cost.step, cost.validation, cost.others) > 0


def measured(study: Study, seconds: Callable[[int], float], most: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The chosen number of lanes where an update takes these seconds a lane."""
    monkeypatch.setattr(timing, "step_seconds", lambda fused: seconds(len(fused.lanes)))
    return train.measure(study, WORKLOADS["vmap"], WORKLOADS["vmap"].data(DEVICE), most).lanes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seconds", "chosen"),
    partly(
        [
            (lambda lanes: {1: 1.0, 4: 1.4}.get(lanes, 1 / lanes), 64),  # a few are slower than one
            (lambda lanes: 1 / lanes, 64),
            (lambda lanes: 1.0, 64),
            (lambda lanes: {64: 2.0, 32: 0.5}.get(lanes, 1.0), 32),
        ],
        3,
    ),
)
def test_no_shape_of_the_times_is_assumed(device, resumable, monkeypatch, seconds, chosen):
    assert measured(resumable("vmap"), seconds, 64, monkeypatch) == chosen


@pytest.mark.slow
def test_one_at_a_time_is_said_and_why(device, resumable, monkeypatch):
    study = resumable("vmap")
    with pytest.warns(UserWarning, match="one at a time on this GPU, because several at once take longer"):
        assert measured(study, lambda lanes: float(lanes), 8, monkeypatch) == 1
    monkeypatch.setattr(lane_count, "_near", lambda *_: False)
    with pytest.warns(UserWarning, match=r"because \d+ that train the same trial differ by more than 0.01"):
        assert measured(study, lambda lanes: 1 / lanes, 8, monkeypatch) == 1


@pytest.mark.slow
def test_memory_halves_the_lanes_that_are_tried(device, resumable, monkeypatch):
    study, begin = resumable("vmap"), timing.begin

    def room_for(most: int) -> None:
        def bounded(made: Lanes, rows: Sequence[int], *more: float) -> None:
            return full() if len(rows) > most else begin(made, rows, *more)

        monkeypatch.setattr(timing, "begin", bounded)

    room_for(30)
    assert measured(study, lambda lanes: 1 / lanes, 48, monkeypatch) == 24
    room_for(1)
    with pytest.warns(UserWarning, match="because 4 do not fit in its memory"):
        assert measured(study, lambda lanes: 1 / lanes, 48, monkeypatch) == 1
    room_for(0)
    with pytest.raises(torch.OutOfMemoryError):
        measured(study, lambda lanes: 1 / lanes, 48, monkeypatch)


@pytest.mark.slow
def test_forced_lanes_are_one_stack(device, resumable):
    how = "linear_chain"
    cost = train.measure(resumable(how), WORKLOADS[how], WORKLOADS[how].data(DEVICE), most=8, lanes=100)
    assert (cost.lanes, cost.heights[-1]) == (100, 100)


@pytest.mark.slow
def test_rows_without_a_trial_are_few(device, question, monkeypatch):
    """100 trials run their whole budget; a fifth of them diverges."""
    study = question("linear_chain", "sgd", steps=20, evaluation=Evaluation(first=1, ratio=1.2))
    computed = running = 0
    segment = Lanes._segment

    def counted(made: Lanes, steps: int) -> torch.Tensor:
        nonlocal computed, running
        computed += steps * len(made._padded(made.lanes))
        running += steps * len(made.lanes)
        return segment(made, steps)

    monkeypatch.setattr(Lanes, "_segment", counted)
    rates = [1e38 if index % 5 == 0 else 0.01 * (1 + index % 3) for index in range(100)]
    chosen = [{name: each.choices[0] for name, each in study.search.space.items()} for _ in rates]
    desk = Desk([study.trial(i, h | {"learning_rate": r}) for i, (h, r) in enumerate(zip(chosen, rates, strict=True))])
    heights = lane_count.rungs(100)
    data = WORKLOADS["linear_chain"].data(DEVICE)
    found = [*lanes.train(study, WORKLOADS["linear_chain"], data, desk, heights, 100)]
    assert sum(curve.first_bad_step is not None for curve in found) == 20
    assert running / computed >= 0.95


@pytest.mark.parametrize("lanes_at_once", [1, 2, 3, 7, 20, 64, 100, 256])
def test_rungs_hold_every_number_of_lanes(lanes_at_once):
    heights = lane_count.rungs(lanes_at_once)
    assert heights == sorted(set(heights))
    assert (heights[0], heights[-1]) == (1, lanes_at_once)
    for running in range(lanes_at_once // 2 + 1, lanes_at_once + 1):
        assert next(h for h in heights if h >= running) - running <= max(0, lanes_at_once // 20)
