"""How many examples a study evaluates, and the processor time, with exact evaluations and with those that end early.

    python -m benchmarks.evaluations [--trials 12] [--batch-sizes 32,512] [--json FILE] [key=value ...]

The study is that of `benchmarks.study`, trained in this process. An example counts once for each model that sees it, in
any split. `decided` is the share of evaluations that end before the whole validation set is measured. The kept errors
must be the same.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from benchmarks.study import MODEL, QUESTION
from study.config import preflight
from study.config.jobs import parse_jobs
from study.data import streaming, trees
from study.data.resident import Data
from study.data.trees import Tree
from study.devices.machine import processor
from study.engine.lane_count import admitted
from study.engine.train import train
from study.engine.trial import evaluation
from study.engine.trial.proposals import Proposals
from study.records import Curve, Study, Trial
from study.search.points import point
from study.space import values
from workloads.base import Workload
from workloads.user_code.importing import build

LANES = 4
FORMS = {
    "training errors, too": ["evaluation.every=5"],
    "exact": ["evaluation.every=1000000"],
    "ends early": ["evaluation.exact=false"],
}


class InOrder(Proposals):
    """The trials of a search, one after another, up to their whole budget."""

    def __init__(self, study: Study) -> None:
        self.study, self.asked = study, 0

    def ask(self, wait: bool) -> Trial | None:
        if self.asked == self.study.search.trials:
            return None
        self.asked += 1
        chosen = point(self.study, self.asked - 1)
        return self.study.trial(self.asked - 1, values(self.study.search.space, chosen))

    def step_limit(self, index: int) -> int:
        return self.study.train_steps


def measured(study: Study) -> tuple[dict[str, Any], dict[int, Curve]]:
    """(what the study costs, its curves by the index of their trials)."""
    workload = build(study.workload)
    data = streaming.of_workload(workload, "cpu", None, 0)
    heights: list[int] = []
    if study.arithmetic != "plain":
        assert isinstance(data, Data)  # lanes read resident data alone
        heights += admitted(study, workload, data, LANES)
    seen: Counter[str] = Counter()
    judge, measure = evaluation._per_example, evaluation._measured

    def counted(workload: Workload, outputs: Tree, targets: Tree, models: int, *which: Any) -> list[torch.Tensor]:
        seen["examples"] += models * trees.count(targets)
        return judge(workload, outputs, targets, models, *which)

    def whole(log: evaluation.Log, split: str, *rest: Any) -> Any:
        seen["whole"] += rest[2] if split == "val" else 0
        return measure(log, split, *rest)

    with mock.patch.multiple(evaluation, _per_example=counted, _measured=whole):
        start = time.process_time()
        curves = {curve.trial.index: curve for curve in train(study, workload, data, InOrder(study), heights, LANES)}
        seconds = time.process_time() - start
    evaluations = sum(len(curve.steps) for curve in curves.values())
    decided = 1 - seen["whole"] / evaluations
    return {"examples": seen["examples"], "decided": decided, "processor_seconds": seconds}, curves


def same(exact: dict[int, Curve], other: dict[int, Curve], study: Study) -> bool:
    """Whether the other curves are the exact ones, perhaps without errors that miss the goal."""
    metric = study.goal.metric
    for index, curve in exact.items():
        errors, found = curve.errors[metric], other[index].errors[metric]
        kept = (errors < study.goal.threshold) | (curve.steps == study.train_steps) | np.isfinite(found)
        alike = np.array_equal(curve.steps, other[index].steps) and np.array_equal(errors[kept], found[kept])
        if not alike or curve.first_bad_step != other[index].first_bad_step:
            return False
    return True


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="of the study, such as 'goal=val/cross_entropy_error < 0.2'")
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--batch-sizes", default="32,512")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    search = [*MODEL, *QUESTION, "stopping=goal", f"search.trials={options.trials}", *options.overrides]
    rows: list[dict[str, Any]] = []
    print("batch   evaluations              examples   decided   processor s   same")
    for size in options.batch_sizes.split(","):
        exact: dict[int, Curve] = {}
        for form, overrides in FORMS.items():
            [job] = preflight.settle(parse_jobs([*search, *overrides, f"batch_size={size}"]))
            found, curves = measured(job.study)
            exact = exact or curves
            rows.append({"batch_size": int(size), "evaluations": form, **found, "same": same(exact, curves, job.study)})
            print(
                f"{size:>5}   {form:20} {found['examples']:12,} {found['decided']:9.1%} "
                f"{found['processor_seconds']:13.1f}   {rows[-1]['same']}",
                flush=True,
            )
    if options.json:
        machine = {"processor": processor(), "torch": torch.__version__, "platform": platform.platform()}
        options.json.write_text(
            json.dumps({"machine": machine, "trials": options.trials, "rows": rows}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
