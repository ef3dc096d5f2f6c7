"""The rounds of `search=refine`: a model of all trials of a curve proposes the points of each stage.

The points of a stage are written once, to a file beside the trials, by the process that first finds the stage before
complete. All other processes, and a resumed sweep, read them there.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from analysis import counting
from analysis.counting import INCOMPLETE, TrialCurve
from analysis.edges import widening
from analysis.question import stages
from analysis.surrogate import curve
from analysis.surrogate.process import Coordinates, Shape
from analysis.surrogate.proposals import DIGITS, Point
from analysis.surrogate.responses import Result, about_errors, measured
from study import store
from study.records import Curve, Study
from study.schedules import taken
from study.search.points import point
from study.space import Dimension, extended, parse_space, values
from study.store.curves import Reader

POLL = 2.0
"""Seconds between two reads of the trials of other processes."""


class Member:
    """One search of a pool: its trials that ended, and the points of its stages that are known."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder = study, folder
        self.ends = stages.ends(vars(study.search), study.race_over)
        self.rounds: list[dict[str, Any]] = []
        self.points: list[Point] = [_rounded(point(study, index)) for index in range(self.ends[0])]
        self._trials: dict[int, TrialCurve] = {}
        self._results: dict[int, list[Result]] = {}
        self._reader = Reader(folder)
        self._read_at = -np.inf

    def add(self, ended: Curve) -> None:
        """Add the curve of a finished trial."""
        self._trials[ended.trial.index] = self.study.measured(ended)

    def read(self) -> None:
        """Add the trials that other processes wrote, at most every POLL seconds."""
        if time.monotonic() >= self._read_at + POLL:
            self._read_at = time.monotonic()
            for ended in self._reader.new():
                self.add(ended)

    def finished(self, count: int) -> bool:
        """True if the first `count` trials have ended."""
        if count not in self._results and all(index in self._trials for index in range(count)):
            trials = {index: self._trials[index] for index in range(count)}
            found = counting.outcomes(self.study.rule, trials)
            if all(outcome.status != INCOMPLETE for outcome in found.values()):
                self._results[count] = [Result(self.points[i], trials[i], found[i]) for i in range(count)]
        return count in self._results

    def results(self, count: int) -> list[Result]:
        """The first `count` trials, which are `finished`; later trials do not change how they ended."""
        return self._results[count]

    def informs(self, before: int) -> int | None:
        """How many of its first trials inform a stage that follows `before` trials; None if they have not all ended.

        A search without a trial that met the goal ended with its rounds, and informs all later stages by these.
        """
        if len(self.points) >= before and self.finished(before):
            return before
        rounds = self.ends[len(self.study.search.refine)]
        missed = before > rounds and self.finished(rounds) and not any(r.outcome.result for r in self.results(rounds))
        return rounds if missed else None

    @property
    def space(self) -> dict[str, Dimension]:
        """The search space, with the ranges that rounds extended as wide as the latest one made them."""
        wider = self.rounds[-1].get("wider", {}) if self.rounds else {}
        return {**self.study.search.space, **parse_space(wider)}

    def extended(self, best: Iterable[Point]) -> tuple[dict[str, Dimension], str]:
        """The space of the candidates of the next round, and the edges where it is wider than in the one before.

        Nothing is searched again: the rounds that follow may go beyond the edges at which the best points lie.

        Arguments:
            best: the best three points, the best first (`analysis.surrogate.curve.least`).
        """
        study, space = self.study, self.space
        if sum(bool(each.get("extended")) for each in self.rounds) >= study.search.extend_limit:
            return space, ""
        trials = [taken(values(study.search.space, each)) for each in best]
        wider, found = extended(space, trials, study.search.extend_factor, study.legal)
        return wider, widening(found)

    def read_rounds(self) -> None:
        """Add the points of the stages that are on file."""
        while (content := store.read_round(self.folder, len(self.rounds) + 1)) is not None:
            self.rounds.append(content)
            self.points += [tuple(each) for each in content["points"]]


