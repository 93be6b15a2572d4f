"""The videos of one dataset and encoder as the trainer sees them: T x d arrays from the cache, and no videos."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from byov.cache.features import Header, check_same_identity, read_header
from byov.cache.hdf5 import read_array, read_columns
from byov.cache.layout import encoder_folders, encoder_slug, ratio_key, video_path
from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.errors import TrainError
from byov.records import UNLABELED
from byov.text import pluralize

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class CachedVideo:
    """A cached video: where its features are, and what the manifest says of it."""

    id: str
    view: str
    split: str
    frames: int
    labels: tuple[int, ...] | None
    path: Path
    sha256: str  # of its features, as the file says
    pair: str | None = None  # as the manifest has it: nothing says that there is another of that name


@dataclass(frozen=True)
class TrainingData:
    """One dataset through one encoder at one STM ratio."""

    dataset: str
    folder: Path  # features/<dataset>/<encoder>
    column: str  # "merged/0.3"
    width: int
    identity: dict[str, str]  # what Provenance.identity says, the same for all videos
    videos: tuple[CachedVideo, ...]

    def of(self, split: str, view: str | None = None) -> list[CachedVideo]:
        return [video for video in self.videos if video.split == split and view in (None, video.view)]


def open_training_data(features_dir: Path, dataset: str | None, encoder: str | None, ratio: float) -> TrainingData:
    """Find the features; what is left out must be unambiguous."""
    folder = choose_folder(features_dir, dataset, encoder)
    manifest = load_manifest(folder.parent / "manifest.json")
    column = f"merged/{ratio_key(ratio)}"
    videos, first = _videos(folder, manifest, column)
    if first is None:
        raise TrainError(
            f"{folder}: none of the manifest's videos is in it; run byov-extract --dataset {folder.parent.name}"
        )
    shape, _ = read_columns(first.path)[column]
    absent = len(manifest.videos) - len(videos)
    if dataset is None or encoder is None:
        LOGGER.info(f"features: {folder} at ratio {ratio_key(ratio)}")
    if absent:
        LOGGER.info(f"{pluralize(absent, 'video')} of {folder.parent.name} not in the cache; see byov-cache ls")
    return TrainingData(
        dataset=folder.parent.name,
        folder=folder,
        column=column,
        width=shape[1],
        identity=dict(first.provenance.identity()),
        videos=videos,
    )


class FeatureStore:
    """Features by video: all in memory if they fit the budget, else read again each time. The numbers are the same."""

    def __init__(self, data: TrainingData, videos: Iterable[CachedVideo], budget_bytes: int) -> None:
        self._data = data
        chosen = tuple(videos)
        self.size_bytes = sum(video.frames for video in chosen) * data.width * 2
        self.preloaded = self.size_bytes <= budget_bytes
        self._arrays = {video.path: self._read(video) for video in chosen} if self.preloaded else {}

    def read(self, video: CachedVideo) -> NDArray[np.float16]:
        """(T, width) features of a video."""
        array = self._arrays.get(video.path)
        return self._read(video) if array is None else array

    def _read(self, video: CachedVideo) -> NDArray[np.float16]:
        features: NDArray[np.float16] = read_array(video.path, self._data.column)
        if features.shape != (video.frames, self._data.width):
            expected = (video.frames, self._data.width)
            raise TrainError(f"{video.path}: {self._data.column} is {features.shape}, expected {expected}")
        if not np.isfinite(features).all():
            frame = int(np.argmin(np.isfinite(features).all(axis=1)))
            raise TrainError(f"{video.path}: {self._data.column} is not finite at frame {frame}; extract it again")
        return features


def choose_folder(features_dir: Path, dataset: str | None, encoder: str | None) -> Path:
    """features/<dataset>/<encoder>, by name or the only one there."""
    folders = encoder_folders(features_dir, dataset)
    datasets = sorted({folder.parent.name for folder in folders})
    if len(datasets) > 1:
        raise TrainError(f"which dataset? --dataset {' | '.join(datasets)}")
    if encoder is not None:
        wanted = {encoder, encoder_slug(encoder)}
        chosen = [folder for folder in folders if folder.name in wanted]
    else:
        chosen = folders
    there = " | ".join(folder.name for folder in folders) or "nothing"
    if not chosen:
        what = f"encoder {encoder!r}" if encoder else "features"
        raise TrainError(f"{features_dir / (datasets[0] if datasets else '')}: no {what}; there is {there}")
    if len(chosen) > 1:
        raise TrainError(f"which encoder? --encoder {there}")
    return chosen[0]


def _videos(folder: Path, manifest: Manifest, column: str) -> tuple[tuple[CachedVideo, ...], Header | None]:
    """Those of the manifest that are in the cache, and the header of the first, with which all others agree."""
    videos: list[CachedVideo] = []
    first: Header | None = None
    for entry in manifest.videos:
        path = video_path(folder, entry.view, entry.id)
        if not path.is_file():
            continue
        header = read_header(path)
        first = first or header
        _refuse_absent(header, column)
        check_same_identity(header, first)
        videos.append(_video(header, entry, len(manifest.phases), header.columns[column]))
    return tuple(videos), first


def _refuse_absent(header: Header, column: str) -> None:
    ratio = column.removeprefix("merged/")
    if ratio not in header.ratios:
        there = ", ".join(sorted(header.ratios, key=float))
        raise TrainError(
            f"{header.path}: no STM ratio {ratio}; it has {there}. "
            f"Add it by byov-extract as before, with --ratios {ratio}"
        )


def _video(header: Header, entry: VideoEntry, phases: int, sha256: str) -> CachedVideo:
    if header.frames < 1:
        raise TrainError(f"{header.path}: no frames")
    labels = entry.labels if phases else None
    if labels is not None and (
        len(labels) != header.frames or not all(UNLABELED <= label < phases for label in labels)
    ):
        raise TrainError(
            f"{entry.id}: {len(labels)} labels from {min(labels, default=0)} to {max(labels, default=0)} for "
            f"{header.frames} frames and {phases} phases; run byov-extract again, it brings the manifest up to date"
        )
    return CachedVideo(entry.id, entry.view, entry.split, header.frames, labels, header.path, sha256, entry.pair)
