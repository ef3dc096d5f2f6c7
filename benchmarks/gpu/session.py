"""One session on a GPU: what the GPU path is judged by, each figure beside the one that is wanted.

    python -m benchmarks.gpu.session [--parts paper-tf32,paper-bf16] [--minutes 9] [--json session.json]
        [--earlier session.json]
    python -m benchmarks.gpu.session --device cpu --tiny        (shows that it runs; its figures mean nothing)

`--parts` are measured in this order. After `--minutes` nothing else begins, and what is left is not measured. Before
them, several processes compile the updates of convolutions that the parts need; not on a CPU.

paper-tf32, paper-bf16   updates of lanes, also compiled, of the paper's ResNet-8 study at its thirteen batch sizes, as
                         hours of 100 trials (`benchmarks.gpu.lanes`)
cells                    the same of four models with TF32, beside a plain loop and one tuned process
large                    the same at large batch sizes
blocks                   the convolutions of three layers with other sizes of blocks (`benchmarks.gpu.convolutions
                         --tune`); not on a CPU
tests                    `pytest -m "gpu and not slow"`

Not all of them fit in ten minutes: `--earlier` takes over what another call has measured, which is not measured again.
Bytes of an update are those of `benchmarks/measured/trace.json`: they need no GPU. The file is written after every
part, so that a session that is cut off leaves what it has. Data are made up in the shapes of the real ones.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.engine import one_device, paper_updates
from benchmarks.gpu import convolutions, lanes
from study.devices.cores import cores
from study.devices.precision import settle

ROOT = Path(__file__).parents[2]
CELLS: dict[str, tuple[int, ...]] = {
    "resnet8": (32, 8, 2),
    "cnn": (32, 8, 2),
    "mlp1024": (128, 32, 2),
    "softmax": (128, 32, 2),
}
LARGE: dict[str, tuple[int, ...]] = {"resnet8": (2048, 512), "cnn": (512,), "mlp1024": (2048,)}
"""Model -> the batch sizes at which it is measured, in this order; first all CELLS."""
CONVOLUTIONS = "resnet8", "cnn"
PARTS = ("paper-tf32", "paper-bf16", "cells", "large", "blocks", "tests")
COMPILERS, COMPILING_SECONDS = 16, 150
"""Most processes that compile ahead, and how long at most."""
BYTES = (
    ("ResNet-8: MB of an update, per example", "resnet8", 128, 2.8),
    ("Simple CNN at B = 2: MB of an update, per lane", "cnn", 2, 95.0),
)
RATIOS = (
    ("ResNet-8", "resnet8", 32, 50.0),
    ("Simple CNN", "cnn", 32, 30.0),
    ("fc_mnist", "mlp1024", 128, 40.0),
    ("softmax", "softmax", 128, 40.0),
)
"""Name, model, the largest batch size that is judged, and the wanted multiple of a plain loop."""
PRECISIONS = ("tf32", "bf16")
MEASURED = ("cells", "paper", "layers", "tests")
"""What a session measures, by its name in the file."""
LAYERS = ("16-16", "32-32", "64-64")
LANES, BATCH_SIZE = 32, 512
"""Of these layers: most of the study's examples are at larger batch sizes, which take as long for each example."""


