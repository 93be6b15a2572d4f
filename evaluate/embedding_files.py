"""Embedding files: an .npz of many videos, and the files that byov-embed writes (one video each, .npz or .h5)."""

import logging
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from byov.cache.digests import file_sha256
from byov.cache.embeddings import read_embedding
from byov.cache.features import read_header
from byov.cache.layout import VIEWS, cached_files, encoder_folders
from byov.cache.manifest import Manifest, VideoEntry
from byov.errors import CacheError, EvaluationError
from byov.evaluate.embeddings import EmbeddingReader, require_finite
from byov.evaluate.frames import Frames
from byov.evaluate.protocols import Segment
from byov.records import UNLABELED

LOGGER = logging.getLogger(__name__)

# Parts of the arrays' names, {train,test}_<part>, and the kinds of NumPy dtypes they may have.
PARTS = {"embeddings": "f", "labels": "iu", "lengths": "iu", "is_ego": "biu"}
KIND_NAMES = {"f": "floating-point numbers", "iu": "integers", "biu": "0 and 1", "U": "a string"}
SUFFIXES = (".npz", ".h5")
Sources = Mapping[str, Set[tuple[str, str]]]


def source_videos(features_dir: Path, dataset: str) -> dict[str, set[tuple[str, str]]]:
    """Return the (view, id) of a dataset's videos by the digest of the video file."""
    videos: dict[str, set[tuple[str, str]]] = {}
    for folder in encoder_folders(features_dir, dataset):
        for path in cached_files(folder):
            with suppress(CacheError):
                sha256 = read_header(path).provenance.source_sha256
                videos.setdefault(sha256, set()).add((path.parent.name, path.stem))
    return videos


def read_embeddings(
    path: Path, manifest: Manifest | None = None, sources: Sources | None = None
) -> tuple[dict[str, Frames], dict[str, Any]]:
    """Return the frames of an embedding file, or of byov-embed's files, by split, and their provenance."""
    if not is_embedded(path):
        frames, origin = read_npz(path), {"file": path.name, "sha256": file_sha256(path)}
    else:
        reader = EmbeddedFiles(path, manifest, sources)
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
    lengths, is_ego = read("lengths").astype(np.int64), read("is_ego")
    if not np.isin(is_ego, (0, 1)).all():
        raise EvaluationError(f"{split}_is_ego must be 1 (ego) or 0 (exo)")
    labels = read("labels").astype(np.int64) if f"{split}_labels" in arrays else None
    if labels is not None and labels.min() < UNLABELED:
        raise EvaluationError(f"{split}_labels has {labels.min()}; expected 0, 1, ... or {UNLABELED}")
    if labels is not None and (labels == UNLABELED).all():
        labels = None
    names = tuple(f"{split} video {index}" for index in range(len(lengths)))
    frames = Frames(embeddings, labels, lengths, is_ego.astype(np.bool_), names)
    for name, start, length in zip(names, frames.starts, lengths, strict=True):
        require_finite(embeddings[start : start + length], f"{name} (counted from 0)")
    return frames


class EmbeddedFiles(EmbeddingReader):
    """Files of byov-embed: unlabeled test videos, or with a manifest, videos of that dataset.

    Videos are matched by the digest of the video file (`sources`, see `source_videos`), or by id if a file has none.
    """

    kind = "npz"
    remedy = "embed it again with byov-embed"

    def __init__(self, path: Path, manifest: Manifest | None = None, sources: Sources | None = None) -> None:
        self.name = path.name
        files = [path]
        if path.is_dir():
            files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if not files:
            raise EvaluationError(f"{path} has no files of byov-embed ({', '.join(SUFFIXES)})")
        self._origin: dict[str, Any] = {}
        self._files: dict[tuple[str, str], tuple[Path, NDArray[np.float32]]] = {}
        videos = []
        for file in files:
            embedding, text = _read_embedded(file)
            model = text["model_sha256"]
            self._origin = self._origin or {"files": path.name, "run": text["run"], "model_sha256": model}
            if model != self._origin["model_sha256"]:
                raise EvaluationError(f"{file}: of another model than {files[0]}; score them separately")
            video = _entry(file, text, len(embedding), manifest, sources or {})
            if (video.view, video.id) in self._files:
                raise EvaluationError(f"{path}: two files of {video.view} video {video.id!r}; keep one")
            self._files[video.view, video.id] = file, embedding
            videos.append(video)
        self.manifest = replace(manifest or Manifest("embedded", (), (), ()), videos=tuple(videos))

    def path(self, segment: Segment) -> Path:
        return self._files[segment.video.view, segment.video.id][0]

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        path, embedding = self._files[segment.video.view, segment.video.id]
        if len(embedding) != len(segment):
            raise EvaluationError(
                f"{path}: {len(embedding)} embeddings, but {self.manifest.dataset} has {len(segment)} frames of this "
                f"video; {self.remedy}"
            )
        return embedding

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


def _read_embedded(path: Path) -> tuple[NDArray[np.float32], dict[str, str]]:
    """Return (T, D) embeddings, and a dict with video, run, model_sha256 and, if known, view and source_sha256."""
    text = {"view": path.parent.name} if path.parent.name in VIEWS else {}
    if path.suffix.lower() == ".h5":
        embedding, source = read_embedding(path)
        text |= {key: getattr(source, key) for key in ("video", "run", "model_sha256", "source_sha256")}
        text |= {"view": source.view} if source.view else {}
    else:
        with _npz(path) as arrays:
            embedding = np.ascontiguousarray(_array(arrays, "embedding", "f", 2), np.float32)
            keys = ("video", "run", "model_sha256", *(key for key in ("view", "source_sha256") if key in arrays))
            text |= {key: str(_array(arrays, key, "U", 0)) for key in keys}
    if text.get("view", "ego") not in VIEWS:
        raise EvaluationError(f"{path}: view {text['view'][:20]!r}, expected {' or '.join(VIEWS)}")
    return embedding, text


def _entry(path: Path, text: Mapping[str, str], frames: int, manifest: Manifest | None, sources: Sources) -> VideoEntry:
    if manifest is None:
        if "view" not in text:
            raise EvaluationError(f"{path} does not say its view; embed with --view ego or exo, or pass --dataset")
        view = cast(Literal["ego", "exo"], text["view"])
        return VideoEntry(text["video"], view, "test", frames, None, None, None)
    if sha256 := text.get("source_sha256"):
        same = [video for video in manifest.videos if (video.view, video.id) in sources.get(sha256, ())]
    else:
        same = [video for video in manifest.videos if video.id == text["video"]]
    found = [video for video in same if text.get("view", video.view) == video.view]
    if len(found) != 1:
        others = " and ".join(f"{video.id!r} ({video.view})" for video in found or same) or "none of the videos"
        raise EvaluationError(
            f"{path}: its video is {others} of {manifest.dataset}. Embed the files that byov-extract read, each once "
            "and with its --view, or omit --dataset to score without labels."
        )
    return found[0]
