"""Kill a sweep at random moments, restart it until it is complete, and compare it with an undisturbed sweep.

    python -m benchmarks.chaos [--kills 100] [--seed 0]
    python -m benchmarks.chaos --processes 20 --kills 10

The sweep trains an MLP on digits at two batch sizes, more trials for more kills. SIGKILL hits the whole program or its
parent process alone, from before the first import to the last table. At the end all tables must be byte-identical, no
finished trial may be missing, and no trial may have run twice. Takes about five seconds a kill.

With `--processes`, that many sweeps share one results folder, one shard each. Killed processes stay dead, and the
others take over their shards. Twenty processes take about two minutes on two cores, and half a GiB each.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

LONGEST_LIFE = 7.0  # seconds; a start takes about three


class Survival(NamedTuple):
    """The damage that kills did to a sweep.

    Attributes:
        kills: number of kills before the sweep was complete.
        lost, repeated: finished trials that later were missing; that later ran again.
        differing: tables that differ from those of the undisturbed sweep.
    """

    kills: int
    lost: int
    repeated: int
    differing: list[str]


QUIET: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}


def command(kills: int, results: Path) -> list[str]:
    """A sweep that runs long enough for `kills` kills."""
    length = [f"search.trials={8 + 6 * kills}", "budget.epochs=0", "budget.steps=3000"]
    hard = "goal=val/classification_error < 0.02"  # few trials reach the goal, so few stop early
    return [sys.executable, "-m", "study", "sweep", "batch_size=32,256", hard, *length, f"results={results}"]


def finished(results: Path) -> dict[tuple[str, int], float]:
    """(study, trial) -> its training seconds, a fingerprint of the run that made it."""
    found = {}
    for study in results.glob("studies/*/*/*"):
        # The store deletes a trial's file once curves.parquet holds it, so read curves.parquet last.
        for path in [*study.glob("trials/[!.]*.parquet"), study / "curves.parquet"]:
            with suppress(FileNotFoundError):
                for trial in json.loads(pq.read_schema(path).metadata[b"trials"]):
                    found[study.name, trial["index"]] = trial["seconds"]["training"]
    return found


class Watch:
    """Counts the finished trials of a results folder that go missing or run again."""

    def __init__(self, results: Path) -> None:
        self.results, self.known, self.lost, self.repeated = results, dict[tuple[str, int], float](), 0, 0

    def look(self) -> None:
        """Compare the trials on file with those at the last look."""
        now = finished(self.results)
        self.lost += len(self.known.keys() - now.keys())
        self.repeated += sum(now[trial] != seconds for trial, seconds in self.known.items() if trial in now)
        self.known = now


def survive(kills: int, folder: Path, seed: int = 0) -> Survival:
    """Run both sweeps in `folder`, one of them killed up to `kills` times."""
    peaceful, killed = folder / "peaceful", folder / "killed"
    subprocess.run(command(kills, peaceful), check=True, **QUIET)
    chance, watch, made = random.Random(seed), Watch(killed), 0
    while True:
        process = subprocess.Popen(command(kills, killed), **QUIET)
        try:
            process.wait(timeout=chance.uniform(0, LONGEST_LIFE) if made < kills else None)
        except subprocess.TimeoutExpired:
            made += 1
            if chance.random() < 0.5:
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()  # its workers must follow it
            process.wait()
            time.sleep(chance.uniform(0, 0.2))
        watch.look()
        if process.returncode == 0:
            break
        if process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"the sweep was not killed but ended with status {process.returncode}")
    return Survival(made, watch.lost, watch.repeated, differing(peaceful, killed))


def differing(one: Path, other: Path) -> list[str]:
    """The names of tables that differ between two sweeps; `cost.csv` holds times and is left out."""
    paths = ([*(sweep / "tables").glob("*.csv")] for sweep in (one, other))
    first, second = ({path.name: path.read_bytes() for path in each if path.name != "cost.csv"} for each in paths)
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def crowd(processes: int, kills: int, folder: Path, seed: int = 0) -> Survival:
    """Run one undisturbed sweep, then `processes` sweeps on one results folder; kill `kills` of them."""
    peaceful, shared = folder / "peaceful", folder / "shared"
    subprocess.run(command(kills, peaceful), check=True, **QUIET)
    together = [*command(kills, shared), f"shards={processes}", "engine.workers=1"]
    living = [subprocess.Popen(together, **QUIET) for _ in range(processes)]
    chance, watch, made = random.Random(seed), Watch(shared), 0
    while living:
        watch.look()
        # Kill only after the first finished trials, so that there is something to lose.
        if watch.known and made < kills and chance.random() < 0.5:
            victim = living.pop(chance.randrange(len(living)))
            os.killpg(victim.pid, signal.SIGKILL)
            made += victim.wait() == -signal.SIGKILL
        for process in [process for process in living if process.poll() is not None]:
            if process.returncode:
                raise RuntimeError(f"a sweep was not killed but ended with status {process.returncode}")
            living.remove(process)
        time.sleep(0.3)
    for path in shared.rglob("study.json"):
        watch.repeated += sum(run.get("doubled_trials", 0) for run in json.loads(path.read_text())["provenance"])
    return Survival(made, watch.lost, watch.repeated, differing(peaceful, shared))


def main() -> None:
    """Print the damage; exit status 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1, help="at once on one results folder")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        way = partial(crowd, options.processes) if options.processes > 1 else survive
        result = way(options.kills, Path(folder), options.seed)
    print(f"kills survived  {result.kills}\ntrials lost     {result.lost}\ntrials repeated {result.repeated}")
    print(f"tables          {', '.join(result.differing) or 'none'} differ")
    sys.exit(bool(result.lost or result.repeated or result.differing))


if __name__ == "__main__":
    main()
