"""What a dataset is: videos of two views in three splits, with what is known of their frames."""

import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from byov.errors import DatasetError

View = Literal["ego", "exo"]
Split = Literal["train", "val", "test"]
VIEWS: tuple[View, ...] = get_args(View)
SPLITS: tuple[Split, ...] = get_args(Split)


@dataclass(frozen=True)
class Video:
    """One video file and its annotation: phases per frame, or key-event times, or video-level actions, or none."""

    id: str
    view: View
    split: Split
    path: Path
    labels: tuple[int, ...] | None = None  # phase index of each frame
    event_seconds: tuple[float, ...] | None = None  # key events; phase = number of events that have happened
    actions: tuple[int, ...] | None = None  # classes of the whole video

    def phases(self, pts_seconds: NDArray[np.float64]) -> tuple[int, ...] | None:
        """The phase of each frame, given the time of each frame."""
        if self.labels is not None:
            return self.labels[: len(pts_seconds)]
        if self.event_seconds is not None:
            return tuple(np.searchsorted(self.event_seconds, pts_seconds, side="right").tolist())
        return None


@dataclass(frozen=True)
class Dataset:
    """Videos with unique ids, in a fixed order."""

    name: str
    root: Path
    videos: tuple[Video, ...]
    phase_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        repeated = [video_id for video_id, count in Counter(video.id for video in self.videos).items() if count > 1]
        if repeated:
            places = ", ".join(str(video.path) for video in self.videos if video.id == repeated[0])
            raise DatasetError(
                f"{self.name}: {len(repeated)} ids stand for two videos, first {repeated[0]!r}: {places}"
            )
        for video in self.videos:
            if not video.path.is_file():
                raise DatasetError(f"{video.path}: listed in {self.name} ({video.split} split) and not there")


def require_views(dataset: Dataset, splits: tuple[Split, ...]) -> None:
    """Raise unless each of the splits has videos of both views."""
    for split in splits:
        for view in VIEWS:
            if not any(video.view == view and video.split == split for video in dataset.videos):
                raise DatasetError(
                    f"{dataset.root}: the {split} split of {dataset.name} has no {view} videos; both views are needed"
                )


def inside(root: Path, name: str, where: str) -> Path:
    """root / name, unless the name leads out of root. Looks at the name only: links on disk are their owner's."""
    path = Path(os.path.normpath(root / name))
    folder, target = (Path(os.path.normpath(each.absolute())) for each in (root, path))  # root may be "." or ".."
    if "\0" in name or folder not in target.parents:
        raise DatasetError(f"{where}: the path {name!r} leaves the dataset folder {root}")
    return path
