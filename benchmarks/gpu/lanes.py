"""Updates per second on one device by trials at once: as launched, as one compiled update, and beside plain loops.

    python -m benchmarks.gpu.lanes [--json FILE] [--models resnet8,cnn] [--batch-sizes 2,8] [--precision tf32]
        [--compile] [--minutes 5] [--made-up-data]
    python -m benchmarks.gpu.lanes --paper

A   `DataLoader` + `nn.Module` + torch's momentum, with torch's defaults (see `benchmarks.engine`)
B   the serial engine
C   lanes of this engine, as many as it chooses of 100 trials (fewer where their batches have more than 65,536 examples)
D   with `--compile`: C with its update compiled

All run in this process, in turn, so that a cell takes seconds: unlike `benchmarks.engine`, it counts no starts of
trials and no evaluations. A is measured before and after the others. `--paper` measures C and D of ResNet-8, with as
many lanes as fit, at the thirteen batch sizes of the paper, and adds up the hours that the updates of 100 trials at
full budget take. After `--minutes`, no cell begins.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from benchmarks.engine import MODELS, USUAL_BATCH_SIZES, loop_a, one_device, paper_updates, plain_rate, study_of
from study.data.resident import Data
from study.devices.memory import release_cached_memory
from study.devices.placement import settle_arithmetic
from study.devices.precision import settle
from study.engine import timing, train
from study.engine.arithmetic import fused
from study.engine.fused.compiled import Compiled, as_function, inductor, traced
from study.engine.lanes import Lanes
from study.records import PRECISIONS, Study
from workloads.base import Workload
from workloads.user_code.importing import build

SECONDS = 0.3
TRIALS, EXAMPLES = 100, 2**16


def as_torch_does() -> None:
    """Torch's defaults, for A."""
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    torch.backends.cudnn.benchmark = False
    torch.set_flush_denormal(False)


