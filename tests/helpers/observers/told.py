"""Events of a small sweep by hand, for observers."""

import os
import time
from pathlib import Path

from analysis.counting import COMPLETE, INFEASIBLE
from study.observers.base import Finished, Observer, Search, State, Sweep

METRIC = "val/classification_error"


def search(results: Path = Path("results"), batch_size: int = 64, name: str = "", **fields: object) -> Search:
    """A search of four trials; a trial takes 100 s at its full budget of 1,000 steps."""
    held = {"train_steps": 1000, "trials": 4, "seconds": 100.0} | fields
    return Search(results, "tiny", "momentum", batch_size, name, f"{METRIC} < 0.1", METRIC, **held)


def finished(index: int = 0, steps_to_goal: int | None = 40, **fields: object) -> Finished:
    """A trial that was evaluated at steps 20 and 40; the loss was measured at the second only."""
    errors = {METRIC: [0.5, 0.05 if steps_to_goal else 0.3], "val/loss": [float("nan"), 1.25]}
    held = {"status": COMPLETE, "first_bad_step": None, "steps": [20, 40], "errors": errors, "position": index + 1}
    hyperparameters = {"learning_rate": 0.1 + index, "schedule": "cosine"}
    return Finished(index, hyperparameters, steps_to_goal=steps_to_goal, seconds={"training": 2.0}, **(held | fields))


def diverged(index: int) -> Finished:
    """A trial that diverged before its first evaluation."""
    return finished(index, None, status=INFEASIBLE, first_bad_step=7, steps=[], errors={METRIC: []})


def state(done: int = 0, best: int | None = None, **fields: object) -> State:
    return State(**({"done": done, "feasible": done, "infeasible": 0, "best": best, "complete": False} | fields))


def tell(observer: Observer, results: Path) -> None:
    """Two trials of a study, one of them diverged, and a trial of its fresh seeds; then a trial of another study."""
    first, again, other = search(results), search(results, name="rerun-0"), search(results, batch_size=8)
    observer.begin(Sweep("python -m study sweep", [first, other]))
    observer.trial(first, state(), None)
    observer.trial(first, state(1, 40), finished(0))
    observer.trial(first, state(1, 40, infeasible=1), diverged(1))
    observer.trial(again, state(1, 40), finished(0))
    observer.trial(other, state(1), finished(0, None))


class Ending(Observer):
    """Notes in a file how the sweep ended."""

    def __init__(self, file: Path):
        self.file = file

    def report(self, ended):
        with self.file.open("a") as file:
            file.write(f"interrupted: {ended.interrupted}\n")


class Lasting(Observer):
    """Notes its process and its priority in a file, and takes a while at each trial."""

    def __init__(self, file: Path, seconds: float):
        self.file, self.seconds = file, seconds

    def trial(self, search, state, finished):
        time.sleep(self.seconds)
        print("some package prints this")
        with self.file.open("a") as file:
            file.write(f"{os.getpid()} {os.nice(0)} {search.batch_size}\n")
