"""The rounds of `search=refine`: a model of all trials of a curve proposes the points of each stage.

The points of a stage are written once, to a file beside the trials, by the process that first finds the stage before
complete. All other processes, and a resumed sweep, read them there.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from analysis import counting, stages
from analysis.counting import INCOMPLETE, Measured, Outcome
from analysis.goals import NEVER_NEGATIVE
from analysis.surrogate.process import Coordinates, Process, Shape, fit
from analysis.surrogate.proposals import DIGITS, Point, candidates, chosen, propose
from analysis.surrogate.responses import Responses, Result, best_points, responses, slope
from study import store
from study.records import Curve, Study
from study.search.points import point
from study.store.curves import Reader

POLL = 2.0
"""Seconds between two reads of the trials of other processes."""


class Member:
    """One search of a pool: its trials that ended, and the points of its stages as far as they are known."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder = study, folder
        self.ends = stages.ends(vars(study.search), study.race_over)
        self.rounds: list[dict[str, Any]] = []
        self.points: list[Point] = [_rounded(point(study, index)) for index in range(self.ends[0])]
        self._trials: dict[int, Measured] = {}
        self._reader = Reader(folder)
        self._read_at = -np.inf

    def add(self, curve: Curve) -> None:
        """Add the curve of a finished trial."""
        errors = curve.errors[self.study.goal.metric]
        self._trials[curve.trial.index] = Measured(curve.steps, errors, curve.first_bad_step)

    def read(self) -> None:
        """Add the trials and the points that other processes wrote, at most every POLL seconds."""
        if time.monotonic() >= self._read_at + POLL:
            self._read_at = time.monotonic()
            for curve in self._reader.new():
                self.add(curve)

    def finished(self, count: int) -> bool:
        """True if the first `count` trials have ended."""
        found = self.outcomes(count)
        return all(index in found and found[index].status != INCOMPLETE for index in range(count))

    def outcomes(self, count: int) -> dict[int, Outcome]:
        """How the first `count` trials ended, as far as they are known."""
        return counting.outcomes(self.study.rule, {i: self._trials[i] for i in sorted(self._trials) if i < count})

    def results(self, count: int) -> list[Result]:
        """The first `count` trials, which have ended."""
        found = self.outcomes(count)
        return [Result(self.points[index], self._trials[index], found[index]) for index in range(count)]

    def stage(self, content: dict[str, Any]) -> None:
        """Add the points of the next stage."""
        self.rounds.append(content)
        self.points += [tuple(each) for each in content["points"]]


