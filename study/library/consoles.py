"""Where a call from Python shows its progress: the terminal, or one output below the cell of a notebook."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console

SECONDS = 0.5
"""Time between two looks at the progress."""
WIDTH = 100


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this process."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return hasattr(shell, "kernel")


@contextmanager
def console(verbose: bool) -> Iterator[Console]:
    """A console to print on in this block; without `verbose` it prints nothing."""
    if not verbose:
        yield Console(quiet=True)
    elif in_notebook():
        with _Output() as output:
            yield output.console
    else:
        yield Console(highlight=False)


class _Output:
    """One output of a cell with all that a console prints and, at its end, the live display as it is now. A call that
    is refused before it prints leaves none.

    rich's own display for notebooks is an output for each line, and needs ipywidgets.
    """

    def __init__(self) -> None:
        self.console = _Console(self._begin)
        self._ended = threading.Event()
        self._shown = ""
        self._handle: Any = None
        self._thread = threading.Thread(target=self._follow, daemon=True)

    def __enter__(self) -> _Output:
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._handle is not None:
            self._thread.join()
            self._show()  # from this thread, so that the kernel counts it to the cell

    def _begin(self) -> None:
        """Create the output, in the thread of the cell, so that the kernel counts it to the cell."""
        from IPython.display import display

        if self._handle is None:
            self._handle = display(_bundle(""), raw=True, display_id=True)
            self._thread.start()

    def _follow(self) -> None:
        while not self._ended.wait(SECONDS):
            self._show()

    def _show(self) -> None:
        text = self.console.text()
        if text != self._shown:
            self._shown = text
            self._handle.update(_bundle(text), raw=True)


def _bundle(text: str) -> dict[str, str]:
    return {"text/plain": text}


class _Console(Console):
    """A console that keeps what it prints, and knows the live displays that are on.

    Arguments:
        begin: called before anything is shown.
    """

    def __init__(self, begin: Callable[[], None]) -> None:
        super().__init__(**self._plain(), highlight=False)
        self._begin = begin
        self._on: list[Any] = []

    def print(self, *objects: Any, **how: Any) -> None:
        self._begin()
        super().print(*objects, **how)

    @staticmethod
    def _plain() -> dict[str, Any]:
        return {
            "file": io.StringIO(),
            "force_jupyter": False,
            "force_terminal": False,
            "color_system": "standard",
            "width": WIDTH,
        }

    def set_live(self, live: Any) -> bool:
        self._begin()
        self._on.append(live)
        return super().set_live(live)

    def clear_live(self) -> None:
        self._on.pop()
        super().clear_live()

    def text(self) -> str:
        """Everything printed so far, and the live displays as they are now."""
        below = Console(**self._plain())
        for live in [*self._on]:
            below.print(live.get_renderable())
        return (self.file.getvalue() + below.file.getvalue()).strip("\n")  # type: ignore[attr-defined]