def compiled(study: Study, workload: Workload, data: Data, lanes: int) -> tuple[float | None, float, str]:
    """(updates per second with a compiled update, seconds that it took to compile, why it was not)."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        made = begun(study, workload, data, lanes)
    took = time.perf_counter() - start
    if refused := [str(each.message) for each in seen if "not compiled" in str(each.message)]:
        return None, took, refused[0]
    return 1 / timing.step_seconds(made), took, ""


def begun(study: Study, workload: Workload, data: Data, lanes: int) -> Lanes:
    """Lanes with a compiled update that have made two."""
    made = Lanes(study, workload, data, [lanes], lanes, compiled=True)
    timing.begin(made, range(lanes))
    made.advance(2)
    return made


def compile_ahead(model: str, batch_size: int, device: str, precision: str, made_up: bool) -> bool:
    """Compile what `measured` will, if that has as many lanes as fit; whether it was. The compiler keeps it on disk.

    No update is made: several processes can do so on a GPU whose memory holds the images of one.
    """
    study, _ = study_of(model, batch_size, "momentum", device, made_up, precision)
    settle_arithmetic()
    settle(precision)
    with warnings.catch_warnings(), mock.patch.object(Compiled, "__call__", _compile_alone), suppress(_Made):
        if not fused(study):
            return False
        begun(study, *loaded(json.dumps(study.workload), device), most_lanes(batch_size))
        return False
    return True


class _Made(Exception):
    """An update is compiled."""


def _compile_alone(self: Compiled, *arguments: Tensor) -> Tensor:
    function, held = as_function(self._stack, self._rows, self._update)
    warnings.simplefilter("ignore")  # as `Compiled` does
    inductor(traced(function, [*held, *arguments]), [*held, *arguments])
    raise _Made


def most_lanes(batch_size: int) -> int:
    """As many lanes as are measured at a batch size."""
    return max(1, min(TRIALS, EXAMPLES // batch_size))


@lru_cache(maxsize=1)
def loaded(workload: str, device: str) -> tuple[Workload, Data]:
    """A workload and its data on the device."""
    built = build(json.loads(workload))
    return built, Data.of(built.splits(torch.device("cpu")), torch.device(device))


def measured(
    model: str, batch_size: int, device: str, precision: str, made_up: bool, compiles: bool, lanes_alone: bool
) -> dict[str, Any]:
    """The figures of one model and batch size. `lanes_alone`: of C and D, with as many lanes as fit."""
    study, _ = study_of(model, batch_size, "momentum", device, made_up, precision)
    row = {"model": model, "batch_size": batch_size, "precision": precision, "arithmetic": study.arithmetic}
    row |= {"a": None, "b": None, "d": None, "compiling": 0.0, "refused": ""}

    def a() -> float:
        as_torch_does()
        return loop_a(device, SECONDS, study)

    before = 0.0 if lanes_alone else a()
    settle_arithmetic()
    if not lanes_alone:
        row["b"] = plain_rate(device, SECONDS, 0, study)
    workload, data = loaded(json.dumps(study.workload), device)
    most = most_lanes(batch_size)
    cost = train.measure(study, workload, data, most, most if lanes_alone else None)
    row |= {"lanes": cost.lanes, "c": 1 / cost.step}
    release_cached_memory()
    if compiles and fused(study) and device != "cpu":
        row["d"], row["compiling"], row["refused"] = compiled(study, workload, data, cost.lanes)
        release_cached_memory()
    if not lanes_alone:
        row["a"] = (before + a()) / 2
    return row


def printed(row: dict[str, Any]) -> str:
    """A row of the table."""
    rates = [f"{row[key]:11,.1f}" if row[key] else f"{'':11}" for key in "abcd"]
    shares = [(row["c"], row["a"]), (row["d"], row["a"]), (most(row), row["b"])]
    ratios = [f"{one / other:7.2f}" if one and other else f"{'':7}" for one, other in shares]
    named = f"{row['model']:10} {row['batch_size']:5} {row['precision']:>9} {row['lanes']:5}"
    return " ".join([named, *rates, *ratios, row["refused"]])


def most(row: dict[str, Any]) -> float:
    """The faster one of C and D."""
    return max(row["c"], row["d"] or 0.0)


def hours(rows: Sequence[dict[str, Any]]) -> float:
    """Hours of the updates of 100 trials of the paper's ResNet-8 study at full budget, at the batch sizes of these."""
    updates = paper_updates()
    return sum(updates[row["batch_size"]] / most(row) for row in rows) / 3600


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--models", default="resnet8,cnn,mlp1024,softmax", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--batch-sizes", default=",".join(map(str, USUAL_BATCH_SIZES)))
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", choices=PRECISIONS, default="tf32")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--made-up-data", action="store_true")
    parser.add_argument("--paper", action="store_true")
    chosen = parser.parse_args()
    if chosen.paper:
        chosen.models, chosen.batch_sizes = "resnet8", ",".join(map(str, paper_updates()))
    device = one_device(chosen.device)
    torch.set_num_threads(1)
    how = chosen.precision, chosen.made_up_data, chosen.compile, chosen.paper
    end, rows = time.monotonic() + 60 * chosen.minutes, []
    print("model      batch precision lanes   A steps/s   B steps/s   C steps/s  compiled D     C/A     D/A  most/B")
    for model in chosen.models.split(","):
        for batch_size in map(int, chosen.batch_sizes.split(",")):
            if time.monotonic() > end:
                continue
            row = measured(model, batch_size, device, *how)
            rows.append(row)
            print(printed(row), flush=True)
            if chosen.json:
                gpu = None if device == "cpu" else torch.cuda.get_device_name(device)
                machine = {"gpu": gpu, "torch": torch.__version__}
                chosen.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    if chosen.paper and len(rows) == len(paper_updates()):
        print(f"updates of 100 trials at full budget at each of these batch sizes: {hours(rows):,.2f} h")


if __name__ == "__main__":
    main()
