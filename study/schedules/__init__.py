"""Learning-rate schedules: multipliers of the learning rate, pure functions of (step, train_steps, parameters).

`step` counts from 0: the first update uses multiplier(0). `train_steps` is the study's step budget. All fractions are
fractions of it, so that one range suits the budgets of all batch sizes. Every multiplier is at most 1, and 1 at step 0:
the tuned learning rate is the highest. A warmup may precede every schedule, which then starts at the end of the warmup.

A study has one schedule, or tunes it: `search.space.schedule` then lists names, each trial has one of them, and the
hyperparameters that only other schedules take are absent from the trial.

Symbols: t step, T the budget (less the warmup), W the warmup in updates, alpha end_learning_rate_factor.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from study.space import Legal, Space, Values
from workloads.suggest import suggest

SCHEDULE = "schedule"
"""The parameter of a search space that chooses a schedule; its values are names."""
WARMUPS = ("warmup_steps", "warmup_examples", "warmup_tokens")
"""The lengths of a warmup; a trial has at most one above 0."""
TUNED = "tuned"
"""Stands for the name of a study's schedule if `search.space.schedule` lists it."""


@dataclass(frozen=True)
class Schedule:
    """A schedule and its hyperparameters.

    Arguments:
        multiplier: (step, train_steps, **hyperparameters) -> the multiplier of the learning rate.
        hyperparameters: name -> legal values of each required hyperparameter.

    The optional hyperparameters give every schedule a warmup: its length as `warmup_steps`, `warmup_examples` or
    `warmup_tokens`, and the multiplier at its start, `warmup_initial_factor`.
    """

    multiplier: Callable[..., float]
    hyperparameters: Mapping[str, Legal] = field(default_factory=dict)
    optional_hyperparameters: ClassVar[Mapping[str, Legal]] = {
        "warmup_steps": Legal("[0, inf)"),
        "warmup_examples": Legal("[0, inf)"),
        "warmup_tokens": Legal("[0, inf)"),
        "warmup_initial_factor": Legal("[0, 1]"),
    }

    def factor(
        self, train_steps: int, batch_size: int, hyperparameters: Mapping[str, float]
    ) -> Callable[[float], float]:
        """The function from an update's number t, from 0, to the multiplier of its learning rate, warmup included.

        a + (1 - a) min(1, (t + 1) / W) while t < W; from then on multiplier(t - W) with a budget of train_steps - W.
        W = warmup_steps + warmup_examples / batch_size, which need not be whole; a = warmup_initial_factor. Missing
        hyperparameters are 0. A warmup that is longer than the budget ends early, at train_steps / W of its rise. A
        warmup in tokens must be one in examples here (`analysis.units.in_examples`).

        Goyal et al. 2017, section 2.2 (gradual warmup), with a = 1 / workers.
        """
        own = {name: hyperparameters[name] for name in self.hyperparameters}
        warmup = hyperparameters.get("warmup_steps", 0) + hyperparameters.get("warmup_examples", 0) / batch_size
        initial = hyperparameters.get("warmup_initial_factor", 0)

        def factor(step: float) -> float:
            if step >= warmup:
                return self.multiplier(step - warmup, train_steps - warmup, **own)
            return initial + (1 - initial) * min(1, (step + 1) / warmup)

        return factor


def learning_rate(
    schedule: str, train_steps: int, batch_size: int, hyperparameters: Values
) -> Callable[[float], float]:
    """The function from an update's number, from 0, to its learning rate: the tuned one times the schedule's factor.

    Steps beyond the budget, which only timing takes, repeat the last learning rate.

    Arguments:
        schedule: that of the study; a trial that chose one has it among its hyperparameters instead.
        hyperparameters: of one trial.
    """
    highest, last = hyperparameters["learning_rate"], train_steps - 1
    chosen = SCHEDULES[hyperparameters.get(SCHEDULE, schedule)]
    factor = chosen.factor(train_steps, batch_size, hyperparameters)
    return lambda step: highest * factor(min(step, last))


def constant(step: float, train_steps: float) -> float:
    """1 at every step."""
    return 1.0


