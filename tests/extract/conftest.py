"""Fixtures for small real videos, and byov-extract called in this process."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tests import factories

from byov.cli.extract import main


@pytest.fixture
def byov_extract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls byov-extract with its folders in tmp_path."""
    monkeypatch.setenv("BYOV_DATASETS", str(tmp_path / "datasets"))
    monkeypatch.setenv("BYOV_FEATURES", str(tmp_path / "features"))
    return lambda *arguments: call(main, "byov-extract", *arguments)


def write_video(path: Path, frames: int, *, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    images = [random.integers(0, 256, (32, 48, 3))]
    for _ in range(frames - 1):
        images.append(np.clip(images[-1] + random.integers(-40, 41, images[-1].shape), 0, 255))
    return factories.write_video(path, [image.astype(np.uint8) for image in images], fps=15)


@pytest.fixture
def make_video() -> Callable[..., Path]:
    """Return a function that writes a video of changing noise."""
    return write_video


@pytest.fixture(scope="session")
def model_folder() -> Callable[..., Path]:
    """Return a function that saves a small CLIP vision model with random weights to a folder."""

    def save(folder: Path, seed: int = 0) -> Path:
        torch.manual_seed(seed)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = transformers.CLIPVisionConfig(**sizes, image_size=32, patch_size=16)
        transformers.CLIPVisionModel(config).save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes videos v0, v1, ... with the given frame counts, and a CSV that lists them."""

    def make(frames: Sequence[int], name: str = "mine") -> Path:
        root = tmp_path / "videos"
        lines = ["path,view,split"]
        for index, count in enumerate(frames):
            write_video(root / f"v{index}.mp4", count, seed=index)
            lines.append(f"v{index}.mp4,{('ego', 'exo')[index % 2]},train")
        table = root / f"{name}.csv"
        table.write_text("\n".join(lines) + "\n")
        return table

    return make