@dataclass
class Session:
    """What a session has measured so far.

    Attributes:
        end: when nothing else may begin, by `time.monotonic`.
        tiny: measure a few cells, which shows that all runs.
        asked: the PARTS to measure.
        cells: rows of `benchmarks.gpu.lanes`.
        paper: precision -> such rows, one for each batch size.
        layers: layer -> rows of `benchmarks.gpu.convolutions`.
        tests: the last line of pytest.
    """

    device: str
    end: float
    tiny: bool = False
    asked: Sequence[str] = PARTS
    cells: list[dict[str, Any]] = field(default_factory=list)
    paper: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {each: [] for each in PRECISIONS})
    layers: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tests: str = ""

    def parts(self) -> Iterator[str]:
        """Measure part after part; yields what each was."""
        if self.device != "cpu":
            self._compile_ahead()
            yield "compiled ahead"
        for part in self.asked:
            if part in ("cells", "large"):
                for model, sizes in self._cells(part):
                    self._measure(model, sizes, "tf32", self.cells, alone=False)
                    yield f"{model} beside a plain loop"
            elif part.startswith("paper-"):
                precision = part.removeprefix("paper-")
                self._measure("resnet8", self._paper_sizes(), precision, self.paper[precision], alone=True)
                yield f"the paper's ResNet-8 study in {precision}"
            elif part == "tests":
                self._test()
                yield part
            elif self.device != "cpu":
                self._tune()
                yield "convolutions with other sizes of blocks"

    def _cells(self, part: str) -> list[tuple[str, tuple[int, ...]]]:
        if self.tiny:
            return [("softmax", (2,))] if part == "cells" else []
        return [*(CELLS if part == "cells" else LARGE).items()]

    def _paper_sizes(self) -> list[int]:
        """The largest batch sizes first: they take most of the hours."""
        return sorted(paper_updates(), reverse=True)[: 1 if self.tiny else None]

    def compiled(self) -> list[tuple[str, int, str]]:
        """(model, batch size, precision) of the updates of convolutions that the parts compile."""
        found = []
        for part in self.asked:
            if part in ("cells", "large"):
                found += [(name, size, "tf32") for name, sizes in self._cells(part) for size in sizes]
            elif part.startswith("paper-"):
                found += [("resnet8", size, part.removeprefix("paper-")) for size in self._paper_sizes()]
        return [each for each in dict.fromkeys(found) if each[0] in CONVOLUTIONS]

    def _compile_ahead(self) -> None:
        asked = self.compiled()
        end = time.monotonic() + min(COMPILING_SECONDS, max(0.0, self._left))
        with get_context("spawn").Pool(min(COMPILERS, cores()), _one_thread) as pool:
            tasks = [
                pool.apply_async(lanes.compile_ahead, (model, size, self.device, precision, True))
                for model, size, precision in asked
            ]
            for task, (model, size, precision) in zip(tasks, asked, strict=True):
                try:
                    done, why = task.get(max(0.0, end - time.monotonic())), "its update is not one that is compiled"
                except Exception as error:  # of a compiler, or no time is left: `measured` compiles it then
                    done, why = False, _told(error)
                if not done:
                    print(f"{model} at B = {size} in {precision} is not compiled ahead: {why}")

    @property
    def _left(self) -> float:
        return self.end - time.monotonic()

    def _measure(
        self, model: str, sizes: Sequence[int], precision: str, rows: list[dict[str, Any]], alone: bool
    ) -> None:
        done = {(row["model"], row["batch_size"]) for row in rows}  # by an earlier call
        for batch_size in sizes:
            if self._left > 0 and (model, batch_size) not in done:
                how = self.device, precision, True, True, alone
                try:
                    rows.append(lanes.measured(model, batch_size, *how))
                    print(lanes.printed(rows[-1]), flush=True)
                except Exception as error:  # of one cell, which must not end the session
                    print(f"{model} at B = {batch_size} in {precision} is not measured: {_told(error)}", flush=True)

    def _tune(self) -> None:
        settle("tf32")
        for name in LAYERS:
            if self._left > 0:
                layer = convolutions.LAYERS[name]
                try:
                    found = convolutions.rows(layer, LANES, BATCH_SIZE, torch.float32, tune=True)
                except Exception as error:  # as above
                    print(f"the layer {name} is not measured: {_told(error)}", flush=True)
                    continue
                print(*(convolutions.line(name, each) for each in found), sep="\n", flush=True)
                self.layers[name] = [each._asdict() for each in found]

    def _test(self) -> None:
        words = ["-q", "-p", "no:cacheprovider", "-W", "default", "-m", "gpu and not slow"]
        words += ["-n", "8"] if find_spec("xdist") and not self.tiny else []
        words += ["tests/study/devices/test_gpu.py"] if self.tiny else []
        if self._left > 0:
            command = [sys.executable, "-m", "pytest", *words]
            try:
                ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=self._left, check=False)
                self.tests = ran.stdout.strip().rpartition("\n")[2]
            except subprocess.TimeoutExpired:
                self.tests = "ran out of time"


def _told(error: Exception) -> str:
    return f"{type(error).__name__} {error}"[:200]


def _one_thread() -> None:
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    torch.set_num_threads(1)


