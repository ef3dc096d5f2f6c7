"""One message at the end of a sweep."""

import importlib.util
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from study.command_line.observers import without_secrets
from study.observers.base import Ended, Sweep
from study.observers.notify import MISSING, Notify

NEEDED = pytest.mark.skipif(importlib.util.find_spec("apprise") is None, reason="apprise is not installed")
RESULTS = [Path("results/digits")]


@pytest.fixture
def service():
    """A server that notes what is posted, and answers with its `status`."""

    class Service(BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(server.status)
            self.end_headers()

        def log_message(self, *_):
            pass

    posted: list[dict[str, str]] = []
    server = HTTPServer(("127.0.0.1", 0), Service)
    server.status = 200
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server, posted
    server.shutdown()
    thread.join()
    server.server_close()


@NEEDED
@pytest.mark.filterwarnings("ignore")  # of apprise and the packages that it imports
@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended(RESULTS, ["Scaling ends at 64.", "Done."]), ("Sweep finished: digits", "Scaling ends at 64.\nDone.")),
        (Ended(RESULTS, error="no memory"), ("Sweep failed: digits", "no memory")),
        (Ended(RESULTS, interrupted=True), None),
    ],
)
def test_it_is_posted_once(service, ended, said):
    server, posted = service
    observer = Notify(f"json://127.0.0.1:{server.server_port}")
    observer.begin(Sweep("command", []))
    observer.report(ended)
    assert [(each["title"], each["message"]) for each in posted] == ([said] if said else [])


@NEEDED
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("url", "event", "said"),
    [
        ("nonsense://secret", "begin", r"^notify=nonsense:\.\.\. is not a URL that apprise can post to$"),
        ("json://127.0.0.1:{port}", "report", "^the service did not accept the message$"),
    ],
)
def test_what_cannot_be_posted_is_an_error_without_the_password(service, url, event, said):
    server, _ = service
    server.status = 500
    observer = Notify(url.format(port=server.server_port))
    with pytest.raises((ValueError, OSError), match=said):
        observer.begin(Sweep("command", [])) if event == "begin" else observer.report(Ended(RESULTS))


def test_a_missing_package_is_told_before_training(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="batch-size-study") as told:
        Notify("json://localhost").begin(Sweep("command", []))
    assert str(told.value) == MISSING


@pytest.mark.parametrize(
    ("command", "recorded"),
    [
        ("study sweep notify=ntfy://topic batch_size=8", "study sweep batch_size=8"),
        ("study sweep '+notify=mailto://a:b c@host'", "study sweep"),
        ("study sweep 'goal=val/loss < 1'", "study sweep 'goal=val/loss < 1'"),
        ("study.sweep(workload=moons.Moons(name='it'), mix=True)",) * 2,
    ],
)
def test_the_address_is_not_recorded(command, recorded):
    assert without_secrets(command) == recorded
