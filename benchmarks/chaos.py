"""Kill a sweep at random moments, restart it until it is complete, and compare it with an undisturbed sweep.

    python -m benchmarks.chaos [--kills 100] [--seed 0]
    python -m benchmarks.chaos --processes 20 --kills 10
    python -m benchmarks.chaos --refine --processes 3 --kills 20
    python -m benchmarks.chaos --refine --cluster local --processes 3 --kills 10

The sweep trains an MLP on digits at two batch sizes, more trials for more kills. SIGKILL hits the whole program or its
parent process alone, from before the first import to the last table. At the end all tables must be byte-identical, no
finished trial may be missing, and no trial may have run twice. Takes about five seconds a kill.

With `--processes`, that many sweeps share one results folder, one shard each. Killed processes stay dead, and the
others take over their shards. Twenty processes take about two minutes on two cores, and half a GiB each.

With `--refine`, the sweep proposes its trials in rounds (`search=refine`), which all shards share, and each killed
process is followed by a new one, because a stage waits for every shard. With `--cluster` one command trains the shards
in waves of jobs; SIGKILL hits that command, with or without its jobs, or one of the jobs.
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
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypedDict

import pyarrow.parquet as pq

LONGEST_LIFE = 7.0  # seconds; a start takes about three


Command = Callable[[int, Path], list[str]]
"""(kills to survive, results folder) -> the command of a sweep."""


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


class Quiet(TypedDict):
    """Arguments of `subprocess.run` and `subprocess.Popen`."""

    stdout: int
    stderr: int
    start_new_session: bool


QUIET: Quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "start_new_session": True}


def quasi_random(kills: int, results: Path) -> list[str]:
    """A sweep that runs long enough for `kills` kills."""
    return [*_sweep(results), f"search.trials={8 + 12 * kills}"]


def refined(kills: int, results: Path) -> list[str]:
    """A sweep in rounds that runs long enough for `kills` kills."""
    rounds = [4] * max(2, kills // 4)
    search = ["search=refine", "search.scouts=6", f"search.refine={rounds}".replace(" ", ""), "search.confirm=4"]
    return [*_sweep(results), *search]


def _sweep(results: Path) -> list[str]:
    length = ["budget.epochs=0", "budget.steps=3000"]
    hard = "goal=val/classification_error < 0.02"  # few trials reach the goal, so few stop early
    return [sys.executable, "-m", "study", "sweep", "batch_size=32,256", hard, *length, f"results={results}"]


def finished(results: Path) -> dict[tuple[str, int], float]:
    """(search, trial) -> its training seconds, a fingerprint of the run that made it."""
    found = {}
    for study in [path.parent for path in results.glob("studies/*/*/**/study.json")]:
        # The store deletes a trial's file once curves.parquet holds it, so read curves.parquet last.
        for path in [*study.glob("trials/[!.]*.parquet"), study / "curves.parquet"]:
            with suppress(FileNotFoundError):
                for trial in json.loads(pq.read_schema(path).metadata[b"trials"]):
                    found[str(study.relative_to(results)), trial["index"]] = trial["seconds"]["training"]
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


def _kill(process: subprocess.Popen[bytes], chance: random.Random) -> None:
    """Kill a sweep: the whole program, or its parent process alone."""
    if chance.random() < 0.5:
        os.killpg(process.pid, signal.SIGKILL)
    else:
        process.kill()  # its workers must follow it
    process.wait()


def differing(one: Path, other: Path) -> list[str]:
    """The names of tables that differ between two sweeps; `cost.csv` holds times and is left out."""
    paths = ([*(sweep / "tables").glob("*.csv")] for sweep in (one, other))
    first, second = ({path.name: path.read_bytes() for path in each if path.name != "cost.csv"} for each in paths)
    return sorted(name for name in {*first, *second} if first.get(name) != second.get(name))


def crowd(processes: int, kills: int, folder: Path, seed: int = 0) -> Survival:
    """Run one undisturbed sweep, then `processes` sweeps on one results folder; kill `kills` of them."""
    peaceful, shared = folder / "peaceful", folder / "shared"
    subprocess.run(quasi_random(kills, peaceful), check=True, **QUIET)
    together = [*quasi_random(kills, shared), f"shards={processes}", "engine.workers=1"]
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
    return Survival(made, watch.lost, watch.repeated + _doubled(shared), differing(peaceful, shared))


def relay(
    kills: int,
    folder: Path,
    seed: int = 0,
    command: Command = quasi_random,
    processes: int = 1,
    cluster: str = "none",
) -> Survival:
    """Run one undisturbed sweep, then `processes` sweeps on one results folder, a shard each; a new one follows each
    that is killed. On a cluster, one command has its jobs train the shards, and jobs are killed, too."""
    peaceful, shared = folder / "peaceful", folder / "shared"
    subprocess.run(command(kills, peaceful), check=True, **QUIET)
    words = [*command(kills, shared), f"shards={processes}", f"cluster={cluster}"]
    words += ["engine.workers=1"] if processes > 1 and cluster == "none" else []
    longest = LONGEST_LIFE if cluster == "none" else 3 * LONGEST_LIFE

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(words, **QUIET)

    living = [start() for _ in range(processes if cluster == "none" else 1)]
    chance, watch, made = random.Random(seed), Watch(shared), 0
    while living:
        until = time.monotonic() + chance.uniform(0, longest)
        while time.monotonic() < until and any(process.poll() is None for process in living):
            watch.look()
            time.sleep(0.3)
        victims: list[subprocess.Popen[bytes] | int] = [*living, *training(shared)] if made < kills else []
        victim = chance.choice(victims) if victims else None
        if isinstance(victim, int):
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
                made += 1
        elif victim is not None and victim.poll() is None:
            _kill(victim, chance)
            made += 1
        for process in [process for process in living if process.poll() is not None]:
            living.remove(process)
            # A command whose jobs were killed too often fails; like a killed one, it is given again.
            if process.returncode == -signal.SIGKILL or (process.returncode == 1 and cluster != "none"):
                living.append(start())
            elif process.returncode:
                raise RuntimeError(f"a sweep was not killed but ended with status {process.returncode}")
    watch.look()
    return Survival(made, watch.lost, watch.repeated + _doubled(shared), differing(peaceful, shared))


def training(results: Path) -> list[int]:
    """The processes in which jobs of a cluster train in this results folder, by their logs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            ours = "study.cluster.job_process" in (process / "cmdline").read_text()
            if ours and os.readlink(process / "fd/1").startswith(str(results)):
                found.append(int(process.name))
    return sorted(found)


def _doubled(results: Path) -> int:
    """The trials that two processes trained, by the records of the runs."""
    records = [json.loads(path.read_text()) for path in results.rglob("study.json")]
    return sum(run.get("doubled_trials", 0) for record in records for run in record["provenance"])


def main() -> None:
    """Print the damage; exit status 1 if there is any."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1, help="at once on one results folder")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--refine", action="store_true", help="a sweep that proposes its trials in rounds")
    parser.add_argument("--cluster", choices=("local",), help="with --refine: train in waves of jobs")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        result = _way(options)(options.kills, Path(folder), options.seed)
    print(f"kills survived  {result.kills}\ntrials lost     {result.lost}\ntrials repeated {result.repeated}")
    print(f"tables          {', '.join(result.differing) or 'none'} differ")
    sys.exit(bool(result.lost or result.repeated or result.differing))


def _way(options: argparse.Namespace) -> Callable[[int, Path, int], Survival]:
    if options.processes > 1 and not options.refine:
        return partial(crowd, options.processes)
    command = refined if options.refine else quasi_random
    return partial(relay, command=command, processes=options.processes, cluster=options.cluster or "none")


if __name__ == "__main__":
    main()
