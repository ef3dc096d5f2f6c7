"""Reads the file to which a training script appends its metrics, while it grows.

Each line has `step`, the number of updates made, and metrics such as `val/loss`: as CSV with a header, or as JSON
lines. The first character tells which: `{` begins JSON.
"""

import csv
import json
import math
import os
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from analysis.labels import listed
from study.errors import Failed

STEP = "step"
SPLITS = ("train/", "val/", "test/")
EMPTY = ("", "none", "null", "na", "n/a", "-", "<na>")
"""Texts, in lower case, for a metric that was not measured."""
ALIKE = 1e-3
"""Relative difference of two evaluations of one model, which GPUs may make in the last digits."""
COMPARED = 4096
"""Bytes before the new lines of a file that are compared with what was read."""


class MetricLog:
    """The metrics in a file so far.

    A line adds to the line before if both have the same step. The first line of a script that was started again may
    have a smaller step, because it went on from a checkpoint: it replaces all later lines.

    Arguments:
        metric, threshold: of the goal.

    Attributes:
        rows: step -> metric -> value, by increasing step; values may be NaN.
        columns: the names in the lines so far, in order.
    """

    def __init__(self, path: Path, metric: str, threshold: float = -math.inf) -> None:
        self.path, self.metric, self.threshold = path, metric, threshold
        self.rows: dict[int, dict[str, float]] = {}
        self.columns: dict[str, None] = {}
        self._met: dict[int, None] = {}  # steps that meet the goal, and steps with a metric that is not finite: scripts
        self._bad: dict[int, None] = {}  # may log every step, and a search through all rows would take a core
        self._started = False  # the next line may be the first of a script that was started again
        self._number = 0
        self._read = bytearray()
        self._header: list[str] | None = None
        self._is_json: bool | None = None
        self.may_be_cut = False  # the last line, of numbers without a line break behind them: 0. may be half of 0.25

    @property
    def last_step(self) -> int:
        """The step of the last line; 0 if there is none."""
        return next(reversed(self.rows), 0)

    def would_end(self, budget: int) -> bool:
        """Whether the next line, after as many steps as between any two lines so far, would come after the budget."""
        return self.last_step + max((b - a for a, b in pairwise([0, *self.rows])), default=0) > budget

    def passed(self, step: int) -> bool:
        """Whether the goal's metric is known up to this step. Other metrics may come first, in a line of their own."""
        return self.last_step > step or self.metric in self.rows.get(step, ())

    @property
    def first_bad_step(self) -> int | None:
        """The first step with a metric that is not finite; None if there is none."""
        return next((max(1, step) for step in self._bad), None)

    @property
    def first_met(self) -> int | None:
        """The first step that meets the goal, if it is before the first bad one; None if there is none."""
        end = self.first_bad_step or math.inf
        return next((step for step in self._met if 0 < step < end), None)

    def read(self, ended: bool = False, earlier: bool = False) -> bool:
        """Read the lines that are new; returns whether there are some. A last line without its line break is waited
        for, unless the script has `ended`.

        Arguments:
            earlier: they are of the script before it was interrupted, maybe several times.

        Raises:
            Failed: a line cannot be read, has no step or a smaller one than the line before, or has something else than
                a number as the goal's metric; or the file lost lines that were read.
        """
        content = self._new()
        whole = content if ended else content[: content.rfind(b"\n") + 1]
        self._read += whole
        for line in whole.decode(errors="replace").removesuffix("\n").split("\n") if whole else ():
            self._number += 1
            self._started |= earlier
            if line.strip():
                self._add(line)
        self._started |= earlier
        self.may_be_cut = bool(whole) and whole[-1:] != b"\n" and not self._is_json
        return bool(whole)

    def _new(self) -> bytes:
        """The content behind what was read. A file that is shorter is waited for: a script may write all lines again.

        Raises:
            Failed: other lines stand in place of those that were read.
        """
        known = len(self._read)
        try:
            with self.path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                start = max(0, known - COMPARED) if size >= known else 0
                file.seek(start)
                content = file.read()
        except FileNotFoundError:
            return b""
        held = self._read[start : start + len(content)]
        if content[: len(held)] != held:
            raise Failed(
                f"{self.path} must only grow, but lines that it had were overwritten; let the script append to it, as "
                'open(PATH, "a") does in Python.'
            )
        return content[known - start :]

    def _add(self, line: str) -> None:
        if (values := self._parsed(line)) is None:
            return
        self.columns |= dict.fromkeys(values)
        step = _number(values.get(STEP))
        if step is None or not (math.isfinite(step) and step >= 0 and step == int(step)):
            raise self._failed(f"must have a {STEP}, the whole number of updates made", line)
        self._go_back(int(step), line)
        row = self.rows.setdefault(int(step), {})
        for name, value in values.items():
            if name.startswith(SPLITS) and (number := _number(value)) is not None:
                self._check_again(name, row, number, line)
                row[name] = number
            elif isinstance(value, Mapping) and self.metric.startswith(f"{name}/"):
                raise self._failed(f'must have flat names, as in {{"{STEP}": 100, "{self.metric}": 0.25}}', line)
            elif name == self.metric and value is not None and str(value).strip().lower() not in EMPTY:
                raise self._failed(
                    f"must have a number as {name}, the goal's metric, such as 0.25, or nan if it diverged (of a "
                    "tensor, write .item())",
                    line,
                )
        self._started = False
        for steps, holds in (
            (self._bad, not all(map(math.isfinite, row.values()))),
            (self._met, row.get(self.metric, math.inf) < self.threshold),
        ):
            steps.pop(int(step), None)
            if holds:
                steps[int(step)] = None

    def _go_back(self, step: int, line: str) -> None:
        """Drop the rows behind a step. Raises Failed if there are some and the script was not started again."""
        if self.last_step > step and not self._started:
            raise self._failed(
                f"must have a {STEP} of at least {self.last_step:,}, the one before: count the updates of all epochs, "
                "not those of each; of several processes, let one write; and let a script that starts itself again "
                "write CSV and repeat the header",
                line,
            )
        while self.last_step > step:
            later, _ = self.rows.popitem()
            self._bad.pop(later, None)
            self._met.pop(later, None)

    def _check_again(self, name: str, row: Mapping[str, float], number: float, line: str) -> None:
        """Raise Failed if the goal's metric was another number in a line before with the same step."""
        before = row.get(name, number)
        alike = math.isclose(before, number, rel_tol=ALIKE) or (math.isnan(before) and math.isnan(number))
        if name == self.metric and not (alike or self._started):
            raise self._failed(
                f"must not have another {name} than {before:g}, of a line before with the same {STEP}: let one process "
                "write it, once at each evaluation",
                line,
            )

    def _parsed(self, line: str) -> Mapping[str, Any] | None:
        """The values of a line by name; None for the header of a CSV file, which a restarted script may repeat.

        Raises:
            Failed: the line has another form.
        """
        if self._is_json is None:
            self._is_json = line.lstrip().startswith("{")
        if self._is_json:
            try:
                return dict(json.loads(line))
            except (ValueError, TypeError, RecursionError) as error:
                raise self._failed("must be one whole JSON object, since line 1 begins with {", line) from error
        try:
            cells = [cell.strip() for cell in next(csv.reader([line.strip()]))]
        except csv.Error as error:
            why = str(error).partition(" - ")[0]  # what follows is advice on opening files in Python
            raise self._failed(f"must be CSV, each line with a line feed behind it ({why})", line) from error
        if self._header is None:
            self._header = cells
            for name in (STEP, self.metric):
                if name not in cells:
                    header = f"the header of a CSV file, {STEP} and {self.metric} among names with commas between them"
                    raise self._failed(f"must be JSON or {header}", line)
            metrics = [name for name in cells if name == STEP or name.startswith(SPLITS)]
            if len(set(metrics)) < len(metrics):
                raise self._failed("must name each metric once", line)
        if cells == self._header:
            self._started = True
            return None
        if len(cells) != len(self._header):
            raise self._failed(f"must have {len(self._header)} cells, as the header", line)
        return dict(zip(self._header, cells, strict=True))

    def _failed(self, why: str, line: str) -> Failed:
        return Failed(f"line {self._number} of {self.path} {why}, but got {line[:200]!r}.")

    def missing(self) -> Failed | None:
        """The error of a script that never reported the goal's metric."""
        if any(self.metric in row for row in self.rows.values()):
            return None
        has = f"only {listed(list(self.columns))}" if self.columns else "no line"
        return Failed(f"{self.path} must have {self.metric}, the goal's metric, but has {has}.")


def drop_half_line(path: Path) -> None:
    """Cut a file behind its last line break: what a killed script began to write would spoil the next line."""
    if path.exists():
        with path.open("r+b") as file:  # not written again, which may be interrupted, or find the disk full
            file.truncate(file.read().rfind(b"\n") + 1)


def _number(value: Any) -> float | None:
    """A number of a line; None for an empty cell and for what is none, such as true or a whole number beyond 1e308."""
    if isinstance(value, bool) or "_" in str(value):  # which Python takes for 1 and for nothing, as in 1_0
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None
