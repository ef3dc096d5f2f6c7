"""What Optuna knows of one search: it is asked for points, and told how their trials ended."""

import math
from collections.abc import Callable, Container

import optuna
from optuna.trial import TrialState

from analysis import counting
from analysis.counting import INFEASIBLE, Outcome, TrialCurve
from study.records import Study, Trial
from study.schedules import SCHEDULE, conditional, taken
from study.search.optuna_space import OptunaSpace, Planned, suggest
from study.search.optuna_storage import Storage
from study.space import Values
from study.store.claims import Shard

ADAPTIVE: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    # Tree-structured Parzen estimators (Bergstra et al. 2011), jointly over all parameters (Falkner et al. 2018).
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=True),
    # A Gaussian process with log expected improvement (Ament et al. 2023).
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=0),
    # Covariance matrix adaptation (Hansen 2016); Optuna keeps its state with the trials it proposed in this process.
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=0, warn_independent_sampling=False),
}
"""Name of an adaptive sampler -> function from a seed to Optuna's sampler."""


class History:
    """Optuna's study of one search. One in memory is opened when a sampler first needs it: most never do.

    Arguments:
        shard: the trials of this process; in a shared storage it reports no others.
    """

    def __init__(self, study: Study, storage: Storage, shard: Shard) -> None:
        self._study, self._storage, self._shard = study, storage, shard
        self._space = OptunaSpace(study.search.space)
        self._opened: optuna.Study | None = None
        self._asked: dict[int, optuna.Trial] = {}
        self._told: set[int] = set()
        self._untold: list[Callable[[optuna.Study], None]] = []
        """What Optuna must be told before it proposes a trial."""
        if storage.outside:
            self.optuna_study()

    def optuna_study(self) -> optuna.Study:
        """Optuna's study, told of all trials."""
        with self._storage.errors_named():
            if self._opened is None:
                optuna.logging.set_verbosity(optuna.logging.WARNING)
                self._opened = self._storage.open(self._study)
            while self._untold:
                self._untold.pop(0)(self._opened)
        return self._opened

    def ask(self, index: int, known: Values | None = None) -> Values:
        """The point of trial `index`, which Optuna then shows as running.

        Arguments:
            known: the point, if a round planned it; None: the sampler proposes one.
        """
        with self._storage.errors_named():
            asked = self._asked[index] = self._ask(index, known)
            for name, value in self._storage.mark(index).items():
                asked.set_user_attr(name, value)
        return self._space.from_optuna(asked.params) if known is None else known

    def _ask(self, index: int, known: Values | None) -> optuna.Trial:
        """Optuna's trial for the next point, without values for the parameters that its schedule does not take.

        Parameters that only some schedules take come from TPE, which learns from the trials that have them: the models
        of `gp` and `cmaes` hold only what all trials have.
        """
        search = self._study.search
        # A new sampler for each point, so that the point depends only on history and index, not on hidden state.
        seed = self._study.seeds.of("search", index, self._study.seed_key) % 2**32
        theirs = self.optuna_study()
        planned = None if known is None else Planned(self._space.to_optuna(known))
        theirs.sampler = planned or ADAPTIVE[search.sampler](seed)
        later = {name: self._space.names[name] for name in sorted(conditional(search.space))}
        distributions = self._space.distributions(self._space.to_optuna(known or {}))
        first = distributions.keys() - later.values()
        asked = theirs.ask({name: each for name, each in distributions.items() if name in first})
        if later:
            theirs.sampler = planned or ADAPTIVE["tpe"](seed)
            kept = taken(later | {SCHEDULE: asked.params[SCHEDULE]})
            for name in sorted(later.keys() & kept.keys()):
                suggest(asked, later[name], distributions[later[name]])
        return asked

    def tell(self, trial: Trial, curve: TrialCurve, outcome: Outcome) -> None:
        """Tell Optuna how a trial ended, given the trials known now; later calls for the same trial do nothing."""
        if trial.index in self._told or (self._storage.outside and trial.index not in self._shard):
            return
        self._told.add(trial.index)
        self._untold.append(self._telling(trial, curve, outcome))
        if self._storage.outside:
            self.optuna_study()

    def _telling(self, trial: Trial, curve: TrialCurve, outcome: Outcome) -> Callable[[optuna.Study], None]:
        value = self._value(trial, curve, outcome)
        state = TrialState.FAIL if value is None else TrialState.COMPLETE
        asked = self._asked.pop(trial.index, None)
        shown = self._storage.shown(self._study, curve, outcome.result)

        def tell(theirs: optuna.Study) -> None:
            if asked is not None:
                shown.on(asked)
                theirs.tell(asked, value, state=state)
            elif not self._storage.finish(theirs, trial.index, value, state, shown):
                params = self._space.to_optuna(trial.hyperparameters)
                theirs.add_trial(
                    optuna.trial.create_trial(
                        state=state,
                        value=value,
                        params=params,
                        distributions=self._space.distributions(params, params),
                        user_attrs={**self._storage.mark(trial.index), **shown.attributes},
                        intermediate_values=dict(shown.curve),
                    )
                )

        return tell

    def _value(self, trial: Trial, curve: TrialCurve, outcome: Outcome) -> float | None:
        """What Optuna minimises; None for a diverged trial, which fails.

        It is log(steps to the goal), or for a trial that missed the goal log(step budget x (1 + excess)); the excess is
        the least error minus the threshold, as a share of the threshold's size; 0 if no error is known.
        """
        if outcome.status == INFEASIBLE:
            return None
        value: float | None = outcome.steps_to_goal
        if value is None:
            least, threshold = counting.least_error(curve, outcome.end), self._study.goal.threshold
            least = least if math.isfinite(least) else threshold
            missed = least / threshold if threshold > 0 else 1 + (least - threshold) / (-threshold or 1.0)
            value = self._study.of_trial(trial).train_steps * missed
        return math.log(max(value, 1.0))

    def abandon(self, under_way: Container[int]) -> None:
        """Mark unfinished trials of the shard that are not `under_way` as failed in a shared storage: the tuner
        proposes them again."""
        if self._storage.outside:
            with self._storage.errors_named():
                self._storage.abandon(self.optuna_study(), self._shard, under_way)
