"""Readers for embedding files: .npz with many videos, and output of byov-embed (one video per .npz
or .h5 file).
"""

import os
import zipfile
from collections.abc import Iterator, Mapping, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from byov.cache.digests import file_sha256
from byov.cache.embeddings import read_embedding
from byov.cache.features import read_header
from byov.cache.layout import cached_files, encoder_folders
from byov.cache.manifest import Manifest, VideoEntry
from byov.errors import CacheError, EvaluationError
from byov.evaluate.protocols import Segment
from byov.evaluate.readers import EmbeddingReader
from byov.files import check_regular
from byov.records import UNLABELED, VIEWS

# Name of each array → allowed NumPy dtype kinds and number of dimensions.
PARTS = {"embeddings": ("f", 2), "labels": ("iu", 1), "lengths": ("iu", 1), "is_ego": ("biu", 1)}
ARRAYS = {f"{split}_{part}": kind for split in ("train", "test") for part, kind in PARTS.items()}
EMBEDDED_ARRAYS = {
    "embedding": ("f", 2),
    **dict.fromkeys(("video", "run", "model_sha256"), ("U", 0)),
}
OPTIONAL_ARRAYS = dict.fromkeys(("view", "source_sha256"), ("U", 0))
KIND_NAMES = {"f": "floating-point numbers", "iu": "integers", "biu": "0 and 1", "U": "a string"}
LAYOUT = "expected {train,test}_{embeddings,labels,lengths,is_ego}, or files written by byov-embed"
SUFFIXES = (".npz", ".h5")
MAX_PHASES = 10_000
Sources = Mapping[str, Set[tuple[str, str]]]


def source_videos(features_dir: Path, dataset: str) -> dict[str, set[tuple[str, str]]]:
    """Map the SHA-256 of each video file in a dataset to the (view, id) of its cached videos."""
    videos: dict[str, set[tuple[str, str]]] = {}
    for folder in encoder_folders(features_dir, dataset):
        for path in cached_files(folder):
            with suppress(CacheError):
                sha256 = read_header(path).provenance.source_sha256
                videos.setdefault(sha256, set()).add((path.parent.name, path.stem))
    return videos


class FileEmbeddings(EmbeddingReader):
    """Embeddings read from files: the (T, D) embeddings of each video."""

    kind = "npz"

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        embeddings: Mapping[VideoEntry, NDArray[np.float32]],
        origin: dict[str, Any],
    ) -> None:
        self.name = path.name
        self.manifest = replace(manifest, videos=tuple(embeddings))
        self._embeddings = embeddings
        self._origin = origin
        widths = {rows.shape[1] for rows in embeddings.values()}
        if len(widths) > 1:
            raise EvaluationError(
                f"{path}: videos differ in width: {', '.join(map(str, sorted(widths)))}"
            )

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        rows = self._embeddings[segment.video]
        if len(rows) != len(segment):
            raise EvaluationError(
                f"{self.name}: {len(rows)} embeddings for {segment.name}, which has {len(segment)} "
                f"frames in {self.manifest.dataset}; embed it again with byov-embed"
            )
        return rows

    def origin(self) -> dict[str, Any]:
        return self._origin


def read_npz(path: Path) -> FileEmbeddings:
    """Read an .npz file with {train,test}_{embeddings,labels,lengths,is_ego}; train arrays and
    labels are optional.
    """
    arrays = _read_arrays(path, ARRAYS)
    has_training = any(name.startswith("train_") for name in arrays)
    try:
        embeddings = dict(_npz_videos("train", arrays)) if has_training else {}
        embeddings.update(_npz_videos("test", arrays))
    except (KeyError, ValueError) as error:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        reason = error if isinstance(error, ValueError) else f"an array is missing: {error}"
        raise EvaluationError(
            f"{path}: {reason}; it has {shapes or 'no arrays'}; {LAYOUT}"
        ) from None
    phases = range(1 + max(max(video.labels or (UNLABELED,)) for video in embeddings))
    return FileEmbeddings(
        path,
        Manifest("embeddings", tuple(map(str, phases)), (), ()),
        embeddings,
        {"file": path.name, "sha256": file_sha256(path)},
    )


