"""Cached features and embeddings as mappings from video ids to arrays. Does not import PyTorch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from byov.cache.manifest import Manifest, VideoEntry, load_manifest
from byov.errors import ApplyError, UnknownVideoError
from byov.folders import Folder, features_folder
from byov.records import Split, View
from byov.text import pluralize
from byov.train.config import DEFAULT_RATIO
from byov.train.feature_store import FeatureStore, open_training_data


class VideoArrays(Mapping[str, NDArray[Any]]):
    """Mapping from video ids to (T, D) arrays, which are read from disk on access.

    Attributes:
        dataset: Name of the dataset.
        phases: Phase names; labels are indices into them.
        ordered: Whether every video shows the phases in this order.
        videos: Dict mapping video ids to manifest entries (view, split, frames, fps, labels).
    """

    def __init__(
        self,
        manifest: Manifest,
        videos: Sequence[VideoEntry],
        read: Callable[[VideoEntry], NDArray[Any]],
        *,
        split: Split | None,
        view: View | None,
    ) -> None:
        chosen = [
            video for video in videos if split in (None, video.split) and view in (None, video.view)
        ]
        if not chosen:
            existing = (
                ", ".join(sorted({f"{video.split} {video.view}" for video in videos})) or "none"
            )
            wanted = " ".join(part for part in (split, view) if part)
            raise ApplyError(f"{manifest.dataset} has no {wanted} videos. Existing: {existing}.")
        self.dataset = manifest.dataset
        self.phases = manifest.phases
        self.ordered = manifest.ordered
        self.videos = {video.id: video for video in chosen}
        self._read = read

    def __getitem__(self, video: str) -> NDArray[Any]:
        if video not in self.videos:
            raise UnknownVideoError(
                f"{video!r} is not one of the {len(self)} videos, such as {next(iter(self))!r}."
            )
        return self._read(self.videos[video])

    def __iter__(self) -> Iterator[str]:
        return iter(self.videos)

    def __len__(self) -> int:
        return len(self.videos)

    def __repr__(self) -> str:
        return f"<arrays of {pluralize(len(self), 'video')} in {self.dataset}>"


def load_features(
    dataset: str | None = None,
    *,
    split: Split | None = None,
    view: View | None = None,
    encoder: str | None = None,
    ratio: float = DEFAULT_RATIO,
    features_dir: Folder = None,
) -> VideoArrays:
    """Open the cached features of a dataset as a mapping from video ids to (T, d) float16 arrays.

    Args:
        dataset: Dataset in the cache. Optional if there is only one.
        split: Restrict the videos to this split.
        view: Restrict the videos to this view.
        encoder: Encoder in the cache. Optional if there is only one.
        ratio: STM ratio of the features.
        features_dir: Folder of the feature cache. Default: BYOV_FEATURES, else features/.

    >>> features = load_features("demo", split="test")
    >>> video, array = features.videos["test_ego_00"], features["test_ego_00"]
    >>> video.view, video.split, len(array) == video.frames
    ('ego', 'test', True)
    """
    data = open_training_data(features_folder(features_dir), dataset, encoder, ratio)
    manifest = load_manifest(data.folder.parent / "manifest.json")
    store = FeatureStore(data, (), 0)
    cached = {video.id: video for video in data.videos}
    entries = [entry for entry in manifest.videos if entry.id in cached]
    return VideoArrays(
        manifest, entries, lambda video: store.read(cached[video.id]), split=split, view=view
    )
