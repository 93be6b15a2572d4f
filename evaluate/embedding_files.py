"""What byov-embed has left: the embeddings of one video in a file, .npz or .h5, or a folder of such files."""

import logging
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import file_digest
from math import prod
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from byov.cache.embeddings import read_embedding, read_view
from byov.cache.layout import VIEWS
from byov.cache.manifest import Manifest, VideoEntry
from byov.errors import EvaluationError
from byov.evaluate.embeddings import TIME_ONLY, EmbeddingReader, refuse_not_finite, time_only
from byov.evaluate.evaluation import Comparison, Scope, counts_of, row_of
from byov.evaluate.frames import Frames
from byov.evaluate.protocols import Segment
from byov.evaluate.task import EvaluationOptions, TaskData
from byov.evaluate.tasks import ALL_TASKS, NEED_ACTIONS, NEED_LABELS, NEED_TRAINING, TASKS
from byov.progress import NO_PROGRESS, Progress
from byov.records import UNLABELED
from byov.text import pluralize

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
    """None if all are UNLABELED."""
    if labels.shape != (frames,):
        raise EvaluationError(f"{split}_labels: shape {labels.shape}, expected ({frames},), one for each frame")
    if labels.min() < UNLABELED or labels.max() > np.iinfo(np.int32).max:
        told = f"{split}_labels: from {labels.min()} to {labels.max()}"
        raise EvaluationError(f"{told}; phases count from 0, and {UNLABELED} is a frame without a label")
    return labels.astype(np.int64) if (labels != UNLABELED).any() else None


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


ENDINGS = (".npz", ".h5")
MARK = "embedding.npy"  # of an .npz: what no file of many videos has
LONGEST_TEXT = 300  # characters


@dataclass(frozen=True)
class EmbeddedFile:
    """One file: whose embeddings, of which video, by which model."""

    path: Path
    video: str
    view: str | None  # None: neither the file nor its folder says it
    run: str
    model_sha256: str
    embedding: NDArray[np.float32]  # (T, D)


class EmbeddedFiles(EmbeddingReader):
    """The files as a dataset of their own, all test videos without labels; or, with the manifest of a dataset in the
    cache, as videos of that dataset, which are found by their names."""

    kind = "npz"

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        self.name, self.remedy = path.name, "embed it again with byov-embed"
        files = [_read(file) for file in _files(path)]
        _refuse_other_models(files)
        self._origin = {"files": path.name, "run": files[0].run, "model_sha256": files[0].model_sha256}
        known = None if manifest is None else {video.id: video for video in manifest.videos}
        videos = [(_own_entry(file) if known is None else _known_entry(file, known), file) for file in files]
        self._files = {(video.view, video.id): file for video, file in videos}
        if len(self._files) < len(files):
            first = next(file for video, file in videos if self._files[video.view, video.id] is not file)
            raise EvaluationError(f"{path}: two files of {first.view or 'the'} video {first.video!r}; keep one")
        entries = tuple(video for video, _ in videos)
        self.manifest = Manifest("embedded", (), (), entries) if manifest is None else replace(manifest, videos=entries)

    def path(self, segment: Segment) -> Path:
        return self._files[segment.video.view, segment.video.id].path

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        file = self._files[segment.video.view, segment.video.id]
        if len(file.embedding) != len(segment):
            theirs = f"{self.manifest.dataset} has {pluralize(len(segment), 'frame')} of it"
            raise EvaluationError(
                f"{file.path}: {pluralize(len(file.embedding), 'embedding')}, {theirs}; {self.remedy}"
            )
        return file.embedding

    def origin(self) -> dict[str, Any]:
        return self._origin


def is_embedded(path: Path) -> bool:
    """Is it what byov-embed leaves, not an .npz of many videos?"""
    if path.is_dir() or path.suffix.lower() == ".h5":
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return MARK in archive.namelist()
    except (OSError, zipfile.BadZipFile, NotImplementedError):
        return False


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in ENDINGS and file.is_file())
    if not found:
        raise EvaluationError(f"{path}: no files of byov-embed in it, which end in {' or '.join(ENDINGS)}")
    return found


