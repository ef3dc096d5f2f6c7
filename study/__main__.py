"""`python -m study VERB`: parse, dispatch, exit status. The verbs are in `study.commands`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence

from rich.console import Console

from study.commands import VERBS, parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0 done, 1 failed, 2 refused, 130 interrupted."""
    argv = sys.argv[1:] if argv is None else list(argv)
    if "WORLD_SIZE" in os.environ:
        return _launched(argv)
    return _main(argv)


def _launched(argv: Sequence[str]) -> int:
    """One of several processes that torchrun started: the first does what is asked, the others train with it."""
    from study.devices import distributed
    from study.workers import process

    rank = distributed.launched()
    if rank is None:
        return _main(argv)
    if rank.index > 0:
        process.follow(rank)
    with distributed.leading(rank):
        return _main(argv)


def _main(argv: Sequence[str]) -> int:
    options, rest = parser().parse_known_args(argv)
    if options.verb in ("sweep", "plan", "calibrate"):  # argparse wants overrides in one piece; people do not
        options.overrides += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    if rest:
        parser().error(f"unrecognized arguments: {' '.join(rest)}")
    options.command = shlex.join(["python", "-m", "study", *argv])
    console, errors = Console(), Console(stderr=True, soft_wrap=True)
    try:
        status = _run(options, console, errors)
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # whoever reads this has seen enough; Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as interrupt:
        said = str(interrupt) or "the same command continues where this one stopped"
        errors.print(f"study: interrupted; {said}.", highlight=False)
        return 130


def _run(options: argparse.Namespace, console: Console, errors: Console) -> int:
    from analysis.advice.splits import AdviceError
    from analysis.export import ExportError
    from analysis.load import LoadError
    from study.cluster.launch import JobsFailed
    from study.errors import UsageError
    from study.exchange.importing import ImportRefused
    from study.store import StoreError
    from study.workers.pool import TrialTooLarge, WorkerError
    from workloads.data.datasets import DataError

    try:
        return VERBS[options.verb].body(options, console) or 0
    except (UsageError, StoreError, LoadError, DataError, ExportError, AdviceError, ImportRefused) as error:
        errors.print(f"study: {error}", markup=False, highlight=False)
        return 2
    except (WorkerError, TrialTooLarge, JobsFailed) as error:
        errors.print(f"study: {error}", markup=False, highlight=False)
        return 1


if __name__ == "__main__":
    sys.exit(main())
