"""Seconds of the check before a sweep, for each shipped workload whose data are there, without the loading of data.

    python -m benchmarks.check

The check must stay below its limit: 0.3 s for the digits, 2 s for the others. Exit status 1 if one does not.
"""

import sys
import time
from functools import partial
from unittest import mock

from study.config import checked, preflight
from study.config.composed.compose import CONF
from study.config.jobs import parse_jobs
from study.data.examples import splits_of
from study.errors import Refused
from workloads.base import Splits, Workload
from workloads.data.fetching import DataError

LIMITS = {"mlp_digits": 0.3}
USUAL_LIMIT = 2.0
REPEATS = 3


def seconds(name: str) -> float:
    """The fastest of some checks of this workload, less the time in which its data load.

    Raises:
        Refused, DataError: the data are not there.
    """
    [job] = parse_jobs([f"workload={name}", "batch_size=64"])
    spent = []
    for _ in range(REPEATS):
        loads: list[float] = []
        with mock.patch.object(checked, "splits_of", partial(timed, loads)):
            start = time.perf_counter()
            preflight.settle([job])
        spent.append(time.perf_counter() - start - sum(loads))
    return min(spent)


def timed(loads: list[float], workload: Workload) -> Splits:
    """The splits; the seconds in which they load join `loads`."""
    start = time.perf_counter()
    splits = splits_of(workload)
    loads.append(time.perf_counter() - start)
    return splits


def main() -> int:
    """Print a line for each workload."""
    slow = False
    for name in sorted(path.stem for path in (CONF / "workload").glob("*.yaml")):
        limit = LIMITS.get(name, USUAL_LIMIT)
        try:
            spent = seconds(name)
        except (Refused, DataError) as error:
            print(f"{name:28} skipped: {str(error).splitlines()[0][:80]}")
            continue
        slow |= spent > limit
        print(f"{name:28} {spent:6.2f} s of at most {limit:g} s")
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