def _read(path: Path) -> EmbeddedFile:
    if path.suffix.lower() == ".h5":
        embedding, source = read_embedding(path)
        return EmbeddedFile(
            path, source.video, _view(path, read_view(path)), source.run, source.model_sha256, embedding
        )
    with naming_the_file(path), zipfile.ZipFile(path) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        missing = [key for key in ("embedding", "video", "run", "model_sha256") if key not in members]
        if missing:
            raise EvaluationError(f"no {', '.join(missing)}; not a file of byov-embed")
        text = {
            key: _text(read_array(archive, members[key], key, "U"), key)
            for key in ("video", "run", "model_sha256", "view")
            if key in members
        }
        embedding = np.ascontiguousarray(read_array(archive, members["embedding"], "embedding", "f"), np.float32)
        if embedding.ndim != 2 or not embedding.size:
            raise EvaluationError(f"embedding: shape {embedding.shape}, expected frames x dimensions")
    return EmbeddedFile(
        path, text["video"], _view(path, text.get("view")), text["run"], text["model_sha256"], embedding
    )


def _text(array: NDArray[Any], key: str) -> str:
    if array.shape != () or array.dtype.itemsize > 4 * LONGEST_TEXT:
        raise EvaluationError(f"{key}: expected a text")
    return str(array)


def _view(path: Path, said: str | None) -> str | None:
    """As the file says, or the folder that it lies in."""
    if said is not None and said not in VIEWS:
        raise EvaluationError(f"{path}: view {said[:20]!r}, expected {' or '.join(VIEWS)}")
    return said or (path.parent.name if path.parent.name in VIEWS else None)


def _refuse_other_models(files: list[EmbeddedFile]) -> None:
    first = files[0]
    for file in files:
        if file.model_sha256 != first.model_sha256:
            raise EvaluationError(
                f"{file.path} is of the run {file.run} and {first.path} of {first.run}; embeddings of two models have "
                "nothing in common, score each alone"
            )


def _own_entry(file: EmbeddedFile) -> VideoEntry:
    if file.view is None:
        raise EvaluationError(
            f"{file.path}: it does not say its view; embed with --view ego or exo, or give --dataset if it is of one"
        )
    view = cast(Literal["ego", "exo"], file.view)
    return VideoEntry(file.video, view, "test", len(file.embedding), None, None, None)


def _known_entry(file: EmbeddedFile, known: Mapping[str, VideoEntry]) -> VideoEntry:
    video = known.get(file.video)
    if video is None or file.view not in (None, video.view):
        view = f"{file.view} " if file.view else ""
        raise EvaluationError(f"{file.path}: the dataset has no {view}video {file.video!r}; leave --dataset out")
    return video


LOGGER = logging.getLogger(__name__)


def evaluate_own(
    path: Path,
    tasks: Sequence[str] | None,
    options: EvaluationOptions,
    progress: Progress = NO_PROGRESS,
    manifest: Manifest | None = None,
) -> Comparison:
    """Score a file, or a folder of byov-embed's, in these tasks, or in all that it has labels for; beside it Time only,
    in the same tasks, as the row to beat.

    manifest: of the dataset that files of byov-embed are of; it says their splits and labels.
    """
    wanted = tuple(task for task in ALL_TASKS if task not in NEED_ACTIONS) if tasks is None else tuple(tasks)
    if NEED_ACTIONS & set(wanted):
        raise EvaluationError(f"{path}: a file of embeddings does not say the actions of its videos")
    frames, origin, wanted = (_embedded if is_embedded(path) else _arrays)(path, wanted, tasks is None, manifest)
    _refuse_other_width(path, frames)
    test, train = frames["test"], frames.get("train")
    clocks = TaskData(time_only(test), time_only(train) if train else None)
    rows = [
        row_of(path.name, "npz", TaskData(test, train), wanted, options, origin, progress=progress),
        row_of("Time only", "time", clocks, wanted, options, {"embedding": TIME_ONLY}, progress=progress),
    ]
    counts = counts_of(len(test.lengths), int(test.is_ego.sum()), len(test.embeddings))
    scope = Scope("test", ("standard",), wanted, options)
    return Comparison(path.name, scope, {"standard": rows}, {"standard": counts})


