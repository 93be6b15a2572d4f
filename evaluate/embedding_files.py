"""Embedding files: an .npz of many videos, and the files that byov-embed writes (one video each, .npz or .h5)."""

import logging
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from byov.cache.digests import file_sha256
from byov.cache.embeddings import read_embedding, read_view
from byov.cache.layout import VIEWS
from byov.cache.manifest import Manifest, VideoEntry
from byov.errors import EvaluationError
from byov.evaluate.embeddings import EmbeddingReader, require_finite
from byov.evaluate.frames import Frames
from byov.evaluate.protocols import Segment
from byov.records import UNLABELED
from byov.text import pluralize

LOGGER = logging.getLogger(__name__)

# Parts of the arrays' names, {train,test}_<part>, and the kinds of NumPy dtypes they may have.
PARTS = {"embeddings": "f", "labels": "iu", "lengths": "iu", "is_ego": "biu"}
KIND_NAMES = {"f": "floating-point numbers", "iu": "integers", "biu": "0 and 1", "U": "a string"}
SUFFIXES = (".npz", ".h5")


def read_embeddings(path: Path, manifest: Manifest | None = None) -> tuple[dict[str, Frames], dict[str, Any]]:
    """Read an embedding file or a folder of byov-embed's files.

    Args:
        path: File or folder.
        manifest: Dataset of byov-embed's files, which are matched by video name. Without it they are unlabeled test
            videos.

    Returns:
        Frames by split ("test" and perhaps "train"), and where they come from.

    Raises:
        EvaluationError: The file is damaged or does not have the documented layout.
    """
    if not is_embedded(path):
        frames, origin = read_npz(path), {"file": path.name, "sha256": file_sha256(path)}
    else:
        reader = EmbeddedFiles(path, manifest)
        splits = {video.split for video in reader.manifest.videos}
        if "test" not in splits:
            raise EvaluationError(f"{path}: none of the files is a test video of {reader.manifest.dataset}")
        if "val" in splits:
            LOGGER.info(f"{path}: val videos skipped")
        frames = {split: reader.frames(split) for split in ("train", "test") if split in splits}
        origin = reader.origin()
    widths = {split: of_split.embeddings.shape[1] for split, of_split in frames.items()}
    if len(set(widths.values())) > 1:
        raise EvaluationError(f"{path}: train and test embeddings differ in dimensions: {widths}")
    return frames, origin


def read_npz(path: Path) -> dict[str, Frames]:
    """Read {train,test}_{embeddings,labels,lengths,is_ego}; train arrays and labels are optional."""
    with _npz(path) as arrays:
        known = {f"{split}_{part}" for split in ("train", "test") for part in PARTS}
        if unknown := set(arrays) - known - {"expected"}:  # golden files carry the expected scores
            raise EvaluationError(f"unknown array {min(unknown)[:80]!r}; expected {', '.join(sorted(known))}")
        has_train = any(key.startswith("train_") for key in arrays)
        return {split: _npz_frames(arrays, split) for split in ("train", "test") if split == "test" or has_train}


@contextmanager
def _npz(path: Path) -> Iterator[Mapping[str, NDArray[Any]]]:
    """Open an .npz file and name it in every error."""
    try:
        with path.open("rb") as file:
            arrays = np.load(file, allow_pickle=False)
            if not isinstance(arrays, np.lib.npyio.NpzFile):
                raise EvaluationError("not an .npz file")
            yield arrays
    except FileNotFoundError:
        raise EvaluationError(f"{path}: no such file") from None
    except EvaluationError as error:
        raise EvaluationError(f"{path}: {error}") from None
    except (OSError, ValueError, EOFError, MemoryError, NotImplementedError, zipfile.BadZipFile, zlib.error) as error:
        raise EvaluationError(f"{path}: not a readable .npz file ({error})") from error


def _array(arrays: Mapping[str, NDArray[Any]], key: str, kinds: str, ndim: int) -> NDArray[Any]:
    if key not in arrays:
        raise EvaluationError(f"no array {key}")
    array = arrays[key]
    if array.dtype.kind not in kinds:
        raise EvaluationError(f"{key} is {array.dtype}, expected {KIND_NAMES[kinds]}")
    if array.ndim != ndim or (ndim and not array.size):
        raise EvaluationError(f"{key} has shape {array.shape}, expected {ndim} dimensions and no empty one")
    return array