def linear_decay(
    step: float, train_steps: float, *, learning_rate_decay_fraction: float, end_learning_rate_factor: float
) -> float:
    """1 - (1 - alpha) min(t, D) / D with D = fraction * T (Shallue et al. 2019).

    Arguments:
        learning_rate_decay_fraction: D / T, in (0, 1].
        end_learning_rate_factor: alpha, the final fraction of the learning rate.
    """
    decay_steps = learning_rate_decay_fraction * train_steps
    return 1 - (1 - end_learning_rate_factor) * min(step, decay_steps) / decay_steps


def cosine(
    step: float, train_steps: float, *, learning_rate_decay_fraction: float, end_learning_rate_factor: float
) -> float:
    """alpha + (1 - alpha) (1 + cos(pi min(t, D) / D)) / 2 with D = fraction * T.

    Loshchilov & Hutter 2017, eq. 5, without restarts.

    Arguments:
        learning_rate_decay_fraction: D / T, in (0, 1].
        end_learning_rate_factor: alpha, the final fraction of the learning rate.
    """
    decay_steps = learning_rate_decay_fraction * train_steps
    half_turn = math.pi * min(step, decay_steps) / decay_steps
    return end_learning_rate_factor + (1 - end_learning_rate_factor) * (1 + math.cos(half_turn)) / 2


def exponential(step: float, train_steps: float, *, end_learning_rate_factor: float) -> float:
    """alpha^(t / T): each step multiplies the learning rate by alpha^(1 / T).

    The hyperparameter is the final factor, not the rate per step: a rate that suits ten thousand steps changes almost
    nothing in a hundred.

    Arguments:
        end_learning_rate_factor: alpha, the fraction of the learning rate at the budget's end, in (0, 1].
    """
    return end_learning_rate_factor ** (step / train_steps)


def step_decay(
    step: float,
    train_steps: float,
    *,
    learning_rate_first_drop_fraction: float,
    learning_rate_drops: float,
    learning_rate_drop_factor: float,
) -> float:
    """factor^k after k of n drops, the i-th (from 0) at step (first (n - i) + i) T / n.

    The drops are evenly spaced from the first one to the end of the budget, as in common schedules. With first = 1/2
    and two drops they are at 50 % and 75 % (He et al. 2016, section 4.2); with first = 1/3, at 30 and 60 of 90 epochs
    (usual on ImageNet).

    Arguments:
        learning_rate_first_drop_fraction: the step of the first drop, as a fraction of the budget, in (0, 1].
        learning_rate_drops: n, at least 1. If it is not whole, the formula sets the distance of the drops, and as many
            drops are made as fit into the budget.
        learning_rate_drop_factor: the factor of each drop, in (0, 1].
    """
    first, drops = learning_rate_first_drop_fraction, learning_rate_drops
    points = [(first * (drops - i) + i) * train_steps / drops for i in range(math.ceil(drops))]
    return learning_rate_drop_factor ** sum(step >= point for point in points)


def inverse_square_root(step: float, train_steps: float, *, learning_rate_timescale_fraction: float) -> float:
    """1 / sqrt(1 + t / s) with s = fraction * T.

    After a warmup of W = s steps this is sqrt(W / t), with t counted from the first step of the warmup: the schedule of
    Vaswani et al. (2017, eq. 3). As in Zhai et al. (2022), timescale and warmup are separate hyperparameters.

    Arguments:
        learning_rate_timescale_fraction: s / T, above 0; at t = s the factor is 0.71, at 3 s it is 1/2.
    """
    return 1 / math.sqrt(1 + step / (learning_rate_timescale_fraction * train_steps))


def warmup_stable_decay(
    step: float, train_steps: float, *, learning_rate_decay_fraction: float, end_learning_rate_factor: float
) -> float:
    """alpha + (1 - alpha) min(1, (T - t) / D): 1, then a linear decay over the last D = fraction * T steps.

    The shape of Hu et al. (2024, section 4), with the linear cooldown of Zhai et al. (2022) and Hägele et al. (2024).
    conf/schedule/warmup_stable_decay.yaml also searches the warmup, which is the same as for every schedule.

    Arguments:
        learning_rate_decay_fraction: D / T, in (0, 1].
        end_learning_rate_factor: alpha, the fraction of the learning rate at the budget's end.
    """
    decay_steps = learning_rate_decay_fraction * train_steps
    return end_learning_rate_factor + (1 - end_learning_rate_factor) * min(1, (train_steps - step) / decay_steps)


