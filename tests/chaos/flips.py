"""Damage: files of every kind are damaged, and whatever reads them must notice or give what it gave before.

`make chaos` runs it with thousands of flips and prints a table; tests/chaos/test_flips.py runs a part of it. Seeds are
fixed: the same files and the same flips each time.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import h5py
import numpy as np
import torch
from tests.factories import REPRODUCIBLE

from byov.cache.digests import seal_json
from byov.cache.embeddings import EmbeddingProvenance, read_embedding, write_embedding
from byov.cache.features import FeatureWriter, Provenance, read_header
from byov.cache.hdf5 import read_array, read_columns
from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.cache.runs import read_config
from byov.data.video import FrameReader
from byov.errors import ByovError
from byov.train.checkpoint import TrainingState, load_checkpoint, load_weights, model_bytes, save_checkpoint

FRAMES, WIDTH, TOKENS = 137, 24, 9
RATIOS = (0.3, 1.0)
Read = Callable[[Path], Any]
Damage = Callable[[bytes, random.Random], bytes]


@dataclass
class Tally:
    """What became of the damages of one row of the table."""

    place: str
    tried: int = 0
    noticed: int = 0
    harmless: int = 0  # read as before: padding, or what nobody reads
    wrong: int = 0  # read, and not as before: silently wrong

    def note(self, read: Callable[[], Any], before: Any) -> None:
        """Try once: what does a reader make of it?"""
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
    """One byte becomes another."""
    at = chance.randrange(len(content))
    return content[:at] + bytes([content[at] ^ chance.randrange(1, 256)]) + content[at + 1 :]


def flip_bit(places: range | list[int] | None = None) -> Damage:
    """One bit, of all or of some places."""

    def flip(content: bytes, chance: random.Random) -> bytes:
        at = chance.choice(places) if places is not None else chance.randrange(len(content))
        return content[:at] + bytes([content[at] ^ 1 << chance.randrange(8)]) + content[at + 1 :]

    return flip


def try_damage(place: str, path: Path, read: Read, damage: Damage, count: int, seed: int = 0) -> Tally:
    """Damage a file so often, each time from its sound content, and read it."""
    tally, chance = Tally(place), random.Random(f"{place} {seed}")
    whole, before = path.read_bytes(), read(path)
    try:
        for _ in range(count):
            path.write_bytes(damage(whole, chance))
            tally.note(lambda: read(path), before)
    finally:
        path.write_bytes(whole)
    return tally


def same(now: Any, before: Any) -> bool:
    """Values and arrays, however nested."""
    if isinstance(before, dict):
        return (
            isinstance(now, dict) and now.keys() == before.keys() and all(same(now[key], before[key]) for key in before)
        )
    if isinstance(before, np.ndarray):
        return now.dtype == before.dtype and np.array_equal(now, before, equal_nan=before.dtype.kind == "f")
    return bool(now == before)


# --- the files, and what is read of each


def write_features(path: Path, seed: int = 0) -> Path:
    chance = np.random.default_rng(seed)
    writer = FeatureWriter(path, RATIOS, TOKENS, WIDTH, has_cls=True)
    merged = {ratio: chance.normal(size=(FRAMES, WIDTH)).astype(np.float16) for ratio in RATIOS}
    order = chance.permuted(np.tile(np.arange(TOKENS, dtype=np.uint16), (FRAMES, 1)), axis=1)
    writer.append(merged, order, chance.normal(size=(FRAMES, WIDTH)).astype(np.float16), np.arange(FRAMES) / 30)
    source = Provenance(
        *(
            "openai/clip-vit-base-patch16",
            "e6a30b6",
            "ab" * 32,
            "squash 224",
            "float32",
            "PyAV 18",
            "pour.mp4",
            123_456,
        ),
        *("cd" * 32, "ef" * 16),
    )
    writer.finish(source, fps=29.97, truncated=False)
    writer.close()
    return path


def read_features(path: Path) -> dict[str, Any]:
    header = read_header(path)
    said = {"provenance": header.provenance, "fps": header.fps, "truncated": header.truncated, "ratios": header.ratios}
    return said | {name: read_array(path, name) for name in read_columns(path)}


def metadata_places(path: Path) -> list[int]:
    """The bytes of an HDF5 file that are no rows."""
    taken = np.zeros(path.stat().st_size, bool)
    with h5py.File(path, "r", locking=False) as file:
        for name in read_columns(path):
            for index in range(file[name].id.get_num_chunks()):
                chunk = file[name].id.get_chunk_info(index)
                taken[chunk.byte_offset : chunk.byte_offset + chunk.size] = True
    return np.flatnonzero(~taken).tolist()


def write_embeddings(path: Path, seed: int = 0) -> Path:
    values = np.random.default_rng(seed).normal(size=(FRAMES, WIDTH)).astype(np.float32)
    source = EmbeddingProvenance(
        *(
            "demo-paper",
            "ab" * 32,
            "demo",
            "pour",
            "random/tiny",
            "0",
            "cd" * 32,
            "squash 224",
            "merged/0.3",
            "ef" * 32,
        ),
        first_frame=3,
    )
    write_embedding(path, values, np.arange(FRAMES) / 30, source)
    return path


def read_embeddings(path: Path) -> dict[str, Any]:
    embedding, source = read_embedding(path)
    return {"embedding": embedding, "source": source}


def write_manifest(path: Path, dataset: str = "demo") -> Path:
    videos = tuple(
        VideoEntry(f"pour {index}", view, "train", 40, 29.97, tuple(i // 14 for i in range(40)), None, f"p{index}")
        for index in range(6)
        for view in ("ego", "exo")
    )
    Manifest(dataset, ("reach", "pour", "leave"), (), videos).save(path)
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
    kept = {f"{n} {key}": value.numpy() for n, of in enumerate(optimizer.state.values()) for key, value in of.items()}
    return tensors | kept | {"state": state}


def read_model(path: Path) -> dict[str, Any]:
    model, _ = network()
    load_weights(model, path)
    return {name: tensor.numpy() for name, tensor in model.state_dict().items()}


def config_content(seed: int = 0) -> bytes:
    training = {
        "dataset": "demo",
        "seed": seed,
        "column": "merged/0.3",
        "videos_sha256": "ab" * 32,
        "validation": {"tau": 0.5},
    }
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
FORMATS = {"gif": "rgb8", "mjpeg": "yuvj420p"}
ENCODING = REPRODUCIBLE | {"libx265": {"x265-params": "log-level=none"}}


def write_video(path: Path, codec: str, container: str | None) -> Path:
    picture = np.random.default_rng(0).integers(0, 64, (48, 64, 3)).astype(np.uint8)
    with av.open(str(path), "w", format=container) as output:
        stream = output.add_stream(codec, rate=25, options=ENCODING.get(codec, {}))
        stream.width, stream.height, stream.pix_fmt = 64, 48, FORMATS.get(codec, "yuv420p")
        for index in range(40):
            image = np.roll(picture, 2 * index, axis=1) + np.uint8(3 * index)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(image, format="rgb24")))
        output.mux(stream.encode())
    return path


def read_video(path: Path) -> dict[str, Any]:
    blocks = list(FrameReader(path).blocks())
    return {
        "pixels": np.concatenate([block.pixels for block in blocks]),
        "count": sum(map(len, (b.pixels for b in blocks))),
    }


def cut_video(path: Path, codec: str, container: str | None) -> Tally:
    """At each tenth of its size; as before: no frame is lost."""
    whole = write_video(path, codec, container).read_bytes()
    tally, before = Tally(path.name), read_video(path)["count"]
    for tenth in range(1, 10):
        path.write_bytes(whole[: len(whole) * tenth // 10])
        tally.note(lambda: read_video(path)["count"], before)
    return tally


def total(place: str, parts: Iterable[Tally]) -> Tally:
    """One row of several."""
    whole = Tally(place)
    for part in parts:
        for field in ("tried", "noticed", "harmless", "wrong"):
            setattr(whole, field, getattr(whole, field) + getattr(part, field))
    return whole


def rows(folder: Path, scale: float = 1.0) -> Iterator[Tally]:
    """The table, row by row; scale: 1 for the numbers of docs/reliability.md, less for a part of them."""

    def count(full: int, least: int = 200) -> int:
        return max(min(full, least), round(full * scale))

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
    """Of each format: bits flipped, and cuts."""
    flipped = []
    for name, (codec, container) in VIDEOS.items():
        path = write_video(folder / name, codec, container)
        flipped.append(try_damage(name, path, read_video, flip_bit(), flips))
    return flipped, [cut_video(folder / name, *kind) for name, kind in CUT.items()]
