"""Embeddings of a dataset's videos: what all readers have in common, and the reader of a run. All become Frames.

Readers read from the cache; nothing here runs a model.
"""

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.cache.embeddings import EmbeddingProvenance, read_embedding
from byov.cache.features import Header, check_same_identity, read_header, standardize
from byov.cache.hdf5 import read_array, read_digest
from byov.cache.layout import cached_files, check_name, manifest_path, video_path
from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.cache.runs import embedding_path, embeddings_folder, model_digest, read_run, unfinished_text
from byov.errors import EvaluationError
from byov.evaluate.frames import Frames
from byov.evaluate.protocols import Protocol, Segment, segments
from byov.evaluate.scores import Kind
from byov.progress import NO_PROGRESS, Progress, track
from byov.records import UNLABELED
from byov.text import pluralize

TIME_ONLY = "one dimension: 0 at the first frame of a video, 1 at its last"
SHOWN_NAMES = 3  # of the videos that an error is about


class EmbeddingReader(ABC):
    """Reads embeddings of a dataset's videos."""

    name: str  # of its row in a table
    kind: Kind
    manifest: Manifest
    remedy: str  # what to do if files are absent or do not fit
    standardized: bool = False  # over each segment: the mean of every one is zero
    _training: Frames | None = None

    @abstractmethod
    def path(self, segment: Segment) -> Path | None:
        """The file that holds a segment's embeddings; None if none is needed."""

    @abstractmethod
    def rows(self, segment: Segment) -> NDArray[np.float32]:
        """(T, D) embeddings of a segment."""

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """Where the embeddings come from; complete once frames were read."""

    def notes(self) -> tuple[str, ...]:
        """What whoever reads the scores must know of the embeddings."""
        return ()

    def training_frames(self, progress: Progress = NO_PROGRESS) -> Frames:
        """Whole training videos, under any protocol; read once."""
        if self._training is None:
            self._training = self.frames("train", progress=progress)
        return self._training

    def video_means(self, split: str, progress: Progress = NO_PROGRESS) -> Frames:
        """Each video as one frame, the mean of its own: all that is needed of videos too many to hold."""
        wanted = segments(self.manifest, split)
        self.refuse_absent(wanted, split)
        means = ((segment, _mean_row(self.rows(segment))) for segment in self._track(wanted, progress))
        return _frames_of(wanted, _join(means, len(wanted)), np.ones(len(wanted), np.int64), labels=None)

    def frames(self, split: str, protocol: Protocol = "standard", progress: Progress = NO_PROGRESS) -> Frames:
        return self.frames_of(segments(self.manifest, split, protocol), split, progress)

    def frames_of(self, wanted: Sequence[Segment], split: str, progress: Progress = NO_PROGRESS) -> Frames:
        """Of some segments of a split."""
        self.refuse_absent(wanted, split)
        lengths = np.array([len(segment) for segment in wanted])
        rows = ((segment, self.rows(segment)) for segment in self._track(wanted, progress))
        return _frames_of(wanted, _join(rows, int(lengths.sum())), lengths, _labels(wanted, self.manifest))

    def _track(self, wanted: Sequence[Segment], progress: Progress) -> Iterable[Segment]:
        return track(wanted, progress, f"reading {self.name}", unit="video", brief=True)

    def refuse_absent(self, wanted: Sequence[Segment], split: str) -> None:
        """Raise if some segments have no file, and say what makes them."""
        paths = {segment.name: self.path(segment) for segment in wanted}
        absent = {name: path for name, path in paths.items() if path is not None and not path.is_file()}
        if absent:
            folder = next(iter(absent.values())).parents[1]
            what = f"no embeddings of {len(absent)} of {len(wanted)} {split} videos"
            raise EvaluationError(f"{folder}: {what} ({_some(list(absent))}); {self.remedy}")


