"""The page of a large report in a browser: 60 videos of 300 frames, embeddings of width 256, two runs side by side.

python benchmarks/report_page.py    about two minutes on two cores; needs chromium or google-chrome
"""

import importlib.util
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from PIL import Image

from byov.report.content import (
    Content,
    FrameRef,
    PointMap,
    Projection,
    RunVectors,
    ShownVideo,
    Strip,
    Unavailable,
)
from byov.report.page.html_page import render
from byov.report.projection import choose_frames
from byov.report.room import divide, moments
from byov.report.sheets import Tiles, make_sheets

VIDEOS, FRAMES, WIDTH, RUNS = 60, 300, 256, 2
SIZE = (240, 180)  # of the pictures before the page makes them smaller
PAGE_MB = 15
MOST_PAINT_MS, MOST_ACTION_MS = 1000, 100
REPEATS = 5

CHOOSE = (
    "(s => {{ s.selectedIndex = (s.selectedIndex + {step}) % {of}; s.dispatchEvent(new Event('change')); }})({found})"
)
POINT = (
    "(c => {{ const b = c.getBoundingClientRect(), at = {{clientX: b.left + b.width * Math.random(), "
    "clientY: b.top + b.height * Math.random(), bubbles: true}}; "
    "c.dispatchEvent(new PointerEvent('pointermove', at)); }})({found})"
)
ACTIONS = {
    "one step of the slider": "(s => { s.value = (Number(s.value) + 1) % 50; s.dispatchEvent(new Event('input')); })"
    "(document.getElementById('scrub'))",
    "another pair of videos": CHOOSE.format(step=7, of=VIDEOS, found="document.getElementById('choose-other')"),
    "another video": CHOOSE.format(step=11, of=VIDEOS, found="document.getElementById('choose-video')"),
    "along the warp path": CHOOSE.format(step=1, of=2, found="document.getElementById('choose-way')"),
    "pointing at a map": POINT.format(found="document.querySelector('.cloud')"),
    "pointing at a cell": POINT.format(found="document.querySelector('.cells')"),
    "another coloring": CHOOSE.format(step=1, of=4, found="document.getElementById('color-by')"),
    "a mark": "document.getElementById('mark').click()",
}


def make_content() -> Content:
    """Textures that drift, embeddings that follow the video with noise."""
    random = np.random.default_rng(0)
    room = divide([FRAMES] * VIDEOS, WIDTH, RUNS, PAGE_MB * 1_000_000)
    known = moments(FRAMES, room)
    tiles = [Tiles(known, _pictures(random, len(known))) for _ in range(VIDEOS)]
    sheets = make_sheets(tiles, room.picture_bytes)
    seconds = np.arange(FRAMES) / 30
    labels = tuple(3 * frame // FRAMES for frame in range(FRAMES))
    videos = tuple(
        ShownVideo(f"{view}/{index:03d}", view, FRAMES, seconds, labels, known, 0.5, sheet)
        for index, sheet in enumerate(sheets)
        for view in (("ego", "exo")[index % 2],)
    )
    frames = tuple(FrameRef(video, frame) for video, chosen in choose_frames([known] * VIDEOS) for frame in chosen)
    maps = tuple(PointMap(title, random.normal(size=(len(frames), 2))) for title in ("Frozen", "Untrained", "Trained"))
    gone = Unavailable("not part of this measurement")
    return Content(
        run="bench",
        dataset="bench",
        facts=(),
        split="test",
        phases=("before", "during", "after"),
        videos=videos,
        tables=gone,
        own_rows=(),
        curves=gone,
        projection=Projection(frames, maps, VIDEOS * FRAMES),
        strips=(Strip(FrameRef(0, known[3]), (FrameRef(1, known[4]), FrameRef(3, known[5]))),),
        tokens=gone,
        similarity=gone,
        failures=gone,
        vectors=tuple(
            RunVectors(f"run {run}", tuple(_walk(random, len(known)) for _ in videos)) for run in range(RUNS)
        ),
        listing=(),
        provenance=(),
    )


def _pictures(random: np.random.Generator, count: int) -> np.ndarray:
    """(count, height, width, 3) of a wall with detail of all sizes, that drifts."""
    width, height = SIZE
    wall = np.full((height + count, width + 2 * count, 3), 128.0)
    for cell in (80, 20, 6):
        coarse = random.normal(0, 24, (-(-wall.shape[0] // cell), -(-wall.shape[1] // cell), 3))
        wall += coarse.repeat(cell, axis=0).repeat(cell, axis=1)[: wall.shape[0], : wall.shape[1]]
    noisy = np.clip(wall + random.normal(0, 5, wall.shape), 0, 255).astype(np.uint8)
    smooth = np.asarray(Image.fromarray(noisy))
    return np.stack([smooth[at : at + height, 2 * at : 2 * at + width] for at in range(count)])


def _walk(random: np.random.Generator, count: int) -> np.ndarray:
    progress = np.linspace(0, 1, count)[:, None] ** random.uniform(0.5, 2)
    return (np.cos(progress * np.arange(1, WIDTH + 1) / 40) + random.normal(0, 0.1, (count, WIDTH))).astype(np.float32)


def driver() -> Any:
    """The browser of the tests."""
    path = Path(__file__).parents[1] / "tests" / "report" / "conftest.py"
    spec = importlib.util.spec_from_file_location("report_browser", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(folder: Path) -> None:
    tests = driver()
    program = tests._chromium()
    if program is None:
        sys.exit("needs chromium or google-chrome (or its path in BYOV_CHROMIUM)")
    page = folder / "report.html"
    page.write_text(render(make_content()), encoding="utf-8")
    print(f"{VIDEOS} videos of {FRAMES} frames, {RUNS} runs: {page.stat().st_size / 1e6:.1f} MB (want < {PAGE_MB})")
    browser = tests.Browser(program, folder)
    for width in (1280, 390):
        paints = []
        for _ in range(REPEATS):
            tab = tests.Tab(browser, page, (width, 900), "light", "")
            paints.append(tab.value("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
            if len(paints) < REPEATS:
                tab.close()
        print(f"{width} px: first paint {median(paints):.0f} ms ({_range(paints)}; want < {MOST_PAINT_MS})")
        for name, action in ACTIONS.items():
            taken = [tab.value(_timed(action)) for _ in range(REPEATS)]
            print(f"  {name}: {median(taken):.0f} ms ({_range(taken)}; want < {MOST_ACTION_MS})")
        print(f"  messages of the browser: {tab.messages() or 'none'}")
        tab.close()
    browser.close()


def _range(milliseconds: list[float]) -> str:
    return f"{min(milliseconds):.0f} to {max(milliseconds):.0f} in {len(milliseconds)}"


def _timed(action: str) -> str:
    """Milliseconds from an action to the frame that shows it."""
    painted = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
    return f"(async start => {{ {action}; await {painted}; return performance.now() - start; }})(performance.now())"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        main(Path(scratch))