@dataclass(frozen=True)
class Judged:
    """A row of the table.

    Attributes:
        found: the worst of what was measured; None: nothing was.
        at_least: whether more than what is wanted is better.
        whole: whether all was measured.
    """

    what: str
    wanted: float
    found: float | None
    at_least: bool = True
    note: str = ""
    whole: bool = True

    @property
    def verdict(self) -> str:
        """`met`, `short`, `met in part` or `not measured`."""
        if self.found is None:
            return "not measured"
        met = self.found >= self.wanted if self.at_least else self.found <= self.wanted
        return "short" if not met else "met" if self.whole else "met in part"

    def __str__(self) -> str:
        found = "" if self.found is None else f"{self.found:,.2f}"
        sign = ">=" if self.at_least else "<="
        return f"{self.what:52} {sign} {self.wanted:5g} {found:>9}  {self.verdict:12} {self.note}".rstrip()


def judged(session: Session) -> Iterator[Judged]:
    """The rows of the table."""
    traced = json.loads((ROOT / "benchmarks" / "measured" / "trace.json").read_text())["rows"]
    for what, model, size, wanted in BYTES:
        asked = {"model": model, "batch_size": size, "arithmetic": "vmap compiled", "precision": "fp32"}
        [row] = [row for row in traced if asked.items() <= row.items()]
        found = row["bytes"] / 1e6 / (size if "example" in what else 1)
        yield Judged(what, wanted, found, at_least=False, note="compiled, by benchmarks.trace")
    for name, model, largest, wanted in RATIOS:
        rows = [row for row in session.cells if row["model"] == model and row["batch_size"] <= largest]
        ratios = {row["batch_size"]: lanes.most(row) / row["a"] for row in rows}
        missing = [str(size) for size in CELLS[model] if size <= largest and size not in ratios]
        note = ", ".join(f"B = {size}: {ratio:.3g}" for size, ratio in ratios.items())
        note += f"; not measured: {', '.join(missing)}" if missing else ""
        what = f"{name} at B <= {largest} over a plain loop"
        yield Judged(what, wanted, min(ratios.values(), default=None), note=note, whole=not missing)
    shares = {f"{row['model']} at B = {row['batch_size']}": lanes.most(row) / row["b"] for row in session.cells}
    slowest = min(shares, key=lambda name: shares[name], default="")
    yield Judged("slowest over one tuned process", 0.97, shares.get(slowest), note=slowest)
    for precision, rows in session.paper.items():
        note = f"at {len(rows)} of {len(paper_updates())} batch sizes"
        hours, whole = lanes.hours(rows) if rows else None, len(rows) == len(paper_updates())
        what = f"the paper's ResNet-8 study in {precision}: GPU-hours"
        yield Judged(what, 1.0, hours, at_least=False, note=note, whole=whole)
    all_passed = " passed" in session.tests and "failed" not in session.tests and "error" not in session.tests
    yield Judged("all GPU tests pass", 1.0, float(all_passed) if session.tests else None, note=session.tests)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--earlier", type=Path)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tiny", action="store_true")
    chosen = parser.parse_args()
    asked = chosen.parts.split(",")
    if unknown := {*asked} - {*PARTS}:
        parser.error(f"--parts must be of {', '.join(PARTS)}, but got {', '.join(sorted(unknown))}")
    end = time.monotonic() + 60 * chosen.minutes
    earlier = json.loads(chosen.earlier.read_text()) if chosen.earlier else {}
    held = {key: earlier[key] for key in MEASURED if key in earlier}
    session = Session(one_device(chosen.device), end, chosen.tiny, [each for each in PARTS if each in asked], **held)
    torch.set_num_threads(1)
    gpu = None if session.device == "cpu" else torch.cuda.get_device_name(session.device)
    print(gpu or "CPU", torch.__version__)
    seconds, trials = (0.02, 2) if chosen.tiny else (lanes.SECONDS, lanes.TRIALS)
    with mock.patch.multiple(lanes, SECONDS=seconds, TRIALS=trials):
        for part in session.parts():
            print(f"{part}; {60 * chosen.minutes - session.end + time.monotonic():.0f} s", flush=True)
            rows = [asdict(row) | {"verdict": row.verdict} for row in judged(session)]
            found = {key: getattr(session, key) for key in MEASURED}
            machine = {"gpu": gpu, "torch": torch.__version__}
            if chosen.json:
                chosen.json.write_text(json.dumps({"machine": machine, "judged": rows, **found}, indent=1) + "\n")
    print(f"{'':52} {'wanted':>8} {'found':>9}")
    print(*judged(session), sep="\n")


if __name__ == "__main__":
    main()
