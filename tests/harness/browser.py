"""A real browser: Debian's Chromium without a window, spoken to over two pipes in its own protocol.

Guarantees: its profile is below one directory, it asks no host but those that a test names, and ends with the `with`
block. A test that needs it and does not find it is skipped by name.
Leaves to others: what is shown.
"""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import PATIENCE_S, wait_until

OPTIONS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run",
    "--no-default-browser-check", "--disable-extensions", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--disable-default-apps", "--metrics-recording-only", "--force-color-profile=srgb",
    "--disable-features=Translate,OptimizationHints,MediaRouter", "--remote-debugging-pipe", "--mute-audio",
)  # fmt: skip


AT_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(one), fcntl.F_DUPFD, 10) for one in sys.argv[1:3]]
for place, end in zip((3, 4), ends):
    os.dup2(end, place, True)
os.execv(sys.argv[3], sys.argv[3:])
"""
"""The program reads at 3 and writes at 4."""


def needs_browser() -> str:
    """The program; skips where there is none."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip("Debian's package chromium is not installed")
    return found


class Browser:
    """One page of it."""

    def __init__(self, profile: Path) -> None:
        ours, self._writes = os.pipe()
        self._reads, theirs = os.pipe()
        command = [sys.executable, "-c", AT_3_AND_4, str(ours), str(theirs), needs_browser(), *OPTIONS]
        self._process = subprocess.Popen(
            [*command, f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(ours, theirs),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(profile)},
        )
        os.close(ours)
        os.close(theirs)
        self._next = 0
        self._data = b""
        self.events: list[dict[str, Any]] = []
        self._session = ""
        wait_until(self._page, what="the browser has a page")
        for domain in ("Page", "Runtime", "Network", "Log", "Performance", "HeapProfiler"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # else nobody may copy on a page without a window

    def _page(self) -> str:
        pages = [one for one in self.call("Target.getTargets")["targetInfos"] if one["type"] == "page"]
        if pages:
            found = self.call("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)
            self._session = str(found["sessionId"])
        return self._session

    def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of its protocol; AssertionError with what it says where it refuses."""
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE_S
        while True:
            found = self._message(deadline)
            if found.get("id") == self._next:
                assert "error" not in found, (method, found)
                return found["result"]
            self.events.append(found)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._data:
            assert time.monotonic() < deadline, "the browser does not answer"
            if select.select([self._reads], [], [], 0.5)[0]:
                more = os.read(self._reads, 1 << 20)
                assert more, "the browser has ended"
                self._data += more
        message, _, self._data = self._data.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def look(self) -> list[dict[str, Any]]:
        """All that has happened up to now."""
        self.call("Runtime.evaluate", expression="0")
        return self.events

    def open(self, url: str) -> None:
        """Go to a page."""
        assert "errorText" not in self.call("Page.navigate", url=url), url

    def run(self, script: str) -> Any:
        """The value of an expression on the page."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def waits_for(self, script: str, *, what: str = "", timeout_s: float = PATIENCE_S) -> None:
        """Until an expression is true on the page; while what it asks for is not there, it is not."""
        asked = f"(() => {{ try {{ return Boolean({script}); }} catch {{ return false; }} }})()"
        wait_until(lambda: self.run(asked), what=what or script, timeout_s=timeout_s)

    def window(self, width: int, height: int, *, is_dark: bool = False, is_phone: bool = False) -> None:
        """How large it is, and which colours are wanted."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )
        scheme = "dark" if is_dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """A key, down and up."""
        for kind in ("keyDown", "keyUp"):
            more = {"text": text} if text and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more)

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """The page as a PNG."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._writes)
        os.close(self._reads)


@contextmanager
def browser(directory: Path) -> Iterator[Browser]:
    """A browser with a fresh profile below `directory`."""
    needs_browser()
    made = Browser(directory / "profile")
    try:
        yield made
    finally:
        made.close()
