"""`study.sweep`, `study.plan` and `study.results`: the command line's `sweep`, `plan` and `report` as functions."""

from __future__ import annotations

import argparse
import gc
import shlex
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from study.errors import UsageError
from study.library import consoles
from study.library.own_workload import OwnWorkload
from study.user_code.compilers import uncompiled
from study.workers import start

if TYPE_CHECKING:
    import pandas as pd
    from rich.console import Console

    from analysis.result import Result

Setting = Any
"""A number, a text, True, False or None; a list, which sweeps the key unless its value is a list; or a mapping."""
_BUSY = threading.Lock()


def sweep(
    workload: Setting = None,
    optimizer: Setting = None,
    batch_sizes: int | str | Sequence[int | str] | None = None,
    trials: int | None = None,
    results: str | Path | None = None,
    *,
    overrides: str | Sequence[str] = (),
    config_dir: str | Path | None = None,
    mix: bool = False,
    verbose: bool = True,
    **settings: Setting,
) -> Result:
    """Train the missing trials of every study that the arguments ask for, write the report, and return the results.

    The arguments are the settings of the command line (docs/configuration.md), with the same defaults and refusals.
    Interrupt it at any time: the same call trains only what is missing.

    Arguments:
        workload: a name, an object of your own class, or a list of these.
        optimizer: a name or a list of names.
        batch_sizes: numbers of examples, or texts such as `32k tokens`; one, or a list.
        trials: feasible trials at each batch size, `search.trials`; this chooses a quasi-random search.
        results: the folder for measurements and report; `results/` and the workload's name unless given.
        overrides: further settings as on the command line, one or a list, such as `search.space.momentum.high=0.99`.
        config_dir: folder with your own workload/NAME.yaml and its Python file.
        mix: train on although your code or data changed since.
        verbose: show the cost and the progress.
        settings: any other key: `goal="val/loss < 1"`, `search={"reruns": 4}`, `**{"search.reruns": 4}`.

    Raises:
        study.Refused: the arguments ask for something impossible; nothing was trained.
        study.Failed: some trials could not be trained; finished ones are kept.
    """
    named = {"workload": workload, "optimizer": optimizer, "batch_sizes": batch_sizes}
    given = {**named, "search.trials": trials, "results": results}
    with _asked("sweep", given, settings, overrides, config_dir, mix, verbose) as (options, console):
        from analysis.result import read
        from study.commands.sweep import run

        folders = run(options, console, shows=False)
    return read(*folders)


def plan(
    workload: Setting = None,
    optimizer: Setting = None,
    batch_sizes: int | str | Sequence[int | str] | None = None,
    trials: int | None = None,
    results: str | Path | None = None,
    *,
    overrides: str | Sequence[str] = (),
    config_dir: str | Path | None = None,
    mix: bool = False,
    verbose: bool = True,
    **settings: Setting,
) -> pd.DataFrame:
    """Measure on a few real steps what `sweep` with the same arguments will cost; writes nothing.

    Returns:
        A row for each search that is not complete: workload, optimizer, batch_size, trials, steps, examples, seconds.

    Raises:
        study.Refused, study.Failed: as `sweep` does.
    """
    named = {"workload": workload, "optimizer": optimizer, "batch_sizes": batch_sizes}
    given = {**named, "search.trials": trials, "results": results}
    with _asked("plan", given, settings, overrides, config_dir, mix, verbose) as (options, console):
        import pandas as pd

        from study.commands.sweep import planned

        return pd.DataFrame(planned(options, console)[0])


def results(*folders: str | Path, goals: str | Sequence[str] | None = ()) -> Result:
    """The results in one or several folders, as `sweep` returns them. Trains and writes nothing.

    Arguments:
        goals: one, such as `val/classification_error < 0.1`, or a list: read the recorded curves at these instead.

    Raises:
        study.Refused: a folder holds no results, or a goal cannot be read.
    """
    from analysis.result import read

    return read(*folders, goals=goals)


