"""Small caches, and Python processes of their own for what a test must not do to itself."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from tests import factories
from tests.factories import TOKENS

from byov.cache.features import Provenance, read_header
from byov.cache.hdf5 import read_array
from byov.cache.manifest import Manifest, VideoEntry

RATIOS = (0.3, 1.0)
WIDTH = 16


def _arrays(frames: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(frames)
    return {
        **{f"merged/{ratio}": random.normal(size=(frames, WIDTH)).astype(np.float16) for ratio in RATIOS},
        "cls": random.normal(size=(frames, WIDTH)).astype(np.float16),
        "order": random.permuted(np.tile(np.arange(TOKENS, dtype=np.uint16), (frames, 1)), axis=1),
        "pts_seconds": np.arange(frames) / 30,
    }


@pytest.fixture
def make_provenance() -> Callable[..., Provenance]:
    return factories.make_provenance


@pytest.fixture
def make_arrays() -> Callable[[int], dict[str, np.ndarray]]:
    """frames → column name → what write_features stores for that many frames."""
    return _arrays


@pytest.fixture
def write_features() -> Callable[..., Path]:
    """Write one sound feature file; keywords change its provenance."""

    def write(path: Path, frames: int = 70, **provenance: Any) -> Path:
        arrays = _arrays(frames)
        merged = {ratio: arrays[f"merged/{ratio}"] for ratio in RATIOS}
        return factories.write_features(path, merged, cls=arrays["cls"], order=arrays["order"], **provenance)

    return write


@pytest.fixture
def features_dir(tmp_path: Path, write_features: Callable[..., Path]) -> Path:
    """A sound cache: dataset demo, one encoder, ego/004 of 70 frames, ego/Küche 1 of 3, exo/004 of 64."""
    folder = tmp_path / "features" / "demo" / "openai--clip-vit-base-patch16"
    sizes = {("ego", "004"): 70, ("ego", "Küche 1"): 3, ("exo", "004"): 64}
    for (view, video), frames in sizes.items():
        write_features(folder / view / f"{video}.h5", frames)
    videos = tuple(
        VideoEntry(video, view, "train", frames, 30.0, (0,) * frames, None) for (view, video), frames in sizes.items()
    )
    Manifest("demo", ("reach", "pour"), (), videos).save(tmp_path / "features" / "demo" / "manifest.json")
    return tmp_path / "features"


@pytest.fixture
def encoder_folder(features_dir: Path) -> Path:
    return features_dir / "demo" / "openai--clip-vit-base-patch16"


@pytest.fixture
def set_text() -> Callable[[h5py.File, str, bytes], None]:
    """Store text as byov does, whatever it holds."""

    def store(item: h5py.File, name: str, text: bytes) -> None:
        item.attrs[name] = np.array(text, dtype=h5py.string_dtype("utf-8", max(len(text), 1)))

    return store


@pytest.fixture
def flip_data_byte() -> Callable[[Path, str], None]:
    """Flip one bit in the stored rows of a column."""

    def flip(path: Path, column: str) -> None:
        with h5py.File(path, "r", locking=False) as file:
            offset = file[column].id.get_chunk_info(0).byte_offset
        content = bytearray(path.read_bytes())
        content[offset + 5] ^= 0x10
        path.write_bytes(content)

    return flip


@pytest.fixture
def assert_sound() -> Callable[[Path, int], None]:
    """Hold that a file written by write_features reads back whole."""

    def check(path: Path, frames: int) -> None:
        assert read_header(path).frames == frames
        for name, expected in _arrays(frames).items():
            np.testing.assert_array_equal(read_array(path, name), expected)

    return check


@pytest.fixture
def byov_cache(tmp_path: Path, clean_environment: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the installed byov-cache."""
    command = Path(sys.executable).with_name("byov-cache")

    def run(*arguments: object, stdout: int = subprocess.PIPE, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(command), *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
            env=clean_environment | environment,
            cwd=tmp_path,
            check=False,
        )

    return run
