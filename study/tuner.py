"""Proposes trials and knows when a study has enough: Optuna behind ask/tell. The only file that knows Optuna."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache

import numpy as np
import optuna
from optuna.trial import TrialState
from scipy.stats import qmc

from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, Measured, Outcome, counted_prefix, outcomes
from study.records import Curve, Study, Trial
from study.space import Dimension, values

STARTUP = 10
ADAPTIVE: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    # Tree-structured Parzen estimators (Bergstra et al. 2011), jointly over all parameters (Falkner et al. 2018).
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=True),
    # A Gaussian process with log expected improvement (Ament et al. 2023).
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=0),
    # Covariance matrix adaptation (Hansen 2016); Optuna keeps its state with the trials it proposed in this process.
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=0, warn_independent_sampling=False),
}
"""Name -> from a seed, Optuna's sampler."""


class Tuner:
    """The search of one study: what is finished, what is under way, what comes next.

    Optuna keeps the search's history for its adaptive samplers; the others' points are addressed by index and so
    survive any interruption. An adaptive sampler begins with STARTUP quasi-random points.

    Arguments:
        under_way: trials proposed before that have a checkpoint, and are to be proposed again under their index.
    """

    def __init__(self, study: Study, finished: Iterable[Curve] = (), under_way: Iterable[Trial] = ()) -> None:
        self.study = study
        self._under_way = {trial.index: trial for trial in under_way}
        self.outcomes: dict[int, Outcome] = {}
        """Of finished trials; a race's bounds fall, and statuses with them, while trials of lower index finish."""
        self._measured: dict[int, Measured] = {}
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._optuna = optuna.create_study(direction="minimize")
        self._asked: dict[int, optuna.Trial] = {}
        self._distributions = {
            _optuna_name(name, dimension): _distribution(dimension) for name, dimension in study.search.space.items()
        }
        for curve in sorted(finished, key=lambda curve: curve.trial.index):
            if self.tell(curve).status == INCOMPLETE:  # as if it had never run
                del self.outcomes[curve.trial.index], self._measured[curve.trial.index]

    def ask(self) -> Trial | None:
        """The next trial worth starting now, or None: enough are feasible, could yet be feasible, or were launched."""
        index = next(i for i in itertools.count() if i not in self.outcomes and i not in self._asked)
        hopeful = sum(i in self._asked or self.outcomes[i].status == COMPLETE for i in range(index))
        if hopeful >= self.study.search.trials or index >= self.study.search.launch_limit:
            return None
        hyperparameters = self._known(index)
        if hyperparameters is not None:
            self._optuna.enqueue_trial(self._optuna_values(hyperparameters), user_attrs={"index": index})
            self._asked[index] = self._optuna.ask(self._distributions)
        else:
            # Made anew for each point, so that it depends on the history and the index but on no hidden state.
            adaptive = ADAPTIVE[self.study.search.sampler]
            self._optuna.sampler = adaptive(self.study.seeds.of("search", index) % 2**32)
            self._asked[index] = self._optuna.ask(self._distributions)
            hyperparameters = self._from_optuna(self._asked[index].params)
        return self.study.trial(index, hyperparameters)

    def _known(self, index: int) -> Mapping[str, float] | None:
        """The point of a trial that its index addresses or that was proposed before; None: the sampler must say."""
        space = self.study.search.space
        if self.study.search.sampler not in ADAPTIVE or index < STARTUP:
            return values(space, point(self.study, index))
        trial = self._under_way.get(index)
        if trial is None or trial.hyperparameters.keys() != space.keys():
            return None
        return trial.hyperparameters if trial == self.study.trial(index, trial.hyperparameters) else None

    def tell(self, curve: Curve) -> Outcome:
        """Take a finished trial's curve into account; returns how it ended, as far as can be known by now."""
        index = curve.trial.index
        errors = curve.errors[self.study.goal.metric]
        self._measured[index] = Measured(curve.steps, errors, curve.first_bad_step)
        later = sorted(i for i in self._measured if i >= index)
        found = outcomes(self.study.rule, [self._measured[i] for i in later], self._best(before=index))
        self.outcomes |= dict(zip(later, found, strict=True))
        result = self.outcomes[index]
        if result.status != INCOMPLETE:
            self._tell_optuna(curve.trial, result, errors[curve.steps <= result.end])
        return result

    def _tell_optuna(self, trial: Trial, result: Outcome, errors: np.ndarray) -> None:
        """The value to minimise: log steps to the goal; beyond the budget, by the least error, where it was missed."""
        state = TrialState.FAIL if result.status == INFEASIBLE else TrialState.COMPLETE
        value: float | None = None if state == TrialState.FAIL else result.steps_to_goal
        if state == TrialState.COMPLETE and value is None:
            value = self.study.train_steps * float(np.nanmin(errors)) / self.study.goal.threshold
        value = None if value is None else math.log(max(value, 1.0))
        if trial.index in self._asked:
            self._optuna.tell(self._asked.pop(trial.index), value, state=state)
            return
        self._optuna.add_trial(
            optuna.trial.create_trial(
                state=state,
                value=value,
                params=self._optuna_values(trial.hyperparameters),
                distributions=self._distributions,
                user_attrs={"index": trial.index},
            )
        )

    def step_limit(self, index: int) -> int:
        """The step beyond which trial `index` need not run: an upper bound of a race's, from what is known by now."""
        return self.study.rule.bound(self._best(before=index))

    @property
    def best(self) -> int | None:
        """Fewest steps to the goal among all finished trials."""
        return self._best()

    def _best(self, before: float = math.inf) -> int | None:
        """Fewest steps to the goal among finished trials of lower index."""
        reached = (
            result.steps_to_goal
            for index, result in self.outcomes.items()
            if index < before and result.status == COMPLETE and result.steps_to_goal is not None
        )
        return min(reached, default=None)

    @property
    def feasible(self) -> int:
        """Trials finished and feasible."""
        return sum(result.status == COMPLETE for result in self.outcomes.values())

    @property
    def infeasible(self) -> int:
        """Trials that diverged."""
        return sum(result.status == INFEASIBLE for result in self.outcomes.values())

    @property
    def complete(self) -> bool:
        """Whether the first N feasible trials are known, or as many trials as may be were launched."""
        statuses = [self.outcomes[i].status for i in sorted(self.outcomes)]
        counted = counted_prefix(statuses, self.study.search.trials)
        no_gap = all(i in self.outcomes for i in range(counted))
        enough = statuses[:counted].count(COMPLETE) == self.study.search.trials
        return no_gap and (enough or counted >= self.study.search.launch_limit)

    def _from_optuna(self, params: Mapping[str, float]) -> dict[str, float]:
        """Optuna's values as hyperparameters; rounding must not leave the range."""
        found = {}
        for name, dimension in self.study.search.space.items():
            value = params[_optuna_name(name, dimension)]
            if dimension.choices is None:
                assert dimension.low is not None
                assert dimension.high is not None
                value = 1 - value if dimension.scale == "reverse_log" else value
                value = min(max(value, dimension.low), dimension.high)
            found[name] = value
        return found

    def _optuna_values(self, hyperparameters: Mapping[str, float]) -> dict[str, float]:
        space = self.study.search.space
        return {
            _optuna_name(name, space[name]): 1 - value if space[name].scale == "reverse_log" else value
            for name, value in hyperparameters.items()
        }