@contextmanager
def _asked(
    verb: str,
    named: Mapping[str, Setting],
    settings: Mapping[str, Setting],
    further: str | Sequence[str],
    config_dir: str | Path | None,
    mix: bool,
    verbose: bool,
) -> Iterator[tuple[argparse.Namespace, Console]]:
    """The options of a verb, and a console, while this process is prepared for it."""
    given = {name: value for name, value in named.items() if value is not None} | dict(settings)
    own: dict[str, OwnWorkload] = {}
    if "workload" in given:
        given["workload"], own = _workloads(given["workload"])
    if not isinstance(config_dir, str | PathLike | None):
        raise UsageError(f"config_dir must be a folder, such as 'mine', but got {config_dir!r}.")
    folder = None if config_dir is None else Path(config_dir).expanduser()
    if not _BUSY.acquire(blocking=False):
        raise UsageError("another sweep of this process is not finished; wait for it, or start a second process.")
    try:
        with ExitStack() as held:
            held.enter_context(_main_left_alone())
            held.enter_context(uncompiled())
            start.ahead()  # while the rest is imported
            _import_quietly()
            from study.config.composed.compose import offered
            from study.library.overrides import overrides

            words = overrides(given, further)
            held.enter_context(offered({name: each.arguments for name, each in own.items()}))
            held.enter_context(_one_thread())
            held.callback(gc.unfreeze)  # imports froze the caller's objects, too
            console = held.enter_context(consoles.console(verbose))
            options = argparse.Namespace(overrides=words, config_dir=folder, mix=mix)
            options.imports = folder or next((each.folder for each in own.values()), None)
            options.command = _command(verb, words, folder, mix, own)
            yield options, console
    finally:
        _BUSY.release()


def _workloads(asked: Setting) -> tuple[Setting, dict[str, OwnWorkload]]:
    """The names of workloads, and by their names those that are objects."""
    own: dict[str, OwnWorkload] = {}

    def name(workload: Any) -> Any:
        if isinstance(workload, str | Mapping):
            return workload
        made = OwnWorkload.of(workload)
        if own.setdefault(made.name, made) != made:
            raise UsageError(f"two workloads have the name {made.name}; give each its own.")
        return made.name

    return ([*map(name, asked)] if isinstance(asked, list | tuple) else name(asked)), own


def _command(verb: str, words: Sequence[str], folder: Path | None, mix: bool, own: Mapping[str, OwnWorkload]) -> str:
    """How to ask for the same again, for the record: a command, or a call if a command cannot name the workload.

    The address of `notify`, which may hold a password, is left out.
    """
    words = [word for word in words if not word.lstrip("+").startswith("notify=")]
    if not own:
        options = [*(["--config-dir", str(folder)] if folder else []), *["--mix"] * bool(mix)]
        return shlex.join(["python", "-m", "study", verb, *words, *options])
    made = [each.call for each in own.values()]
    others = [word for word in words if not word.startswith("workload=")]
    options = [*([f"config_dir={str(folder)!r}"] if folder else []), *["mix=True"] * bool(mix)]
    given = made[0] if len(made) == 1 else f"[{', '.join(made)}]"
    return f"study.{verb}({', '.join([f'workload={given}', f'overrides={others!r}', *options])})"


@contextmanager
def _main_left_alone() -> Iterator[None]:
    """Processes that start in this block do not run the caller's script again, as multiprocessing would let them.

    They need nothing of it: workloads are imported from modules.
    """
    main = sys.modules["__main__"]
    before = getattr(main, "__spec__", None)
    main.__spec__ = ModuleSpec("__main__", None)
    try:
        yield
    finally:
        main.__spec__ = before


def _import_quietly() -> None:
    """Import Optuna without a warning of its progress bars, which are not used, where a notebook lacks ipywidgets."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "IProgress not found")
        import study.search.tuner  # noqa: F401


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute with one thread, as the command line does: workers take all cores, and last bits depend on threads."""
    from threadpoolctl import threadpool_limits

    import analysis.surrogate.process  # noqa: F401 - the libraries of NumPy and SciPy must be loaded to be limited

    with threadpool_limits(1):
        yield
