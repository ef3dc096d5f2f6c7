"""Marks a page that is written while its sweep runs: it says so, and browsers load it again by themselves."""

import re
import time
from pathlib import Path

from markupsafe import Markup

from analysis.figures.atomic import write_atomically

BEGIN, END = "<!-- unfinished -->", "<!-- end of unfinished -->"
STYLE = "font: 600 .95rem system-ui, sans-serif; padding: .6rem 1rem; border: 1px solid; border-radius: 6px"


def marked(page: str, refresh: int | None) -> str:
    """A page that loads itself again after `refresh` seconds and says that it is unfinished; None: as it is.

    >>> page = marked("<head><title>Digits</title></head><body><main><h1>Digits</h1></main></body>", 30)
    >>> '<meta http-equiv="refresh" content="30">' in page, "Unfinished" in page
    (True, True)
    >>> marked("<main></main>", None)
    '<main></main>'
    """
    if refresh is None:
        return page
    now = time.strftime("%H:%M:%S")
    said = f"Unfinished: the sweep was running at {now}. This page loads itself again every {refresh} s."
    head = f'{BEGIN}<meta http-equiv="refresh" content="{refresh}">{END}'
    page = re.sub("(?=<title>)", lambda _: head, page, count=1)
    return re.sub("(<main[^>]*>)", lambda found: f"{found[0]}{BEGIN}{_banner(said)}{END}", page, count=1)


def settle(path: Path) -> None:
    """Let an unfinished page on disk say that its sweep stopped, and no longer load itself again.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as name:
    ...     path = Path(name) / "report.html"
    ...     _ = path.write_text(marked("<title>Digits</title><main></main>", 30))
    ...     settle(path)
    ...     print("refresh" in path.read_text(), "has stopped" in path.read_text())
    False True
    """
    page = path.read_text() if path.exists() else ""
    if BEGIN not in page:
        return
    said = "Unfinished: the sweep has stopped, and its terminal says why. The same command continues it."
    notes = iter(["", f"{BEGIN}{_banner(said)}{END}"])
    page = re.sub(f"{BEGIN}.*?{END}", lambda _: next(notes, ""), page, flags=re.DOTALL)
    write_atomically(path, page.encode())


def _banner(said: str) -> str:
    return Markup('<p role="status" style="{}">{}</p>').format(STYLE, said)
