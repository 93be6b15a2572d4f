"""What a dataset is: videos of two views in three splits, with what is known of their frames."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from byov.errors import DatasetError
from byov.records import UNLABELED

View = Literal["ego", "exo"]
Split = Literal["train", "val", "test"]
VIEWS: tuple[View, ...] = get_args(View)
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True, slots=True)
class Video:
    """One video file and its annotation: phases per frame, or key-event times, or video-level actions, or none."""

    id: str
    view: View
    split: Split
    path: Path
    labels: tuple[int, ...] | None = None  # phase index of each frame
    event_seconds: tuple[float, ...] | None = None  # key events; phase = number of events that have happened
    unlabeled_seconds: tuple[tuple[float, float], ...] = ()  # stretches of which no phase is known: from, up to
    actions: tuple[int, ...] | None = None  # classes of the whole video
    pair: str | None = None  # what an ego and an exo video of the same performance share

    def phases(self, pts_seconds: NDArray[np.float64]) -> tuple[int, ...] | None:
        """The phase of each frame, given the time of each frame; UNLABELED where it is not known, None if in all."""
        if self.labels is not None:
            return self.labels[: len(pts_seconds)]
        if self.event_seconds is None:
            return None
        phases = np.searchsorted(self.event_seconds, pts_seconds, side="right")
        for first, end in self.unlabeled_seconds:
            phases[(pts_seconds >= first) & (pts_seconds < end)] = UNLABELED
        return tuple(phases.tolist()) if (phases != UNLABELED).any() else None


@dataclass(frozen=True)
class Dataset:
    """Videos with unique ids, in a fixed order. A pair is one ego and one exo video of the same split."""

    name: str
    root: Path
    videos: tuple[Video, ...]
    phase_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        repeated = [video_id for video_id, count in Counter(video.id for video in self.videos).items() if count > 1]
        if repeated:
            places = ", ".join(str(video.path) for video in self.videos if video.id == repeated[0])
            stand = "1 id stands" if len(repeated) == 1 else f"{len(repeated):,} ids stand"
            raise DatasetError(f"{self.name}: {stand} for two videos, first {repeated[0]!r}: {places}")
        folded: dict[str, str] = {}
        for video in self.videos:
            other = folded.setdefault(video.id.casefold(), video.id)
            if other != video.id:  # on some disks they would be one file
                raise DatasetError(f"{self.name}: the ids {other!r} and {video.id!r} differ in case only; rename one")
        for video in self.videos:
            if not video.path.is_file():
                raise DatasetError(f"{video.path}: listed in {self.name} ({video.split} split) and not there")
        self._check_pairs()

    def _check_pairs(self) -> None:
        pairs: dict[str, list[Video]] = {}
        for video in self.videos:
            if video.pair is not None:
                pairs.setdefault(video.pair, []).append(video)
        for pair, videos in pairs.items():
            wrong = _wrong_in_pair(videos)
            if wrong is not None:
                raise DatasetError(
                    f"{self.name}: pair {pair!r} {wrong}; give it one ego and one exo video of the same split"
                )


def _wrong_in_pair(videos: list[Video]) -> str | None:
    for view in VIEWS:
        count = sum(video.view == view for video in videos)
        if count != 1:
            return f"has {count} {view} videos" if count else f"has no {view} video"
    splits = {video.split for video in videos}
    return f"is in the splits {' and '.join(sorted(splits))}" if len(splits) > 1 else None


def require_views(dataset: Dataset, splits: tuple[Split, ...]) -> None:
    """Raise unless each of the splits has videos of both views."""
    for split in splits:
        for view in VIEWS:
            if not any(video.view == view and video.split == split for video in dataset.videos):
                raise DatasetError(
                    f"{dataset.root}: the {split} split of {dataset.name} has no {view} videos; both views are needed"
                )


def inside(root: Path, name: str, where: str) -> Path:
    """root / name, unless the name leads out of root. Looks at the name only: links on disk are their owner's.

    An absolute name may go through links to root, as a shell's idea of the working folder does.
    """
    path = Path(os.path.normpath(root / name))
    folder, target = (os.path.normpath(each.absolute()) for each in (root, path))  # root may be "." or ".."
    if "\0" not in name and not _is_below(folder, target) and Path(name).is_absolute():
        folder, target = os.path.realpath(folder), os.path.realpath(target)
    if "\0" in name or not _is_below(folder, target):
        raise DatasetError(f"{where}: the path {name!r} leaves the dataset folder {root}")
    return path


def _is_below(folder: str, path: str) -> bool:
    """Of two normalized paths, as text: `parents` would make a path of each folder above."""
    return path != folder and path.startswith(folder.rstrip("/") + "/")
