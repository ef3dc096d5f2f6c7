"""The time of a training step at each per-device batch size: recorded by a sweep, measured, or entered.

Shapes: M timed per-device batch sizes; A queried per-device batch sizes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import isotonic_regression

from analysis.errors import Refused
from analysis.load import StudyData
from analysis.tables import steps_to_result


class AdviceError(Refused):
    """Nothing can be advised; the message says what is missing and what to do."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a training step on one device.

    Between two timed per-device batch sizes the time is interpolated linearly. Outside the timed range only a bound is
    known: a step takes at most as long as a step on more examples.

    Arguments:
        timed: per-device batch size b -> seconds. If timings fall while b grows, isotonic regression replaces them by
            their mean: only noise makes larger steps faster.
        source: origin of the timings, for the notes.
        fused: the most trials that shared one timed step; each trial is charged an equal part of it.
    """

    timed: Mapping[int, float]
    source: str = "as entered"
    fused: int = 1

    @property
    def sizes(self) -> np.ndarray:
        """The per-device batch sizes timed [M], increasing."""
        return np.array(sorted(self.timed))

    @property
    def seconds(self) -> np.ndarray:
        """Seconds of a step at each of `sizes` [M], never decreasing."""
        return isotonic_regression([self.timed[size] for size in self.sizes.tolist()]).x

    def at(self, examples: np.ndarray) -> np.ndarray:
        """Seconds [A] of steps on these numbers of examples [A]; outside the timed range, those of the nearest size.

        >>> times = StepTimes({8: 0.010, 32: 0.016})
        >>> times.at(np.array([4, 8, 16, 64])).round(4).tolist()
        [0.01, 0.01, 0.012, 0.016]
        """
        return np.interp(examples, self.sizes, self.seconds)

    def least(self, examples: np.ndarray) -> np.ndarray:
        """The least seconds [A] of steps on these numbers of examples [A]: below the timed sizes in proportion to the
        examples, because a step on fewer of them takes no less for each.

        >>> StepTimes({8: 0.010, 32: 0.016}).least(np.array([4, 8, 64])).tolist()
        [0.005, 0.01, 0.016]
        """
        return self.at(examples) * np.minimum(1.0, examples / self.sizes[0])

    def bounds(self, examples: np.ndarray) -> np.ndarray:
        """How the true time relates to `at` [A]: `=`; `<` (at most) below the timed sizes; `>` (at least) above them.

        >>> StepTimes({8: 0.010, 32: 0.016}).bounds(np.array([4, 16, 64])).tolist()
        ['<', '=', '>']
        """
        return np.where(examples < self.sizes[0], "<", np.where(examples > self.sizes[-1], ">", "="))

    @property
    def error(self) -> float:
        """The largest relative error of interpolating a timed size from its neighbours; NaN for fewer than three."""
        if len(self.timed) < 3:
            return np.nan
        at = self.sizes.tolist()
        without = [{size: self.timed[size] for size in at if size != left} for left in at[1:-1]]
        said = [float(StepTimes(timed).at(np.array([left]))[0]) for left, timed in zip(at[1:-1], without, strict=True)]
        truth = np.array([self.timed[size] for size in at[1:-1]])
        return float(np.max(np.abs(np.array(said) / truth - 1)))


def recorded(studies: Sequence[StudyData]) -> StepTimes:
    """The step times of one curve, as recorded on the device where its trials ran.

    The time of a step is all seconds that the trials of a batch size spent in training, divided by all their steps. A
    batch that was accumulated counts as one step for each micro-batch. Fused trials share a step's time evenly. Studies
    that ran on several devices are left out, because their times include the exchange of gradients.

    Arguments:
        studies: searches of one workload and optimizer.

    Raises:
        AdviceError: nothing was timed on one device.

    >>> folder = f"{published}/studies/mlp_digits/sgd"
    >>> times = recorded([load_study(f"{folder}/{size}") for size in (64, 256, 1024)])
    >>> times.sizes.tolist(), times.source[:29]
    ([64, 256, 1024], 'recorded by the sweep on cpu ')
    """
    name = f"{studies[0].workload} with {studies[0].optimizer}"
    cure = "--step-ms" if all(study.imported for study in studies) else "--step-ms, or --measure"
    studies = [study for study in studies if all(run.get("devices") in (None, 1) for run in study.provenance)]
    found: dict[int, list[float]] = {}
    cost = steps_to_result.cost_table(studies).set_index("batch_size")["seconds_per_step"].dropna() if studies else ()
    for study in studies:
        if study.batch_size in cost:
            part = study.question.get("micro_batch") or study.batch_size
            found.setdefault(part, []).append(cost[study.batch_size] / -(-study.batch_size // part))
    if not found:
        raise AdviceError(f"no step of {name} was timed on one device; enter {cure}.")
    runs = [run for study in studies for run in study.provenance]
    places = dict.fromkeys(f"{run.get('device')} ({run.get('processor', 'unknown processor')})" for run in runs)
    fused = max((run.get("lanes") or 1 for run in runs), default=1)
    return StepTimes(
        {part: float(np.mean(seconds)) for part, seconds in found.items()},
        f"recorded by the sweep on {' and '.join(places) or 'an unknown device'}",
        fused,
    )
