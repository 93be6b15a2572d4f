"""Fixtures: a small cache, and the byov-cache command."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import factories
from tests.factories import CLIP, TOKENS

from byov.cache.manifest import Manifest, VideoEntry
from byov.cli.cache import main

RATIOS = (0.3, 1.0)
WIDTH = 16
VIDEOS = {("ego", "004"): 70, ("ego", "Küche 1"): 3, ("exo", "004"): 64}


def make_arrays(frames: int) -> dict[str, np.ndarray]:
    """Create the columns of a feature file."""
    random = np.random.default_rng(frames)
    return {
        **{
            f"merged/{ratio}": random.normal(size=(frames, WIDTH)).astype(np.float16)
            for ratio in RATIOS
        },
        "cls": random.normal(size=(frames, WIDTH)).astype(np.float16),
        "order": random.permuted(np.tile(np.arange(TOKENS, dtype=np.uint16), (frames, 1)), axis=1),
        "pts_seconds": np.arange(frames) / 30,
    }


@pytest.fixture
def write_features() -> Callable[..., Path]:
    """Return a function that writes one feature file."""

    def write(path: Path, frames: int = 70, **provenance: Any) -> Path:
        arrays = make_arrays(frames)
        merged = {ratio: arrays[f"merged/{ratio}"] for ratio in RATIOS}
        return factories.write_features(
            path, merged, cls=arrays["cls"], order=arrays["order"], **provenance
        )

    return write


@pytest.fixture
def features_dir(tmp_path: Path, write_features: Callable[..., Path]) -> Path:
    """Feature cache with the demo dataset, one encoder and the videos in VIDEOS."""
    entries = []
    for (view, video), frames in VIDEOS.items():
        write_features(
            tmp_path / "features" / "demo" / CLIP.replace("/", "--") / view / f"{video}.h5", frames
        )
        entries.append(
            VideoEntry(
                video,
                view,
                "train",
                frames,
                30.0,
                (0,) * frames,
                None,
                source_sha256=factories.SOURCE_SHA256,
            )
        )
    Manifest("demo", ("reach", "pour"), (), tuple(entries)).save(
        tmp_path / "features" / "demo" / "manifest.json"
    )
    return tmp_path / "features"


@pytest.fixture
def encoder_folder(features_dir: Path) -> Path:
    return features_dir / "demo" / CLIP.replace("/", "--")


@pytest.fixture
def byov_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Callable[..., Any]
) -> Callable[..., Any]:
    """Return a function that runs byov-cache in this process, with tmp_path as the working
    directory.
    """
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: call(main, "byov-cache", *arguments)