class Pool:
    """The searches of one curve that share a model: those of its batch sizes, or one alone.

    Arguments:
        asked: the searches of this sweep. A stage begins when the one before is complete at all of their batch sizes.
        results: the results folder. Searches of other batch sizes in it inform the model as far as they are complete.
    """

    def __init__(self, asked: Iterable[Study], results: Path) -> None:
        self._members = {s.batch_size: Member(s, store.study_folder(results, s)) for s in asked}
        self._asked = set(self._members)
        first = next(iter(self._members.values()))
        if first.study.search.pool:
            for study in store.beside(results, first.study):
                self._members.setdefault(study.batch_size, Member(study, store.study_folder(results, study)))
        self._fits: dict[tuple[Any, ...], Process] = {}

    def add(self, batch_size: int, curve: Curve) -> None:
        """Add the curve of a trial that this process trained."""
        self._members[batch_size].add(curve)

    def drop(self, batch_size: int) -> None:
        """Wait no longer for a batch size whose trials cannot be trained."""
        self._asked.discard(batch_size)

    def points(self, batch_size: int) -> Sequence[Point]:
        """The points of the trials of a batch size, by index, as far as the trials that ended decide them."""
        member = self._members[batch_size]
        while len(member.rounds) + 1 < len(member.ends):
            number = len(member.rounds) + 1
            content = store.read_round(member.folder, number)
            if content is None and (made := self._proposed(member, number)) is not None:
                content = store.write_round(member.folder, number, made)
            if content is None:
                break
            member.stage(content)
        return member.points

    def _proposed(self, member: Member, number: int) -> dict[str, Any] | None:
        """The next stage of a batch size; None if the stages before are not complete, or nothing is left to screen."""
        before = member.ends[number - 1]
        informing = self._informing(member, before)
        if informing is None:
            return None
        own = member.results(before)
        last = number + 1 == len(member.ends)
        if last and not any(each.outcome.result for each in own):
            return None
        shape = Shape(**member.rounds[-1]["shape"]) if member.rounds else None
        process, found = self._fitted(informing, before, shape)
        points = [each.point for each in own]
        content = {"batch_sizes": sorted(informing), "shape": asdict(process.shape)}
        if last:
            search = member.study.search
            steps = [each.outcome.result for each in own]
            best = candidates(process, member.study.batch_size, points, steps, search.candidates)
            return content | {"candidates": best, "points": [points[index] for index in best] * search.screens}
        key = member.study.seeds.of("search", number, member.study.seed_key)
        near = best_points(points, found[member.study.batch_size].values)
        numbers = range(member.ends[number] - before)
        return content | {"points": propose(process, member.study.batch_size, near, (key,), numbers)}

    def _informing(self, member: Member, before: int) -> dict[int, Member] | None:
        """The searches whose first `before` trials inform a stage; None if one is not complete so far."""
        if not member.study.search.pool:
            member.read()
            return {member.study.batch_size: member} if member.finished(before) else None
        found = {}
        for batch_size, each in sorted(self._members.items()):
            each.read()
            self.points_on_file(each, before)
            if len(each.points) >= before and each.finished(before):
                found[batch_size] = each
            elif batch_size in self._asked:
                return None
        return found

    def points_on_file(self, member: Member, before: int) -> None:
        """Read the stages of a search that other processes wrote, up to trial `before`."""
        while len(member.points) < before and (content := store.read_round(member.folder, len(member.rounds) + 1)):
            member.stage(content)

    def _fitted(
        self, informing: Mapping[int, Member], before: int, shape: Shape | None
    ) -> tuple[Process, dict[int, Responses]]:
        """The model of the first `before` trials of some searches, and the responses of each batch size."""
        results = {size: member.results(before) for size, member in informing.items()}
        first = next(iter(informing.values())).study
        found = curve_responses(first, results)
        key = (tuple(informing), before, shape)
        if key not in self._fits:
            space = {name: dimension.to_dict() for name, dimension in first.search.space.items()}
            self._fits[key] = fit(
                Coordinates.of(space),
                [each.point for size in results for each in results[size]],
                [size for size in results for _ in results[size]],
                np.concatenate([found[size].values for size in results]),
                np.concatenate([found[size].noise_variance for size in results]),
                shape,
            )
        return self._fits[key], found


def curve_responses(study: Study, results: Mapping[int, Sequence[Result]]) -> dict[int, Responses]:
    """The responses of the trials of one curve, by batch size.

    An error of 0 counts as half of the least error above 0 that was measured, which is half an example.

    Arguments:
        study: any of the curve's studies.
        results: batch size -> its trials.
    """
    errors = np.concatenate([np.asarray(each.trial.errors, dtype=float) for own in results.values() for each in own])
    errors = errors[np.isfinite(errors)]
    positive = errors[errors > 0]
    floor = float(positive.min()) / 2 if positive.size else None
    name = study.goal.metric.rpartition("/")[2].removeprefix("ema_")
    never_negative = name in NEVER_NEGATIVE or bool((errors > 0).all())
    steep = slope(results, floor)
    return {size: responses(own, study.goal.threshold, steep, never_negative, floor) for size, own in results.items()}


def tuned(study: Study, trials: Mapping[int, Measured]) -> int:
    """The index of the first screen of the candidate whose screens did best.

    Arguments:
        trials: all trials of a complete search in which a trial met the goal, by index.
    """
    *_, rounds, last = stages.ends(vars(study.search), study.race_over)
    found = counting.outcomes(study.rule, trials)
    own = [Result((), trials[index], found[index]) for index in range(last)]
    values = curve_responses(study, {study.batch_size: own})[study.batch_size].values
    count = study.search.candidates
    return rounds + chosen([values[rounds + number : last : count].tolist() for number in range(count)])


def _rounded(found: Sequence[float]) -> Point:
    return tuple(round(each, DIGITS) for each in found)
