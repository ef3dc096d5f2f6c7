"""Wall time of a whole small study and of the obvious script; both must find the same steps-to-result.

    python -m benchmarks.study [--trials 50] [--batch-sizes 2,8,32,128,512] [--device cpu]

The obvious script is Optuna's `study.optimize` around a `DataLoader` loop: one trial at a time, default threads, with
the same trials, initialisations, order of examples, evaluation grid and stopping rule as this project's sweep. The
workload is an MLP 784-128-10 on MNIST, trained for at most two epochs to 5 % error.
"""

from __future__ import annotations

import argparse
import math
import tempfile
import time
from pathlib import Path

import optuna
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

from analysis.load import load_study
from analysis.tables import steps_to_result
from benchmarks.engine import one_device
from study.config import preflight
from study.config.jobs import parse_jobs
from study.data.order import Batches
from study.records import Study
from study.run import SearchRun, run
from study.search.tuner import point
from study.space import values
from study.workers.pool import Workers
from workloads.base import build

MODEL = ["workload=fc_mnist", "workload.widths=[128]"]
QUESTION = ["goal=val/classification_error < 0.05", "budget.epochs=2", "stopping=goal"]
ONLY_VALIDATION = ["evaluation.every=1000000"]  # the script evaluates only validation


def obvious_script(study: Study, device: str) -> float:
    """Fewest steps to the goal (infinite if not reached), by Optuna around a plain loop."""
    workload = build(study.workload)
    splits = workload.splits(torch.device("cpu"))
    dataset, (val_x, val_y) = TensorDataset(*splits.train), (tensor.to(device) for tensor in splits.val)
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


def main() -> None:
    """Measure and print both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--batch-sizes", default="2,8,32,128,512")
    parser.add_argument("--device", default="auto", help="cpu or cuda:1, say; default: a GPU if there is one")
    options = parser.parse_args()
    device = one_device(options.device)
    search = [f"search.trials={options.trials}", f"batch_size={options.batch_sizes}", f"engine.device={device}"]
    arguments = [*MODEL, *QUESTION, *ONLY_VALIDATION, *search]
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        start = time.perf_counter()
        jobs = preflight.settle(parse_jobs([*arguments, f"results={results}"]))
        with Workers(jobs[0].placement) as workers:
            workers.measure([job.study for job in jobs])
            sweep = [time.perf_counter() - start]  # the start of processes and the timing of lanes count, too
            script = []
            print("batch   script s   sweep s   ratio   S script   S sweep   within a grid point")
            for job in jobs:
                study = job.study
                start = time.perf_counter()
                run(SearchRun(study, results), workers, lambda study, tuner: None)
                sweep.append(time.perf_counter() - start)
                [path] = results.glob(f"studies/*/*/{study.batch_size}")
                found = steps_to_result.row(load_study(path))["steps_to_result"] or math.inf
                start = time.perf_counter()
                expected = obvious_script(study, device)
                script.append(time.perf_counter() - start)
                grid = [*study.evaluation_steps, math.inf]
                near = abs(grid.index(found) - grid.index(expected)) <= 1
                print(
                    f"{study.batch_size:5} {script[-1]:10.1f} {sweep[-1]:9.1f} {script[-1] / sweep[-1]:7.1f} "
                    f"{expected:10} {found:9}   {near}",
                    flush=True,
                )
    print(f"start {'':10} {sweep[0]:9.1f}\nwhole {sum(script):10.1f} {sum(sweep):9.1f} {sum(script) / sum(sweep):7.1f}")


if __name__ == "__main__":
    main()
