"""A browser without a window, driven over its debugging pipe: real keys and clicks, and everything it complains of."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
MISSING = "chromium is not installed; make browser installs it, or set CHROMIUM to its path"
_PATIENCE = 90  # seconds; a busy machine is slow
_QUIET = ["gpu", "quic", "background-networking", "component-update", "sync", "extensions"]
_LOUD = ("error", "warning", "assert")
_KEYS = {"ArrowDown": 40, "ArrowUp": 38, "ArrowLeft": 37, "ArrowRight": 39, "PageDown": 34, "PageUp": 33}
_KEYS |= {"Home": 36, "End": 35, "Tab": 9, " ": 32, "Enter": 13}


class Page:
    """One page in Chromium; use it in a `with` block."""

    def __init__(self, profile: Path, *more: str) -> None:
        """more: further flags of the browser."""
        assert CHROMIUM is not None
        ours, theirs = os.pipe(), os.pipe()  # it reads from descriptor 3 and writes to 4
        flags = ["--headless", "--no-sandbox", "--no-first-run", *(f"--disable-{name}" for name in _QUIET)]
        command = [CHROMIUM, *flags, f"--user-data-dir={profile}", "--remote-debugging-pipe", *more, "about:blank"]
        ends = tuple(fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (ours[0], theirs[1]))
        self._process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" 3<&{} 4>&{}'.format(*ends), "chromium", *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (ours[0], theirs[1], *ends):
            os.close(end)
        self._write, self._read = ours[1], theirs[0]
        self._pending, self._count, self._session = b"", 0, ""
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def __enter__(self) -> Page:
        try:
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.ask(f"{domain}.enable")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._write)
        os.close(self._read)

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the debugging protocol, and its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._pending:
            more = os.read(self._read, 1 << 20)
            assert more, "chromium has ended"
            self._pending += more
        first, _, self._pending = self._pending.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        self._hear(message)
        return message

    def _hear(self, message: dict[str, Any]) -> None:
        method, facts = message.get("method"), message.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(facts["exceptionDetails"]))
        elif method == "Log.entryAdded" or (method == "Runtime.consoleAPICalled" and facts["type"] in _LOUD):
            self.complaints.append(json.dumps(facts))
        elif method == "Network.requestWillBeSent":
            self.requests.append(facts["request"]["url"])

    def open(self, path: Path, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show a file, and wait until all of it is there."""
        self.visit(path.as_uri(), width, height, dark)

    def visit(self, address: str, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Show an address, and wait until all of it is there."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.scheme(dark)
        self.ask("Page.navigate", url=address)
        self.wait(f"location.href.startsWith({json.dumps(address)}) && document.readyState === 'complete'")

    def scheme(self, dark: bool) -> None:
        """What the reader's system prefers."""
        value = "dark" if dark else "light"
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def do(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + _PATIENCE
        while not self.do(script):
            assert time.monotonic() < end, f"waited in vain for {script}"
            time.sleep(0.02)

    def text(self, selector: str) -> str:
        """The visible text of the first element that fits."""
        return str(self.do(f"document.querySelector({json.dumps(selector)}).innerText"))

    def click(self, selector: str) -> None:
        """A real click into the middle of the first element that fits."""
        box = self.do(
            f"((e) => {{ e.scrollIntoView({{block: 'center'}}); const b = e.getBoundingClientRect();"
            f"return [b.x + b.width / 2, b.y + b.height / 2]; }})(document.querySelector({json.dumps(selector)}))"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def press(self, key: str, times: int = 1) -> None:
        """A real key, to whatever has the focus."""
        facts = {"key": key, "code": key, "windowsVirtualKeyCode": _KEYS[key]}
        letter = {"type": "keyDown", "text": "\r"} if key == "Enter" else {"type": "rawKeyDown"}
        for _ in range(times):
            self.ask("Input.dispatchKeyEvent", **letter, **facts)
            self.ask("Input.dispatchKeyEvent", type="keyUp", **facts)

    def type(self, text: str) -> None:
        """Letters, to whatever has the focus."""
        self.ask("Input.insertText", text=text)

    def picture(self, path: Path, whole: bool = True) -> None:
        """What the page looks like, as a PNG file."""
        path.write_bytes(self.screenshot(self._whole() if whole else None))

    def screenshot(self, clip: dict[str, Any] | None) -> bytes:
        """A part of the page as a PNG; without one, what the window shows."""
        part = {} if clip is None else {"clip": clip}
        data = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=clip is not None, **part)
        return base64.b64decode(data["data"])

    def _whole(self) -> dict[str, Any]:
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
