"""Proposes trials and decides when a search is complete: an ask-and-tell interface in front of Optuna."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from analysis import counting
from analysis.counting import COMPLETE, INCOMPLETE, INFEASIBLE, Outcome, TrialCurve
from analysis.surrogate import confirmed
from study.records import Curve, Study, Trial
from study.search.history import ADAPTIVE, History
from study.search.optuna_storage import Storage
from study.search.points import point
from study.search.rounds import Point
from study.space import Values, values
from study.store.claims import WHOLE, Shard

STARTUP = 10


class _Finished(NamedTuple):
    """A finished trial. `crossing`: the step at which it met the goal, if it did."""

    trial: Trial
    curve: TrialCurve
    crossing: int | None


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
        self._finished: dict[int, _Finished] = {}
        self._begun: dict[int, Sequence[int] | None] = {}
        """Trial index -> the grid of each trial that began here; None: that of the rule."""
        self._rule = study.rule
        self._history = History(study, storage or Storage(), shard)
        self._add(finished)
        for index in [index for index, outcome in self.outcomes.items() if outcome.status == INCOMPLETE]:
            del self.outcomes[index], self._finished[index]  # train it again from the start
        self._history.abandon(self._under_way)

    def ask(self) -> Trial | None:
        """The next trial to start; None if no further trial is needed now (see `next_index`)."""
        self._take_others()
        index = self.next_index(self.shard)
        if index is None:
            return None
        hyperparameters = self._known(index)
        if hyperparameters is None or self.study.search.refines:
            hyperparameters = self._history.ask(index, hyperparameters)
        trial = self.study.trial(index, hyperparameters)
        self._begun[index] = self.study.grid_of(trial)
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
        index = next(i for i in mine if i not in self.outcomes and i not in self._begun)
        if self.study.search.refines:
            return index if index < len(self._points()) else None
        promising = index - sum(i < index and found.status == INFEASIBLE for i, found in self.outcomes.items())
        return None if promising >= self.study.search.trials or index >= self.study.search.launch_limit else index

    def _take_others(self) -> None:
        """Add the curves that other processes finished."""
        if new := [curve for curve in self._others() if curve.trial.index not in self._finished]:
            self._add(new)

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
        for curve in curves:
            measured = self.study.measured(curve)
            crossing = counting.finite_crossing(self._rule, measured)
            self._finished[curve.trial.index] = _Finished(curve.trial, measured, crossing)
        self._finished = dict(sorted(self._finished.items()))
        self.outcomes = counting.outcomes(self._rule, {i: each.curve for i, each in self._finished.items()})
        for index, outcome in self.outcomes.items():
            if outcome.status != INCOMPLETE:
                self._history.tell(self._finished[index].trial, self._finished[index].curve, outcome)

    def step_limit(self, index: int) -> int:
        """The step beyond which trial `index` need not run, given the trials known now; later ones may lower it."""
        self._take_others()
        grid = self._begun.get(index)
        return (self._rule if grid is None else self._rule._replace(grid=grid)).bound(self._fewest(index))

    def _fewest(self, index: int) -> int | None:
        """The fewest steps to the goal among the known rivals of trial `index`."""
        rivals = self._rule.rivals(index)
        found = (each.crossing for i, each in self._finished.items() if i < rivals)
        return min((step for step in found if step is not None), default=None)

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
        return [self._finished[i].trial for i in self._counted]

    @property
    def best_trials(self) -> list[Trial]:
        """The best few of the counted trials, the best first."""
        counted = self._counted
        curves = [self._finished[i].curve for i in counted]
        found = counting.best_trials([self.outcomes[i] for i in counted], curves)
        return [self._finished[counted[position]].trial for position in found]

    @property
    def tuned(self) -> Trial | None:
        """The trial with the tuned configuration: the best one, or with `search=refine` the first one with the
        configuration whose screens did best. None if no trial reached the goal."""
        if self.steps_to_result is None:
            return None
        if not self.study.search.refines:
            return self.best_trials[0]
        curves = {i: each.curve for i, each in self._finished.items()}
        screened = confirmed.tuned(vars(self.study.search), self.study.goal, self._rule, curves)
        found = self._finished[screened].trial.hyperparameters
        return next(each.trial for each in self._finished.values() if each.trial.hyperparameters == found)

    @property
    def steps_to_result(self) -> int | None:
        """The fewest steps to the goal among the counted feasible trials."""
        found = (self.outcomes[i].result for i in self._counted)
        return min((steps for steps in found if steps is not None), default=None)
