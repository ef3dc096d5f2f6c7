"""Serves the reports of a results folder to browsers on this machine, and nothing else."""

from __future__ import annotations

import html
import os
from functools import partial
from http import HTTPStatus
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import quote

from analysis.question.searches import matching, nothing_in
from study.errors import UsageError

HERE = "127.0.0.1"
HOSTS = {HERE, "localhost"}
REPORT = "report.html"
WITHOUT_REPORT = (
    "There is no report yet. A sweep writes it half a minute after it began to train; without a running sweep, "
    "<code>python -m study report RESULTS</code> does."
)
WAITING = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta http-equiv="refresh" content="5">
<title>{name}</title></head><body style="font: 1rem system-ui, sans-serif; margin: 3rem"><p>{said}</p></body></html>
"""


def server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server of a folder at 127.0.0.1; at a free port if this one is taken.

    Raises:
        UsageError: there is no such folder, or no such port.
    """
    if not 0 <= port < 2**16:
        raise UsageError(f"--port must be from 0 (a free one) to 65535, but got {port}.")
    if not folder.is_dir():
        raise UsageError(nothing_in(folder))
    handler = partial(_Handler, directory=str(folder.resolve()))
    try:
        return ThreadingHTTPServer((HERE, port), handler)
    except OSError:
        return ThreadingHTTPServer((HERE, 0), handler)


class _Handler(SimpleHTTPRequestHandler):
    """Answers for files in the folder. `/` is the report, or the list of the reports in the folders below."""

    def send_head(self):  # type: ignore[no-untyped-def]  # bytes in, bytes out, as the base class has it
        # A page of another site must not read the folder by a name that it points to this machine.
        if self.headers.get("Host", "").partition(":")[0] not in HOSTS:
            self.send_error(HTTPStatus.FORBIDDEN)
            return None
        if self.path.partition("?")[0] in ("/", f"/{REPORT}") and not Path(self.directory, REPORT).exists():
            return self._page()
        if self.path == "/":
            self.send_response(HTTPStatus.FOUND)
            self.send_header("Location", f"/{REPORT}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        inside = Path(self.directory)
        if not Path(os.path.realpath(self.translate_path(self.path))).is_relative_to(inside):
            self.send_error(HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()

    def list_directory(self, path):  # type: ignore[no-untyped-def]
        """Folders are not listed."""
        self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")  # the sweep rewrites the page
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Say nothing of each request."""

    def _page(self):  # type: ignore[no-untyped-def]
        """A page until there is a report, or with links to those of the folders below."""
        import io

        top = Path(self.directory)
        below = sorted(path.relative_to(top) for depth in ("*", "*/*") for path in matching(top, f"{depth}/{REPORT}"))
        links = "<br>".join(
            f'<a href="/{html.escape(quote(str(each)))}">{html.escape(str(each.parent))}</a>' for each in below
        )
        said = links or WITHOUT_REPORT
        content = WAITING.format(name=html.escape(top.name), said=said).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        return io.BytesIO(content)
