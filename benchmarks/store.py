"""Cost of storing results: claim a shard, save, find, gather and read trials.

    python -m benchmarks.store [--trials 133] [--folder DIR]

Uses one study of `--trials` trials with the evaluations of a full budget, in DIR (for example on a shared disk;
default: a temporary folder). Takes seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from study import store
from study.config.jobs import parse_jobs
from study.records import Curve, Study
from study.search.points import point
from study.space import values
from study.store.claims import Shard
from study.store.curves import Reader

METRICS = [f"{split}/{error}" for split in ("train", "val", "test") for error in ("classification_error", "loss")]


def seconds(call: Callable[[], object], times: int = 1) -> float:
    """Mean seconds of one call."""
    start = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - start) / times


def curve(study: Study, index: int) -> Curve:
    """The curve of a trial that ran its whole budget."""
    steps = np.array(study.evaluation_steps)
    errors = {metric: np.random.default_rng(index).random(len(steps)) for metric in METRICS}
    trial = study.trial(index, values(study.search.space, point(study, index)))
    return Curve(trial, None, steps, errors, {"training": 1.0, "evaluation": 0.1})


def main() -> None:
    """Measure and print a line for each operation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=133)
    parser.add_argument("--folder", type=Path, help="a folder on the disk to measure")
    options = parser.parse_args()
    study = parse_jobs(["batch_size=64"])[0].study
    curves = [curve(study, index) for index in range(options.trials)]
    with tempfile.TemporaryDirectory(dir=options.folder) as top:
        run = store.open_study(Path(top), study, {"device": "cpu"})
        folder = store.study_folder(Path(top), study)
        kept = seconds(lambda: [store.save(folder, each) for each in curves])
        print(f"keep a trial             {1e3 * kept / len(curves):8.2f} ms   of {len(curves[0].steps)} evaluations")

        def claim() -> None:
            with store.claimed(folder, Shard(1, 4)):
                pass

        print(f"claim a shard            {1e3 * seconds(claim, 20):8.2f} ms")
        with store.claimed(folder, Shard(1, 4)) as held:
            print(f"check a claim            {1e3 * seconds(held.check, 100):8.2f} ms")
        reader = Reader(folder)
        print(f"read trials apart        {1e3 * seconds(reader.new):8.2f} ms   all {len(curves)}")
        print(f"look for new ones        {1e3 * seconds(reader.new, 20):8.2f} ms")
        store.end_run(run, {"ended": "now"})
        print(f"gather a study           {1e3 * seconds(lambda: store.gather(folder)):8.2f} ms")
        print(f"read it gathered         {1e3 * seconds(lambda: store.load(folder)):8.2f} ms")
        size = (folder / store.COMPACTED).stat().st_size
        print(f"size of a trial          {size / len(curves) / 1e3:8.2f} kB")


if __name__ == "__main__":
    main()
