"""Training data: cached features of one dataset and encoder."""

import logging
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from byov.cache.embeddings import training_digests
from byov.cache.features import check_same_identity, video_header
from byov.cache.hdf5 import read_array, read_columns
from byov.cache.layout import (
    cached_files,
    encoder_folders,
    encoder_slug,
    extract_command,
    ratio_key,
    video_path,
)
from byov.cache.manifest import VideoEntry, load_manifest
from byov.errors import TrainError
from byov.records import UNLABELED
from byov.text import pluralize

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CachedVideo(VideoEntry):
    """Manifest entry of a video in the cache, with its feature file."""

    frames: int
    path: Path
    sha256: str  # digest of the features


@dataclass(frozen=True)
class TrainingData:
    """Videos of one dataset with features from one encoder at one STM ratio."""

    dataset: str
    folder: Path  # features/<dataset>/<encoder>
    column: str  # name of the HDF5 column, such as "merged/0.3"
    width: int
    identity: dict[str, str]  # result of `Provenance.identity`, equal for all videos
    videos: tuple[CachedVideo, ...]
    digests: dict[str, str]  # digests of the train and val videos; see `training_digests`

    def split(self, name: str, view: str | None = None) -> list[CachedVideo]:
        """Return the videos of a split, optionally restricted to one view."""
        return [
            video for video in self.videos if video.split == name and view in (None, video.view)
        ]


def open_training_data(
    features_dir: Path, dataset: str | None, encoder: str | None, ratio: float
) -> TrainingData:
    """Open the cached features at an STM ratio; dataset and encoder may be None if there is only
    one choice.
    """
    folder = choose_folder(features_dir, dataset, encoder)
    manifest = load_manifest(folder.parent / "manifest.json")
    column = f"merged/{ratio_key(ratio)}"
    cached = [
        (entry, video_header(folder, entry))
        for entry in manifest.videos
        if video_path(folder, entry.view, entry.id).is_file()
    ]
    if not cached:
        raise TrainError(
            f"{folder} has no videos from the manifest. Run byov-extract --dataset "
            f"{folder.parent.name}."
        )
    if dataset is None or encoder is None:
        LOGGER.info(f"features: {folder} at ratio {ratio_key(ratio)}")
    (_, first), *_ = cached
    for _, header in cached:
        check_same_identity(header, first)
    videos = []
    for entry, header in cached:
        if column not in header.columns:
            encoder_id = header.provenance.encoder
            command = extract_command(folder.parent.name, encoder_id, ratio_key(ratio))
            raise TrainError(
                f"{header.path} has no STM ratio {ratio_key(ratio)}, only "
                f"{', '.join(sorted(header.ratios, key=float))}. Run {command}."
            )
        phases = len(manifest.phases)
        labels = entry.labels if phases else None
        if labels is not None and (
            len(labels) != header.frames or not all(UNLABELED <= label < phases for label in labels)
        ):
            raise TrainError(
                f"{entry.id} has {len(labels)} labels from {min(labels, default=0)} to "
                f"{max(labels, default=0)}, but {header.frames} frames and {phases} phases. Run "
                "byov-extract again to update the manifest."
            )
        known = asdict(entry) | {"frames": header.frames, "labels": labels}
        videos.append(CachedVideo(**known, path=header.path, sha256=header.columns[column]))
    if missing := len(manifest.videos) - len(videos):
        LOGGER.info(
            f"missing from the cache: {pluralize(missing, 'video')} of {folder.parent.name}; see "
            "byov-cache ls"
        )
    shape, _ = read_columns(first.path)[column]
    return TrainingData(
        dataset=folder.parent.name,
        folder=folder,
        column=column,
        width=shape[1],
        identity=dict(first.provenance.identity()),
        videos=tuple(videos),
        digests=training_digests((entry, header.columns[column]) for entry, header in cached),
    )


def choose_dataset(features_dir: Path, dataset: str | None) -> str:
    """Return the given dataset, or the only one with features in the cache if None."""
    folders = encoder_folders(features_dir, dataset)
    datasets = sorted({folder.parent.name for folder in folders if any(cached_files(folder))})
    if not datasets:
        what = "features" if dataset is None else f"features of {dataset}"
        failed = "; no video could be extracted, see failures.json" if folders else ""
        raise TrainError(
            f"{features_dir} has no {what}{failed}. Extract some: byov-extract --dataset "
            f"{dataset or 'demo'}"
        )
    if len(datasets) > 1:
        raise TrainError(
            f"{features_dir} has several datasets. Choose one: --dataset {' | '.join(datasets)}"
        )
    return datasets[0]


def choose_folder(features_dir: Path, dataset: str | None, encoder: str | None) -> Path:
    """Return features/<dataset>/<encoder>; dataset and encoder may be None if there is only one
    choice.
    """
    dataset = choose_dataset(features_dir, dataset)
    folders = [
        folder for folder in encoder_folders(features_dir, dataset) if any(cached_files(folder))
    ]
    existing = " | ".join(folder.name for folder in folders)
    if encoder is not None:
        slug = encoder_slug(str(Path(encoder).resolve()) if Path(encoder).is_dir() else encoder)
        folders = [folder for folder in folders if folder.name in (encoder, slug)]
    if not folders:
        raise TrainError(
            f"{features_dir / dataset} has no features of encoder {encoder!r}, only {existing}. "
            f"Choose one of them, or extract it: byov-extract --dataset {dataset} --encoder "
            f"{encoder}"
        )
    if len(folders) > 1:
        raise TrainError(
            f"{folders[0].parent} has several encoders. Choose one: --encoder {existing}"
        )
    return folders[0]


class FeatureStore:
    """Video features, preloaded if they fit the memory budget, otherwise read from disk on every
    access.
    """

    def __init__(
        self, data: TrainingData, videos: Iterable[CachedVideo], budget_bytes: int
    ) -> None:
        self._column = data.column
        chosen = tuple(videos)
        self.size_bytes = sum(video.frames for video in chosen) * data.width * 2
        self.preloaded = self.size_bytes <= budget_bytes
        self._arrays = {video.path: self._read(video) for video in chosen} if self.preloaded else {}

    def read(self, video: CachedVideo) -> NDArray[np.float16]:
        """Return the (T, width) features of a video."""
        array = self._arrays.get(video.path)
        return self._read(video) if array is None else array

    def _read(self, video: CachedVideo) -> NDArray[np.float16]:
        features: NDArray[np.float16] = read_array(video.path, self._column, sha256=video.sha256)
        if not np.isfinite(features).all():
            frame = int(np.argmin(np.isfinite(features).all(axis=1)))
            raise TrainError(
                f"{video.path}: {self._column} is not finite at frame {frame}. Extract it again."
            )
        return features
