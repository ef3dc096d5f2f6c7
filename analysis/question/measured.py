"""A batch-size schedule from critical batch sizes that were measured along a run (`study branch`)."""

import csv
import hashlib
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from analysis.errors import Refused
from analysis.labels import listed

TABLE = "tables/branched.csv"
NEEDED = ("workload", "optimizer", "examples_seen", "critical_batch_size")


class MeasuredSchedule(NamedTuple):
    """A measured schedule: from `switches[i]` examples on, `sizes[i]`; and the SHA-256 of the table it is from."""

    switches: tuple[int, ...]
    sizes: tuple[int, ...]
    checksum: str


def read(
    results: Path, workload: str, optimizer: str, rule: str | None = None, batch_size: int | None = None
) -> MeasuredSchedule:
    """The schedule that the critical batch sizes of one curve give, along one trunk.

    Arguments:
        results: a folder of `study branch`.
        rule: only what was measured with this rule of the learning rate; None: with any.
        batch_size: of the trunk, if several were branched from. One at a larger batch size has learned less from the
            same examples, so that its critical batch sizes are not those of this one.

    Raises:
        Refused: the folder has no such table, or not this curve, or several trunks and none at this batch size, or its
            critical batch sizes never allow a batch.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     (Path(folder) / "tables").mkdir()
    ...     lines = ["workload,optimizer,examples_seen,critical_batch_size", "mine,sgd,0,9", "mine,sgd,500,70"]
    ...     _ = (Path(folder) / TABLE).write_text("\\n".join(lines))
    ...     read(Path(folder), "mine", "sgd")[:2]
    ((1, 500), (8, 64))
    """
    path = results / TABLE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise Refused(
            f"batch_schedule.from={results} has no table {TABLE} of critical batch sizes; measure them with "
            "`python -m study branch`, or give batch_schedule.switches and batch_schedule.sizes."
        ) from error
    rows = list(csv.DictReader(io.StringIO(content.decode())))
    if lacking := [name for name in NEEDED if not rows or name not in rows[0]]:
        raise Refused(f"{path} lacks the columns {listed(lacking)}; measure again with `python -m study branch`.")
    own = [row for row in rows if (row["workload"], row["optimizer"]) == (workload, optimizer)]
    if not own:
        there = sorted({f"{row['workload']} with {row['optimizer']}" for row in rows})
        raise Refused(f"{path} has no critical batch sizes of {workload} with {optimizer}, but of {listed(there)}.")
    own = _of_one_trunk([row for row in own if rule in (None, row.get("rule"))], batch_size, path)
    points = steps((float(row["examples_seen"]), float(row["critical_batch_size"] or "nan")) for row in own)
    if not points:
        raise Refused(f"the critical batch sizes of {workload} with {optimizer} in {path} are below 1 or unknown.")
    switches, sizes = zip(*points, strict=True)
    return MeasuredSchedule(switches, sizes, hashlib.sha256(content).hexdigest())


def _of_one_trunk(rows: list[dict[str, str]], batch_size: int | None, path: Path) -> list[dict[str, str]]:
    """The rows of the only trunk, or of the one at this batch size."""
    trunks = sorted({int(row["batch_size"]) for row in rows if row.get("batch_size")})
    if len(trunks) < 2:
        return rows
    if batch_size not in trunks:
        there = listed([f"{size:,}" for size in trunks])
        asked = "" if batch_size is None else f", but got {batch_size:,}"
        raise Refused(
            f"{path} has critical batch sizes along runs at batch sizes {there}; begin with one of them{asked}."
        )
    return [row for row in rows if int(row["batch_size"]) == batch_size]


def steps(measured: Iterable[tuple[float, float]]) -> list[tuple[int, int]]:
    """Critical batch sizes as steps of powers of two that never shrink: (examples seen, batch size from there on).

    Each is the largest power of two that no critical batch size so far forbids: rounded down, so that a batch is at
    most the measured one, and not before it was measured.

    Arguments:
        measured: (examples seen, critical batch size); unknown ones are NaN and left out.

    >>> steps([(0, 9.0), (1000, 40.0), (2000, 33.0), (4000, float("nan")), (8000, 300.0)])
    [(1, 8), (1000, 32), (8000, 256)]
    """
    found: list[tuple[int, int]] = []
    for seen, size in sorted(measured):
        if not (math.isfinite(size) and size >= 1):
            continue
        power = 2 ** math.floor(math.log2(size))
        if not found or power > found[-1][1]:
            place = max(1, round(seen))
            found = [point for point in found if point[0] < place]  # of several at one place the largest counts
            found.append((place, power))
    return found
