"""Benchmark helpers: ratios of alternating measurements, and synthetic videos."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.factories import write_video

DISTINCT_FRAMES = 120


def compare(
    title: str,
    measure: Callable[[], float],
    measure_other: Callable[[], float],
    want: str,
    pairs: int,
    unit: str = "frames/s",
) -> None:
    """Alternate two measurements, so that changes in the machine's load affect both, and print
    their ratio.
    """
    measured = [(measure(), measure_other()) for _ in range(pairs)]
    ratios = sorted(one / other for one, other in measured)
    one, other = (median(column) for column in zip(*measured, strict=True))
    spread = f"{ratios[0]:.3g} to {ratios[-1]:.3g}"
    print(
        f"{title}: {one:.4g} / {other:.4g} {unit}: {median(ratios):.3g} ({spread}; want {want})",
        flush=True,
    )


def compare_times(
    title: str, work: Callable[[], Any], other_work: Callable[[], Any], want: str, pairs: int = 2
) -> None:
    """Print the ratio of the run times of two functions, after one warm-up call of each."""
    work(), other_work()
    compare(title, lambda: seconds(work), lambda: seconds(other_work), want, pairs, "s")


def seconds(work: Callable[[], Any]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def write_dataset(
    root: Path, splits: Sequence[str], frames: int, width: int = 640, height: int = 480
) -> Path:
    """Write one H.264 video per element of `splits`, alternating between ego and exo; return the
    path of their CSV.

    The videos show drifting textures with camera-like grain; frames repeat after DISTINCT_FRAMES.
    """
    table = root / "bench.csv"
    lines = ["path,view,split"]
    for seed, split in enumerate(splits):
        lines.append(f"v{seed:05d}.mp4,{('ego', 'exo')[seed % 2]},{split}")
        random = np.random.default_rng(seed)
        wall = np.full((height + DISTINCT_FRAMES, width + 2 * DISTINCT_FRAMES, 3), 128.0)
        for cell in (160, 40, 10, 3):
            coarse = random.normal(0, 22, (-(-wall.shape[0] // cell), -(-wall.shape[1] // cell), 3))
            wall += coarse.repeat(cell, axis=0).repeat(cell, axis=1)[
                : wall.shape[0], : wall.shape[1]
            ]
        views = (
            wall[at : at + height, 2 * at : 2 * at + width]
            for at in range(min(frames, DISTINCT_FRAMES))
        )
        images = [
            np.clip(view + random.normal(0, 6, (height, width, 1)), 0, 255).astype(np.uint8)
            for view in views
        ]
        repeated = (images * -(-frames // len(images)))[:frames]
        write_video(
            root / f"v{seed:05d}.mp4", repeated, fps=30, options={"preset": "veryfast", "crf": "24"}
        )
    table.write_text("\n".join(lines) + "\n")
    return table
