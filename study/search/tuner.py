"""Proposes trials and decides when a search is complete: an ask-and-tell interface in front of Optuna."""

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import optuna
from optuna.trial import TrialState

from analysis import counting
from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, Outcome, TrialCurve
from analysis.surrogate import confirmed
from study.records import Curve, Study, Trial
from study.schedules import SCHEDULE, conditional, taken
from study.search.optuna_space import OptunaSpace, Planned, suggest
from study.search.optuna_storage import Storage
from study.search.points import point
from study.search.rounds import Point
from study.space import Values, values
from study.store.claims import WHOLE, Shard

STARTUP = 10
ADAPTIVE: dict[str, Callable[[int], optuna.samplers.BaseSampler]] = {
    # Tree-structured Parzen estimators (Bergstra et al. 2011), jointly over all parameters (Falkner et al. 2018).
    "tpe": lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, multivariate=True),
    # A Gaussian process with log expected improvement (Ament et al. 2023).
    "gp": lambda seed: optuna.samplers.GPSampler(seed=seed, n_startup_trials=0),
    # Covariance matrix adaptation (Hansen 2016); Optuna keeps its state with the trials it proposed in this process.
    "cmaes": lambda seed: optuna.samplers.CmaEsSampler(seed=seed, n_startup_trials=0, warn_independent_sampling=False),
}
"""Name of an adaptive sampler -> function from a seed to Optuna's sampler."""


