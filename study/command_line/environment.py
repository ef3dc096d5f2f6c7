"""Makes up for what the environment of a command lacks: outputs, a size of the terminal, a home folder, characters."""

import io
import logging
import os
import sys


def settle() -> None:
    """Prepare outputs and variables of this process, before a verb prints or starts processes."""
    _open_closed_files()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # as stderr: a terminal that lacks "µ" shows \xb5
    for size in ("COLUMNS", "LINES"):
        if not os.environ.get(size, "").strip("0"):
            os.environ.pop(size, None)  # some shells in containers have 0: rich would print nothing but empty lines
    logging.getLogger("matplotlib").addFilter(_not_of_folders)
    os.environ["MPLBACKEND"] = "agg"  # a notebook's backend, or one that is not installed, would end `report`


def _open_closed_files() -> None:
    """Let the null device stand for an input or output that a shell closed, such as by `>&-`. Else the next file that
    this process opens would take its place, and what processes of the sweep print would go there."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            file = open(os.devnull, mode)  # noqa: SIM115 - it stays open; of the free numbers, it takes the lowest
            os.set_inheritable(file.fileno(), True)
            setattr(sys, name, file)


def _not_of_folders(record: logging.LogRecord) -> bool:
    """False for matplotlib's warning that it cannot write settings, for example in a container without a home folder:
    it then uses a temporary folder and draws the same figures."""
    return record.funcName != "_get_config_or_cache_dir"