FRACTION, FACTOR = Legal("(0, 1]"), Legal("[0, 1]")
DECAY = {"learning_rate_decay_fraction": FRACTION, "end_learning_rate_factor": FACTOR}
SCHEDULES: dict[str, Schedule] = {
    "constant": Schedule(constant),
    "linear_decay": Schedule(linear_decay, DECAY),
    "cosine": Schedule(cosine, DECAY),
    "exponential": Schedule(exponential, {"end_learning_rate_factor": Legal("(0, 1]")}),
    "step": Schedule(
        step_decay,
        {
            "learning_rate_first_drop_fraction": FRACTION,
            "learning_rate_drops": Legal("[1, inf)"),
            "learning_rate_drop_factor": Legal("(0, 1]"),
        },
    ),
    "inverse_square_root": Schedule(inverse_square_root, {"learning_rate_timescale_fraction": Legal("(0, inf)")}),
    "warmup_stable_decay": Schedule(warmup_stable_decay, DECAY),
}
OWN = frozenset(name for schedule in SCHEDULES.values() for name in schedule.hyperparameters)
"""Hyperparameters that only some schedules take. They enter the learning rate and nothing else."""
OWN_OR_WARMUP = OWN | {*Schedule.optional_hyperparameters}


def offered(schedule: str, space: Space) -> tuple[str, ...]:
    """The schedules among which the trials of a study choose; a single one if the schedule is not tuned.

    Arguments:
        schedule: a registered name, or TUNED.

    Raises:
        ValueError: a name is unknown, or both `schedule` and the space choose.
    """
    tuned = space.get(SCHEDULE)
    if tuned is not None and schedule != TUNED:
        raise ValueError(
            f"search.space.schedule tunes the schedule, so `schedule` must be {TUNED}, but got {schedule}."
        )
    names = (schedule,) if tuned is None else tuned.choices
    if names is None:
        raise ValueError("search.space.schedule must list names, such as [constant, cosine], but got a range.")
    for name in map(str, names):
        if name not in SCHEDULES:
            raise ValueError(f"unknown schedule {name!r}{suggest(name, SCHEDULES)}")
    return tuple(map(str, names))


def required(schedules: Sequence[str]) -> dict[str, Legal]:
    """The hyperparameters that any of these schedules takes -> the values that are legal for all that take them."""
    found: dict[str, Legal] = {}
    for schedule in schedules:
        for name, legal in SCHEDULES[schedule].hyperparameters.items():
            found[name] = found.get(name, legal) & legal
    return found


def conditional(space: Space) -> set[str]:
    """The parameters that some of the schedules in a search space take and others do not."""
    names = (space[SCHEDULE].choices if SCHEDULE in space else None) or ()
    each: list[set[str]] = [{*SCHEDULES[str(name)].hyperparameters} for name in names if name in SCHEDULES]
    return each[0].union(*each) - each[0].intersection(*each) if each else set()


def taken(hyperparameters: Values) -> dict[str, Any]:
    """The hyperparameters without those that the chosen schedule does not take; all if none was chosen.

    >>> taken({"schedule": "exponential", "end_learning_rate_factor": 0.1, "learning_rate_decay_fraction": 0.5})
    {'schedule': 'exponential', 'end_learning_rate_factor': 0.1}
    """
    if SCHEDULE not in hyperparameters:
        return dict(hyperparameters)
    others = OWN - SCHEDULES[hyperparameters[SCHEDULE]].hyperparameters.keys()
    return {name: value for name, value in hyperparameters.items() if name not in others}


def check_warmup(space: Space) -> None:
    """Raise ValueError for two kinds of warmup, or for an initial factor without one. A kind fixed at 0 is none."""
    counts = [name for name in WARMUPS if name in space]
    warmups = [name for name in counts if space[name].choices != (0,)]
    got = " and ".join(f"search.space.{name}={space[name].to_dict()}" for name in counts) or "none"
    if len(warmups) > 1:
        raise ValueError(f"a warmup is given in steps, in examples or in tokens, but got {got}; fix one at 0.")
    if "warmup_initial_factor" in space and not warmups:
        raise ValueError(
            f"search.space.warmup_initial_factor is where a warmup starts, but got {got}; "
            "add search.space.warmup_steps, search.space.warmup_examples or search.space.warmup_tokens."
        )
