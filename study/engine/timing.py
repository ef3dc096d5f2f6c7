"""The time of a step and of an evaluation of a study, measured on a few real ones."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from study.data.resident import Data, Source
from study.engine.cost import Cost, least_seconds, parts_of
from study.engine.lanes import SEGMENT_STEPS, Lanes
from study.engine.run import Run
from study.engine.trial.evaluation import Log, Predict, initial_model, kinds
from study.engine.trial.evaluation import measure as measure_errors
from study.records import Study, Trial
from study.space import middle
from workloads.base import Workload

OVERLAPPING = 8
"""Updates in one timing of the plain engine on a GPU, which computes them while the host prepares the next."""

TIMED_SECONDS = 0.02
"""The least duration of one timing of lanes in a long study: shorter ones are repeated with more steps."""

TIMED_SHARE = 0.0005
"""The most that one timing of lanes takes of the time that the whole study would take at its full budget. Each number
of lanes has three, and a few steps before."""

PLAIN_SECONDS = 0.25
"""Seconds over which steps of the plain engine are timed, and the share of a shorter study."""
PLAIN_SHARE = 0.01

TIMED_STEPS = 32
"""Most steps in one timing of lanes on a CPU."""

SEGMENT_SECONDS = 0.25
"""The longest segment that is timed whole on a GPU. Of slower steps fewer are timed: to prepare them on the host takes
little beside."""


def update_seconds_of(study: Study, workload: Workload, data: Data, lanes: int) -> float:
    """Seconds per update and lane, with `lanes` lanes trained at once."""
    return step_seconds(started(study, workload, data, range(lanes)))


def step_seconds(fused: Lanes) -> float:
    """Seconds per update and lane of these lanes; makes updates."""
    steps, study = fused.stack.period, fused.study
    seconds = least_seconds(partial(fused.advance, steps), budget=0)
    whole = study.search.trials * study.last_step * seconds / steps / len(fused.lanes)
    enough = min(TIMED_SECONDS, TIMED_SHARE * whole)
    if fused.device.type != "cpu" and enough == TIMED_SECONDS:
        step = _seconds_behind_others(fused, steps * max(1, int(TIMED_SECONDS / seconds)))
        if step * SEGMENT_STEPS <= SEGMENT_SECONDS:
            step = _seconds_behind_others(fused, SEGMENT_STEPS)
        return step / len(fused.lanes)
    if seconds < enough:
        steps *= max(1, min(TIMED_STEPS // steps, int(enough / seconds)))
    if seconds < 3 * enough:
        seconds = least_seconds(partial(fused.advance, steps), budget=3 * enough)
    return seconds / steps / len(fused.lanes)


def _seconds_behind_others(fused: Lanes, steps: int) -> float:
    """Seconds per update of this many steps behind as many others, whose time is subtracted.

    A GPU computes one segment of steps while the host prepares the next, but nothing hides the preparation of the first
    one, nor the wait for the losses of the last one.
    """
    one, two = (least_seconds(partial(fused.advance, number * steps), budget=0) for number in (1, 2))
    return max(two - one, two / 4) / steps  # a short timing is noisy; at most, preparation is half of it


def plain_cost(study: Study, workload: Workload, data: Source, micro_batch: int | None, neighbour: Cost | None) -> Cost:
    """The cost of a trial in the plain engine with this micro-batch; None: the whole batch at once.

    Arguments:
        neighbour: the cost at another batch size, whose evaluations take as long on as many devices; None, or another
            number of devices: time an evaluation, too.
    """
    run = Run(study, workload, data, usual_trial(study, 0), micro_batch)
    step = update_seconds(run)
    parts = parts_of(run.shares, study.batch_size)
    if neighbour is None or max(1, len(neighbour.parts)) != max(1, len(parts)):  # ranks share an evaluation
        return replace(cost_of(run.log, step, run.predict), parts=parts)
    return replace(neighbour, step=step, parts=parts)


def cost_of(
    log: Log,
    step: float,
    predict: Predict,
    models: int = 1,
    heights: Sequence[int] = (1,),
    lanes: int = 1,
) -> Cost:
    """The cost of a trial; times the evaluation on one chunk of validation examples and scales it to the splits.

    Arguments:
        log: the log of any trial of the study.
        step: seconds per update of one trial.
        predict: inputs [N, ...] -> outputs [models * N, ...].
        heights, lanes: copied into the cost.
    """
    examples = {split: len(log.examples(split)) for split in ("train", "val", "test")}
    chunk = min(log.chunk, examples["val"])
    once = least_seconds(lambda: measure_errors([log] * models, "val", predict, chunk), budget=0) / models / chunk
    seconds = once * len(kinds(log.study))
    validation = seconds * examples["val"]
    evaluated = examples["val"], examples["train"], examples["test"]
    others = seconds * (examples["train"] + examples["test"])
    return Cost(step, validation, others, tuple(heights), lanes, evaluated=evaluated)


def started(
    study: Study,
    workload: Workload,
    data: Data,
    indices: Sequence[int],
    heights: Sequence[int] | None = None,
    slower: float = 1.0,
) -> Lanes:
    """Lanes at step 0 for timing. All share one initial model, because creating models takes longest.

    Arguments:
        indices: trial index of each lane.
        heights: admitted stack heights; None: the number of lanes.
        slower: factor on the usual learning rate.
    """
    lanes = Lanes(study, workload, data, heights or [len(indices)], len(indices))
    begin(lanes, indices, slower)
    return lanes


def begin(lanes: Lanes, indices: Sequence[int], slower: float = 1.0) -> None:
    """Start trials in these lanes, in place of any others; with the arguments of `started`."""
    lanes.lanes.clear()
    model = initial_model(lanes.workload, usual_trial(lanes.study, 0), lanes.device, lanes.data.layout)
    for index in indices:
        lanes.start(usual_trial(lanes.study, index, slower), model)


def usual_trial(study: Study, index: int, slower: float = 1.0) -> Trial:
    """Trial `index` in the middle of the search space, with its learning rate times `slower`."""
    hyperparameters = middle(study.search.space)
    return study.trial(index, hyperparameters | {"learning_rate": slower * hyperparameters["learning_rate"]})


def update_seconds(run: Run) -> float:
    """Seconds per update of this run; makes updates."""
    updates = 1 if run.data.device.type == "cpu" else OVERLAPPING

    def some() -> None:
        for _ in range(updates):
            loss = run.update(run.hyperparameters["learning_rate"])
            run.step += 1
        loss.item()  # waits for the device

    team, study = run.data.team, run.study
    seconds = least_seconds(some, budget=0)
    whole = study.search.trials * study.last_step * seconds / updates
    budget = min(PLAIN_SECONDS, PLAIN_SHARE * whole)
    if team.broadcast(lambda: seconds < budget):
        seconds = least_seconds(some, budget, team.broadcast)
    return seconds / updates