class Tuner:
    """The search of one study: finished trials, trials under way, and the next one.

    Adaptive samplers use the history that Optuna keeps, and start with STARTUP quasi-random points. For all other
    samplers a point is a function of the trial's index, so an interruption changes no point.

    Arguments:
        finished: curves on file. Incomplete ones are ignored, so that their trials are trained again.
        under_way: trials with a checkpoint; they are proposed again with the same index and point.
        storage: of Optuna's trials; None: in memory.
        shard: the trials that this process proposes; other processes propose the rest.
        others: returns the curves that other processes finished since the last call.
        points: with `search=refine`, returns the known points of the trials, by index.
    """

    def __init__(
        self,
        study: Study,
        finished: Iterable[Curve] = (),
        under_way: Iterable[Trial] = (),
        storage: Storage | None = None,
        shard: Shard = WHOLE,
        others: Callable[[], Iterable[Curve]] = tuple,
        points: Callable[[], Sequence[Point]] = tuple,
    ) -> None:
        self.study, self.shard, self._others, self._points = study, shard, others, points
        self._under_way = {trial.index: trial for trial in under_way}
        self.outcomes: dict[int, Outcome] = {}
        """Trial index -> outcome of each finished trial. Under `race` it can change: a rival that finishes later may
        lower the bound."""
        self._measured: dict[int, TrialCurve] = {}
        self._crossings: dict[int, int | None] = {}
        self._told: set[int] = set()
        """Trials that Optuna knows to be finished."""
        self._rule = study.rule
        self._trials: dict[int, Trial] = {}
        self._storage = storage or Storage()
        self._opened: optuna.Study | None = None
        self._untold: list[Callable[[optuna.Study], None]] = []
        """What Optuna must be told before it proposes a trial."""
        if self._storage.outside:
            self._optuna_study()
        self._asked: dict[int, optuna.Trial | None] = {}
        self._grids: dict[int, Sequence[int] | None] = {}
        """The grid of each trial under way; None: that of the rule."""
        self._space = OptunaSpace(study.search.space)
        self._add(finished)
        for index in [index for index, outcome in self.outcomes.items() if outcome.status == INCOMPLETE]:
            for held in (self.outcomes, self._measured, self._crossings, self._trials):
                del held[index]  # train it again from the start
        if self._storage.outside:
            with self._storage.errors_named():
                self._storage.abandon(self._optuna_study(), shard, self._under_way)

    def _optuna_study(self) -> optuna.Study:
        """Optuna's study, told of all trials. One in memory is opened when a sampler first needs it: most never do."""
        with self._storage.errors_named():
            if self._opened is None:
                optuna.logging.set_verbosity(optuna.logging.WARNING)
                self._opened = self._storage.open(self.study)
            while self._untold:
                self._untold.pop(0)(self._opened)
        return self._opened

    def ask(self) -> Trial | None:
        """The next trial to start; None if no further trial is needed now (see `next_index`)."""
        self._take_others()
        index = self.next_index(self.shard)
        if index is None:
            return None
        hyperparameters = self._known(index)
        self._asked[index] = None
        if hyperparameters is None or self.study.search.refines:
            with self._storage.errors_named():
                asked = self._asked[index] = self._ask_optuna(index, hyperparameters)
                for name, value in self._storage.mark(index).items():
                    asked.set_user_attr(name, value)
            if hyperparameters is None:
                hyperparameters = self._space.from_optuna(asked.params)
        trial = self.study.trial(index, hyperparameters)
        self._grids[index] = self.study.grid_of(trial)
        return trial

    @property
    def learns(self) -> bool:
        """Whether the next trials depend on the results of those that ended."""
        return self.study.search.refines or self.study.search.sampler in ADAPTIVE

    def next_index(self, shard: Shard) -> int | None:
        """The index of the next trial of a shard to start.

        None at the launch limit, or if the trials of lower index suffice: as many as the search wants are feasible or
        unfinished, counting all shards.
        """
        mine = itertools.count(shard.index, shard.count)
        index = next(i for i in mine if i not in self.outcomes and i not in self._asked)
        if self.study.search.refines:
            return index if index < len(self._points()) else None
        promising = index - sum(i < index and found.status == INFEASIBLE for i, found in self.outcomes.items())
        return None if promising >= self.study.search.trials or index >= self.study.search.launch_limit else index

    def _take_others(self) -> None:
        """Add the curves that other processes finished."""
        if new := [curve for curve in self._others() if curve.trial.index not in self._measured]:
            self._add(new)

    def _ask_optuna(self, index: int, known: Values | None) -> optuna.Trial:
        """Optuna's trial for the next point, without values for the parameters that its schedule does not take.

        Parameters that only some schedules take come from TPE, which learns from the trials that have them: the models
        of `gp` and `cmaes` hold only what all trials have.

        Arguments:
            known: the point, if a round planned it; None: the sampler proposes one.
        """
        search = self.study.search
        # A new sampler for each point, so that the point depends only on history and index, not on hidden state.
        seed, theirs = self.study.seeds.of("search", index, self.study.seed_key) % 2**32, self._optuna_study()
        planned = None if known is None else Planned(self._space.to_optuna(known))
        theirs.sampler = planned or ADAPTIVE[search.sampler](seed)
        later = {name: self._space.names[name] for name in sorted(conditional(self.study.search.space))}
        distributions = self._space.distributions(self._space.to_optuna(known or {}))
        first = distributions.keys() - later.values()
        asked = theirs.ask({name: each for name, each in distributions.items() if name in first})
        if later:
            theirs.sampler = planned or ADAPTIVE["tpe"](seed)
            kept = taken(later | {SCHEDULE: asked.params[SCHEDULE]})
            for name in sorted(later.keys() & kept.keys()):
                suggest(asked, later[name], distributions[later[name]])
        return asked

    def _known(self, index: int) -> Values | None:
        """The point of a trial if its index or its checkpoint determines it; None if the sampler must propose one.

        A known point is not enqueued in Optuna, where another process could take it: Optuna gets the finished trial.
        """
        space = self.study.search.space
        if self.study.search.refines:
            return values(space, self._points()[index])
        if self.study.search.sampler not in ADAPTIVE or index < STARTUP:
            return values(space, point(self.study, index))
        if (trial := self._under_way.get(index)) is None:
            return None
        # A parameter that its schedule takes and the trial lacks is None, and differs.
        wanted = {**dict.fromkeys(space), **trial.hyperparameters}
        same = wanted.keys() == space.keys() and trial == self.study.trial(index, wanted)
        return trial.hyperparameters if same else None

    def tell(self, curve: Curve) -> Outcome:
        """Add the curve of a finished trial; returns its outcome, given the trials known now."""
        self._add([curve])
        return self.outcomes[curve.trial.index]

    def _add(self, curves: Iterable[Curve]) -> None:
        """Add curves, all before any is judged: a trial that fell behind a rival is incomplete without it."""
        new = {curve.trial.index: curve for curve in curves}
        for index, curve in new.items():
            self._trials[index] = curve.trial
            self._measured[index] = self.study.measured(curve)
            self._crossings[index] = counting.finite_crossing(self._rule, self._measured[index])
        self.outcomes = counting.outcomes(self._rule, {i: self._measured[i] for i in sorted(self._measured)})
        for index in sorted(self.outcomes.keys() - self._told):
            result = self.outcomes[index]
            # In a shared storage each process reports only its own trials.
            if result.status != INCOMPLETE and (not self._storage.outside or index in self.shard):
                self._told.add(index)
                self._untold.append(self._telling(self._trials[index], result))
        if self._storage.outside:
            self._optuna_study()

    def _telling(self, trial: Trial, result: Outcome) -> Callable[[optuna.Study], None]:
        """What tells Optuna the value to minimise, as it is now.

        It is log(steps to the goal), or for a trial that missed the goal log(step budget x (1 + excess)); the excess is
        the least error minus the threshold, as a share of the threshold's size; 0 if no error is known. Diverged trials
        have no value: they fail.
        """
        state = TrialState.FAIL if result.status == INFEASIBLE else TrialState.COMPLETE
        value: float | None = None if state == TrialState.FAIL else result.steps_to_goal
        if state == TrialState.COMPLETE and value is None:
            least, threshold = counting.least_error(self._measured[trial.index], result.end), self.study.goal.threshold
            least = least if math.isfinite(least) else threshold
            missed = least / threshold if threshold > 0 else 1 + (least - threshold) / (-threshold or 1.0)
            value = self.study.of_trial(trial).train_steps * missed
        value = None if value is None else math.log(max(value, 1.0))
        asked = self._asked.pop(trial.index, None)
        shown = self._storage.shown(self.study, self._measured[trial.index], result.result)

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

    def step_limit(self, index: int) -> int:
        """The step beyond which trial `index` need not run, given the trials known now; later ones may lower it."""
        self._take_others()
        grid = self._grids.get(index)
        return (self._rule if grid is None else self._rule._replace(grid=grid)).bound(self._fewest(index))

    def _fewest(self, index: int) -> int | None:
        """The fewest steps to the goal among the known rivals of trial `index`."""
        rivals = self._rule.rivals(index)
        found = (steps for i, steps in self._crossings.items() if i < rivals)
        return min((steps for steps in found if steps is not None), default=None)

    @property
    def feasible(self) -> int:
        """Number of finished feasible trials."""
        return sum(result.status == COMPLETE for result in self.outcomes.values())

    @property
    def done(self) -> int:
        """Number of finished trials that count towards those wanted: the feasible ones; with `search=refine` all."""
        return len(self.outcomes) if self.study.search.refines else self.feasible

    @property
    def infeasible(self) -> int:
        """Number of diverged trials."""
        return sum(result.status == INFEASIBLE for result in self.outcomes.values())

    @property
    def complete(self) -> bool:
        """True if the first N feasible trials are known, or the launch limit is reached; N: trials wanted."""
        search, known = self.study.search, range(max(self.outcomes, default=-1) + 1)
        statuses = [self.outcomes[i].status if i in self.outcomes else INCOMPLETE for i in known]
        met = [i in self.outcomes and self.outcomes[i].result is not None for i in known]
        return counting.search_is_complete(vars(search), statuses, met)

    @property
    def _counted(self) -> list[int]:
        """Finished trials up to the last of the first N feasible ones."""
        finished = sorted(self.outcomes)
        return finished[: counting.counted_trials(vars(self.study.search), [self.outcomes[i].status for i in finished])]

    @property
    def counted_trials(self) -> list[Trial]:
        """The trials up to the N-th feasible one, by index."""
        return [self._trials[i] for i in self._counted]

    @property
    def best_trials(self) -> list[Trial]:
        """The best few of the counted trials, the best first."""
        counted = self._counted
        found = counting.best_trials([self.outcomes[i] for i in counted], [self._measured[i] for i in counted])
        return [self._trials[counted[position]] for position in found]

    @property
    def tuned(self) -> Trial | None:
        """The trial with the tuned configuration: the best one, or with `search=refine` the first one with the
        configuration whose screens did best. None if no trial reached the goal."""
        if self.steps_to_result is None:
            return None
        if not self.study.search.refines:
            return self.best_trials[0]
        trials = {i: self._measured[i] for i in sorted(self._measured)}
        screened = confirmed.tuned(vars(self.study.search), self.study.goal, self._rule, trials)
        found = self._trials[screened].hyperparameters
        return next(trial for _, trial in sorted(self._trials.items()) if trial.hyperparameters == found)

    @property
    def steps_to_result(self) -> int | None:
        """The fewest steps to the goal among the counted feasible trials."""
        found = (self.outcomes[i].result for i in self._counted)
        return min((steps for steps in found if steps is not None), default=None)
