"""Datasets: videos of two views in three splits, with their annotations."""

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
    """A video file and its annotations.

    Attributes:
        labels: Phase index of each frame.
        event_seconds: Times of key events; the phase of a frame is the number of events up to it.
        unlabeled_seconds: Intervals (start, end) without a known phase.
        actions: Action classes of the whole video.
        pair: Name shared by an ego and an exo video of the same performance.
    """

    id: str
    view: View
    split: Split
    path: Path
    labels: tuple[int, ...] | None = None
    event_seconds: tuple[float, ...] | None = None
    unlabeled_seconds: tuple[tuple[float, float], ...] = ()
    actions: tuple[int, ...] | None = None
    pair: str | None = None

    def phases(self, pts_seconds: NDArray[np.float64]) -> tuple[int, ...] | None:
        """Return the phase of each frame, UNLABELED where unknown; None if no frame is labeled.

        Args:
            pts_seconds: Times of the frames (T,).
        """
        if self.labels is not None:
            return self.labels[: len(pts_seconds)]
        if self.event_seconds is None:
            return None
        phases = np.searchsorted(self.event_seconds, pts_seconds, side="right")
        for start, end in self.unlabeled_seconds:
            phases[(pts_seconds >= start) & (pts_seconds < end)] = UNLABELED
        return tuple(phases.tolist()) if (phases != UNLABELED).any() else None


@dataclass(frozen=True)
class Dataset:
    """Videos with unique ids, in a fixed order.

    Raises:
        DatasetError: An id is not unique, a file is missing, or a pair is not one ego and one exo video of a split.
    """

    name: str
    root: Path
    videos: tuple[Video, ...]
    phase_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Ids become file names, and some file systems ignore case.
        counts = Counter(video.id.casefold() for video in self.videos)
        for video in self.videos:
            if counts[video.id.casefold()] > 1:
                same = [other for other in self.videos if other.id.casefold() == video.id.casefold()]
                raise DatasetError(
                    f"{self.name}: the id {video.id!r} is not unique (case is ignored): "
                    f"{', '.join(str(other.path) for other in same)}"
                )
            if not video.path.is_file():
                raise DatasetError(f"{video.path}: listed in the {video.split} split of {self.name} but missing")
        self._check_pairs()

    def _check_pairs(self) -> None:
        pairs: dict[str, list[Video]] = {}
        for video in self.videos:
            if video.pair is not None:
                pairs.setdefault(video.pair, []).append(video)
        for pair, videos in pairs.items():
            if sorted(video.view for video in videos) != list(VIEWS) or len({video.split for video in videos}) > 1:
                found = ", ".join(f"{video.id} ({video.view}, {video.split})" for video in videos)
                raise DatasetError(
                    f"{self.name}: pair {pair!r} must be one ego and one exo video of the same split, not {found}"
                )


def require_views(dataset: Dataset, splits: tuple[Split, ...]) -> None:
    """Raise DatasetError unless each of the splits has videos of both views."""
    found = {(video.split, video.view) for video in dataset.videos}
    for split in splits:
        for view in VIEWS:
            if (split, view) not in found:
                raise DatasetError(f"{dataset.root}: the {split} split of {dataset.name} has no {view} videos")


def path_inside(root: Path, name: str, source: str) -> Path:
    """Return root / name, or raise DatasetError if the name points outside of root.

    Only the name is checked: symbolic links below root may point anywhere, and an absolute name may reach root through
    a symbolic link.

    Args:
        root: Folder of the dataset.
        name: Path from a file of the dataset.
        source: Where the name comes from, for the error message.
    """
    path = Path(os.path.normpath(root / name))
    folder, target = os.path.normpath(root.absolute()), os.path.normpath(path.absolute())
    if Path(name).is_absolute() and "\0" not in name and not _is_below(folder, target):
        folder, target = os.path.realpath(folder), os.path.realpath(target)
    if "\0" in name or not _is_below(folder, target):
        raise DatasetError(f"{source}: the path {name!r} is outside of the dataset folder {root}")
    return path


def _is_below(folder: str, path: str) -> bool:
    return path != folder and path.startswith(folder.rstrip("/") + "/")