class Pool:
    """The searches of one curve that share a model: those of its batch sizes, or one alone.

    Arguments:
        asked: the searches of this sweep. A stage begins when the one before is complete at all of their batch sizes.
        results: the results folder. The complete stages of other batch sizes in it inform the model, too.
        waits: close each stage when it is complete. False: close only the stages that are complete now; the next
            wave of jobs closes the others.
    """

    def __init__(self, asked: Iterable[Study], results: Path, waits: bool = True) -> None:
        self._members = {s.batch_size: Member(s, store.study_folder(results, s)) for s in asked}
        self._asked = set(self._members)
        first = next(iter(self._members.values()))
        if first.study.search.pool:
            for study in store.of_curve(results, first.study):
                self._members.setdefault(study.batch_size, Member(study, store.study_folder(results, study)))
        self._fits: dict[tuple[Any, ...], curve.Fitted] = {}
        self._closes = True
        if not waits:
            for batch_size in sorted(self._asked):
                self.points(batch_size)
            self._closes = False

    def add(self, batch_size: int, ended: Curve) -> None:
        """Add the curve of a trial that this process trained."""
        self._members[batch_size].add(ended)

    def drop(self, batch_size: int) -> None:
        """Wait no longer for a batch size whose trials cannot be trained."""
        self._asked.discard(batch_size)

    def points(self, batch_size: int) -> Sequence[Point]:
        """The points of the trials of a batch size, by index, up to the first that no trial decides yet."""
        member = self._members[batch_size]
        member.read_rounds()
        while self._closes and (number := len(member.rounds) + 1) < len(member.ends):
            made = self._proposed(member, number)
            if made is None:
                break
            store.write_round(member.folder, number, made)
            member.read_rounds()
        return member.points

    def _proposed(self, member: Member, number: int) -> dict[str, Any] | None:
        """The next stage of a batch size; None if the stages before are not complete, or nothing is left to screen."""
        before = member.ends[number - 1]
        informing = self._informing(member, before)
        if informing is None:
            return None
        own = member.results(before)
        screens = stages.screens(vars(member.study.search), number)
        if screens and not any(each.outcome.result for each in own):
            return None
        start = Shape(**member.rounds[-1]["shape"]) if member.rounds else None
        results = {size: self._members[size].results(count) for size, count in informing.items()}
        model, size = self._fitted(results, before, start), member.study.batch_size
        space, edges = (member.space, "") if screens else member.extended(curve.least(model, results, size))
        declared = member.study.search.space
        content = {
            "batch_sizes": [*results],
            "shape": asdict(model.process.shape),
            "extended": edges,
            "wider": {name: each.to_dict() for name, each in space.items() if each != declared[name]},
        }
        if screens:
            best = curve.candidates(model, results, size, member.study.search.candidates)
            points = [own[index].point for index in best] * member.study.search.screens
            return content | {"candidates": best, "points": points}
        key = member.study.seeds.of("search", number, member.study.seed_key)
        box = [declared[name].box(space[name]) for name in sorted(space)]
        count = member.ends[number] - before
        return content | {"points": curve.stage_points(model, results, size, (key,), count, box)}

    def _informing(self, member: Member, before: int) -> dict[int, int] | None:
        """Batch size -> how many first trials of its search inform a stage that follows `before` trials; None if one is
        not complete so far."""
        if not member.study.search.pool:
            member.read()
            return {member.study.batch_size: before} if member.finished(before) else None
        found = {}
        for batch_size, each in sorted(self._members.items()):
            each.read()
            each.read_rounds()
            if (count := each.informs(before)) is not None:
                found[batch_size] = count
            elif batch_size in self._asked:
                return None
        return found

    def _fitted(self, results: curve.Results, before: int, start: Shape | None) -> curve.Fitted:
        """The model of the first `before` trials of some searches."""
        key = (tuple(results), before, start)
        if key not in self._fits:
            study = next(iter(self._members.values())).study
            space = {name: dimension.to_dict() for name, dimension in study.search.space.items()}
            errors = about_errors(study.goal.metric, measured(chain(*results.values())))
            self._fits[key] = curve.fitted(Coordinates.of(space), results, study.goal.threshold, *errors, start)
        return self._fits[key]


def _rounded(found: Sequence[float]) -> Point:
    return tuple(round(each, DIGITS) for each in found)
