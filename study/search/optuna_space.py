"""A search space in the terms of Optuna, and trials of Optuna whose values are known before."""

from collections.abc import Collection, Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from study.space import Dimension, Values


class OptunaSpace:
    """The parameters of a search space with the names, values and distributions that they have in Optuna.

    Optuna has no reverse-log distribution: it gets 1 - x on a log scale instead, as `one_minus_momentum`.

    Attributes:
        names: of our parameters -> their names in Optuna.
    """

    def __init__(self, space: Mapping[str, Dimension]) -> None:
        self._space = space
        self.names = {name: f"one_minus_{name}" if _reverses(each) else name for name, each in space.items()}
        self._distributions = {self.names[name]: _distribution(each) for name, each in space.items()}

    def to_optuna(self, hyperparameters: Values) -> dict[str, Any]:
        """Optuna's values of hyperparameters."""
        return {
            self.names[name]: 1 - value if _reverses(self._space[name]) else value
            for name, value in hyperparameters.items()
        }

    def from_optuna(self, params: Values) -> dict[str, Any]:
        """Optuna's values as hyperparameters, clipped to the range because rounding may leave it."""
        found = {}
        for name, dimension in self._space.items():
            if self.names[name] not in params:
                continue
            value = params[self.names[name]]
            if dimension.choices is None:
                assert dimension.low is not None
                assert dimension.high is not None
                value = 1 - value if _reverses(dimension) else value
                value = min(max(value, dimension.low), dimension.high)
            found[name] = value
        return found

    def distributions(self, params: Values, of: Collection[str] | None = None) -> dict[str, BaseDistribution]:
        """Optuna's distributions, wider where one of these values lies beyond the range: rounds of `refine` extend it.

        Arguments:
            of: the parameters whose distributions are wanted, by Optuna's names; None: all.
        """
        return {
            name: _wider(each, params[name]) if name in params else each
            for name, each in self._distributions.items()
            if of is None or name in of
        }


class Planned(optuna.samplers.BaseSampler):
    """Samples a point that is known before: Optuna then shows the trial while it trains.

    Arguments:
        params: Optuna's name of each parameter -> value.
    """

    def __init__(self, params: Values) -> None:
        self._params = dict(params)

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
        return self._params[param_name]


def suggest(trial: optuna.Trial, name: str, distribution: Any) -> None:
    """Let the sampler of a trial draw one more parameter."""
    if isinstance(distribution, CategoricalDistribution):
        trial.suggest_categorical(name, distribution.choices)
        return
    draw = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
    draw(name, distribution.low, distribution.high, log=distribution.log)


def _wider(distribution: Any, value: Any) -> Any:
    """A distribution that holds a value, which may lie beyond the range."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution
    ends = min(distribution.low, value), max(distribution.high, value)
    return type(distribution)(*ends, log=distribution.log)


def _reverses(dimension: Dimension) -> bool:
    return dimension.scale == "reverse_log"


def _distribution(dimension: Dimension) -> BaseDistribution:
    if dimension.choices is not None:
        return CategoricalDistribution(dimension.choices)
    assert dimension.low is not None
    assert dimension.high is not None
    if dimension.integer:
        return IntDistribution(int(dimension.low), int(dimension.high), log=dimension.scale == "log")
    if _reverses(dimension):
        return FloatDistribution(1 - dimension.high, 1 - dimension.low, log=True)
    return FloatDistribution(dimension.low, dimension.high, log=dimension.scale == "log")
