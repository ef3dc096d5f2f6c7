"""A headless Chromium that is driven over a pipe by the DevTools protocol: no driver, no port, no network."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = "--headless --no-sandbox --disable-gpu --no-first-run --disable-background-networking --disable-sync"
FLAGS += " --disable-component-update --hide-scrollbars --remote-debugging-pipe"


class Browser:
    """One page at a time.

    Attributes:
        problems: errors and console messages since the last `open`.
        requests: the addresses that the page asked for since then.
    """

    def __init__(self, folder: Path) -> None:
        """Start Chromium with its profile in `folder`."""
        (read_there, write), (read, write_there) = os.pipe(), os.pipe()
        command = [CHROMIUM, *FLAGS.split(), f"--user-data-dir={folder}", "about:blank"]
        start = ["bash", "-c", f'exec "$@" 3<&{read_there} 4>&{write_there}', "bash", *command]
        self._process = subprocess.Popen(start, pass_fds=(read_there, write_there), stderr=subprocess.DEVNULL)
        os.close(read_there)
        os.close(write_there)
        self._to, self._from = os.fdopen(write, "wb", buffering=0), os.fdopen(read, "rb", buffering=0)
        self._left, self._sent, self._session = b"", 0, None
        self.problems: list[str] = []
        self.requests: list[str] = []
        target = self.tell("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.tell("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.tell(f"{domain}.enable")

    def close(self) -> None:
        self._session = None
        self.tell("Browser.close")
        self._process.wait(timeout=30)
        self._to.close()
        self._from.close()

    def tell(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its result; keeps the problems and requests that are reported meanwhile."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if self._session else {}
        self._to.write(json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._sent:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self._note(answer)

    def wait_for(self, method: str) -> None:
        """Wait for an event."""
        while (answer := self._next()).get("method") != method:
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            more = os.read(self._from.fileno(), 1 << 16)
            assert more, "Chromium ended"
            self._left += more
        message, _, self._left = self._left.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        told = event.get("params", {})
        if event.get("method") in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.problems.append(json.dumps(told))
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])

    def open(self, path: Path, width: int = 1400, dark: bool = False, scripts: bool = True) -> None:
        """Load a page and wait until it has loaded."""
        size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.tell("Emulation.setDeviceMetricsOverride", **size)
        self.tell("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.scheme(dark)
        self.problems.clear()
        self.requests.clear()
        self.tell("Page.navigate", url=path.as_uri())
        self.wait_for("Page.loadEventFired")

    def scheme(self, dark: bool) -> None:
        """Prefer a dark or a light page."""
        feature = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.tell("Emulation.setEmulatedMedia", features=[feature])

    def ask(self, expression: str) -> Any:
        """The value of a JavaScript expression, after the frames that are due have been drawn."""
        drawn = "await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));"
        code = f"(async () => {{ {drawn} return {expression}; }})()"
        result = self.tell("Runtime.evaluate", expression=code, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def mouse(self, kind: str, x: float, y: float, clicks: int = 1) -> None:
        """Move, press or release the mouse."""
        button: dict[str, Any] = {} if kind == "Moved" else {"button": "left", "clickCount": clicks}
        self.tell("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, **button)

    def click(self, x: float, y: float) -> None:
        for kind in ("Moved", "Pressed", "Released"):
            self.mouse(kind, x, y)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("Moved", *start)
        self.mouse("Pressed", *start)
        for share in (0.5, 1.0):
            x, y = (a + share * (b - a) for a, b in zip(start, end, strict=True))
            self.tell("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y, button="left", buttons=1)
        self.mouse("Released", *end)

    def type(self, text: str) -> None:
        """Type into the element that has the focus."""
        self.tell("Input.insertText", text=text)

    def picture(self, path: Path) -> None:
        """Save the whole page as a PNG."""
        import base64

        image = self.tell("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(image))