def _npz_videos(
    split: Literal["train", "test"], arrays: Mapping[str, NDArray[Any]]
) -> Iterator[tuple[VideoEntry, NDArray[np.float32]]]:
    """Yield the videos of a split and their embeddings; raise KeyError or ValueError for missing or
    invalid arrays.
    """
    embeddings, lengths, is_ego = (
        arrays[f"{split}_{part}"] for part in ("embeddings", "lengths", "is_ego")
    )
    labels = arrays.get(f"{split}_labels")
    frames = sum(lengths.tolist())  # Python integers do not overflow
    if min(lengths) < 1 or frames != len(embeddings) or len(is_ego) != len(lengths):
        raise ValueError(
            f"lengths must be positive, sum to the number of embeddings (not {frames}) and match "
            "is_ego"
        )
    if labels is not None and (
        len(labels) != frames or not UNLABELED <= labels.min() <= labels.max() < MAX_PHASES
    ):
        raise ValueError(
            f"labels from {labels.min()} to {labels.max()}, expected {frames} of 0, 1, ... or "
            f"{UNLABELED}"
        )
    if not np.isin(is_ego, (0, 1)).all():
        raise ValueError("is_ego must be 1 (ego) or 0 (exo)")
    with np.errstate(over="ignore"):  # values beyond float32 become infinite and are rejected later
        rows = np.ascontiguousarray(embeddings, np.float32)
    for index, end in enumerate(np.cumsum(lengths)):
        part = slice(end - lengths[index], end)
        video = VideoEntry(
            f"{split}-{index}",
            "ego" if is_ego[index] else "exo",
            split,
            len(rows[part]),
            None,
            None if labels is None else tuple(labels[part].tolist()),
            None,
        )
        yield video, rows[part]


def _read_arrays(
    path: Path, expected: Mapping[str, tuple[str, int]], *, strict: bool = True
) -> dict[str, NDArray[Any]]:
    """Read the expected arrays of an .npz file. With `strict`, any other array is an error."""
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:  # np.load would also accept .npy files
            size = sum(member.file_size for member in archive.infolist())
        if size > os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"):
            raise EvaluationError(
                f"{path}: its arrays take {size:,} bytes, more than the memory of this machine"
            )
        with np.load(path, allow_pickle=False) as file:
            # Golden files also store the expected scores.
            unknown = set(file) - expected.keys() - {"expected"}
            if unknown and strict:
                raise EvaluationError(f"{path}: unknown array {min(unknown)[:80]!r}; {LAYOUT}")
            arrays = {name: file[name] for name in expected if name in file}
    except EvaluationError:
        raise
    except FileNotFoundError:
        raise EvaluationError(f"{path}: no such file") from None
    except Exception as error:  # NumPy's parser of array headers can raise any exception
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise EvaluationError(f"{path}: not a readable .npz file ({reason}); {LAYOUT}") from error
    for name, array in arrays.items():
        kinds, ndim = expected[name]
        if array.dtype.kind not in kinds:
            raise EvaluationError(f"{path}: {name} is {array.dtype}, expected {KIND_NAMES[kinds]}")
        if array.ndim != ndim or not array.size:
            raise EvaluationError(
                f"{path}: {name} has shape {array.shape}, expected {ndim} dimensions, none empty"
            )
    return arrays


