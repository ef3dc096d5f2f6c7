"""Wall time of a whole small study and of the obvious script; both must find the same steps-to-result.

    python -m benchmarks.study [--trials 50] [--batch-sizes 2,8,32,128,512] [--device cpu] [--json FILE]

The obvious script is Optuna's `study.optimize` around a `DataLoader` loop: one trial at a time, default threads, with
the same trials, initialisations, order of examples, evaluation grid and stopping at the goal as this project's sweep.
The workload is an MLP 784-128-10 on MNIST, trained for at most two epochs to 5 % error. A second sweep also stops
trials that fall behind (`stopping=race`), which finds the same steps. Both end evaluations that miss the goal. A sweep
trains all batch sizes. It is timed from the check of its settings, with which its start begins, to the end of its
workers; the start ends before the first trial. Those of single batch sizes are the mean seconds of a worker.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from analysis.load import load_study
from analysis.tables import steps_to_result
from benchmarks.engine import one_device, tensors_of
from study import store
from study.config import preflight
from study.config.jobs import parse_jobs
from study.data.order import Batches
from study.devices.machine import processor
from study.records import Study
from study.search.points import point
from study.space import values
from study.training.lines import run_all
from study.training.search import SearchRun
from study.workers.pool import Workers
from study.workers.start import ahead
from workloads.user_code.importing import build

MODEL = ["workload=fc_mnist", "workload.widths=[128]"]
QUESTION = ["goal=val/classification_error < 0.05", "budget.epochs=2"]
SHORT = ["evaluation.exact=false"]
"""The script keeps nothing but steps to the goal."""
STOPPING = ("goal", "race")


def obvious_script(study: Study, device: str) -> float:
    """Fewest steps to the goal (infinite if not reached), by Optuna around a plain loop."""
    workload = build(study.workload)
    splits = workload.splits(torch.device("cpu"))
    train, val = tensors_of(splits.train), tensors_of(splits.val)
    dataset, (val_x, val_y) = TensorDataset(*train), (tensor.to(device) for tensor in val)
    grid = set(study.evaluation_steps)

    def objective(trial: optuna.Trial) -> float:
        mine = study.trial(trial.number, values(study.search.space, point(study, trial.number)))
        torch.manual_seed(mine.seed)
        model = workload.model().to(device)
        h = mine.hyperparameters
        optimizer = torch.optim.SGD(model.parameters(), lr=h["learning_rate"], momentum=h["momentum"])
        batches = Batches(mine.order_seed, len(dataset), study.batch_size, torch.device("cpu"))
        order = (batches(step).tolist() for step in range(study.train_steps))  # this project's order of examples
        loader = DataLoader(dataset, batch_sampler=order, pin_memory=device != "cpu")
        for step, (x, y) in enumerate(loader, start=1):
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            if not math.isfinite(loss.item()):
                raise optuna.TrialPruned
            loss.backward()
            optimizer.step()
            if step in grid:
                with torch.no_grad():
                    error = (model(val_x).argmax(1) != val_y).float().mean().item()
                if error < study.goal.threshold:
                    return step
        return math.inf

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    search = optuna.create_study()
    search.optimize(objective, n_trials=study.search.trials)
    return min(t.value for t in search.trials if t.value is not None)


class Sweep(NamedTuple):
    """Of this project: seconds of the whole, of its start and of each batch size, and steps-to-result of the latter."""

    whole: float
    start: float
    seconds: list[float]
    steps: list[float]


def sweep(overrides: Sequence[str], results: Path) -> tuple[list[Study], Sweep]:
    """Settle and train a sweep as `study sweep` does; steps are infinite where the goal was not reached."""
    begin = time.perf_counter()
    ahead()
    jobs = preflight.settle(parse_jobs([*overrides, f"results={results}"]))
    with Workers(jobs[0].placement) as workers:
        workers.measure([job.study for job in jobs])
        start = time.perf_counter() - begin  # the start of processes and the timing of lanes count, too
        run_all([[SearchRun(job.study, job.results)] for job in jobs], workers)
        count = workers.count
    whole = time.perf_counter() - begin
    folders = [store.study_folder(job.results, job.study) for job in jobs]
    seconds = [sum(sum(curve.seconds.values()) for curve in store.load(folder)) / count for folder in folders]
    steps = [steps_to_result.row(load_study(folder))["steps_to_result"] or math.inf for folder in folders]
    return [job.study for job in jobs], Sweep(whole, start, seconds, steps)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--batch-sizes", default="2,8,32,128,512")
    parser.add_argument("--device", default="auto", help="cpu or cuda:1, say; default: a GPU if there is one")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    device = one_device(options.device)
    asked = [*MODEL, *QUESTION, *SHORT, f"batch_size={options.batch_sizes}", f"engine.device={device}"]
    asked += [f"search.trials={options.trials}", f"search.max_launches={options.trials}"]  # no trials but the script's
    with tempfile.TemporaryDirectory() as folder:
        found = [sweep([*asked, f"stopping={stopping}"], Path(folder, stopping)) for stopping in STOPPING]
    (studies, goal), (_, race) = found
    print("batch   script s   goal s   ratio   race s   ratio   S script   S goal   S race   within a point")
    rows: list[dict[str, Any]] = []
    for number, study in enumerate(studies):
        begin = time.perf_counter()
        expected = obvious_script(study, device)
        script = time.perf_counter() - begin
        grid = [*study.evaluation_steps, math.inf]
        steps = [each.steps[number] for each in (goal, race)]
        near = all(abs(grid.index(each) - grid.index(expected)) <= 1 for each in steps)
        seconds = {"script": script, "goal": goal.seconds[number], "race": race.seconds[number]}
        rows.append({"batch_size": study.batch_size, **seconds, "near": near})
        print(f"{study.batch_size:5} {_line(seconds)} {expected:10} {steps[0]:8} {steps[1]:8}   {near}", flush=True)
    _sum_up(rows, goal, race, options.trials, options.json)


def _line(seconds: Mapping[str, float]) -> str:
    script, goal, race = seconds.values()
    return f"{script:10.1f} {goal:8.1f} {script / goal:7.1f} {race:8.1f} {script / race:7.1f}"


def _sum_up(rows: Sequence[Mapping[str, Any]], goal: Sweep, race: Sweep, trials: int, file: Path | None) -> None:
    """Print the whole; write all to a file if one is given."""
    whole = {"script": sum(row["script"] for row in rows), "goal": goal.whole, "race": race.whole}
    start = {"goal": goal.start, "race": race.start}
    print(f"start {'':10} {goal.start:8.1f} {'':7} {race.start:8.1f}")
    print(f"whole {_line(whole)}")
    if file:
        machine = {"processor": processor(), "torch": torch.__version__, "platform": platform.platform()}
        made = {"machine": machine, "trials": trials, "start": start, "rows": rows, "whole": whole}
        file.write_text(json.dumps(made, indent=1) + "\n")


if __name__ == "__main__":
    main()
