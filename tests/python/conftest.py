"""A small project in the default folders: videos under the names of the demo set, their features and a run."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import write_video

import byov
from byov.data.demo import DEFAULT_VIDEOS, PHASES
from byov.data.demo.write import list_videos

FPS = 10
NUMBERS = (0, 1, 12, 15)  # per view: two train videos, one val and one test video
TINY = {"latent": 32, "depth": 1, "decoder_depth": 1, "heads": 4, "frames": 8, "epochs": 2}


def write_gradient(path: Path, frames: int, seed: int) -> None:
    """Write a video whose color changes over time, a little differently for every seed."""
    time, start = np.linspace(0, 1, frames), np.random.default_rng(seed).uniform(0, 20)
    colors = np.stack([30 + start + 190 * time, 215 - 150 * time**2, 40 + 180 * time], axis=1)
    images = [np.tile(color, (48, 64, 1)) for color in colors.astype(np.uint8)]
    write_video(path, images, fps=FPS, options={"crf": "1"})


def write_demo_videos(root: Path) -> None:
    """Write short videos in place of some of the rendered ones, which take longer."""
    lines = ["path,view,split,id,events"]
    for video in list_videos(DEFAULT_VIDEOS):
        if video.number in NUMBERS:
            frames = 12 if video.view == "ego" else 14
            events = ";".join(f"{(index + 1) / len(PHASES) * frames / FPS:.3f}" for index in range(len(PHASES) - 1))
            write_gradient(root / video.path, frames, len(lines))
            lines.append(f"{video.path},{video.view},{video.split},{video.id},{events}")
    (root / "videos.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """datasets/demo, features/demo with random/tiny, and runs/demo-paper-r0.3-s0; read-only."""
    root = tmp_path_factory.mktemp("project")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        write_demo_videos(root / "datasets/demo")
        byov.extract_features("demo", encoder="random/tiny")
        byov.train_run(**TINY)
    return root


@pytest.fixture
def project(shared_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, as the current folder."""
    root = tmp_path / "project"
    shutil.copytree(shared_project, root)
    monkeypatch.chdir(root)
    return root
