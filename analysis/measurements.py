"""Read measurements from the folder of a study when they are needed."""

import json
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.errors import Refused, unreadable

T = TypeVar("T")


class LoadError(Refused):
    """A results folder cannot be read; the message names the file and the cure."""


def measured_points(folder: Path, command: str) -> Iterator[dict[str, Any]]:
    """The points that a command measured along a training, by step, from their files in a folder.

    Raises:
        LoadError: a file is torn.

    >>> list(measured_points(study.folder / "noise", "study noise"))
    []
    """
    for path in sorted(folder.glob("[0-9]*.json")):
        try:
            yield json.loads(path.read_text())
        except ValueError as error:
            raise LoadError(f"{path} is torn ({error}); remove it and run `{command}` again.") from error


@dataclass(frozen=True)
class MeasurementReader:
    """Reads the measurements of one search from its parquet files, metric by metric.

    Arguments:
        folder: the folder of the search.
        trials: indices of the trials to read. Files may hold others, which ended after the search was loaded.
    """

    folder: Path
    trials: frozenset[int]
    _held: list[dict[Hashable, Any]] = field(default_factory=list, repr=False, compare=False)

    def read(self, metrics: str | Sequence[str]) -> pd.DataFrame:
        """One row per evaluation, by trial and step: trial, step, and a column for this metric or each of these.

        A metric is NaN where it was not measured. Nothing stays in memory, except inside `held`.

        Raises:
            LoadError: a file is torn or was removed.

        >>> study.reader.read(["val/classification_error"]).head(2)
           trial  step  val/classification_error
        0      0     8                      0.50
        1      0     9                      0.44
        """
        names = (metrics,) if isinstance(metrics, str) else tuple(metrics)
        return self.once(names, lambda: self._read(names))

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """Call `make`, whose result may be large; inside `held`, at most once for each key.

        >>> study.reader.once("rows", lambda: 840), study.reader.once("rows", lambda: 0)
        (840, 0)
        """
        if not self._held:
            return make()
        held = self._held[-1]
        if key not in held:
            held[key] = make()
        return held[key]

    @contextmanager
    def held(self) -> Iterator[None]:
        """Inside this block, read each list of metrics from disk at most once; see `once`.

        >>> reader = study.reader
        >>> with reader.held():
        ...     reader.read(["val/classification_error"]) is reader.read(["val/classification_error"])
        True
        """
        self._held.append({})
        try:
            yield
        finally:
            self._held.pop()

    def _read(self, metrics: Sequence[str]) -> pd.DataFrame:
        frames = []
        seen: set[int] = set()
        for path in files(self.folder):
            with (
                reading(path),
                suppress(FileNotFoundError),
                pq.ParquetFile(path, page_checksum_verification=True) as file,
            ):
                there = [metric for metric in metrics if metric in file.schema_arrow.names]
                written = {record["index"] for record in trial_records(file)}
                new = (written & self.trials) - seen  # a trial may have moved into curves.parquet meanwhile
                frame = file.read(columns=["trial", "step", *there]).to_pandas()
                frames.append(frame if new == written else frame[frame["trial"].isin(new)])
                seen |= new
        found = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame({"trial": [], "step": []})
        found = found.reindex(columns=["trial", "step", *metrics])
        in_order = (found["trial"] * float(found["step"].max() + 1) + found["step"]).is_monotonic_increasing
        return found if in_order else found.sort_values(["trial", "step"], ignore_index=True)


def files(folder: Path) -> list[Path]:
    """The parquet files of a search: one for each new trial, then `curves.parquet`, which gathers the older ones.

    >>> [path.name for path in files(Path(f"{published}/studies/mlp_digits/sgd/64"))]
    ['curves.parquet']
    """
    # curves.parquet comes last: a trial that is gathered meanwhile is then read twice, not missed.
    return [*sorted((folder / "trials").glob("[0-9]*.parquet")), folder / "curves.parquet"]


def trial_records(file: pq.ParquetFile) -> list[dict[str, Any]]:
    """The records of the trials in a file, from its metadata.

    >>> (path,) = files(Path(f"{published}/studies/mlp_digits/sgd/64"))
    >>> with pq.ParquetFile(path) as file:
    ...     trial_records(file)[0]["index"]
    0
    """
    return json.loads(file.schema_arrow.metadata[b"trials"])


@contextmanager
def reading(path: Path, cure: str = "remove the torn file and sweep again") -> Iterator[None]:
    """Turn read errors into a LoadError that names the file and the cure.

    Arguments:
        cure: for a torn file. One that the system does not let us read must not be removed.

    >>> with reading(Path("curves.parquet")):
    ...     raise ValueError("Bad magic.")
    Traceback (most recent call last):
    ...
    analysis.measurements.LoadError: cannot read curves.parquet: Bad magic; remove the torn file and sweep again.
    """
    try:
        yield
    except (OSError, ValueError, pa.ArrowException) as error:
        said = str(error).rstrip(". ")
        if isinstance(error, OSError) and error.errno:  # pyarrow has errors without a number for torn files
            raise LoadError(unreadable(path, error)) from error
        raise LoadError(f"cannot read {path}: {said}; {cure}.") from error
