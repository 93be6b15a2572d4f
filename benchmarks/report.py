"""Time and size of a report, and the speed of its page in a browser.

python benchmarks/report.py    about four minutes on two cores; the page needs chromium or google-chrome
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.factories import write_video
from tests.report.browser import Browser, Tab, find_chromium

VIDEOS = {"train": 16, "val": 8, "test": 60}  # half of them ego
FRAMES, WIDTH, HEIGHT, FPS = 120, 320, 240, 30
RUNS = ("first", "second")
MAX_SECONDS, MAX_MB, MAX_PAINT_MS, MAX_ACTION_MS = 120, 15, 1000, 100
REPEATS = 5

CHOOSE = (
    "(s => {{ s.selectedIndex = (s.selectedIndex + {step}) % s.length; s.dispatchEvent(new Event('change')); }})"
    "(document.getElementById('{id}'))"
)
HOVER = (
    "(c => {{ const b = c.getBoundingClientRect(), at = {{clientX: b.left + b.width * Math.random(), "
    "clientY: b.top + b.height * Math.random(), bubbles: true}}; "
    "c.dispatchEvent(new PointerEvent('pointermove', at)); }})(document.querySelector('{selector}'))"
)
ACTIONS = {
    "slider step": "(s => { s.value = (Number(s.value) + 1) % 50; s.dispatchEvent(new Event('input')); })"
    "(document.getElementById('scrub'))",
    "other pair": CHOOSE.format(step=7, id="choose-other"),
    "other video": CHOOSE.format(step=11, id="choose-video"),
    "warp path": CHOOSE.format(step=1, id="choose-mode"),
    "hover over a map": HOVER.format(selector=".cloud"),
    "hover over a cell": HOVER.format(selector=".cells"),
    "coloring": CHOOSE.format(step=1, id="color-by"),
    "mark": "document.getElementById('mark').click()",
}


def write_dataset(root: Path) -> Path:
    """Write textured videos in three phases, and their CSV."""
    random = np.random.default_rng(0)
    lines = ["path,view,split,events"]
    for split, count in VIDEOS.items():
        for index in range(count):
            view = ("ego", "exo")[index % 2]
            name = f"{split}_{view}_{index:02d}.mp4"
            write_video(root / name, drifting_texture(random), fps=FPS, options={"preset": "veryfast", "crf": "22"})
            first, second = sorted(random.uniform(0.2, 0.8, 2) * FRAMES / FPS)
            lines.append(f"{name},{view},{split},{first:.3f};{second:.3f}")
    table = root / "bench.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def drifting_texture(random: np.random.Generator) -> list[np.ndarray]:
    wall = np.full((HEIGHT + FRAMES, WIDTH + 2 * FRAMES, 3), 128.0)
    for cell in (160, 40, 10, 3):
        coarse = random.normal(0, 22, (-(-wall.shape[0] // cell), -(-wall.shape[1] // cell), 3))
        wall += coarse.repeat(cell, axis=0).repeat(cell, axis=1)[: wall.shape[0], : wall.shape[1]]
    views = (wall[frame : frame + HEIGHT, 2 * frame : 2 * frame + WIDTH] for frame in range(FRAMES))
    return [np.clip(view + random.normal(0, 6, (HEIGHT, WIDTH, 1)), 0, 255).astype(np.uint8) for view in views]


def run(command: str, *arguments: object) -> str:
    """Run an installed command and return its standard output."""
    path = Path(sys.executable).with_name(command)
    done = subprocess.run([str(path), *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def make_report(root: Path) -> Path:
    folders = ("--features-dir", root / "features", "--runs-dir", root / "runs")
    run("byov-extract", "--manifest", write_dataset(root), "--encoder", "random/tiny", *folders[:2])
    small = ("--latent", 256, "--depth", 1, "--decoder-depth", 1, "--heads", 4, "--epochs", 5)
    for seed, name in enumerate(RUNS):
        run("byov-train", "--run", name, "--seed", seed, *small, *folders)
    started = time.perf_counter()
    summary = json.loads(run("byov-report", "--run", RUNS[0], "--compare", RUNS[1], "--json", *folders))
    seconds = time.perf_counter() - started
    print(
        f"report of {VIDEOS['test']} videos of {FRAMES} frames, {len(RUNS)} runs: {seconds:.1f} s (limit {MAX_SECONDS})"
        f", {summary['bytes'] / 1e6:.1f} MB (limit {MAX_MB}); missing: {summary['missing'] or 'nothing'}"
    )
    return Path(summary["report"])


def measure_page(browser: Browser, page: Path, width: int) -> None:
    paints = []
    for repeat in range(REPEATS):
        tab = Tab(browser, page, size=(width, 900))
        paints.append(tab.value("performance.getEntriesByName('first-contentful-paint')[0].startTime"))
        if repeat < REPEATS - 1:
            tab.close()
    print(f"{width} px: first paint {summarize(paints)} (limit {MAX_PAINT_MS})")
    painted = "new Promise(done => requestAnimationFrame(() => setTimeout(done)))"
    for name, action in ACTIONS.items():
        timed = (
            f"(async start => {{ {action}; await {painted}; return performance.now() - start; }})(performance.now())"
        )
        print(f"  {name}: {summarize([tab.value(timed) for _ in range(REPEATS)])} (limit {MAX_ACTION_MS})")
    print(f"  browser messages: {tab.messages() or 'none'}")
    tab.close()


def summarize(milliseconds: list[float]) -> str:
    return f"{median(milliseconds):.0f} ms ({min(milliseconds):.0f} to {max(milliseconds):.0f})"


def main(root: Path) -> None:
    page = make_report(root)
    program = find_chromium()
    if program is None:
        sys.exit("needs chromium or google-chrome (or its path in BYOV_CHROMIUM)")
    browser = Browser(program, root)
    for width in (1280, 390):
        measure_page(browser, page, width)
    browser.close()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        main(Path(folder))