Given = tuple[dict[str, Frames], dict[str, Any], tuple[str, ...]]  # frames by split, where from, tasks


def _arrays(path: Path, wanted: tuple[str, ...], every: bool, _: Manifest | None) -> Given:
    """every: all tasks are wanted that can be scored, and none by its name."""
    if every and not has_split(path, "train"):
        wanted = _without_training(path, wanted, "no training videos (train_embeddings, ...)")
    frames = read_npz(path, splits=_splits(wanted))
    if bare := [split for split, of_split in frames.items() if of_split.labels is None]:
        keys = " and ".join(f"{split}_labels" for split in bare)
        wanted = _without_labels(path, f"no {keys}", wanted, explicit=not every)
    with path.open("rb") as file:
        origin = {"file": path.name, "sha256": file_digest(file, "sha256").hexdigest()}
    return frames, origin, wanted


def _embedded(path: Path, wanted: tuple[str, ...], every: bool, manifest: Manifest | None) -> Given:
    reader = EmbeddedFiles(path, manifest)
    counts = {
        split: sum(video.split == split for video in reader.manifest.videos) for split in ("train", "val", "test")
    }
    if not counts["test"]:
        raise EvaluationError(f"{path}: no test video of {reader.manifest.dataset} among the files")
    if counts["val"]:
        LOGGER.info(f"{path}: left out: {pluralize(counts['val'], 'val video')}")
    advice = "" if manifest else " (--dataset NAME takes them from a dataset in the cache)"
    if not counts["train"] and NEED_TRAINING & set(wanted):
        if not every:
            raise EvaluationError(f"{path}: no training videos among the files, which {wanted[0]} needs{advice}")
        wanted = _without_training(path, wanted, "no training videos among the files")
    frames = {split: reader.frames(split) for split in _splits(wanted)}
    if any(of_split.labels is None for of_split in frames.values()):
        wanted = _without_labels(path, f"no phase labels{advice}", wanted, explicit=not every)
    return frames, reader.origin(), wanted


def _splits(tasks: Sequence[str]) -> tuple[str, ...]:
    return ("train", "test") if NEED_TRAINING & set(tasks) else ("test",)


def _refuse_other_width(path: Path, frames: dict[str, Frames]) -> None:
    widths = {split: of_split.embeddings.shape[1] for split, of_split in frames.items()}
    if len(set(widths.values())) > 1:
        told = ", ".join(f"{width} in {split}" for split, width in widths.items())
        raise EvaluationError(f"{path}: embeddings of different dimensions: {told}")


def _without_training(path: Path, wanted: Sequence[str], why: str) -> tuple[str, ...]:
    needy = ", ".join(task for task in wanted if task in NEED_TRAINING)
    LOGGER.info(f"{path}: {why}: {needy} are left out, which need them")
    return tuple(task for task in wanted if task not in NEED_TRAINING)


def _without_labels(path: Path, why: str, wanted: Sequence[str], *, explicit: bool) -> tuple[str, ...]:
    """The tasks that are left; an error if one of the others was asked for by name."""
    needy = [task for task in wanted if task in NEED_LABELS]
    others = " and ".join(task for task in TASKS if task not in NEED_LABELS | NEED_ACTIONS)
    message = f"{path}: {why}; {', '.join(sorted(NEED_LABELS))} need phase labels, {others} does not"
    if explicit and needy:
        raise EvaluationError(message)
    if needy:
        LOGGER.info(message)
    return tuple(task for task in wanted if task not in NEED_LABELS)
