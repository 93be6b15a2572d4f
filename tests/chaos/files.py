"""A file of each kind, to be damaged, and the functions that read them."""

from collections.abc import Callable, Sequence
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
from byov.train.checkpoint import TrainingState, file_bytes, load_checkpoint, save_checkpoint
from byov.train.methods.base import tensor_shapes

FRAMES = 137
WIDTH = 24


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
    state = load_checkpoint(path.parent, model, optimizer, IDENTITY, total_steps=7)
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


def header_positions(path: Path) -> Sequence[int]:
    """Return the positions of the header of a safetensors file."""
    return range(8 + int.from_bytes(path.read_bytes()[:8], "little"))


def write_model(folder: Path) -> Path:
    content = file_bytes(network()[0].state_dict(), IDENTITY | {"step": 7})
    return factories.write_file(folder / "model.safetensors", content)


def write_config(folder: Path) -> Path:
    return factories.write_file(folder / "run" / "config.json", config_content())


# Name → functions that write the file to a folder, read it, and choose the positions to damage
# (None for all).
KINDS: dict[str, tuple[Callable[[Path], Path], Callable[[Path], Any], Any]] = {
    "features": (lambda folder: write_features(folder / "a.h5"), read_features, None),
    "features, metadata": (
        lambda folder: write_features(folder / "a.h5"),
        read_features,
        metadata_positions,
    ),
    "embeddings": (lambda folder: write_embeddings(folder / "a.h5"), read_embedding, None),
    "checkpoint": (write_checkpoint, read_checkpoint, None),
    "checkpoint, header": (write_checkpoint, read_checkpoint, header_positions),
    "model": (write_model, read_model, None),
    "manifest.json": (
        lambda folder: write_manifest(folder / "manifest.json"),
        load_manifest,
        None,
    ),
    "config.json": (write_config, lambda path: read_config(path.parent), None),
}


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
