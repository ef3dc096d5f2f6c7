"""Check that a sweep gives byte-identical tables on every cluster, in one process and in shards.

    python -m benchmarks.clusters [none local slurm ray]
    python tests/helpers/one_node_slurm.py python -m benchmarks.clusters none local slurm      with a SLURM of one node

Digits at six batch sizes, 32 trials each, with `shards=1` and `shards=4` on every cluster named. Ray needs a cluster
started by `ray start --head`. Times are those of the whole command with start and report; most of the time goes into
starting processes. Takes about a minute for each cluster on two cores, four where each job starts a Python.
"""

from __future__ import annotations

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.chaos import differing, finished

SWEEP = ["sweep", "batch_size=8,16,32,64,128,256", "search.trials=32"]
CLUSTERS = ("none", "local", "slurm", "ray")


def main() -> None:
    """Print a line for each cluster and shard count; exit status 1 if any table differs from the first run's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clusters", nargs="*", default=list(CLUSTERS), metavar="CLUSTER")
    ways = list(itertools.product(parser.parse_args().clusters, (1, 4)))
    unlike = 0
    with tempfile.TemporaryDirectory() as top:
        for number, (cluster, shards) in enumerate(ways):
            results = Path(top) / f"{cluster}-{shards}"
            command = [sys.executable, "-m", "study", *SWEEP, f"cluster={cluster}", f"shards={shards}"]
            start = time.perf_counter()
            subprocess.run([*command, f"results={results}"], check=True, stdout=subprocess.DEVNULL)
            seconds, trials = time.perf_counter() - start, len(finished(results))
            different = differing(Path(top) / f"{ways[0][0]}-{ways[0][1]}", results)
            unlike += bool(different)
            verdict = ", ".join(different) + " differ" if different else "identical tables" if number else "the first"
            print(f"cluster={cluster:5} shards={shards}  {trials} trials  {seconds:5.0f} s  {verdict}", flush=True)
    sys.exit(bool(unlike))


if __name__ == "__main__":
    main()
