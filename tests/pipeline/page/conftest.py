"""A made-up report, and a browser that the tests talk to over its debugging pipe."""

import base64
import io
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from byov.evaluate.layout import Column
from byov.evaluate.table import Cell, Table
from byov.pipeline.report.content import (
    Content,
    Curve,
    Curves,
    Failures,
    FrameRef,
    Match,
    Projection,
    Sheet,
    ShownVideo,
    Similarity,
    Strip,
    TokenClip,
    Unavailable,
    WorstVideo,
)
from byov.pipeline.report.page.render import render

PHASES = ("reach for the bottle", "pour", "put it back")
FRAMES_PER_SECOND = 10
EVERY = 3  # of the frames on a sheet
TILE_PX = (64, 48)
COLUMNS = 4
HUES = {"ego/000": 40, "ego/001": 90, "exo/000": 150, "exo/001": 210}
PUBLISHED_NOTE = "as printed in the paper's Table 1"
DEADLINE_SECONDS = 20


def _tile_colour(hue: int, index: int, count: int) -> tuple[int, int, int]:
    return hue, 255 * index // count, 255 - hue


def _sheet(frames: int, hue: int) -> Sheet:
    """Tiles of one colour each, by which a test can tell them apart."""
    shown = tuple(range(0, frames, EVERY))
    width, height = TILE_PX
    rows = -(-len(shown) // COLUMNS)
    pixels = np.zeros((rows * height, COLUMNS * width, 3), np.uint8)
    for index in range(len(shown)):
        top, left = index // COLUMNS * height, index % COLUMNS * width
        pixels[top : top + height, left : left + width] = _tile_colour(hue, index, len(shown))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return Sheet(shown, width, height, COLUMNS, buffer.getvalue())


def _video(name: str, frames: int) -> ShownVideo:
    labels = tuple(len(PHASES) * frame // frames for frame in range(frames))
    pts_seconds = np.arange(frames) / FRAMES_PER_SECOND
    return ShownVideo(name, name.partition("/")[0], frames, pts_seconds, labels, _sheet(frames, HUES[name]))


def _table(title: str, columns: tuple[Column, ...]) -> Table:
    measured = (
        ("this run", tuple(Cell(f"{60 + index}.25", "", ("[50.00, 70.00]",)) for index in range(len(columns)))),
        ("untrained", tuple(Cell("n/a", "a") for _ in columns)),
    )
    published = (("BYOV", tuple(Cell("75.16") for _ in columns)),)
    marks = ("b", *("" for _ in columns[1:]))
    footnotes = (("a", "this run has no untrained model"), ("b", PUBLISHED_NOTE))
    return Table(title, columns, marks, measured, published, footnotes, ("intervals: 95% over videos",))


def _tables() -> tuple[Table, ...]:
    names = ("Regular", "Ego2Exo", "Exo2Ego")
    f1 = tuple(Column(f"classification/{name}", "Classification (F1)", name, "F1") for name in names)
    retrieval = tuple(Column(f"retrieval/map@10/{name}", "Retrieval (map@10)", name, "map@10") for name in names)
    tau = Column("kendalls_tau/all", "Kendall's tau", "all pairs", "tau", percent=False)
    return (
        _table("made-up, test split, standard protocol: Phase tasks", (*f1, *retrieval, tau)),
        _table("made-up, test split, standard protocol: Frame retrieval", retrieval),
    )


def _match(videos: tuple[ShownVideo, ...], asking: int, answering: int) -> Match:
    """The frame at the same share of the video."""
    asked, answers = videos[asking].sheet.frames, videos[answering].sheet.frames
    return Match(asking, answering, tuple(answers[index * len(answers) // len(asked)] for index in range(len(asked))))


def _projection(videos: tuple[ShownVideo, ...], rng: np.random.Generator) -> Projection:
    frames = tuple(FrameRef(index, frame) for index, video in enumerate(videos) for frame in video.sheet.frames)
    turns = np.array([6 * reference.frame / videos[reference.video].frames for reference in frames])
    spiral = np.stack([turns * np.cos(turns), turns * np.sin(turns)], axis=1)
    return Projection(
        frames, rng.normal(size=(len(frames), 2)), spiral + rng.normal(0, 0.2, spiral.shape), "merged/0.3"
    )


def _similarity(videos: tuple[ShownVideo, ...]) -> Similarity:
    down, across = (np.arange(videos[index].frames) / videos[index].frames for index in (0, 2))
    distances = np.abs(down[:, None] - across[None, :]).astype(np.float32)
    nearest = distances.argmin(axis=1)
    return Similarity(
        rows=0,
        row_frames=tuple(range(videos[0].frames)),
        columns=2,
        column_frames=tuple(range(videos[2].frames)),
        distances=distances,
        path=np.stack([np.arange(len(down)), nearest], axis=1),
        nearest=nearest,
        tau=0.875,
    )


@pytest.fixture(scope="session")
def content() -> Content:
    """Two ego and two exo videos; every part is there."""
    rng = np.random.default_rng(0)
    videos = tuple(map(_video, HUES, (60, 45, 51, 66)))
    epochs = tuple(range(1, 31))
    pictures = rng.integers(0, 255, (3, 4, 32, 32, 3), dtype=np.uint8)
    softmax = np.exp(-0.1 * np.abs(np.arange(45) - 20))
    pairs = ((0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1))
    return Content(
        run="made-up-0",
        dataset="made-up",
        facts=(("recipe", "paper"), ("frame encoder", "random/tiny"), ("ratio", "0.3"), ("parameters", "1.2 million")),
        split="test",
        phases=PHASES,
        videos=videos,
        tables=_tables(),
        curves=Curves(
            losses=(
                Curve("loss", epochs, tuple(6 / epoch for epoch in epochs)),
                Curve("cycle", epochs, tuple(0.1 / epoch for epoch in epochs)),
            ),
            validation=(Curve("retrieval", epochs[::5], tuple(0.4 + 0.01 * epoch for epoch in epochs[::5])),),
            kept_epoch=21,
        ),
        projection=_projection(videos, rng),
        strips=(
            Strip(FrameRef(0, 30), (FrameRef(2, 27), FrameRef(3, 6))),
            Strip(FrameRef(3, 60), (FrameRef(0, 57), FrameRef(1, 39))),
        ),
        tokens=(
            TokenClip(0, (0, 15, 30, 45), (0.1, 0.3, 1.0), pictures),
            TokenClip(2, (0, 12, 24, 36), (0.1, 0.3, 1.0), pictures[:, ::-1]),
        ),
        similarity=_similarity(videos),
        failures=Failures(
            worst=tuple(WorstVideo(video, tau, (0, 12, 24, 36)) for video, tau in ((1, 0.21), (2, 0.4), (0, 0.55))),
            reference=FrameRef(1, 20),
            similarity=softmax / softmax.sum(),
        ),
        matches=tuple(_match(videos, *pair) for pair in pairs),
        provenance=(("byov", "0.1.0"), ("model digest", "0123456789abcdef" * 4)),
    )


@pytest.fixture(scope="session")
def without(content: Content) -> Content:
    """The same with nothing to show: every part says why."""
    parts = ("tables", "curves", "projection", "strips", "tokens", "similarity", "failures", "matches")
    reasons = {part: Unavailable(f"there is no {part} because of reason <{part}>") for part in parts}
    videos = tuple(replace(video, labels=None, sheet=Unavailable("the video is gone")) for video in content.videos)
    return replace(content, phases=(), videos=videos, **reasons)


HOSTILE = "</script></style><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;&#60;b\x1b[31m\x00\u2028"


def _hostile(value: Any) -> Any:
    """Every text in a report made hostile, but those that name a view or a figure."""
    if isinstance(value, str):
        return f"{value}{HOSTILE}"
    if isinstance(value, tuple):
        return tuple(map(_hostile, value))
    if not is_dataclass(value):
        return value
    kept = ("view", "figure", "marks", "column_marks", "jpeg")
    names = [each.name for each in fields(value) if each.name not in kept]
    return replace(value, **{name: _hostile(getattr(value, name)) for name in names})


@pytest.fixture(scope="session")
def hostile_text() -> str:
    return HOSTILE


@pytest.fixture(scope="session")
def hostile(content: Content) -> Content:
    return _hostile(content)


class Browser:
    """Headless Chromium: JSON messages with a NUL behind each, to its descriptor 3 and from its descriptor 4."""

    def __init__(self, program: str, folder: Path) -> None:
        from_us, self._to_browser = os.pipe()
        self._from_browser, to_us = os.pipe()
        # A shell can give the pipes the numbers that the browser expects, whichever ours have.
        launch = f'exec "$@" 3</dev/fd/{from_us} 4>/dev/fd/{to_us}'
        options = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars")
        folders = f"--user-data-dir={folder / 'profile'}"
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", launch, "sh", program, *options, folders, "--remote-debugging-pipe", "about:blank"],
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
        """Ask, and wait for the answer; events that come before it are kept."""
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
            ready, _, _ = select.select([self._from_browser], [], [], max(deadline - time.monotonic(), 0))
            assert ready, "the browser does not answer"
            received = os.read(self._from_browser, 2**20)
            assert received, "the browser has ended"
            self._buffer += received
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def close(self) -> None:
        os.close(self._to_browser)
        os.close(self._from_browser)
        os.killpg(self._process.pid, 9)  # the group that was started for it
        self._process.wait(DEADLINE_SECONDS)


class Tab:
    """One page in the browser, offline, with all that it says and asks for."""

    def __init__(self, browser: Browser, path: Path, size: tuple[int, int], scheme: str, motion: str) -> None:
        self._browser = browser
        self.target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = browser.send("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        speed = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        self.send("Network.emulateNetworkConditions", offline=True, **speed)
        features = {"prefers-color-scheme": scheme, "prefers-reduced-motion": motion}
        self.send("Emulation.setEmulatedMedia", features=[{"name": k, "value": v} for k, v in features.items()])
        metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        self.url = path.as_uri()
        self.send("Page.setLifecycleEventsEnabled", enabled=True)
        self.reload()

    def reload(self) -> None:
        loader = self.send("Page.navigate", url=self.url)["loaderId"]
        # Not any load event: that of the empty page may still come.
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
        """Of a JavaScript expression; promises are waited for."""
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Escape": 27, "End": 35, "Home": 36, "ArrowLeft": 37, "ArrowRight": 39, "ArrowDown": 40}
        for kind in ("rawKeyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key])

    def mouse(self, kind: str, x: float, y: float) -> None:
        pressed = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def click(self, selector: str) -> None:
        x, y = self.centre(selector)
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            self.mouse(kind, x, y)

    def centre(self, selector: str) -> tuple[float, float]:
        """Where an element is in the window, once it was brought there."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.value(f"{found}.scrollIntoView({{block: 'center'}})")
        x, y = self.value(f"(box => [box.x + box.width / 2, box.y + box.height / 2])({found}.getBoundingClientRect())")
        return x, y

    def colour(self, selector: str) -> tuple[int, ...]:
        """As drawn in the middle of an element."""
        x, y = self.centre(selector)
        png = self.send("Page.captureScreenshot")["data"]
        return Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB").getpixel((int(x), int(y)))

    def close(self) -> None:
        self._browser.send("Target.closeTarget", targetId=self.target)


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome")
    return os.environ.get("BYOV_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    program = _chromium()
    if program is None:
        pytest.skip("needs chromium or google-chrome (or its path in BYOV_CHROMIUM)")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        started = Browser(program, Path(folder))
        yield started
        started.close()


@pytest.fixture(scope="session")
def tile_colour() -> Callable[[ShownVideo, int], tuple[int, int, int]]:
    """Of a frame on a made-up sheet."""
    return lambda video, frame: _tile_colour(HUES[video.name], video.sheet.frames.index(frame), len(video.sheet.frames))


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Tab]]:
    """Render a report and open it."""
    tabs = []

    def opened(content: Content, size: tuple[int, int] = (1280, 900), scheme: str = "light", motion: str = "") -> Tab:
        path = tmp_path / "report.html"
        path.write_text(render(content), encoding="utf-8")
        tabs.append(Tab(browser, path, size, scheme, motion))
        return tabs[-1]

    yield opened
    for tab in tabs:
        tab.close()
