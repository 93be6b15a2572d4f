"""What stands beside a run: the frozen features themselves, and nothing but time."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.cache.contents import check_same_identity
from byov.cache.features import Header, read_header
from byov.cache.layout import cached_files, check_name, video_path
from byov.cache.row_reader import read_array, read_digest
from byov.errors import EvaluationError
from byov.evaluate.embedding_readers import EmbeddingReader, FeatureDigests, read_manifest
from byov.evaluate.frames import Frames
from byov.evaluate.protocols import Segment

TIME_ONLY = "one dimension: 0 at the first frame of a video, 1 at its last"


class CachedFeatures(EmbeddingReader):
    """A column of the feature cache as it is: what the frozen encoder gives."""

    def __init__(self, features_dir: Path, dataset: str, encoder_folder: str, column: str) -> None:
        self.manifest = read_manifest(features_dir, dataset)
        self.folder = features_dir / dataset / check_name(encoder_folder, "encoder")
        self.column = column
        self.remedy = f"extract them with byov-extract --dataset {dataset}"
        self.encoder = first_header(self.folder, self.remedy).provenance.encoder
        self.name = f"{features_name(self.encoder)}, {column.replace('/', ' ')}"
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
        return features

    def origin(self) -> dict[str, Any]:
        made = asdict(self._first.provenance) if self._first else {"encoder": self.encoder}
        kept = ("encoder", "encoder_revision", "encoder_sha256", "preprocessing", "byov_version")
        return {
            "dataset": self.manifest.dataset,
            **{key: made[key] for key in kept if key in made},
            "column": self.column,
            "features_sha256": self._features.digest(),
        }


class TimeOnly(EmbeddingReader):
    """Nothing but a frame's normalised position in its video, or in its sub-clip."""

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
