"""Drive headless Chromium over its debugging pipe."""

import base64
import io
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

DEADLINE_SECONDS = 120
LEVELS = ("error", "warning")
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)
KEY_CODES = {" ": 32, "m": 77, "End": 35, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}


class Browser:
    """Headless Chromium.

    It reads NUL-terminated JSON messages from descriptor 3 and writes them to descriptor 4.
    """

    def __init__(self, program: str, folder: Path) -> None:
        from_us, self._to_browser = os.pipe()
        self._from_browser, to_us = os.pipe()
        # The shell maps our descriptors to the numbers that the browser expects.
        launch = f'exec "$@" 3</dev/fd/{from_us} 4>/dev/fd/{to_us}'
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", launch, "sh", program, *OPTIONS, f"--user-data-dir={folder}/profile"],
            env={**os.environ, "HOME": str(folder)},
            pass_fds=(from_us, to_us),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        os.close(from_us)
        os.close(to_us)
        self._buffer = b""
        self._last = 0
        self.events: list[dict[str, Any]] = []

    def send(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Call a method and return its result; events that arrive before the result are stored."""
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._to_browser, json.dumps(message).encode() + b"\0")
        answer = self._wait(lambda message: message.get("id") == self._last)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def wait_for(self, session: str, event: str, **parameters: str) -> dict[str, Any]:
        def wanted(message: dict[str, Any]) -> bool:
            this = message.get("sessionId") == session and message.get("method") == event
            return this and parameters.items() <= message["params"].items()

        seen = next((message for message in self.events if wanted(message)), None)
        return seen or self._wait(wanted)

    def _wait(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = time.monotonic() + DEADLINE_SECONDS
        while True:
            message = self._receive(deadline)
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                return message

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select(
                [self._from_browser], [], [], max(deadline - time.monotonic(), 0)
            )
            assert ready, "the browser does not respond"
            received = os.read(self._from_browser, 2**20)
            assert received, "the browser has exited"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        os.close(self._to_browser)
        os.close(self._from_browser)
        os.killpg(self._process.pid, 9)
        self._process.wait(DEADLINE_SECONDS)


class Tab:
    """Offline browser tab that shows a page and records its messages and requests."""

    def __init__(self, browser: Browser, path: Path) -> None:
        self._browser = browser
        self.target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=self.target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.send("Network.emulateNetworkConditions", offline=True, **speed)
        self.send("Page.setLifecycleEventsEnabled", enabled=True)
        self.url = path.as_uri()
        self.emulate()
        self.reload()

    def emulate(
        self, size: tuple[int, int] = (1280, 900), scheme: str = "light", *, motion: bool = False
    ) -> None:
        """Set the size of the window and the reader's preferences."""
        preferences = {
            "prefers-color-scheme": scheme,
            "prefers-reduced-motion": "no-preference" if motion else "reduce",
        }
        features = [{"name": name, "value": value} for name, value in preferences.items()]
        self.send("Emulation.setEmulatedMedia", features=features)
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)

    def reload(self, fragment: str = "") -> None:
        """Reload the page, optionally with a fragment in the address."""
        self.send("Page.navigate", url="about:blank")
        loader = self.send("Page.navigate", url=self.url + fragment)["loaderId"]
        # The load event of the empty page may still arrive, so wait for the event of this loader.
        self._browser.wait_for(self.session, "Page.lifecycleEvent", name="load", loaderId=loader)

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.send(method, self.session, **parameters)

    def events(self, method: str) -> list[dict[str, Any]]:
        return [
            message["params"]
            for message in self._browser.events
            if message.get("sessionId") == self.session and message["method"] == method
        ]

    def value(self, expression: str) -> Any:
        """Evaluate a JavaScript expression; promises are awaited."""
        answer = self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def settle(self) -> None:
        """Wait until all videos show their frame."""
        self.value("Promise.all(all('video').map(settled)).then(() => 0)")

    def press(self, key: str) -> None:
        for kind in ("rawKeyDown", "keyUp"):
            self.send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=KEY_CODES[key],
            )

    def mouse(self, kind: str, x: float, y: float) -> None:
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def click(self, selector: str) -> None:
        self.click_at(*self.center(selector))

    def click_at(self, x: float, y: float) -> None:
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def center(self, selector: str) -> tuple[float, float]:
        """Scroll an element into view and return its center."""
        element = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{element}.scrollIntoView({{block: 'center'}})")
        x, y = self.value(
            "(box => [box.x + box.width / 2, box.y + box.height / "
            f"2])({element}.getBoundingClientRect())"
        )
        return x, y

    def color(self, selector: str) -> tuple[int, ...]:
        """Return the color of the pixel at the center of an element."""
        self.settle()
        x, y = self.center(selector)
        png = self.send("Page.captureScreenshot")["data"]
        return (
            Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").getpixel((int(x), int(y)))
        )

    def messages(self) -> list[dict[str, Any]]:
        """Return the errors and warnings of the page."""
        logged = [
            event["entry"]
            for event in self.events("Log.entryAdded")
            if event["entry"]["level"] in LEVELS
        ]
        said = [
            event for event in self.events("Runtime.consoleAPICalled") if event["type"] in LEVELS
        ]
        return logged + said + self.events("Runtime.exceptionThrown")

    def requests(self) -> list[str]:
        urls = [event["request"]["url"] for event in self.events("Network.requestWillBeSent")]
        return [url for url in urls if not url.startswith(("data:", "blob:"))]

    def each(self, selector: str, expression: str) -> list[Any]:
        """Evaluate an expression with the variable `each` for all matching elements."""
        elements = f"[...document.querySelectorAll({json.dumps(selector)})]"
        return list(self.value(f"{elements}.map(each => {expression})"))

    def boxes(self, selector: str) -> list[dict[str, float]]:
        return self.each(selector, "each.getBoundingClientRect().toJSON()")

    def text(self, selector: str) -> str:
        return str(self.each(selector, "each.textContent")[0])

    def hidden(self, selector: str) -> bool:
        return bool(self.each(selector, "each.hidden")[0])

    def close(self) -> None:
        self._browser.send("Target.closeTarget", targetId=self.target)


def find_chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("BYOV_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
