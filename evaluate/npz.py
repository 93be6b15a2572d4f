"""Anybody's embeddings from an .npz file: {train,test}_{embeddings,labels,lengths,is_ego}; hostile files included.

The arrays are read without NumPy's own loader, which trusts what a file declares.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.errors import EvaluationError
from byov.evaluate.embedding_readers import refuse_not_finite
from byov.evaluate.frames import Frames
from byov.labels import UNLABELLED

SPLITS = ("train", "test")
NEEDED, OPTIONAL = ("embeddings", "lengths", "is_ego"), ("labels",)
IGNORED = ("expected",)  # the golden files carry the answers too
KINDS = {"embeddings": "f", "labels": "iu", "lengths": "iu", "is_ego": "biu"}  # of numpy's dtypes
WORDS = {"f": "floating-point numbers", "iu": "whole numbers", "biu": "0 and 1", "U": "a text"}
LARGEST_BYTES = 4 << 30  # of one array: 4 million frames of 256 dimensions
# Larger arrays must not be compressed beyond what measured numbers can be: a small file could fill the memory.
SMALL_BYTES, LARGEST_RATIO = 64 << 20, 100


def read_npz(path: Path, *, splits: tuple[str, ...] = SPLITS) -> dict[str, Frames]:
    """The frames of the wanted splits; labels are None where the file has none."""
    with naming_the_file(path), zipfile.ZipFile(path) as archive:
        members = _members(archive, splits)
        return {split: _frames(archive, members, split) for split in splits}


def has_split(path: Path, split: str) -> bool:
    """Does the file have any array of a split?"""
    with naming_the_file(path), zipfile.ZipFile(path) as archive:
        return any(name.startswith(f"{split}_") for name in archive.namelist())


@contextmanager
def naming_the_file(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise EvaluationError(f"{path}: no such file") from None
    except EvaluationError as error:
        raise EvaluationError(f"{path}: {error}") from None
    except (OSError, ValueError, EOFError, MemoryError, NotImplementedError, RuntimeError) as error:
        raise EvaluationError(f"{path}: not a readable .npz file ({error})") from error
    except (zipfile.BadZipFile, zlib.error, struct.error) as error:
        raise EvaluationError(f"{path}: not a readable .npz file ({error})") from error


def _members(archive: zipfile.ZipFile, splits: tuple[str, ...]) -> dict[str, zipfile.ZipInfo]:
    """Key → member of the archive."""
    known = {f"{split}_{part}" for split in SPLITS for part in (*NEEDED, *OPTIONAL)}
    members: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        key = info.filename.removesuffix(".npy")
        if key not in known and key not in IGNORED:
            raise EvaluationError(f"unknown key {key[:80]!r}; expected {', '.join(sorted(known))}")
        if key in members:
            raise EvaluationError(f"{key} is there twice")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise EvaluationError(f"{key} is compressed in a way that numpy does not write")
        members[key] = info
    missing = [f"{split}_{part}" for split in splits for part in NEEDED if f"{split}_{part}" not in members]
    if missing:
        raise EvaluationError(f"no {', '.join(missing)}")
    return members


def _frames(archive: zipfile.ZipFile, members: dict[str, zipfile.ZipInfo], split: str) -> Frames:
    def read(part: str) -> NDArray[Any]:
        return read_array(archive, members[f"{split}_{part}"], f"{split}_{part}", KINDS[part])

    with np.errstate(over="ignore"):  # what float32 cannot hold becomes infinite, and is refused below
        embeddings = np.ascontiguousarray(read("embeddings"), np.float32)
    if embeddings.ndim != 2 or not embeddings.size:
        raise EvaluationError(f"{split}_embeddings: shape {embeddings.shape}, expected frames x dimensions")
    lengths = _lengths(read("lengths"), len(embeddings), split)
    frames = Frames(
        embeddings,
        _labels(read("labels"), len(embeddings), split) if f"{split}_labels" in members else None,
        lengths,
        _is_ego(read("is_ego"), len(lengths), split),
        tuple(f"{split} video {index}" for index in range(len(lengths))),
    )
    for name, start, length in zip(frames.names, frames.starts, lengths, strict=True):
        refuse_not_finite(embeddings[start : start + length], f"{name} (counted from 0)")
    return frames


def _lengths(lengths: NDArray[Any], frames: int, split: str) -> NDArray[np.int64]:
    if lengths.ndim != 1 or not lengths.size:
        raise EvaluationError(f"{split}_lengths: shape {lengths.shape}, expected one length for each video")
    if lengths.min() < 1:
        raise EvaluationError(f"{split}_lengths: video {int(lengths.argmin())} has {lengths.min()} frames")
    total = sum(lengths.tolist())  # Python's whole numbers do not overflow
    if total != frames:
        raise EvaluationError(f"{split}_lengths add up to {total} frames, {split}_embeddings has {frames}")
    return lengths.astype(np.int64)


def _labels(labels: NDArray[Any], frames: int, split: str) -> NDArray[np.int64] | None:
    """None if all are UNLABELLED."""
    if labels.shape != (frames,):
        raise EvaluationError(f"{split}_labels: shape {labels.shape}, expected ({frames},), one for each frame")
    if labels.min() < UNLABELLED or labels.max() > np.iinfo(np.int32).max:
        told = f"{split}_labels: from {labels.min()} to {labels.max()}"
        raise EvaluationError(f"{told}; phases count from 0, and {UNLABELLED} is a frame without a label")
    return labels.astype(np.int64) if (labels != UNLABELLED).any() else None


def _is_ego(is_ego: NDArray[Any], videos: int, split: str) -> NDArray[np.bool_]:
    if is_ego.shape != (videos,):
        raise EvaluationError(f"{split}_is_ego: shape {is_ego.shape}, expected ({videos},), one for each video")
    if not np.isin(is_ego, (0, 1)).all():
        raise EvaluationError(f"{split}_is_ego: expected 1 for ego and 0 for exo")
    return is_ego.astype(np.bool_)


def read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str, kinds: str) -> NDArray[Any]:
    """One array of plain numbers; its size is known to be what it declares before memory is taken for it."""
    with archive.open(info) as file:
        if np.lib.format.read_magic(file) != (1, 0):  # what numpy writes for plain arrays; its header is short
            raise EvaluationError(f"{key}: not an array as numpy.savez writes it")
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        if dtype.hasobject:
            raise EvaluationError(f"{key}: an array of Python objects, which is never unpickled; save plain numbers")
        if dtype.kind not in kinds:
            raise EvaluationError(f"{key}: {dtype}, expected {WORDS[kinds]}")
        size_bytes = prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or file.tell() + size_bytes != info.file_size:
            raise EvaluationError(f"{key}: declares shape {shape}, which is not what it holds")
        if size_bytes > min(LARGEST_BYTES, max(SMALL_BYTES, LARGEST_RATIO * info.compress_size)):
            raise EvaluationError(f"{key}: {size_bytes} bytes from {info.compress_size}; too large to be read")
        content = file.read(size_bytes)
    if len(content) != size_bytes:
        raise EvaluationError(f"{key}: breaks off after {len(content)} of {size_bytes} bytes")
    values = np.frombuffer(content, dtype)
    return values.reshape(shape, order="F" if fortran_order else "C")