def open_embeddings(
    path: Path, manifest: Manifest | None = None, sources: Sources | None = None
) -> FileEmbeddings:
    """Read an .npz file with many videos, or a file or folder written by byov-embed.

    Without a manifest, files written by byov-embed are unlabeled test videos. With one, they are
    matched to its videos by the SHA-256 of the video file (`sources`, see `source_videos`), or by
    id if a file has no SHA-256.
    """
    if not is_embedded(path):
        return read_npz(path)
    files = [path]
    if path.is_dir():
        files = sorted(
            file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file()
        )
    if not files:
        raise EvaluationError(f"{path} has no files written by byov-embed ({', '.join(SUFFIXES)})")
    embeddings = dict[VideoEntry, NDArray[np.float32]]()
    models = dict[str, str]()
    for file in files:
        embedding, text = _read_embedded(file)
        models[text["model_sha256"]] = text["run"]
        if len(models) > 1:
            raise EvaluationError(
                f"{file} was embedded with a different model than {files[0]}; score them separately"
            )
        video = _find_video(file, text, len(embedding), manifest, sources or {})
        if any((other.view, other.id) == (video.view, video.id) for other in embeddings):
            raise EvaluationError(
                f"{path}: two files for {video.view} video {video.id!r}; keep one"
            )
        embeddings[video] = embedding
    ((model, run),) = models.items()
    return FileEmbeddings(
        path,
        manifest or Manifest("embedded", (), (), ()),
        embeddings,
        {"files": path.name, "run": run, "model_sha256": model},
    )


def is_embedded(path: Path) -> bool:
    """Return whether byov-embed wrote a file or folder; otherwise it is an .npz file with many
    videos.
    """
    if path.is_dir() or path.suffix.lower() == ".h5":
        return True
    try:
        check_regular(path)
        with zipfile.ZipFile(path) as archive:
            return "embedding.npy" in archive.namelist()
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return False


def _read_embedded(path: Path) -> tuple[NDArray[np.float32], dict[str, str]]:
    """Return (T, D) embeddings and a dict with video, run, model_sha256 and, if known, view and
    source_sha256.
    """
    text: dict[str, str] = {"view": path.parent.name} if path.parent.name in VIEWS else {}
    if path.suffix.lower() == ".h5":
        embedding, source = read_embedding(path)
        recorded = {
            key: getattr(source, key)
            for key in ("video", "run", "model_sha256", "source_sha256", "view")
        }
    else:
        arrays = _read_arrays(path, EMBEDDED_ARRAYS | OPTIONAL_ARRAYS, strict=False)
        if absent := EMBEDDED_ARRAYS.keys() - arrays.keys():
            raise EvaluationError(
                f"{path}: array {min(absent)} is missing; embed it again with byov-embed"
            )
        embedding = np.ascontiguousarray(arrays.pop("embedding"), np.float32)
        recorded = {key: str(value) for key, value in arrays.items()}
    text |= {key: value for key, value in recorded.items() if value}
    if text.get("view", "ego") not in VIEWS:
        raise EvaluationError(f"{path}: view {text['view'][:20]!r}, expected {' or '.join(VIEWS)}")
    return embedding, text


def _find_video(
    path: Path, text: Mapping[str, str], frames: int, manifest: Manifest | None, sources: Sources
) -> VideoEntry:
    if manifest is None:
        if "view" not in text:
            raise EvaluationError(
                f"{path} does not record its view; embed with --view ego or exo, or pass --dataset"
            )
        view = cast(Literal["ego", "exo"], text["view"])
        return VideoEntry(text["video"], view, "test", frames, None, None, None)
    if sha256 := text.get("source_sha256"):
        same = [
            video for video in manifest.videos if (video.view, video.id) in sources.get(sha256, ())
        ]
    else:
        same = [video for video in manifest.videos if video.id == text["video"]]
    matches = [video for video in same if text.get("view", video.view) == video.view]
    if len(matches) != 1:
        others = (
            " and ".join(f"{video.id!r} ({video.view})" for video in matches or same)
            or "none of the videos"
        )
        raise EvaluationError(
            f"{path}: its video matches {others} of {manifest.dataset}. Embed the files that "
            "byov-extract read, each once and with its --view, or omit --dataset to score without "
            "labels."
        )
    return matches[0]
