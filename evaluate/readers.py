"""Readers for frame embeddings from a run, cached features or normalized time.

None of them runs a model.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.cache.embeddings import (
    EMBED_AGAIN,
    EmbeddingProvenance,
    check_current,
    check_training_data,
)
from byov.cache.features import Header, check_same_identity, read_header, standardize, video_header
from byov.cache.hdf5 import read_array
from byov.cache.layout import cached_files, check_name, manifest_path, video_path
from byov.cache.manifest import Manifest, load_manifest
from byov.cache.runs import (
    check_model,
    embedding_path,
    embeddings_folder,
    is_training,
    read_run,
    unfinished_text,
)
from byov.errors import EvaluationError
from byov.evaluate.frames import Frames
from byov.evaluate.progress_error import mean_phase_starts, reference_progress
from byov.evaluate.protocols import Protocol, Segment, segments
from byov.evaluate.table import Kind
from byov.progress import NO_PROGRESS, Progress, track
from byov.records import UNLABELED


class EmbeddingReader(ABC):
    """Base class for readers, which concatenate the embeddings of a dataset's videos into
    `Frames`.
    """

    name: str  # name of the table row
    column: str = "embedding"  # array in the files
    kind: Kind
    manifest: Manifest
    remedy: str = ""  # advice at the end of errors about missing or stale files
    standardized: bool = False  # whether the embeddings of every segment have zero mean
    optional: bool = False  # whether to omit the row if the embeddings cannot be read

    def path(self, _segment: Segment, /) -> Path | None:
        """Return the file with a segment's embeddings, or None if they are not read from a file."""
        return None

    @abstractmethod
    def rows(self, segment: Segment) -> NDArray[np.float32]:
        """Return the (T, D) embeddings of a segment."""

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """Return the provenance of the embeddings that have been read so far."""

    def notes(self) -> tuple[str, ...]:
        """Return notes to print below tables with these embeddings."""
        return ()

    def frames(
        self,
        split: str,
        protocol: Protocol = "standard",
        progress: Progress = NO_PROGRESS,
        *,
        means: bool = False,
    ) -> Frames:
        """Read all frames of a split or, if `means` is True, only the mean embedding of each video
        to save memory.
        """
        return self.frames_of(
            segments(self.manifest, split, protocol), split, progress, means=means
        )

    def frames_of(
        self,
        wanted: Sequence[Segment],
        split: str,
        progress: Progress = NO_PROGRESS,
        *,
        means: bool = False,
    ) -> Frames:
        """Read all frames of the given segments or, if `means` is True, only the mean embedding of
        each.
        """
        self.require_files(wanted, split)
        labels = None if means else _labels(wanted, self.manifest)
        embeddings: list[NDArray[np.float32]] = []
        for segment in track(wanted, progress, f"reading {self.name}", unit="video", brief=True):
            rows = self.rows(segment)
            require_finite(rows, segment.name)
            mean = rows.mean(axis=0, keepdims=True, dtype=np.float64) if means else rows
            embeddings.append(mean.astype(np.float32, copy=False))
        is_trimmed = any(segment.clip for segment in wanted)
        numbers: dict[tuple[str, str], int] = {}
        recordings = [
            numbers.setdefault((segment.video.view, segment.video.id), len(numbers))
            for segment in wanted
        ]
        return Frames(
            np.concatenate(embeddings),
            labels,
            np.array([len(rows) for rows in embeddings]),
            np.array([segment.video.view == "ego" for segment in wanted]),
            np.array(recordings) if is_trimmed else None,
            None if is_trimmed else _actions(wanted, self.manifest),
            None if means else _reference_progress(wanted, self.manifest),
            np.array([segment.video.fps or np.nan for segment in wanted]),
        )

    def check_files(self, split: str, protocol: Protocol = "standard") -> None:
        """Raise EvaluationError if a video in the split has no embeddings, or StaleError if they
        are out of date.
        """
        wanted = segments(self.manifest, split, protocol)
        self.require_files(wanted, split)
        for segment in wanted:
            self.check(segment)

    def check(self, _segment: Segment, /) -> None:  # noqa: B027, most embeddings cannot be stale
        """Raise StaleError if the embeddings of a segment are out of date."""

    def require_files(self, wanted: Sequence[Segment], split: str) -> None:
        """Raise EvaluationError if the file of any segment is missing."""
        absent = [
            (path, segment.name)
            for segment in wanted
            if (path := self.path(segment)) is not None and not path.is_file()
        ]
        if absent:
            path, name = absent[0]
            raise EvaluationError(
                f"{path.parents[1]}: no embeddings for {len(absent)} of {len(wanted)} {split} "
                f"videos (first: {name}); {self.remedy}"
            )


