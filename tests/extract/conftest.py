"""Fixtures for small real videos, and byov-extract called in this process."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tests.factories import write_noise_videos

from byov.cli.extract import main


@pytest.fixture
def byov_extract(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that calls byov-extract with its folders in tmp_path."""
    monkeypatch.setenv("BYOV_DATASETS", str(tmp_path / "datasets"))
    monkeypatch.setenv("BYOV_FEATURES", str(tmp_path / "features"))
    return lambda *arguments: call(main, "byov-extract", *arguments)


@pytest.fixture(scope="session")
def model_folder() -> Callable[..., Path]:
    """Return a function that saves a small CLIP vision model with random weights to a folder."""

    def save(folder: Path, seed: int = 0) -> Path:
        torch.manual_seed(seed)
        sizes = {
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
        config = transformers.CLIPVisionConfig(**sizes, image_size=32, patch_size=16)
        transformers.CLIPVisionModel(config).save_pretrained(folder)
        return folder

    return save


@pytest.fixture
def make_dataset(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes videos with `write_noise_videos` to tmp_path/videos."""
    return partial(write_noise_videos, tmp_path / "videos")
