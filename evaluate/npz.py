"""Anybody's embeddings from an .npz file: {train,test}_{embeddings,labels,lengths,is_ego}; hostile files included.

They are scored beside what time alone gives on the same videos. The arrays are read without NumPy's own loader, which
trusts what a file declares.
"""

import logging
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import file_digest
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.errors import EvaluationError
from byov.evaluate.comparison import Comparison, Scope, counts_of
from byov.evaluate.embedding_readers import TIME_ONLY, refuse_not_finite, time_only
from byov.evaluate.evaluation import row_of
from byov.evaluate.frames import Frames
from byov.evaluate.task import EvaluationOptions, TaskData
from byov.evaluate.tasks import ALL_TASKS, NEED_ACTIONS, NEED_LABELS, NEED_TRAINING, SATURATED_BY_TIME, TASKS
from byov.progress import SILENT, Progress

LOGGER = logging.getLogger(__name__)

SPLITS = ("train", "test")
NEEDED, OPTIONAL = ("embeddings", "lengths", "is_ego"), ("labels",)
IGNORED = ("expected",)  # the golden files carry the answers too
KINDS = {"embeddings": "f", "labels": "iu", "lengths": "iu", "is_ego": "biu"}  # of numpy's dtypes
WORDS = {"f": "floating-point numbers", "iu": "whole numbers", "biu": "0 and 1"}
LARGEST_BYTES = 4 << 30  # of one array: 4 million frames of 256 dimensions
# Larger arrays must not be compressed beyond what measured numbers can be: a small file could fill the memory.
SMALL_BYTES, LARGEST_RATIO = 64 << 20, 100


def evaluate_npz(
    path: Path, tasks: Sequence[str] | None, options: EvaluationOptions, progress: Progress = SILENT
) -> Comparison:
    """Score a file in these tasks, or in all that it has labels for; beside it Time only, in the tasks that time alone
    can saturate."""
    wanted = tuple(task for task in ALL_TASKS if task not in NEED_ACTIONS) if tasks is None else tuple(tasks)
    if NEED_ACTIONS & set(wanted):
        raise EvaluationError(f"{path}: a file of embeddings does not say the actions of its videos")
    frames = read_npz(path, splits=("train", "test") if NEED_TRAINING & set(wanted) else ("test",))
    _refuse_other_width(path, frames)
    bare = [split for split, of_split in frames.items() if of_split.labels is None]
    if bare:
        wanted = _without_labels(path, bare, wanted, explicit=tasks is not None)
    with path.open("rb") as file:
        origin = {"file": path.name, "sha256": file_digest(file, "sha256").hexdigest()}
    test, train = frames["test"], frames.get("train")
    rows = [row_of(path.name, "npz", TaskData(test, train), wanted, options, origin, progress=progress)]
    if timed := [task for task in wanted if task in SATURATED_BY_TIME]:
        clocks = TaskData(time_only(test), time_only(train) if train else None)
        rows.append(row_of("Time only", "time", clocks, timed, options, {"embedding": TIME_ONLY}, progress=progress))
    counts = counts_of(len(test.lengths), int(test.is_ego.sum()), len(test.embeddings))
    scope = Scope("test", ("standard",), wanted, options)
    return Comparison(path.name, scope, {"standard": rows}, {"standard": counts})


def _refuse_other_width(path: Path, frames: dict[str, Frames]) -> None:
    widths = {split: of_split.embeddings.shape[1] for split, of_split in frames.items()}
    if len(set(widths.values())) > 1:
        told = ", ".join(f"{width} in {split}" for split, width in widths.items())
        raise EvaluationError(f"{path}: embeddings of different dimensions: {told}")


def _without_labels(path: Path, bare: Sequence[str], wanted: Sequence[str], *, explicit: bool) -> tuple[str, ...]:
    """The tasks that are left; an error if one of the others was asked for by name."""
    needy = [task for task in wanted if task in NEED_LABELS]
    keys = " and ".join(f"{split}_labels" for split in bare)
    others = " and ".join(task for task in TASKS if task not in NEED_LABELS | NEED_ACTIONS)
    message = f"{path}: no {keys}; {', '.join(sorted(NEED_LABELS))} need phase labels, {others} does not"
    if explicit and needy:
        raise EvaluationError(message)
    if needy:
        LOGGER.info(message)
    return tuple(task for task in wanted if task not in NEED_LABELS)


def read_npz(path: Path, *, splits: tuple[str, ...] = SPLITS) -> dict[str, Frames]:
    """The frames of the wanted splits; labels are None where the file has none."""
    with _naming_the_file(path), zipfile.ZipFile(path) as archive:
        members = _members(archive, splits)
        return {split: _frames(archive, members, split) for split in splits}


@contextmanager
def _naming_the_file(path: Path) -> Iterator[None]:
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
        return _read_array(archive, members[f"{split}_{part}"], f"{split}_{part}", KINDS[part])

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


def _labels(labels: NDArray[Any], frames: int, split: str) -> NDArray[np.int64]:
    if labels.shape != (frames,):
        raise EvaluationError(f"{split}_labels: shape {labels.shape}, expected ({frames},), one for each frame")
    if labels.min() < 0 or labels.max() > np.iinfo(np.int32).max:
        raise EvaluationError(f"{split}_labels: from {labels.min()} to {labels.max()}; phases count from 0")
    return labels.astype(np.int64)


def _is_ego(is_ego: NDArray[Any], videos: int, split: str) -> NDArray[np.bool_]:
    if is_ego.shape != (videos,):
        raise EvaluationError(f"{split}_is_ego: shape {is_ego.shape}, expected ({videos},), one for each video")
    if not np.isin(is_ego, (0, 1)).all():
        raise EvaluationError(f"{split}_is_ego: expected 1 for ego and 0 for exo")
    return is_ego.astype(np.bool_)


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, key: str, kinds: str) -> NDArray[Any]:
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