class RunEmbeddings(EmbeddingReader):
    """What a run's model made of the videos; with `untrained`, what it made of them at its initialization."""

    def __init__(self, runs_dir: Path, features_dir: Path, run: str, *, untrained: bool = False) -> None:
        self.run = read_run(runs_dir, run)
        self.untrained = untrained
        self.model_sha256 = self.run.untrained_sha256 if untrained else model_digest(self.run.folder, self.run.training)
        self.manifest = read_manifest(features_dir, self.run.dataset)
        self.name = f"Untrained ({run})" if untrained else _named(run, self.run.title, self.run.encoder)
        self.kind = "untrained" if untrained else "run"
        self.remedy = f"make them with byov-train --run {run} --embed-only"
        self._first: EmbeddingProvenance | None = None  # the first file's; all others must agree with it
        self._features = FeatureDigests()

    def path(self, segment: Segment) -> Path:
        trimmed = segment.clip is not None
        folder = embeddings_folder(self.run.folder, untrained=self.untrained, trimmed=trimmed)
        return embedding_path(folder, segment.video.view, segment.video.id, segment.clip)

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        path = self.path(segment)
        embedding, provenance = read_embedding(path)
        self._check_provenance(path, provenance, segment)
        if len(embedding) != len(segment):
            there = f"{pluralize(len(embedding), 'embedding')} of {pluralize(len(segment), 'frame')}"
            raise EvaluationError(f"{path}: {there}; {self.remedy}")
        self._features.add(segment.video, provenance.column_sha256)
        return embedding

    def origin(self) -> dict[str, Any]:
        made = asdict(self._first) if self._first else {}
        kept = ("encoder", "encoder_revision", "encoder_sha256", "preprocessing", "column", "byov_version")
        return {
            "run": self.run.name,
            "untrained": self.untrained,
            "model_sha256": self.model_sha256,
            "dataset": self.run.dataset,
            "recipe": self.run.recipe,
            "title": self.run.title and row_title(self.run.title, self.run.encoder),
            "seed": self.run.seed,
            "settings": {key: value for key, value in sorted(self.run.settings.items()) if key != "seed"},
            **{key: made[key] for key in kept if key in made},
            "features_sha256": self._features.digest(),
        }

    def notes(self) -> tuple[str, ...]:
        """A table outlives the training that it was made amid: it must not pass for one of all its epochs."""
        said = None if self.untrained else unfinished_text(self.run)
        return () if said is None else (f"{self.run.name}: {said}",)

    def _check_provenance(self, path: Path, provenance: EmbeddingProvenance, segment: Segment) -> None:
        if provenance.model_sha256 != self.model_sha256:
            model = "the run's untrained model" if self.untrained else "the run's model"
            raise EvaluationError(
                f"{path}: embeddings of model {provenance.model_sha256[:12]}, {model} is {self.model_sha256[:12]}; "
                f"{self.remedy}"
            )
        self._first = self._first or provenance
        expected = {
            "dataset": self.run.dataset,
            "video": segment.video.id,
            "column": self.run.column,
            "first_frame": segment.first,
            **{key: getattr(self._first, key) for key in ("encoder", "encoder_sha256", "preprocessing")},
        }
        for key, value in expected.items():
            if getattr(provenance, key) != value:
                raise EvaluationError(f"{path}: {key} {getattr(provenance, key)!r}, expected {value!r}; {self.remedy}")


class CachedFeatures(EmbeddingReader):
    """A column of the feature cache as it is: what the frozen encoder gives. With `standardized`, as a model that
    standardizes is given it: every video, and every sub-clip on its own, on a common scale."""

    def __init__(
        self, features_dir: Path, dataset: str, encoder_folder: str, column: str, *, standardized: bool = False
    ) -> None:
        self.manifest = read_manifest(features_dir, dataset)
        self.folder = features_dir / dataset / check_name(encoder_folder, "encoder")
        self.column = column
        self.standardized = standardized
        self.remedy = f"extract them with byov-extract --dataset {dataset}"
        self.encoder = first_header(self.folder, self.remedy).provenance.encoder
        self.name = f"{features_name(self.encoder)}, {column.replace('/', ' ')}"
        if standardized:
            self.name += ", standardized"
        self.kind = "random" if self.encoder.startswith("random/") else "frozen"
        self._first: Header | None = None  # the first file's that was read; all others must agree with it
        self._features = FeatureDigests()

    def path(self, segment: Segment) -> Path:
        return video_path(self.folder, segment.video.view, segment.video.id)

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        path = self.path(segment)
        header = read_header(path)
        self._first = self._first or header
        check_same_identity(header, self._first)
        if header.frames != segment.frames_of_video:
            raise EvaluationError(
                f"{path}: {header.frames} frames, {segment.frames_of_video} in the manifest; run byov-extract again"
            )
        features: NDArray[np.float32] = read_array(path, self.column)[segment.frames].astype(np.float32)
        self._features.add(segment.video, read_digest(path, self.column))
        return _standardized(features, segment.name) if self.standardized else features

    def origin(self) -> dict[str, Any]:
        made = asdict(self._first.provenance) if self._first else {"encoder": self.encoder}
        kept = ("encoder", "encoder_revision", "encoder_sha256", "preprocessing", "byov_version")
        return {
            "dataset": self.manifest.dataset,
            **{key: made[key] for key in kept if key in made},
            "column": self.column,
            "standardized": self.standardized,
            "features_sha256": self._features.digest(),
        }


class TimeOnly(EmbeddingReader):
    """Nothing but a frame's normalized position in its video, or in its sub-clip."""

    name, kind = "Time only", "time"
    remedy = ""

    def __init__(self, features_dir: Path, dataset: str) -> None:
        self.manifest = read_manifest(features_dir, dataset)

    def path(self, segment: Segment) -> None:  # noqa: ARG002
        return None

    def rows(self, segment: Segment) -> NDArray[np.float32]:
        return clock(len(segment))

    def origin(self) -> dict[str, Any]:
        return {"dataset": self.manifest.dataset, "embedding": TIME_ONLY}


def clock(frames: int) -> NDArray[np.float32]:
    """(T, 1) positions.

    >>> clock(3).ravel().tolist()
    [0.0, 0.5, 1.0]
    """
    return np.linspace(0, 1, frames, dtype=np.float32)[:, None]


def time_only(frames: Frames) -> Frames:
    """The same videos with nothing left but time."""
    clocks = np.concatenate([clock(length) for length in frames.lengths])
    return Frames(clocks, frames.labels, frames.lengths, frames.is_ego, frames.names)


