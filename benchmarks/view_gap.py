"""A cache of made-up features in which the view matters more than the action: a test bed for objectives.

python benchmarks/view_gap.py features-toy
byov-train --features-dir features-toy --recipe cycle ...

Each video goes through the same action at its own pace, with a pause. A frame's feature is a smooth curve of the
action's progress, turned and moved by the view (a strong gap), moved by the video (a weak one), and noisy. Within a
view, frames of one phase are alike; across views nothing is, until something aligns them.
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from byov.cache.features import FeatureWriter, Provenance
from byov.cache.layout import video_path
from byov.cache.manifest import Manifest, VideoEntry

WIDTH, WAVES = 32, 6
PHASE_STARTS = (0.3, 0.55, 0.8)  # of the action's progress; the first phase starts at 0
VIDEOS = {"train": 12, "val": 5, "test": 5}  # of each view


def write_toy(features: Path, seed: int = 0) -> None:
    """The dataset "toy" with its one encoder, at ratio 0.3."""
    random = np.random.default_rng(seed)
    turns = {view: np.linalg.qr(random.normal(size=(WIDTH, 2 * WAVES)))[0] for view in ("ego", "exo")}
    gaps = {view: 2 * random.normal(size=WIDTH) for view in ("ego", "exo")}
    entries = []
    for split, count in VIDEOS.items():
        for view in ("ego", "exo"):
            for number in range(count):
                progress = draw_progress(random)
                moved = gaps[view] + random.normal(size=WIDTH)
                noise = 0.5 * random.normal(size=(len(progress), WIDTH))
                name = f"{split}_{view}_{number}"
                write_video(features, view, name, 2 * curve(progress) @ turns[view].T + moved + noise)
                labels = tuple(int(phase) for phase in np.digitize(progress, PHASE_STARTS))
                entries.append(VideoEntry(name, view, split, len(progress), 30.0, labels, None))
    phases = tuple(f"phase {number}" for number in range(len(PHASE_STARTS) + 1))
    Manifest("toy", phases, (), tuple(entries)).save(features / "toy" / "manifest.json")


def draw_progress(random: np.random.Generator) -> NDArray[np.float64]:
    """(T,) from about 0 to 1, at an uneven pace with one long pause."""
    frames = int(random.integers(60, 150))
    pace = random.gamma(0.4, size=frames) + 0.02
    pause = int(random.integers(frames - 20))
    pace[pause : pause + int(random.integers(5, 20))] *= 0.02
    return np.cumsum(pace) / pace.sum()


def curve(progress: NDArray[np.float64]) -> NDArray[np.float64]:
    """(T, 2 WAVES): cosines and sines of rising frequency."""
    angles = progress[:, None] * np.arange(1, WAVES + 1) * 0.75 * np.pi
    return np.concatenate([np.cos(angles), np.sin(angles)], axis=1)


def write_video(features: Path, view: str, name: str, values: NDArray[np.float64]) -> None:
    writer = FeatureWriter(
        video_path(features / "toy" / "toy", view, name), [0.3], tokens=1, width=WIDTH, has_cls=False
    )
    order, times = np.zeros((len(values), 1), np.uint16), np.arange(len(values)) / 30
    writer.append({0.3: values.astype(np.float16)}, order, None, times)
    made_up = Provenance("toy", "", "", "none", "float64", "none", name, 0, "", "")
    writer.finish(made_up, fps=30.0, truncated=False)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("which folder? python benchmarks/view_gap.py features-toy")
    write_toy(Path(sys.argv[1]))
