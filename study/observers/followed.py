"""Tells observers of trials that other processes train, such as jobs of a cluster, from the files that they write."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from analysis.question.searches import holding
from study import store
from study.observers.base import Observer
from study.observers.events import finished_of, search_of, state_of
from study.records import Curve, Study
from study.search.tuner import Tuner
from study.store.curves import Reader


class Followed:
    """Looks for new trials of studies. At the first look, all trials on file are new.

    Arguments:
        studies: pairs of a results folder and a study; all searches of the study count.
    """

    def __init__(self, studies: Iterable[tuple[Path, Study]], observers: Observer) -> None:
        self._studies, self._observers = list(studies), observers
        self._readers: dict[Path, Reader] = {}
        self._known: dict[Path, list[Curve]] = {}

    def look(self) -> None:
        """Tell of the trials that finished since the last look, and that time has passed."""
        for folder, results in self._searches():
            if not (new := self._new(folder)):
                continue
            study = Study.from_question(store.read(folder / "study.json")["question"])
            known = self._known[folder]
            tuner, search = Tuner(study, known), search_of(study, results, 0.0)
            state, best = state_of(tuner), None
            for position, curve in enumerate(known, start=1):
                if curve.trial.index not in tuner.outcomes:
                    continue  # it is unfinished and is trained again
                steps = tuner.outcomes[curve.trial.index].result
                best = min((each for each in (best, steps) if each is not None), default=None)
                if position > len(known) - len(new):
                    self._observers.trial(search, replace(state, best=best), finished_of(tuner, curve, position))

        for results, study in self._studies[:1]:
            self._observers.tick(search_of(study, results, 0.0), {})

    def _searches(self) -> Iterator[tuple[Path, Path]]:
        """(folder of a search, results folder) of each search that has begun."""
        for results, study in self._studies:
            for folder in holding(store.study_folder(results, study), "study.json"):
                yield folder, results

    def _new(self, folder: Path) -> list[Curve]:
        new = self._readers.setdefault(folder, Reader(folder)).new()
        self._known.setdefault(folder, []).extend(new)
        return new
