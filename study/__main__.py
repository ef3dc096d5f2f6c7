"""`python -m study VERB`: parse, dispatch, exit status. The verbs are in `study.commands`."""
# ruff: noqa: E402

from study.shadowing import look_in_current_folder_last

look_in_current_folder_last()  # before anything else is imported

import os
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C during the imports ends this process without a traceback

ENDS = (signal.SIGTERM, signal.SIGHUP)
"""What ends a command as Ctrl-C does: `kill`, `docker stop` and `scancel`; and a terminal that closes."""


def _end(*_: object) -> None:
    """The answer to a signal of ENDS during the imports; `main` replaces it."""
    os._exit(130)


for each in ENDS if __name__ == "__main__" else ():
    if signal.getsignal(each) is signal.SIG_DFL:  # `nohup` has SIGHUP ignored
        signal.signal(each, _end)

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # workers take all cores: more threads would wait for each other

import argparse
import faulthandler
import gc
import shlex
import sys
import traceback
from collections.abc import Sequence
from contextlib import nullcontext

from rich.console import Console

from study.command_line import as_json, environment, words
from study.commands import FLAGS, VERBS, first_page, flags_of, parser
from study.devices import signals
from study.errors import Failed, Refused
from study.user_code import faults
from study.user_code.compilers import uncompiled
from study.workers import start
from workloads.user_code.errors import user_line

TAKE_OVERRIDES = ("sweep", "plan", "branch", "calibrate")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status: 0 done, 1 failed, 2 refused, 130 interrupted."""
    for each in ENDS if argv is None else ():
        if signal.getsignal(each) in (signal.SIG_DFL, _end):
            signal.signal(each, signals.interrupt)
    environment.settle()
    if argv is None:
        faulthandler.enable()  # a crash in compiled code of a user's shows the line that called it
        faults.guard_process()
    argv = sys.argv[1:] if argv is None else list(argv)
    with uncompiled():
        return _launched(argv) if "TORCHELASTIC_RUN_ID" in os.environ else _command(argv)


def _launched(argv: Sequence[str]) -> int:
    """One of the processes that torchrun started: rank 0 runs the verb, the others train with it."""
    from study.devices import distributed
    from study.workers import process

    rank = distributed.launched()
    if rank is None:
        return _command(argv)
    if rank.index > 0:
        process.follow(rank)
    with distributed.leading(rank):
        return _command(argv)


def _command(argv: Sequence[str]) -> int:
    errors = Console(stderr=True, soft_wrap=True, highlight=False)
    if "--debug" in argv:
        os.environ[faults.DEBUG] = "1"
    try:
        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        if not [word for word in argv if word != "--debug"]:
            print(first_page())
            return 0
        options = parsed(argv)
        with as_json.alone() if vars(options).get("json") is True else nullcontext():
            if options.verb in TAKE_OVERRIDES and not vars(options).get("cfg"):
                start.ahead()
            status = VERBS[options.verb].body(options, Console(highlight=False)) or 0
        print(end="", flush=True)  # a user's code may have set sys.stdout to None
        return status
    except (Refused, Failed) as error:
        if faults.debugging() and error.__cause__ is not None:
            errors.print("".join(traceback.format_exception(error)), markup=False)
        errors.print(f"study: {error}", markup=False)
        return 1 if isinstance(error, Failed) else 2
    except BrokenPipeError:  # the reader of our output closed it; without this, Python complains at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt as interrupt:
        advice = str(interrupt) or "the same command continues where this one stopped"
        errors.print(f"study: interrupted; {advice}.")
        return 130
    except BaseException as error:
        # A user's sys.exit(0) must not pass for a success. Only that of argparse has no place in their files.
        if isinstance(error, SystemExit) and not user_line(error):
            raise
        errors.print(f"study: {faults.told(error)}", markup=False)
        return 1


def parsed(argv: Sequence[str]) -> argparse.Namespace:
    """The verb and its arguments. Raises UsageError for words that no verb takes; --help ends the program."""
    words.check_text(argv)
    words.check_verb(argv, VERBS, FLAGS)
    options, rest = parser().parse_known_args([word for word in argv if word != "--debug"])
    if options.verb in TAKE_OVERRIDES:  # argparse takes overrides in one piece only; people put flags between them
        options.overrides += [word for word in rest if not word.startswith("-")]
        rest = [word for word in rest if word.startswith("-")]
    if rest:
        words.refuse(rest, argv, flags_of(options.verb), options.verb in TAKE_OVERRIDES)
    options.debug = "--debug" in argv
    options.command = shlex.join(["python", "-m", "study", *argv])
    return options


if __name__ == "__main__":
    status = main()
    signals.tell_of_threads(lambda said: os.write(2, f"study: {said}\n".encode()))
    # Nothing is left that must be collected, which takes a second at exit. But Triton, which torch may have imported,
    # prints what is not collected as leaks.
    (gc.unfreeze if "triton" in sys.modules else gc.freeze)()
    sys.exit(status)
