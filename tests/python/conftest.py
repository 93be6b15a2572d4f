"""Fixtures for a small project in the default folders: videos named like the demo videos, features
and a run.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.factories import write_video

import byov
from byov.data.metaworld import list_clips

FPS = 10
VIDEOS_PER_VIEW = {"train": 2, "val": 1, "test": 1}
TINY = {"latent": 32, "depth": 1, "decoder_depth": 1, "heads": 4, "frames": 8, "epochs": 2}


def write_gradient(path: Path, frames: int, seed: int) -> None:
    """Write a video whose color changes over time, slightly differently for every seed."""
    time = np.linspace(0, 1, frames)
    start = np.random.default_rng(seed).uniform(0, 20)
    colors = np.stack([30 + start + 190 * time, 215 - 150 * time**2, 40 + 180 * time], axis=1)
    images = [np.tile(color, (48, 64, 1)) for color in colors.astype(np.uint8)]
    write_video(path, images, fps=FPS, options={"crf": "1"})


def write_demo_videos(root: Path) -> None:
    """Write short videos with the names of demo videos."""
    lines = ["path,view,split,id,events,phases"]
    for clip in list_clips(VIDEOS_PER_VIEW):
        frames = 12 if clip.view == "ego" else 14
        events = ";".join(f"{round(frames * fraction)}f" for fraction in (0.25, 0.5, 0.75))
        write_gradient(root / clip.path, frames, len(lines))
        lines.append(
            f"{clip.path},{clip.view},{clip.split},{clip.id},{events},reach;contact;move;done"
        )
    (root / "videos.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture(scope="session")
def shared_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Project with datasets/demo, features/demo (random/tiny) and runs/demo-byov, which tests must
    not change.
    """
    root = tmp_path_factory.mktemp("project")
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        write_demo_videos(root / "datasets/demo")
        byov.extract_features("demo", encoder="random/tiny")
        byov.train_run("demo-byov", **TINY)
    return root


@pytest.fixture
def project(shared_project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Writable copy of the project, as the working directory."""
    root = tmp_path / "project"
    shutil.copytree(shared_project, root)
    monkeypatch.chdir(root)
    return root
