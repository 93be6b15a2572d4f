"""Features and embeddings by video: a mapping that reads a file when its video is asked for."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.data.dataset import Split, View
from byov.errors import ApplyError
from byov.folders import Folder, features_folder
from byov.text import counted
from byov.train.feature_store import FeatureStore
from byov.train.run_choices import open_features
from byov.train.settings import DEFAULT_RATIO


class VideoArrays(Mapping[str, NDArray[Any]]):
    """Video id → its (T, d) array, read from its file each time; `videos` has what is known of each.

    phases: the names of what the `labels` of a video count.
    """

    def __init__(
        self, manifest: Manifest, videos: Sequence[VideoEntry], read: Callable[[VideoEntry], NDArray[Any]]
    ) -> None:
        self.dataset, self.phases = manifest.dataset, manifest.phases
        self.videos = {video.id: video for video in videos}
        self._read = read

    def __getitem__(self, video: str) -> NDArray[Any]:
        return self._read(self.videos[video])

    def __iter__(self) -> Iterator[str]:
        return iter(self.videos)

    def __len__(self) -> int:
        return len(self.videos)

    def __repr__(self) -> str:
        return f"<arrays of {counted(len(self), 'video')} of {self.dataset}>"


def of_split(
    manifest: Manifest, videos: Sequence[VideoEntry], split: Split | None, view: View | None
) -> list[VideoEntry]:
    """Those of a split and a view, or of all; raises if there are none."""
    chosen = [video for video in videos if split in (None, video.split) and view in (None, video.view)]
    if not chosen:
        there = ", ".join(sorted({f"{video.split} {video.view}" for video in videos})) or "none at all"
        wanted = " ".join(part for part in (split, view) if part)
        raise ApplyError(f"{manifest.dataset}: no {wanted} videos; there are {there}")
    return chosen


def load_features(
    dataset: str | None = None,
    *,
    split: Split | None = None,
    view: View | None = None,
    encoder: str | None = None,
    ratio: float = DEFAULT_RATIO,
    features_dir: Folder = None,
) -> VideoArrays:
    """The cached features of a dataset's videos at an STM ratio, as (T, d) float16 arrays by video id.

    Dataset and encoder may be left out where the cache has only one. The features of a video are read when they are
    asked for, so that a dataset may be larger than the memory.

    >>> features = load_features("demo", split="test")
    >>> features["pour_ego_015"].shape
    (12, 128)
    >>> [(video.id, video.view, video.frames) for video in features.videos.values()]
    [('pour_ego_015', 'ego', 12), ('pour_exo_015', 'exo', 14)]
    """
    data = open_features(features_folder(features_dir), dataset, encoder, ratio)
    manifest, store = load_manifest(data.folder.parent / "manifest.json"), FeatureStore(data, (), 0)
    cached = {video.id: video for video in data.videos}
    entries = [entry for entry in manifest.videos if entry.id in cached]

    def read(entry: VideoEntry) -> NDArray[np.float16]:
        return store.read(cached[entry.id])

    return VideoArrays(manifest, of_split(manifest, entries, split, view), read)