def first_header(folder: Path, remedy: str) -> Header:
    """The header of one feature file of an encoder's folder."""
    path = next(cached_files(folder), None)
    if path is None:
        raise EvaluationError(f"{folder}: no features; {remedy}")
    return read_header(path)


def features_name(encoder: str) -> str:
    """The row of an encoder's features, by the paper's name where it has one."""
    model = encoder.rsplit("/", 1)[-1]
    if encoder.startswith("random/"):
        return f"Random features ({model})"
    if encoder == "microsoft/resnet-50":
        return f"ImageNet features ({model})"
    if encoder.startswith("openai/clip-"):
        return f"CLIP features ({model.removeprefix('clip-')})"
    return f"{model} features"


def row_title(method: str, encoder: str) -> str:
    """What a run's row is: its method on features that stay as they are, unlike in most publications.

    >>> row_title("TCC", "openai/clip-vit-base-patch16")
    'TCC (ViT-B/16, frozen)'
    """
    clip = re.fullmatch(r"openai/clip-vit-(base|large)-patch(\d+)(-336)?", encoder)
    model = f"ViT-{clip[1][0].upper()}/{clip[2]}{clip[3] or ''}" if clip else encoder.rsplit("/", 1)[-1]
    return f"{method} ({model}, frozen)"


def _named(run: str, method: str, encoder: str) -> str:
    return f"{run}: {row_title(method, encoder)}" if method else run


def read_manifest(features_dir: Path, dataset: str) -> Manifest:
    return load_manifest(manifest_path(features_dir, dataset))


def refuse_not_finite(rows: NDArray[np.float32], name: str) -> None:
    finite = np.isfinite(rows).all(axis=1)
    if not finite.all():
        bad = np.flatnonzero(~finite)
        raise EvaluationError(f"{name}: NaN or infinite values in {len(bad)} of {len(rows)} frames, first in {bad[0]}")


def _standardized(rows: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """(T, D) of one segment; one frame that is not finite would spoil all others."""
    refuse_not_finite(rows, name)
    return standardize(rows.astype(np.float64)).astype(np.float32)


def _mean_row(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """(T, D) → (1, D)"""
    mean: NDArray[np.float64] = rows.mean(axis=0, keepdims=True, dtype=np.float64)
    return mean.astype(np.float32)


def _frames_of(
    wanted: Sequence[Segment],
    embeddings: NDArray[np.float32],
    lengths: NDArray[np.int64],
    labels: NDArray[np.int64] | None,
) -> Frames:
    is_ego = np.array([segment.video.view == "ego" for segment in wanted])
    return Frames(embeddings, labels, lengths, is_ego, tuple(segment.name for segment in wanted))


def _join(parts: Iterable[tuple[Segment, NDArray[np.float32]]], frames: int) -> NDArray[np.float32]:
    """All rows in one array, which is filled as they come: memory for one copy."""
    joined: NDArray[np.float32] = np.empty((0, 0), np.float32)
    filled = 0
    for segment, rows in parts:
        if not filled:
            joined = np.empty((frames, rows.shape[1]), np.float32)
        if rows.shape[1] != joined.shape[1]:
            raise EvaluationError(f"{segment.name}: {rows.shape[1]} dimensions, other videos have {joined.shape[1]}")
        refuse_not_finite(rows, segment.name)
        joined[filled : filled + len(rows)] = rows
        filled += len(rows)
    return joined


def _labels(wanted: Sequence[Segment], manifest: Manifest) -> NDArray[np.int64] | None:
    """Phase indices of all frames, UNLABELED where there is none; None if no frame has any."""
    if not manifest.phases:
        return None
    labels = np.concatenate([_labels_of(segment, manifest) for segment in wanted])
    return labels if (labels != UNLABELED).any() else None


def _labels_of(segment: Segment, manifest: Manifest) -> NDArray[np.int64]:
    if segment.labels is None:
        return np.full(len(segment), UNLABELED)
    _check_labels(segment, manifest)
    return np.array(segment.labels, np.int64)


def _check_labels(segment: Segment, manifest: Manifest) -> None:
    labels = segment.video.labels or ()
    if len(labels) != segment.frames_of_video:
        raise EvaluationError(
            f"{segment.name}: {segment.frames_of_video} frames, {len(labels)} labels in the manifest; "
            "run byov-extract again"
        )
    if min(labels) < UNLABELED or max(labels) >= len(manifest.phases):
        raise EvaluationError(
            f"{segment.name}: phases from {min(labels)} to {max(labels)}, but {manifest.dataset} has "
            f"{len(manifest.phases)} phases, from 0; correct the labels and run byov-extract again"
        )


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (", ..." if len(names) > SHOWN_NAMES else "")


class FeatureDigests:
    """One digest for the columns of many videos."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], str] = {}

    def add(self, video: VideoEntry, sha256: str) -> None:
        self._known[video.view, video.id] = sha256

    def digest(self) -> str:
        return hashlib.sha256(repr(sorted(self._known.items())).encode()).hexdigest()
