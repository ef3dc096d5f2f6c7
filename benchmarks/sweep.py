"""Where the time of a whole sweep goes, as a user runs it: the start, the training, and the report.

    python -m benchmarks.sweep [--rounds 3] [--json FILE] [key=value ...]

Without overrides, the sweep is that of `OVERRIDES`: the digits, eleven batch sizes, 20 trials each, stopped by races.
Each figure is the median over rounds. `start` ends when the first search has its folder, just before the first step;
`training` ends with the last finished trial; `busy` is the share of the workers' time in between that steps and
evaluations take.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from study import store
from study.commands.report import STUDIES
from study.devices.cores import cores
from study.devices.machine import processor

OVERRIDES = ["search=sobol", "search.trials=20", "search.reruns=0", "goal=val/classification_error < 0.05"]


def one_round(overrides: list[str]) -> dict[str, float]:
    """The seconds of each part of a sweep, and the share of the workers' time in steps and evaluations."""
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, "-m", "study", "sweep", f"results={folder}/results", *overrides]
        start = time.time()
        with subprocess.Popen(program, cwd=folder, stdout=subprocess.DEVNULL) as sweep:
            while not any(Path(folder, "results").glob(STUDIES)) and sweep.poll() is None:
                time.sleep(0.02)
            begun = time.time()
        end = time.time()
        if sweep.returncode:
            raise SystemExit(f"the sweep failed with exit status {sweep.returncode}.")
        searches = [path.parent for path in Path(folder).rglob("study.json")]
        trained = max(path.stat().st_mtime for path in Path(folder).rglob("curves.parquet"))
        busy = sum(sum(curve.seconds.values()) for search in searches for curve in store.load(search))
    parts = {"start": begun - start, "training": trained - begun, "report": end - trained, "whole": end - start}
    return parts | {"busy": busy / cores() / parts["training"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", default=OVERRIDES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rounds = [one_round(options.overrides) for _ in range(options.rounds)]
    medians = {part: statistics.median(each[part] for each in rounds) for part in rounds[0]}
    for part, value in medians.items():
        print(f"{part:10} {value:6.1%}" if part == "busy" else f"{part:10} {value:6.1f} s")
    if options.json:
        machine = {"processor": processor(), "torch": torch.__version__, "platform": platform.platform()}
        found = {"machine": machine, "overrides": options.overrides, "medians": medians, "rounds": rounds}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
