"""A real browser for tests, driven over a pipe: no port, no package."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from select import select

BROWSER = shutil.which("chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-default-apps",
    "--disable-extensions",
    "--remote-debugging-pipe",
]
# The browser reads commands from descriptor 3 and writes answers to 4.
LAUNCHER = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); "
    "os.execv(sys.argv[3], sys.argv[3:])"
)
PATIENCE = 60.0


class Browser:
    """Chromium on its debugging pipe: JSON, each message closed by a zero byte.

    A pipe needs no port and no package, and the browser exits when it closes.
    """

    def __init__(self, home):
        reads, self._out = os.pipe()
        self._in, writes = os.pipe()
        # Above 3 and 4, which the launcher overwrites.
        passed = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (reads, writes)]
        self._process = subprocess.Popen(  # noqa: S603
            [
                sys.executable,
                "-c",
                LAUNCHER,
                *map(str, passed),
                BROWSER,
                *FLAGS,
                f"--user-data-dir={home}",
                "about:blank",
            ],
            pass_fds=passed,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": str(home)},
        )
        for end in (reads, writes, *passed):
            os.close(end)
        self._rest, self._number = b"", 0
        self.events = []

    def call(self, method, session=None, **params):
        """Return the answer to one command; events that arrive meanwhile are kept."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, (method, answer.get("error"))
        return answer["result"]

    def _receive(self):
        until = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            ready, _, _ = select([self._in], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"no message from the browser for {PATIENCE:.0f} s"
            part = os.read(self._in, 1 << 20)
            assert part, f"the browser exited with code {self._process.wait(5)}"
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def close(self):
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    @contextmanager
    def page(self, path):
        """Open a file in a tab of its own."""
        self.events.clear()
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        tab = Tab(self, session)
        for part in ("Page", "Runtime", "Log", "Network"):
            tab.call(f"{part}.enable")
        try:
            tab.show()
            tab.call("Page.navigate", url=path.as_uri())
            tab.settle()
            yield tab
        finally:
            self.call("Target.closeTarget", targetId=target)


class Tab:
    """One open page and its events."""

    def __init__(self, browser, session):
        self.browser, self.session = browser, session

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def run(self, script):
        """Return the value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def show(self, *, width=1200, scheme="light", media="screen"):
        """Put the page on another screen, or on paper."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            mobile=width < 500,
            deviceScaleFactor=1,
        )
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def until(self, condition):
        """Wait for a condition in the page."""
        late = time.monotonic() + PATIENCE
        while not self.run(condition):
            assert time.monotonic() < late, condition
            time.sleep(0.02)

    def settle(self):
        """Wait until the page is loaded and two frames are painted."""
        self.until("document.readyState + location.protocol === 'completefile:'")
        self.run("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def heard(self, method):
        return [e["params"] for e in self.browser.events if e.get("method") == method]

    def faults(self):
        """Exceptions, and whatever the console shows."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for kind in kinds for event in self.heard(kind)]

    def requests(self):
        return [event["request"]["url"] for event in self.heard("Network.requestWillBeSent")]
