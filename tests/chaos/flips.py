"""Damaged files: a reader must raise an error or return what it returned before.

`make chaos` tries thousands of damages and prints a table; tests/chaos/test_flips.py tries some of them. Seeds are
fixed, so files and damages are the same each time.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from tests import factories

from byov.cache.digests import seal_json
from byov.cache.embeddings import read_embedding, write_embedding
from byov.cache.features import read_header
from byov.cache.hdf5 import read_array, read_columns
from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.cache.runs import read_config
from byov.data.video import FrameReader
from byov.errors import ByovError
from byov.train.checkpoint import TrainingState, load_checkpoint, load_weights, model_bytes, save_checkpoint

FRAMES, WIDTH = 137, 24
Damage = Callable[[bytes, random.Random], bytes]


@dataclass
class Tally:
    """Outcomes of one row of the table."""

    place: str
    tried: int = 0
    noticed: int = 0  # an error
    harmless: int = 0  # read as before: padding, or bytes that nobody reads
    wrong: int = 0  # read differently without an error

    def add(self, read: Callable[[], Any], before: Any) -> None:
        self.tried += 1
        try:
            now = read()
        except ByovError:
            self.noticed += 1
            return
        if same(now, before):
            self.harmless += 1
        else:
            self.wrong += 1

    def line(self) -> str:
        return f"| {self.place} | {self.tried:,} | {self.noticed:,} | {self.harmless:,} | {self.wrong:,} |"


HEAD = "| place | tried | noticed | as before | silently wrong |\n|---|---|---|---|---|"


def flip_byte(content: bytes, chance: random.Random) -> bytes:
    """Change one byte."""
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ chance.randrange(1, 256)]) + content[at + 1 :]


def flip_bit(places: range | list[int] | None = None) -> Damage:
    """Flip one bit anywhere, or of the bytes at the given places."""

    def flip(content: bytes, chance: random.Random) -> bytes:
        at = chance.choice(places) if places is not None else chance.randrange(len(content))
        return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]

    return flip


def try_damage(place: str, path: Path, read: Callable[[Path], Any], damage: Damage, count: int) -> Tally:
    """Damage a file `count` times, each time starting from the intact file, and read it."""
    tally, chance = Tally(place), random.Random(f"{place} 0")
    intact, before = path.read_bytes(), read(path)
    try:
        for _ in range(count):
            path.write_bytes(damage(intact, chance))
            tally.add(lambda: read(path), before)
    finally:
        path.write_bytes(intact)
    return tally


def same(now: Any, before: Any) -> bool:
    if isinstance(before, dict):
        return (
            isinstance(now, dict) and now.keys() == before.keys() and all(same(now[key], before[key]) for key in before)
        )
    if isinstance(before, np.ndarray):
        return now.dtype == before.dtype and np.array_equal(now, before, equal_nan=before.dtype.kind == "f")
    return bool(now == before)


# --- one file of each kind, and its reader


def write_features(path: Path, seed: int = 0) -> Path:
    generator = np.random.default_rng(seed)
    merged = {ratio: generator.normal(size=(FRAMES, WIDTH)).astype(np.float16) for ratio in (0.3, 1.0)}
    order = generator.permuted(np.tile(np.arange(factories.TOKENS, dtype=np.uint16), (FRAMES, 1)), axis=1)
    cls = generator.normal(size=(FRAMES, WIDTH)).astype(np.float16)
    return factories.write_features(path, merged, cls=cls, order=order, fps=29.97)


def read_features(path: Path) -> dict[str, Any]:
    return {"header": read_header(path)} | {name: read_array(path, name) for name in read_columns(path)}


def metadata_places(path: Path) -> list[int]:
    """Return the positions of all bytes of an HDF5 file that are not rows."""
    is_row = np.zeros(path.stat().st_size, bool)
    with h5py.File(path, "r", locking=False) as file:
        for name in read_columns(path):
            for index in range(file[name].id.get_num_chunks()):
                chunk = file[name].id.get_chunk_info(index)
                is_row[chunk.byte_offset : chunk.byte_offset + chunk.size] = True
    return np.flatnonzero(~is_row).tolist()


def write_embeddings(path: Path, seed: int = 0) -> Path:
    values = np.random.default_rng(seed).normal(size=(FRAMES, WIDTH)).astype(np.float32)
    write_embedding(path, values, np.arange(FRAMES) / 30, factories.make_embedding_provenance(first_frame=3))
    return path


def read_embeddings(path: Path) -> dict[str, Any]:
    embedding, source = read_embedding(path)
    return {"embedding": embedding, "source": source}


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


def network() -> tuple[torch.nn.Linear, torch.optim.Adam]:
    torch.manual_seed(0)
    model = torch.nn.Linear(32, 16)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(32)).sum().backward()
    optimizer.step()
    return model, optimizer


def write_checkpoint(folder: Path, step: int = 7) -> Path:
    model, optimizer = network()
    state = TrainingState(step=step, records=[{"epoch": 1, "loss": 0.25}])
    save_checkpoint(folder, model, optimizer, state, metadata=IDENTITY)
    return folder / f"step-{step:09d}.safetensors"


def read_checkpoint(path: Path) -> dict[str, Any]:
    model, optimizer = network()
    state = load_checkpoint(path.parent, model, optimizer, metadata=IDENTITY)
    tensors = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for number, values in enumerate(optimizer.state.values()):
        tensors |= {f"{number} {key}": value.numpy() for key, value in values.items()}
    return tensors | {"state": state}


def read_model(path: Path) -> dict[str, Any]:
    model, _ = network()
    load_weights(model, path)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def config_content(seed: int = 0) -> bytes:
    training = {"dataset": "demo", "seed": seed, "column": "merged/0.3", "videos_sha256": "ab" * 32}
    return seal_json({"width": 24, "settings": {"method": "byov", "lr": 1e-5}, "training": training})


VIDEOS: dict[str, tuple[str, str | None]] = {
    "a.mp4": ("libx264", None),
    "a.mkv": ("libx264", None),
    "a.avi": ("mpeg4", None),
    "a.webm": ("libvpx-vp9", None),
    "a.ts": ("libx264", "mpegts"),
    "b.avi": ("mjpeg", None),
    "a.mpg": ("mpeg2video", "mpeg"),
}
CUT = VIDEOS | {
    "a.wmv": ("wmv2", "asf"),
    "a.ogv": ("libvpx", "ogg"),
    "a.gif": ("gif", None),
    "a.y4m": ("wrapped_avframe", "yuv4mpegpipe"),
    "a.mxf": ("mpeg2video", "mxf"),
    "a.h264": ("libx264", "h264"),
    "a.hevc": ("libx265", "hevc"),
    "a.flv": ("flv", None),
    "a.ivf": ("libvpx", "ivf"),
    "a.nut": ("mpeg4", "nut"),
    "a.mov": ("mpeg4", None),
    "b.ts": ("mpeg2video", "mpegts"),
    "a.m1v": ("mpeg1video", "mpeg1video"),
}
PIXEL_FORMATS = {"gif": "rgb8", "mjpeg": "yuvj420p"}


def write_video(path: Path, codec: str, container: str | None) -> Path:
    picture = np.random.default_rng(0).integers(0, 64, (48, 64, 3)).astype(np.uint8)
    images = [np.roll(picture, 2 * index, axis=1) + np.uint8(3 * index) for index in range(40)]
    options = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    pix_fmt = PIXEL_FORMATS.get(codec, "yuv420p")
    return factories.write_video(
        path, images, codec=codec, container=container, fps=25, pix_fmt=pix_fmt, options=options
    )


def read_video(path: Path) -> np.ndarray:
    return np.concatenate([block.pixels for block in FrameReader(path).blocks()])


def cut_video(path: Path, codec: str, container: str | None) -> Tally:
    """Cut a video at each tenth of its size; wrong if frames are lost without an error."""
    whole = write_video(path, codec, container).read_bytes()
    tally, before = Tally(path.name), len(read_video(path))
    for tenth in range(1, 10):
        path.write_bytes(whole[: len(whole) * tenth // 10])
        tally.add(lambda: len(read_video(path)), before)
    return tally


def total(place: str, parts: Iterable[Tally]) -> Tally:
    """Sum several rows of the table."""
    whole = Tally(place)
    for part in parts:
        for field in fields(Tally)[1:]:
            setattr(whole, field.name, getattr(whole, field.name) + getattr(part, field.name))
    return whole


def rows(folder: Path, scale: float = 1.0) -> Iterator[Tally]:
    """Return the table row by row; scale 1 gives the numbers in docs/reliability.md."""

    def count(full: int) -> int:
        return max(min(full, 200), round(full * scale))

    features = write_features(folder / "features.h5")
    yield try_damage("feature file, random byte", features, read_features, flip_byte, count(1000))
    places = metadata_places(features)
    yield try_damage("feature file, one metadata bit", features, read_features, flip_bit(places), count(4500))
    embeddings = write_embeddings(folder / "embeddings.h5")
    yield try_damage("embeddings, random byte", embeddings, read_embeddings, flip_byte, count(1000))
    checkpoint = write_checkpoint(folder / "checkpoint")
    yield try_damage("checkpoint, random byte", checkpoint, read_checkpoint, flip_byte, count(200))
    header = range(8 + int.from_bytes(checkpoint.read_bytes()[:8], "little"))
    yield try_damage("checkpoint, header bit", checkpoint, read_checkpoint, flip_bit(header), count(200))
    model = folder / "model.safetensors"
    model.write_bytes(model_bytes(network()[0], IDENTITY | {"step": 7}))
    yield try_damage("model, random byte", model, read_model, flip_byte, count(1000))
    manifest = write_manifest(folder / "manifest.json")
    yield try_damage("manifest.json, one bit", manifest, load_manifest, flip_bit(), count(1000))
    (folder / "run").mkdir()
    config = folder / "run" / "config.json"
    config.write_bytes(config_content())
    yield try_damage("config.json, one bit", config, lambda path: read_config(path.parent), flip_bit(), count(1000))


def video_rows(folder: Path, flips: int = 40) -> tuple[list[Tally], list[Tally]]:
    """Return one row for each video format: flipped bits, and cuts."""
    flipped = []
    for name, (codec, container) in VIDEOS.items():
        path = write_video(folder / name, codec, container)
        flipped.append(try_damage(name, path, read_video, flip_bit(), flips))
    return flipped, [cut_video(folder / name, *kind) for name, kind in CUT.items()]
