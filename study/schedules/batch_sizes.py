"""The batch sizes and the learning rates of a study whose batch size grows (`analysis.question.phases`)."""

from collections.abc import Callable
from functools import lru_cache
from itertools import product

from analysis.question.batch_schedules import BatchSchedule, Phases
from analysis.units import stem
from study.space import Space


def by_examples(
    rate: Callable[[float], float], phases: Phases, factor: Callable[[int, int], float]
) -> Callable[[int], float]:
    """The learning rate of each update if the batch size grows: schedules follow the examples seen.

    rate(e / B) times the coupling, where e examples were seen before the update and B is the first batch size, so that
    a decay ends with the budget in examples, as in training runs that count their schedule in samples or tokens.

    Arguments:
        rate: (updates of the first size) -> learning rate.
        factor: (batch size, first batch size) -> factor on it.
    """
    first, last = phases.sizes[0], phases.steps - 1

    def at(step: int) -> float:
        step = min(step, last)
        return rate(phases.examples(step) / first) * factor(phases.size(step), first)

    return at


def tunes_batches(schedule: BatchSchedule, space: Space) -> bool:
    """True if trials of this search space differ in their batch sizes."""
    return any(space[name].tuned for name in schedule.parameters)


def phases(schedule: BatchSchedule, space: Space, first: int, budget: int, examples: int, single_pass: bool) -> Phases:
    """The batch size of each update of every trial; the first one throughout if trials tune it.

    Arguments:
        first, budget, examples, single_pass: as for `BatchSchedule.phases`.
    """
    if not schedule or tunes_batches(schedule, space):
        return Phases((0,), (first,), budget // first)
    values = tuple((name, space[name].ends[0]) for name in schedule.parameters)
    return _laid_out(schedule, first, budget, examples, values, single_pass)


def batch_sizes(
    schedule: BatchSchedule, space: Space, first: int, budget: int, examples: int, single_pass: bool
) -> tuple[int, ...]:
    """The batch sizes of a trial, increasing; if trials tune them, the first one and the largest of any.

    The largest one is at an end of each range, because it rises or falls with each parameter alone.
    """
    if not tunes_batches(schedule, space):
        return phases(schedule, space, first, budget, examples, single_pass).sizes
    found = {first}
    for corner in product(*(space[name].ends for name in schedule.parameters)):
        values = tuple(zip(schedule.parameters, corner, strict=True))
        found.add(max(_laid_out(schedule, first, budget, examples, values, single_pass).sizes))
    return tuple(sorted({first, max(found)}))


@lru_cache(maxsize=256)
def _laid_out(
    schedule: BatchSchedule,
    first: int,
    budget: int,
    examples: int,
    values: tuple[tuple[str, float], ...],
    single_pass: bool,
) -> Phases:
    """The phases of a study, which engines read at every step."""
    return schedule.phases(first, budget, examples, dict(values), single_pass)


def check_half_lives(space: Space, schedule: BatchSchedule) -> None:
    """Raise ValueError for a half-life in examples under a growing batch size: its beta would change with the batch."""
    for name in space:
        if schedule and stem(name) != name:
            raise ValueError(
                f"search.space.{name} is a half-life in examples, and {stem(name)} would change with the batch size; "
                f"under batch_schedule={schedule.kind} give search.space.{stem(name)}."
            )
