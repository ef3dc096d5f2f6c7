"""Read results folders for the claims: their tables, if they were made of these measurements, else the measurements."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from analysis.claims.evidence import TABLES, Evidence, about, together
from analysis.load import StudyData, folders, load_study
from analysis.report import build
from analysis.report.take import citation
from analysis.tables import answers


@dataclass(frozen=True)
class Gathered:
    """The evidence of results folders.

    Attributes:
        evidence: of all folders together.
        places: the name of a workload in the evidence -> (its folder, its own name).
    """

    evidence: Evidence
    places: Mapping[str, tuple[Path, str]]
    _held: dict[Path, list[StudyData]] = field(default_factory=dict, repr=False)

    def searches(self, workload: str) -> list[StudyData]:
        """The searches that give S(B) of a workload, by its name in the evidence.

        >>> len(gather([Path(published)]).searches("mlp_digits"))
        22
        """
        place, name = self.places[workload]
        if place not in self._held:
            self._held[place] = answers.answers([load_study(folder) for folder in folders(place)])
        return [study for study in self._held[place] if study.workload == name]


def gather(results: Sequence[Path]) -> Gathered:
    """The evidence of results folders; trains, draws and writes nothing.

    Raises:
        LoadError: a folder holds no studies or a torn file, or no trial has ended.

    >>> found = gather([Path(published)])
    >>> found.evidence.about[["workload", "optimizer"]].values.tolist()
    [['mlp_digits', 'momentum'], ['mlp_digits', 'sgd']]
    """
    evidence, renamed = together([(folder.resolve().name, one(folder)) for folder in results])
    places = {
        name: (folder, own) for folder, names in zip(results, renamed, strict=True) for own, name in names.items()
    }
    return Gathered(evidence, places)


def one(folder: Path | str) -> Evidence:
    """The evidence of one results folder.

    >>> one(published).table("scaling")["definition"].nunique()
    5
    """
    folder = Path(folder)
    searches = {path.parent: path for path in reversed(folders(folder)) if path.name.isdecimal()}  # one of each curve
    return Evidence(tables(folder), about([load_study(searches[curve]) for curve in sorted(searches)]))


def tables(folder: Path) -> Mapping[str, pd.DataFrame]:
    """The tables of a results folder: as they are on disk if they were made of its measurements, else made now.

    Tables that an older version made are taken as they are; `study report` makes them again.

    >>> sorted(tables(Path(published)))[:3]
    ['best_errors', 'compare', 'cost']
    """
    paths = {name: folder / "tables" / f"{name}.csv" for name in TABLES}
    if citation.recorded(folder) != citation.hash_on_disk(folder) or not all(map(Path.exists, paths.values())):
        found = build.read([folder]).tables
        return {name: found[name] for name in TABLES}
    return {name: pd.read_csv(path, low_memory=False) for name, path in paths.items()}
