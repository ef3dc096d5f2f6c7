"""Refine against Sobol at about equal cost where more than two parameters are tuned, by real trainings.

    python -m benchmarks.power.parameters [--problems "NAME|NAME"] [--seeds 5] [--json FILE]

Each problem is a sweep over two or three batch sizes. It is searched by refine with 6 scouts, by refine with 2 D + 2
scouts (D tuned parameters), and by Sobol with as many trials as cost at least as many steps, each from several search
seeds. The searches are those of `study sweep`, trained in this process. The reference of a batch size is the least
median over many fresh seeds among all tuned configurations and those of a large search.

Columns: `bias`, `sd` and `rmse` of log steps of the tuned configuration with its four fresh seeds against the
reference; `shortfall`, the mean of the same from FRESH fresh seeds, and its standard error, over batch sizes and search
seeds; `cost`, the steps of the search in units of the reference's, mean over batch sizes; `missed`, batch sizes without
a result. All seeds are fixed. Takes about ten minutes of one core; the problem of MNIST took 24 of a busy one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from analysis.counting import Branch
from analysis.question.stages import REFINE
from study.config import preflight
from study.config.jobs import parse_jobs
from study.data.examples import splits_of
from study.data.resident import Data
from study.engine.lane_count import admitted
from study.engine.lanes import train
from study.engine.trial.proposals import Proposals
from study.records import Curve, Study, Trial
from study.search.rounds import Point, Pool
from study.search.stages import trained_again
from study.search.tuner import Tuner
from study.settings import Seeds
from workloads.user_code.importing import build

CONFIRM, FRESH, MANY = 4, 16, 64
"""Fresh seeds: as a sweep trains them; for `shortfall`; for the best few. The reference is the best of these."""
BEST = 4
"""Configurations that train with MANY seeds."""
LANES = 32
LARGE = (
    *("search=refine", "search.scouts=32", "search.refine=[12,12,12,12,12,12]"),
    *("search.candidates=4", "search.screens=4"),
)
"""The large search."""
LARGE_SEED = 1000


@dataclass(frozen=True)
class Problem:
    """A sweep with several tuned parameters.

    Attributes:
        words: its overrides.
        sobol: trials of the Sobol search, which then costs at least as much as refine.
    """

    words: tuple[str, ...]
    sobol: int = 30
    batch_sizes: str = "8,64,512"


ADAMW = ("workload=mlp_digits", "optimizer=adamw", "search.space.beta2={low: 0.9, high: 0.9999, scale: reverse_log}")
MOMENTUM = ("workload=mlp_digits", "optimizer=momentum")
SHORT = ("schedule=linear_decay", "budget.epochs=4", "budget.steps=60", "goal=val/cross_entropy_error < 0.15")
"""A step budget of a few times the tuned steps, so that the decay of the learning rate matters."""
SMOOTHING = (
    "search.space.label_smoothing={low: 0.0, high: 0.3, scale: linear}",
    "goal=val/classification_error < 0.05",
)
MNIST = (
    *("workload=fc_mnist", "workload.widths=[128]", "workload.train_examples=10000", "evaluation.examples=2000"),
    *("schedule=linear_decay", "budget.epochs=8", "budget.steps=60", "goal=val/classification_error < 0.08"),
)
"""Fewer examples and a narrower net than those of fc_mnist: seconds a search."""
PROBLEMS = {
    "momentum": Problem(MOMENTUM),
    "momentum, label smoothing": Problem((*MOMENTUM, *SMOOTHING)),
    "momentum, linear decay": Problem((*MOMENTUM, *SHORT)),
    "adamw, beta2": Problem(ADAMW),
    "adamw, beta2, linear decay": Problem((*ADAMW, *SHORT), sobol=36),
    "fc_mnist, linear decay": Problem((*MNIST, "optimizer=momentum"), batch_sizes="32,1024"),
}
DIGITS = tuple(name for name in PROBLEMS if not name.startswith("fc_mnist"))
"""The problems by default: MNIST must be fetched, and takes longer than all others together."""


class Tuned(Proposals):
    """Proposes what a tuner proposes."""

    def __init__(self, tuner: Tuner) -> None:
        self._tuner = tuner

    def ask(self, wait: bool) -> Trial | None:
        return self._tuner.ask()

    def step_limit(self, index: int) -> int:
        return self._tuner.step_limit(index)


class Trainer:
    """Trains the trials of all searches of one problem in this process."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        [first, *_] = self.studies((), 0)
        self._workload = build(first.workload)
        self._data = Data.of(splits_of(self._workload), torch.device("cpu"))
        self._heights = {
            study.batch_size: list(admitted(study, self._workload, self._data, LANES)) for study in self.studies((), 0)
        }

    def studies(self, words: Sequence[str], seed: int) -> list[Study]:
        """The studies of a sweep with further overrides, at each batch size."""
        found = asked((*self.problem.words, f"batch_size={self.problem.batch_sizes}", *words))
        return [replace(study, seeds=Seeds(search=seed, trial=seed, data_order=seed)) for study in found]

    def train(self, tuner: Tuner) -> Iterator[Curve]:
        """Train the trials that a tuner proposes now."""
        study, data = tuner.study, self._data
        for curve in train(study, self._workload, data, Tuned(tuner), self._heights[study.batch_size], LANES):
            tuner.tell(curve)
            yield curve

    def search(self, words: Sequence[str], seed: int) -> dict[int, Tuner]:
        """The complete searches of a sweep by batch size."""
        studies = self.studies(words, seed)
        with TemporaryDirectory() as folder:
            pool = Pool(studies, Path(folder)) if studies[0].search.sampler == REFINE else None
            tuners = {each.batch_size: Tuner(each, points=partial(_points, pool, each.batch_size)) for each in studies}
            while not all(tuner.complete for tuner in tuners.values()):
                for size, tuner in tuners.items():
                    for curve in self.train(tuner):
                        if pool:
                            pool.add(size, curve)
        return tuners

    def fresh(self, study: Study, hyperparameters: Mapping[str, Any], seed: int, count: int) -> np.ndarray:
        """Log steps of one configuration with fresh seeds [count]; infinite where the goal was missed."""
        again = trained_again(study, hyperparameters, count, Branch(rerun=0))
        tuner = Tuner(replace(again, seeds=Seeds(trial=seed, data_order=seed)))
        for _ in self.train(tuner):
            pass
        return np.log([found.result or np.inf for _, found in sorted(tuner.outcomes.items())])


