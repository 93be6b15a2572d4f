"""Damage files and check that readers raise an error or return the same values as before.

`make chaos` damages many files and prints a table; tests/chaos/test_flips.py runs a subset. Seeds
are fixed, so files and damage are the same each time.
"""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from safetensors.torch import load_file
from tests import factories

from byov.cache.digests import check_weights, seal_json
from byov.cache.embeddings import read_embedding, write_embedding
from byov.cache.features import read_header
from byov.cache.hdf5 import read_array, read_columns
from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.cache.runs import read_config
from byov.data.video import FrameReader
from byov.errors import ByovError
from byov.train.checkpoint import (
    TrainingState,
    file_bytes,
    load_checkpoint,
    save_checkpoint,
    tensor_shapes,
)

FRAMES = 137
WIDTH = 24
HEAD = "| damage | tried | noticed | as before | silently wrong |\n|---|---|---|---|---|"
Reader = Callable[[Path], Any]


@dataclass
class Tally:
    """Counts of outcomes, one row of the table."""

    place: str
    tried: int = 0
    noticed: int = 0  # raised an error
    harmless: int = 0  # returned the same values: the damaged bytes are padding or never read
    wrong: int = 0  # returned other values without an error

    def add(self, read: Reader, path: Path, before: Any) -> None:
        self.tried += 1
        try:
            np.testing.assert_equal(read(path), before)
            self.harmless += 1
        except ByovError:
            self.noticed += 1
        except AssertionError:
            self.wrong += 1

    def line(self) -> str:
        return (
            f"| {self.place} | {self.tried:,} | {self.noticed:,} | {self.harmless:,} | "
            f"{self.wrong:,} |"
        )


def flip_bits(
    place: str, path: Path, read: Reader, count: int, positions: Sequence[int] = ()
) -> Tally:
    """Flip a random bit of an intact file and read the file, `count` times.

    Args:
        positions: Byte positions to choose from; empty to choose from all.
    """
    tally = Tally(place)
    chance = random.Random(place)
    intact = path.read_bytes()
    before = read(path)
    try:
        for _ in range(count):
            at = chance.choice(positions or range(len(intact)))
            path.write_bytes(
                intact[:at] + bytes([intact[at] ^ 1 << chance.randrange(8)]) + intact[at + 1 :]
            )
            tally.add(read, path, before)
    finally:
        path.write_bytes(intact)
    return tally


# --- one file of each kind, and its reader


def write_features(path: Path, seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    merged = {
        ratio: generator.normal(size=(FRAMES, WIDTH)).astype(np.float16) for ratio in (0.3, 1.0)
    }
    order = generator.permuted(
        np.tile(np.arange(factories.TOKENS, dtype=np.uint16), (FRAMES, 1)), axis=1
    )
    cls = generator.normal(size=(FRAMES, WIDTH)).astype(np.float16)
    return factories.write_features(path, merged, cls=cls, order=order, fps=29.97)


def read_features(path: Path) -> dict[str, Any]:
    return {"header": read_header(path)} | {
        name: read_array(path, name) for name in read_columns(path)
    }


def metadata_positions(path: Path) -> list[int]:
    """Return the positions of all bytes in an HDF5 file that are not part of a row."""
    is_row = np.zeros(path.stat().st_size, bool)
    with h5py.File(path, "r", locking=False) as file:
        for name in read_columns(path):
            for index in range(file[name].id.get_num_chunks()):
                chunk = file[name].id.get_chunk_info(index)
                is_row[chunk.byte_offset : chunk.byte_offset + chunk.size] = True
    return np.flatnonzero(~is_row).tolist()


def write_embeddings(path: Path, seed: int = 0) -> Path:
    values = np.random.default_rng(seed).normal(size=(FRAMES, WIDTH)).astype(np.float32)
    write_embedding(
        path, values, np.arange(FRAMES) / 30, factories.make_embedding_provenance(first_frame=3)
    )
    return path


def write_manifest(path: Path, dataset: str = "demo") -> Path:
    labels = tuple(factories.make_labels(40).tolist())
    videos = tuple(
        VideoEntry(f"pour {index}", view, "train", 40, 29.97, labels, None, f"p{index}")
        for index in range(6)
        for view in ("ego", "exo")
    )
    Manifest(dataset, factories.PHASES, (), videos).save(path)
    return path


IDENTITY = {"identity": "ab" * 32, "method": "byov", "seed": 0}


class Network(torch.nn.Linear):
    def training_state(self) -> dict[str, torch.Tensor]:
        return {}


def network() -> tuple[Network, torch.optim.Adam]:
    torch.manual_seed(0)
    model = Network(32, 16)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(32)).sum().backward()
    optimizer.step()
    return model, optimizer