class RunEmbeddings(EmbeddingReader):
    """Embeddings in a run folder, from the trained model or from the model at initialization."""

    def __init__(
        self, runs_dir: Path, features_dir: Path, run: str, *, untrained: bool = False
    ) -> None:
        self.run = read_run(runs_dir, run)
        self.untrained = untrained
        self.model_sha256 = self.run.untrained_sha256
        if not untrained:
            self.model_sha256 = check_model(self.run.folder, self.run.training).sha256
        self.manifest = read_manifest(features_dir, self.run.dataset)
        self._features_dir = features_dir
        self._training_note = (
            None if untrained else check_training_data(self.run, features_dir, self.manifest)
        )
        self._title = row_title(self.run.title, self.run.encoder) if self.run.title else ""
        self.name = (
            f"Untrained ({run})" if untrained else f"{run}: {self._title}" if self._title else run
        )
        self.kind = "untrained" if untrained else "run"
        self.remedy = f"create them with byov-train --run {run} --embed-only"
        if is_training(self.run.folder):
            self.remedy = "another process is training this run; it writes them at the end"
        self._first: EmbeddingProvenance | None = None
        self._checked: dict[Path, EmbeddingProvenance] = {}
        self._features_sha256: dict[tuple[str, str], str] = {}

    def check(self, segment: Segment, /) -> None:
        path = self.path(segment)
        if path not in self._checked:
            self._checked[path] = check_current(
                path, segment.video, self.run, self._features_dir, self.model_sha256
            )

    def path(self, segment: Segment) -> Path:
        folder = embeddings_folder(self.run.folder, segment.protocol, untrained=self.untrained)
        return embedding_path(folder, segment.video.view, segment.video.id, segment.clip)

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        path = self.path(segment)
        self.check(segment)
        source = self._checked[path]
        embedding: NDArray[np.float32] = read_array(path, "embedding", remedy=EMBED_AGAIN)
        if len(embedding) != len(segment):
            raise EvaluationError(
                f"{path}: {len(embedding)} embeddings for {len(segment)} frames; {self.remedy}"
            )
        self._first = self._first or source
        self._features_sha256[segment.video.view, segment.video.id] = source.column_sha256
        return embedding

    def origin(self) -> dict[str, Any]:
        return {
            "run": self.run.name,
            "untrained": self.untrained,
            "model_sha256": self.model_sha256,
            "dataset": self.run.dataset,
            "recipe": self.run.recipe,
            "title": self._title,
            "seed": self.run.seed,
            "settings": {
                key: value for key, value in sorted(self.run.settings.items()) if key != "seed"
            },
            **{
                key: getattr(self._first, key)
                for key in (
                    "encoder",
                    "encoder_revision",
                    "encoder_sha256",
                    "preprocessing",
                    "column",
                    "byov_version",
                )
                if self._first
            },
            "features_sha256": _joint_digest(self._features_sha256),
            "trained_on": {
                "features_sha256": self.run.features_sha256,
                "labels_sha256": self.run.labels_sha256,
            },
        }

    def notes(self) -> tuple[str, ...]:
        unfinished = None if self.untrained else unfinished_text(self.run)
        notes = (unfinished and f"{self.run.name}: {unfinished}", self._training_note)
        return tuple(filter(None, notes))


class CachedFeatures(EmbeddingReader):
    """Frozen features from column "cls" or "merged/<ratio>", optionally standardized as with
    --standardize video.
    """

    def __init__(
        self,
        features_dir: Path,
        dataset: str,
        encoder_folder: str,
        column: str,
        *,
        standardized: bool = False,
    ) -> None:
        self.manifest = read_manifest(features_dir, dataset)
        self.folder = features_dir / dataset / check_name(encoder_folder, "encoder")
        self.column = column
        self.standardized = standardized
        self.remedy = f"extract them with byov-extract --dataset {dataset}"
        self._first = first_header(self.folder, self.remedy)  # the other files must match it
        encoder = self._first.provenance.encoder
        self.name = (
            f"{features_name(encoder)}, {column.replace('/', ' ')}{', standardized' * standardized}"
        )
        self.kind = "random" if encoder.startswith("random/") else "frozen"
        self._features_sha256: dict[tuple[str, str], str] = {}

    def path(self, segment: Segment) -> Path:
        return video_path(self.folder, segment.video.view, segment.video.id)

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        path = self.path(segment)
        header = video_header(self.folder, segment.video)
        check_same_identity(header, self._first)
        if header.frames != segment.video.frames:
            raise EvaluationError(
                f"{path} has {header.frames} frames but {segment.video.frames} in the manifest; "
                "run byov-extract again"
            )
        features: NDArray[np.float32] = read_array(path, self.column).astype(np.float32)
        self._features_sha256[segment.video.view, segment.video.id] = header.columns[self.column]
        if not self.standardized:
            return features[segment.frames]
        # Standardization would spread one bad value to all frames.
        require_finite(features, segment.name)
        if segment.protocol == "online":
            prefixes = [features[: end + 1].astype(np.float64) for end in segment.frames]
            return np.stack([standardize(prefix)[-1] for prefix in prefixes]).astype(np.float32)
        return standardize(features[segment.frames].astype(np.float64)).astype(np.float32)

    def origin(self) -> dict[str, Any]:
        source = self._first.provenance
        return {
            "dataset": self.manifest.dataset,
            "encoder": source.encoder,
            "encoder_revision": source.encoder_revision,
            "encoder_sha256": source.encoder_sha256,
            "preprocessing": source.preprocessing,
            "byov_version": source.byov_version,
            "column": self.column,
            "standardized": self.standardized,
            "features_sha256": _joint_digest(self._features_sha256),
        }