def _points(pool: Pool | None, size: int) -> Sequence[Point]:
    return pool.points(size) if pool else ()


@lru_cache(maxsize=8)
def asked(words: tuple[str, ...]) -> list[Study]:
    """The studies of a command line."""
    jobs = parse_jobs(["stopping=race", "evaluation.every=1000000", "engine=lanes", *words])
    return [job.study for job in preflight.settle(jobs)]


@dataclass
class Tries:
    """What one way to search found: for each search seed and batch size the cost, and log steps with fresh seeds."""

    cost: dict[tuple[int, int], int]
    steps: dict[tuple[int, int], np.ndarray]
    configurations: dict[tuple[int, int], Mapping[str, Any]]


def tries(trainer: Trainer, words: Sequence[str], seeds: Sequence[int]) -> Tries:
    """Search with each seed, and train the tuned configurations with fresh seeds."""
    found = Tries({}, {}, {})
    for seed in seeds:
        for size, tuner in trainer.search(words, seed).items():
            found.cost[seed, size] = sum(each.end for each in tuner.outcomes.values())
            if tuner.tuned is not None:
                values = tuner.tuned.hyperparameters
                found.configurations[seed, size] = values
                found.steps[seed, size] = trainer.fresh(tuner.study, values, seed, FRESH)
    return found


def references(trainer: Trainer, made: Sequence[Tries]) -> dict[int, float]:
    """The log steps of the best configuration of each batch size."""
    large = tries(trainer, LARGE, [LARGE_SEED])
    found = {}
    for study in trainer.studies((), LARGE_SEED):
        size = study.batch_size
        known = [
            (float(np.median(steps)), number, key)
            for number, each in enumerate((*made, large))
            for key, steps in each.steps.items()
            if key[1] == size
        ]
        best = [(*made, large)[number].configurations[key] for _, number, key in sorted(known)[:BEST]]
        found[size] = min(float(np.median(trainer.fresh(study, each, LARGE_SEED, MANY))) for each in best)
    return found


