"""Time and size of a report: 40 videos of 100 frames, 640x480.

python benchmarks/report.py    about two minutes on two cores, most of them to make the videos and a run
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import av
import numpy as np

VIDEOS = {"train": 16, "val": 8, "test": 16}  # half of them ego
FRAMES, WIDTH, HEIGHT, FPS = 100, 640, 480, 30
MOST_SECONDS, MOST_MB = 60, 15


def write_dataset(root: Path) -> Path:
    """Videos with texture, motion and the grain of a camera, in three phases; returns their CSV."""
    random = np.random.default_rng(0)
    lines = ["path,view,split,events"]
    for split, count in VIDEOS.items():
        for index in range(count):
            view = ("ego", "exo")[index % 2]
            name = f"{split}_{view}_{index:02d}.mp4"
            write_video(root / name, random)
            first, second = sorted(random.uniform(0.2, 0.8, 2) * FRAMES / FPS)
            lines.append(f"{name},{view},{split},{first:.3f};{second:.3f}")
    table = root / "bench.csv"
    table.write_text("\n".join(lines) + "\n")
    return table


def write_video(path: Path, random: np.random.Generator) -> None:
    """A patterned wall that drifts, and before it a patterned square that moves across."""
    wall, square = _texture(random, 2 * HEIGHT, 2 * WIDTH), _texture(random, HEIGHT // 3, HEIGHT // 3)
    grain = random.normal(0, 6, (2 * HEIGHT, 2 * WIDTH, 1))
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"preset": "veryfast", "crf": "22"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for frame in range(FRAMES):
            image = wall[frame : frame + HEIGHT, 2 * frame : 2 * frame + WIDTH].copy()
            top, left = HEIGHT // 3, (WIDTH - len(square)) * frame // FRAMES
            image[top : top + len(square), left : left + len(square)] = square
            down, across = random.integers(HEIGHT), random.integers(WIDTH)
            noisy = np.clip(image + grain[down : down + HEIGHT, across : across + WIDTH], 0, 255).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noisy, format="rgb24")))
        container.mux(stream.encode(None))


def _texture(random: np.random.Generator, height: int, width: int) -> np.ndarray:
    """(height, width, 3) colors with detail of all sizes."""
    image = np.full((height, width, 3), 128.0)
    for cell in (160, 40, 10, 3):
        coarse = random.normal(0, 22, (-(-height // cell), -(-width // cell), 3))
        image += coarse.repeat(cell, axis=0).repeat(cell, axis=1)[:height, :width]
    return image


def run(command: str, *arguments: object) -> str:
    """An installed command to its end → its standard output."""
    path = Path(sys.executable).with_name(command)
    done = subprocess.run([str(path), *map(str, arguments)], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def main(root: Path) -> None:
    where = ("--features-dir", root / "features", "--runs-dir", root / "runs")
    table = write_dataset(root)
    run("byov-extract", "--manifest", table, "--encoder", "random/tiny", *where[:2])
    small = ("--latent", 64, "--depth", 2, "--decoder-depth", 1, "--heads", 4, "--epochs", 20, "--lr", 1e-3)
    run("byov-train", "--run", "bench", *small, *where)
    started = time.perf_counter()
    summary = json.loads(run("byov-report", "--run", "bench", "--json", *where))
    seconds, megabytes = time.perf_counter() - started, summary["bytes"] / 1e6
    videos = sum(VIDEOS.values())
    print(
        f"report of {videos} videos of {FRAMES} frames: {seconds:.1f} s (want < {MOST_SECONDS}), "
        f"{megabytes:.1f} MB (want < {MOST_MB}); missing: {summary['missing'] or 'nothing'}"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