class TimeOnly(EmbeddingReader):
    """Normalized time of each frame in its video or sub-clip, as a one-dimensional embedding.

    In the online protocol, where the length of the video is unknown, time is relative to the mean
    training duration.
    """

    name = "Time only"
    kind = "time"

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        seconds = [
            (video.frames - 1) / (video.fps or 1)
            for video in manifest.videos
            if video.split == "train" and video.frames
        ]
        self._mean_seconds = (float(np.mean(seconds)) if seconds else 0.0) or 1.0

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        if segment.protocol == "online":
            seconds = segment.frames / (segment.video.fps or 1)
            return (seconds / self._mean_seconds).astype(np.float32)[:, None]
        return np.linspace(0, 1, len(segment), dtype=np.float32)[:, None]

    def origin(self) -> dict[str, Any]:
        return {
            "dataset": self.manifest.dataset,
            "embedding": "one dimension, from 0 at the first frame of a video to 1 at the last",
        }


def read_manifest(features_dir: Path, dataset: str) -> Manifest:
    return load_manifest(manifest_path(features_dir, dataset))


def first_header(folder: Path, remedy: str) -> Header:
    """Read the header of the first feature file in an encoder's folder."""
    path = next(cached_files(folder), None)
    if path is None:
        raise EvaluationError(f"{folder} has no features; {remedy}")
    return read_header(path)


def features_name(encoder: str) -> str:
    """Return the row name for an encoder's features, as in the paper if it has one."""
    model = encoder.rsplit("/", 1)[-1]
    if encoder.startswith("random/"):
        return f"Random features ({model})"
    if encoder == "microsoft/resnet-50":
        return f"ImageNet features ({model})"
    if encoder.startswith("openai/clip-"):
        return f"CLIP features ({model.removeprefix('clip-')})"
    return f"{model} features"


def row_title(method: str, encoder: str) -> str:
    """Return the row title for a method on frozen features, such as "TCC (ViT-B/16, frozen)"."""
    clip = re.fullmatch(r"openai/clip-vit-(base|large)-patch(\d+)(-336)?", encoder)
    model = (
        f"ViT-{clip[1][0].upper()}/{clip[2]}{clip[3] or ''}" if clip else encoder.rsplit("/", 1)[-1]
    )
    return f"{method} ({model}, frozen)"


def require_finite(rows: NDArray[np.float32], name: str) -> None:
    """Raise EvaluationError if (T, D) rows contain NaN or infinite values."""
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(bad):
        raise EvaluationError(
            f"{name}: NaN or infinite values in {len(bad)} of {len(rows)} frames, first at {bad[0]}"
        )


def _labels(wanted: Sequence[Segment], manifest: Manifest) -> NDArray[np.int64] | None:
    """Return (F,) phase indices, UNLABELED for frames without a label;

    None if no frame has a label.
    """
    labels = []
    for segment in wanted:
        video = segment.video
        whole = (video.labels if manifest.phases else None) or (UNLABELED,) * (video.frames or 0)
        if len(whole) != video.frames or not set(whole) <= set(
            range(UNLABELED, len(manifest.phases))
        ):
            raise EvaluationError(
                f"{segment.name}: {len(whole)} labels for {video.frames} frames, from {min(whole)} "
                f"to {max(whole)} for {len(manifest.phases)} phases; correct the labels and run "
                "byov-extract again"
            )
        labels.append(np.array(whole, np.int64)[segment.frames])
    joined = np.concatenate(labels)
    return joined if (joined != UNLABELED).any() else None


def _reference_progress(wanted: Sequence[Segment], manifest: Manifest) -> NDArray[np.float64]:
    mean_starts = mean_phase_starts(
        video.labels or ()
        for video in manifest.videos
        if video.split == "train" and manifest.phases
    )
    whole_videos = [
        reference_progress(segment.video.frames or 0, segment.video.labels, mean_starts)
        for segment in wanted
    ]
    return np.concatenate(
        [whole[segment.frames] for whole, segment in zip(whole_videos, wanted, strict=True)]
    )


def _actions(wanted: Sequence[Segment], manifest: Manifest) -> NDArray[np.bool_] | None:
    """Return a (V, C) mask of the actions in each video, or None if the dataset has no action
    labels.
    """
    if not manifest.actions:
        return None
    shown = np.zeros((len(wanted), len(manifest.actions)), np.bool_)
    for row, segment in enumerate(wanted):
        actions = list(segment.video.actions or ())
        if not set(actions) <= set(range(len(manifest.actions))):
            raise EvaluationError(
                f"{segment.name}: unknown actions among {actions}; run byov-extract again"
            )
        shown[row, actions] = True
    return shown


def _joint_digest(digests: dict[tuple[str, str], str]) -> str:
    return hashlib.sha256(repr(sorted(digests.items())).encode()).hexdigest()
