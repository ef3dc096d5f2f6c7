"""How long a training step takes by the examples that a device takes at once: recorded by a sweep, or given.

Shapes: M per-device batch sizes that were timed; A steps asked about.
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

    Between two timed per-device batches it is t0 + t1 b, through both. Beyond them only a bound is known: a step takes
    at most as long as one of more examples.

    Arguments:
        timed: per-device batch size b -> seconds. Where timings fall although b grows, which is noise, they are
            replaced by their mean (isotonic regression).
        source: their origin, for the notes.
        fused: how many trainings at most shared the step that was timed, each charged an equal part.
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
        """Of a step at each of them [M], not falling."""
        return isotonic_regression([self.timed[size] for size in self.sizes.tolist()]).x

    def at(self, examples: np.ndarray) -> np.ndarray:
        """Seconds [A] of steps on these numbers of examples [A]; beyond the timed sizes, those of the nearest size.

        >>> times = StepTimes({8: 0.010, 32: 0.016})
        >>> times.at(np.array([4, 8, 16, 64])).round(4).tolist()
        [0.01, 0.01, 0.012, 0.016]
        """
        return np.interp(examples, self.sizes, self.seconds)

    def bounds(self, examples: np.ndarray) -> np.ndarray:
        """What `at` says of such steps [A]: `=`, `<` below what was timed (at most so long), `>` above it (at least).

        >>> StepTimes({8: 0.010, 32: 0.016}).bounds(np.array([4, 16, 64])).tolist()
        ['<', '=', '>']
        """
        return np.where(examples < self.sizes[0], "<", np.where(examples > self.sizes[-1], ">", "="))

    @property
    def error(self) -> float:
        """The largest relative error at a timed size of what its two neighbours say of it; NaN for fewer than three."""
        if len(self.timed) < 3:
            return np.nan
        at = self.sizes.tolist()
        without = [{size: self.timed[size] for size in at if size != left} for left in at[1:-1]]
        said = [float(StepTimes(timed).at(np.array([left]))[0]) for left, timed in zip(at[1:-1], without, strict=True)]
        truth = np.array([self.timed[size] for size in at[1:-1]])
        return float(np.max(np.abs(np.array(said) / truth - 1)))


def recorded(studies: Sequence[StudyData]) -> StepTimes:
    """What trials of one curve took on the device that they ran on.

    All seconds that trials of a batch size spent in training, over all their steps. A batch that was accumulated from
    parts counts as one step for each part. Fused trials share a step's time evenly. What several devices did together,
    the exchange of gradients included, is left out.

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
    studies = [study for study in studies if all(run.get("devices") in (None, 1) for run in study.provenance)]
    found: dict[int, list[float]] = {}
    cost = steps_to_result.cost_table(studies).set_index("batch_size")["seconds_per_step"].dropna() if studies else ()
    for study in studies:
        if study.batch_size in cost:
            part = study.question.get("micro_batch") or study.batch_size
            found.setdefault(part, []).append(cost[study.batch_size] / -(-study.batch_size // part))
    if not found:
        raise AdviceError(f"no step of {name} was timed on one device; enter --step-ms, or --measure.")
    runs = [run for study in studies for run in study.provenance]
    places = dict.fromkeys(f"{run.get('device')} ({run.get('processor', 'unknown processor')})" for run in runs)
    fused = max((run.get("lanes") or 1 for run in runs), default=1)
    return StepTimes(
        {part: float(np.mean(seconds)) for part, seconds in found.items()},
        f"recorded by the sweep on {' and '.join(places) or 'an unknown device'}",
        fused,
    )