def point(study: Study, index: int) -> list[float]:
    """Point `index` of the search in the unit cube [D]: a pure function of (search seed, index, sampler, D)."""
    dimensions, seed = len(study.search.space), study.seeds.search
    if study.search.sampler == "random":
        return np.random.default_rng((seed, index)).random(dimensions).tolist()
    return _sobol(seed, dimensions, max(6, index.bit_length()))[index].tolist()


@lru_cache(maxsize=8)
def _sobol(seed: int, dimensions: int, log2_points: int) -> np.ndarray:
    """The first 2^log2_points points [2^m, D] of a scrambled Sobol sequence (Owen 1998); prefixes agree."""
    sequence = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    return np.asarray(sequence.random_base2(log2_points))


def _optuna_name(name: str, dimension: Dimension) -> str:
    """Optuna has no reverse-log distribution: it sees 1 - x, on a log scale."""
    return f"one_minus_{name}" if dimension.scale == "reverse_log" else name


def _distribution(dimension: Dimension) -> optuna.distributions.BaseDistribution:
    if dimension.choices is not None:
        return optuna.distributions.CategoricalDistribution(dimension.choices)
    assert dimension.low is not None
    assert dimension.high is not None
    if dimension.scale == "reverse_log":
        return optuna.distributions.FloatDistribution(1 - dimension.high, 1 - dimension.low, log=True)
    return optuna.distributions.FloatDistribution(dimension.low, dimension.high, log=dimension.scale == "log")