def write_checkpoint(folder: Path, step: int = 7) -> Path:
    state = TrainingState(step=step, records=[{"epoch": 1, "loss": 0.25}])
    save_checkpoint(folder, *network(), state, metadata=IDENTITY)
    return folder / f"step-{step:09d}.safetensors"


def read_checkpoint(path: Path) -> dict[str, Any]:
    model, optimizer = network()
    state = load_checkpoint(path.parent, model, optimizer, metadata=IDENTITY)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for number, values in enumerate(optimizer.state.values()):
        tensors |= {f"{number} {key}": value.numpy() for key, value in values.items()}
    return tensors | {"state": state}


def read_model(path: Path) -> dict[str, Any]:
    """Read a model file as Method.from_pretrained does."""
    check_weights(path)
    tensor_shapes(path)
    return {name: tensor.numpy() for name, tensor in load_file(path).items()}


def config_content(seed: int = 0) -> bytes:
    training = {"dataset": "demo", "seed": seed, "column": "merged/0.3", "videos_sha256": "ab" * 32}
    return seal_json(
        {"width": 24, "settings": {"method": "byov", "lr": 1e-5}, "training": training}
    )


def rows(folder: Path, count: int) -> Iterator[Tally]:
    """Damage a file of each kind `count` times."""
    features = write_features(folder / "features.h5")
    yield flip_bits("feature file", features, read_features, count)
    yield flip_bits(
        "feature file, metadata", features, read_features, count, metadata_positions(features)
    )
    yield flip_bits("embeddings", write_embeddings(folder / "embeddings.h5"), read_embedding, count)
    checkpoint = write_checkpoint(folder / "checkpoint")
    header = range(8 + int.from_bytes(checkpoint.read_bytes()[:8], "little"))
    yield flip_bits("checkpoint", checkpoint, read_checkpoint, count)
    yield flip_bits("checkpoint, header", checkpoint, read_checkpoint, count, header)
    model = factories.write_file(
        folder / "model.safetensors", file_bytes(network()[0].state_dict(), IDENTITY | {"step": 7})
    )
    yield flip_bits("model", model, read_model, count)
    yield flip_bits("manifest.json", write_manifest(folder / "manifest.json"), load_manifest, count)
    config = factories.write_file(folder / "run" / "config.json", config_content())
    yield flip_bits("config.json", config, lambda path: read_config(path.parent), count)


# --- videos


CODECS = {
    "a.mp4": "libx264",
    "a.mkv": "libx264",
    "a.avi": "mpeg4",
    "a.webm": "libvpx-vp9",
    "a.ts": "libx264",
    "b.avi": "mjpeg",
    "a.mpg": "mpeg2video",
    "a.wmv": "wmv2",
    "a.ogv": "libvpx",
    "a.gif": "gif",
    "a.y4m": "wrapped_avframe",
    "a.mxf": "mpeg2video",
    "a.h264": "libx264",
    "a.hevc": "libx265",
    "a.flv": "flv",
    "a.ivf": "libvpx",
    "a.nut": "mpeg4",
    "a.mov": "mpeg4",
    "b.ts": "mpeg2video",
    "a.m1v": "mpeg1video",
}
CONTAINERS = {".mpg": "mpeg", ".ogv": "ogg"}  # for other suffixes, PyAV infers the container
PIXEL_FORMATS = {"gif": "rgb8", "mjpeg": "yuvj420p"}


def write_video(path: Path, codec: str = "libx264") -> Path:
    return factories.write_video(
        path,
        factories.moving_images(),
        codec=codec,
        container=CONTAINERS.get(path.suffix),
        fps=25,
        pix_fmt=PIXEL_FORMATS.get(codec, "yuv420p"),
        options={"x265-params": "log-level=none"} if codec == "libx265" else {},
    )


def read_video(path: Path) -> np.ndarray:
    return np.concatenate([block.pixels for block in FrameReader(path).blocks()])


def cut_video(path: Path, codec: str) -> Tally:
    """Truncate a video at each tenth of its size; losing frames without an error counts as
    wrong.
    """
    whole = write_video(path, codec).read_bytes()
    tally = Tally(path.name)
    frames = len(read_video(path))
    for tenth in range(1, 10):
        path.write_bytes(whole[: len(whole) * tenth // 10])
        tally.add(lambda path: len(read_video(path)), path, frames)
    return tally


def total(place: str, parts: Iterable[Tally]) -> Tally:
    """Sum the counts of several tallies."""
    counts = [(part.tried, part.noticed, part.harmless, part.wrong) for part in parts]
    return Tally(place, *map(sum, zip(*counts, strict=True)))