def _npz_frames(arrays: Mapping[str, NDArray[Any]], split: str) -> Frames:
    def read(part: str) -> NDArray[Any]:
        return _array(arrays, f"{split}_{part}", PARTS[part], 2 if part == "embeddings" else 1)

    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are rejected below
        embeddings = np.ascontiguousarray(read("embeddings"), np.float32)
    lengths, is_ego = read("lengths"), read("is_ego")
    if lengths.min() < 1 or sum(lengths.tolist()) != len(embeddings):
        raise EvaluationError(
            f"{split}_lengths must be positive and add up to {len(embeddings)} frames; they add up to "
            f"{sum(lengths.tolist())}, with a minimum of {lengths.min()}"
        )
    if is_ego.shape != lengths.shape or not np.isin(is_ego, (0, 1)).all():
        raise EvaluationError(f"{split}_is_ego must be 1 (ego) or 0 (exo) for each of {len(lengths)} videos")
    labels = read("labels") if f"{split}_labels" in arrays else None
    if labels is not None:
        if len(labels) != len(embeddings):
            raise EvaluationError(f"{split}_labels has {len(labels)} labels for {len(embeddings)} frames")
        if labels.min() < UNLABELED or labels.max() > np.iinfo(np.int32).max:
            raise EvaluationError(
                f"{split}_labels range from {labels.min()} to {labels.max()}; expected 0, 1, ... or {UNLABELED}"
            )
    frames = Frames(
        embeddings,
        None if labels is None or (labels == UNLABELED).all() else labels.astype(np.int64),
        lengths.astype(np.int64),
        is_ego.astype(np.bool_),
        tuple(f"{split} video {index}" for index in range(len(lengths))),
    )
    for name, start, length in zip(frames.names, frames.starts, frames.lengths, strict=True):
        require_finite(embeddings[start : start + length], f"{name} (counted from 0)")
    return frames


@dataclass(frozen=True)
class EmbeddedFile:
    """Contents of one file of byov-embed."""

    path: Path
    video: str
    view: str | None  # None if neither the file nor its folder says it
    run: str
    model_sha256: str
    embedding: NDArray[np.float32]  # (T, D)


class EmbeddedFiles(EmbeddingReader):
    """Files of byov-embed, as unlabeled test videos or as videos of a cached dataset.

    Args:
        path: File or folder.
        manifest: Dataset whose videos the files are, matched by name.
    """

    kind = "npz"

    def __init__(self, path: Path, manifest: Manifest | None = None) -> None:
        self.name, self.remedy = path.name, "embed it again with byov-embed"
        files = [_read_embedded(file) for file in _embedded_paths(path)]
        first = files[0]
        for file in files:
            if file.model_sha256 != first.model_sha256:
                raise EvaluationError(
                    f"{file.path} is from run {file.run}, {first.path} from run {first.run}; score them separately"
                )
        self._origin = {"files": path.name, "run": first.run, "model_sha256": first.model_sha256}
        known = None if manifest is None else {video.id: video for video in manifest.videos}
        self._files: dict[tuple[str, str], EmbeddedFile] = {}
        videos = []
        for file in files:
            video = _new_entry(file) if known is None else _known_entry(file, known)
            if (video.view, video.id) in self._files:
                raise EvaluationError(f"{path}: two files of {video.view} video {video.id!r}; keep one")
            self._files[video.view, video.id] = file
            videos.append(video)
        self.manifest = (
            Manifest("embedded", (), (), tuple(videos)) if manifest is None else replace(manifest, videos=tuple(videos))
        )

    def path(self, segment: Segment) -> Path:
        return self._files[segment.video.view, segment.video.id].path

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        file = self._files[segment.video.view, segment.video.id]
        if len(file.embedding) != len(segment):
            raise EvaluationError(
                f"{file.path}: {pluralize(len(file.embedding), 'embedding')}, but {self.manifest.dataset} has "
                f"{pluralize(len(segment), 'frame')} of this video; {self.remedy}"
            )
        return file.embedding

    def origin(self) -> dict[str, Any]:
        return self._origin


def is_embedded(path: Path) -> bool:
    """Return whether a path is a file or folder of byov-embed rather than an .npz of many videos."""
    if path.is_dir() or path.suffix.lower() == ".h5":
        return True
    try:
        with zipfile.ZipFile(path) as archive:
            return "embedding.npy" in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _embedded_paths(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
    if not found:
        raise EvaluationError(f"{path} has no files of byov-embed ({', '.join(SUFFIXES)})")
    return found


def _read_embedded(path: Path) -> EmbeddedFile:
    if path.suffix.lower() == ".h5":
        embedding, source = read_embedding(path)
        text = {"video": source.video, "run": source.run, "model_sha256": source.model_sha256}
        view = read_view(path)
    else:
        with _npz(path) as arrays:
            text = {key: str(_array(arrays, key, "U", 0)) for key in ("video", "run", "model_sha256")}
            embedding = np.ascontiguousarray(_array(arrays, "embedding", "f", 2), np.float32)
            view = str(_array(arrays, "view", "U", 0)) if "view" in arrays else None
    if view is not None and view not in VIEWS:
        raise EvaluationError(f"{path}: view {view[:20]!r}, expected {' or '.join(VIEWS)}")
    folder_view = path.parent.name if path.parent.name in VIEWS else None
    return EmbeddedFile(path, text["video"], view or folder_view, text["run"], text["model_sha256"], embedding)


def _new_entry(file: EmbeddedFile) -> VideoEntry:
    if file.view is None:
        raise EvaluationError(
            f"{file.path} does not say its view; embed with --view ego or exo, or pass --dataset if it is from one"
        )
    view = cast(Literal["ego", "exo"], file.view)
    return VideoEntry(file.video, view, "test", len(file.embedding), None, None, None)


def _known_entry(file: EmbeddedFile, known: Mapping[str, VideoEntry]) -> VideoEntry:
    video = known.get(file.video)
    if video is None or file.view not in (None, video.view):
        view = f"{file.view} " if file.view else ""
        raise EvaluationError(f"{file.path}: the dataset has no {view}video {file.video!r}; omit --dataset")
    return video
