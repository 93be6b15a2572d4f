"""A small project: videos under the demo's name, their features and a run, in the folders that are looked in first."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch

import byov
from byov.data.demo import DEFAULT_VIDEOS, PHASES
from byov.data.demo.write import list_videos

FPS = 10
NUMBERS = (0, 1, 12, 15)  # of the demo's videos of a view: two train, a val and a test video
TINY = {"latent": 32, "depth": 1, "decoder_depth": 1, "heads": 4, "frames": 8, "epochs": 2}


def write_video(path: Path, frames: int, seed: int) -> None:
    """One color a frame, along a way that differs a little from video to video."""
    share, start = np.linspace(0, 1, frames), np.random.default_rng(seed).uniform(0, 20)
    colors = np.stack([30 + start + 190 * share, 215 - 150 * share**2, 40 + 180 * share], axis=1)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "1"})
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.time_base = Fraction(1, FPS)
        for index, color in enumerate(colors.astype(np.uint8)):
            frame = av.VideoFrame.from_ndarray(np.tile(color, (48, 64, 1)), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, FPS)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def write_demo_videos(root: Path) -> None:
    """In the place of some of the rendered ones, which take longer, and by their names: fewer frames, all phases."""
    lines = ["path,view,split,id,events"]
    for video in list_videos(DEFAULT_VIDEOS):
        if video.number in NUMBERS:
            frames = 12 if video.view == "ego" else 14
            events = ";".join(f"{(index + 1) / len(PHASES) * frames / FPS:.3f}" for index in range(len(PHASES) - 1))
            (root / video.path).parent.mkdir(parents=True, exist_ok=True)
            write_video(root / video.path, frames, len(lines))
            lines.append(f"{video.path},{video.view},{video.split},{video.id},{events}")
    (root / "videos.csv").write_text("\n".join(lines) + "\n")


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """datasets/demo, features/demo through random/tiny, runs/demo-paper; only to look at."""
    root = tmp_path_factory.mktemp("project")
    torch.set_num_threads(1)
    with inside(root):
        write_demo_videos(root / "datasets/demo")
        byov.extract_features("demo", encoder="random/tiny")
        byov.train_run("demo-paper", **TINY)
    return root


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in which the test is."""
    root = tmp_path / "project"
    shutil.copytree(made, root)
    monkeypatch.chdir(root)
    return root


@pytest.fixture
def tiny() -> dict[str, Any]:
    """Settings of a training that takes no time."""
    return TINY


@pytest.fixture
def demo_videos() -> Callable[[Path], None]:
    return write_demo_videos


@pytest.fixture
def make_video() -> Callable[[Path, int, int], None]:
    return write_video