@dataclass(frozen=True)
class Row:
    """A row of the table; see the head of this file."""

    problem: str
    tuned: int
    protocol: str
    bias: float
    sd: float
    rmse: float
    rmse_error: float
    shortfall: float
    shortfall_error: float
    cost: float
    missed: int

    def __str__(self) -> str:
        return (
            f"{self.problem:28} {self.tuned} {self.protocol:18} {self.bias:+6.2f} {self.sd:5.2f} {self.rmse:6.3f} +- "
            f"{self.rmse_error:.3f} {self.shortfall:+6.2f} +- {self.shortfall_error:.2f} {self.cost:6.0f} "
            f"{self.missed:6}"
        )


def row(problem: str, tuned: int, protocol: str, found: Tries, reference: Mapping[int, float]) -> Row:
    """Judge one way to search."""
    off = {key: np.median(steps[:CONFIRM]) - reference[key[1]] for key, steps in found.steps.items()}
    far = {key: np.median(steps) - reference[key[1]] for key, steps in found.steps.items()}
    met = np.array([each for each in off.values() if np.isfinite(each)])
    long = np.array([far[key] for key in off if np.isfinite(off[key]) and np.isfinite(far[key])])
    seeds = sorted({seed for seed, _ in found.cost})
    squares = [np.mean([off[key] ** 2 for key in off if key[0] == seed and np.isfinite(off[key])]) for seed in seeds]
    rmse = float(np.sqrt(np.mean(met**2)))
    cost = np.mean([sum(found.cost[seed, size] / np.exp(low) for size, low in reference.items()) for seed in seeds])
    return Row(
        problem,
        tuned,
        protocol,
        float(met.mean()),
        float(met.std(ddof=1)),
        rmse,
        float(np.nanstd(squares, ddof=1) / np.sqrt(len(seeds)) / (2 * rmse)),
        float(long.mean()),
        float(long.std(ddof=1) / np.sqrt(len(long))),
        float(cost / len(reference)),
        len(found.cost) - len(met),
    )


def protocols(problem: Problem, dimensions: int) -> dict[str, tuple[str, ...]]:
    """Name of each way to search -> its overrides."""
    return {
        "refine, 6 scouts": ("search=refine", "search.scouts=6"),
        f"refine, {2 * dimensions + 2} scouts": ("search=refine", f"search.scouts={2 * dimensions + 2}"),
        f"Sobol, N = {problem.sobol}": ("search=sobol", f"search.trials={problem.sobol}"),
    }


def solved(name: str, problem: Problem, seeds: int) -> Iterator[Row]:
    """The rows of one problem."""
    trainer = Trainer(problem)
    dimensions = sum(each.choices is None for each in trainer.studies((), 0)[0].search.space.values())
    ways = protocols(problem, dimensions)
    made = {way: tries(trainer, words, range(seeds)) for way, words in ways.items()}
    reference = references(trainer, list(made.values()))
    for way, found in made.items():
        yield row(name, dimensions, way, found, reference)


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", default="|".join(DIGITS), help="names of problems, with | between them")
    parser.add_argument("--seeds", type=int, default=5, help="search seeds of each row")
    parser.add_argument("--json", type=Path, help="write all rows to this file")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    rows = []
    print(f"{'problem':28} D {'protocol':18}   bias    sd   rmse          shortfall       cost missed")
    for name in options.problems.split("|"):
        start = time.process_time()
        for each in solved(name, PROBLEMS[name], options.seeds):
            rows.append(each)
            print(each, flush=True)
        print(f"({time.process_time() - start:.0f} s)", file=sys.stderr, flush=True)
    if options.json:
        options.json.write_text(json.dumps([asdict(each) for each in rows], indent=1))
    return 0


if __name__ == "__main__":
    np.seterr(all="ignore")
    sys.exit(main())
