"""What every task sees: the frames of some videos, joined into arrays.

V videos, F frames in all, D dimensions.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from byov.records import UNLABELED

SETTINGS = ("regular", "ego2exo", "exo2ego")
# By setting: is_ego of the training (or query) videos and of the test (or candidate) videos; None is both.
VIEWS: dict[str, tuple[bool | None, bool | None]] = {
    "regular": (None, None),
    "ego2exo": (True, False),
    "exo2ego": (False, True),
}


@dataclass(frozen=True)
class Missing:
    """A score that cannot be given, and why; printed as n/a."""

    reason: str


@dataclass(frozen=True, eq=False)  # one set of frames is equal to itself alone
class Frames:
    """The frames of V videos, one video after the other."""

    embeddings: NDArray[np.float32]  # (F, D)
    labels: NDArray[np.int64] | None  # (F,) phase index of each frame; UNLABELED in some; None: in all
    lengths: NDArray[np.int64]  # (V,) frames of each video, each at least 1
    is_ego: NDArray[np.bool_]  # (V,)
    names: tuple[str, ...]  # (V,)

    def __post_init__(self) -> None:
        frames, videos = len(self.embeddings), len(self.lengths)
        if self.embeddings.ndim != 2 or self.lengths.sum() != frames:
            raise ValueError(f"{self.embeddings.shape} embeddings of videos of {self.lengths.sum()} frames in all")
        if len(self.is_ego) != videos or len(self.names) != videos or (self.lengths < 1).any():
            raise ValueError(f"{videos} lengths, {len(self.is_ego)} views, {len(self.names)} names")
        if self.labels is not None and self.labels.shape != (frames,):
            raise ValueError(f"{len(self.labels)} labels of {frames} frames")

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(V,) index of each video's first frame."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def video_of_frame(self) -> NDArray[np.int64]:
        """(F,) index of the video that a frame belongs to."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def index_in_video(self) -> NDArray[np.int64]:
        """(F,) 0, 1, ... in each video."""
        return np.arange(len(self.embeddings)) - self.starts[self.video_of_frame]

    @property
    def phases(self) -> NDArray[np.int64]:
        """(F,) the labels, of frames that have them."""
        if self.labels is None:
            raise ValueError("frames without phase labels")
        return self.labels

    @cached_property
    def labeled(self) -> Self:
        """The videos that have labels; the same object every time, and this one if all have, or none has."""
        return self if self.labels is None or self.has_labels.all() else self.select(self.has_labels)

    @cached_property
    def labeled_frames(self) -> Self:
        """The frames that have labels; the same object every time, and this one if all have, or none has.

        A frame's place in its video is then none in time.
        """
        kept = self.labeled.is_labeled
        return self.labeled if self.labels is None or kept.all() else self.labeled._keep(kept)

    @property
    def is_labeled(self) -> NDArray[np.bool_]:
        """(F,)"""
        return np.zeros(len(self.embeddings), np.bool_) if self.labels is None else self.labels != UNLABELED

    @cached_property
    def has_labels(self) -> NDArray[np.bool_]:
        """(V,) whether some frame of each video is labeled."""
        return np.logical_or.reduceat(self.is_labeled, self.starts)

    @property
    def without_labels(self) -> tuple[str, ...]:
        """The names of the videos that have no labels."""
        return tuple(self.names[video] for video in np.flatnonzero(~self.has_labels))

    def of_view(self, is_ego: bool | None) -> Self:
        """The videos of one view; None is both."""
        return self if is_ego is None else self.select(self.is_ego == is_ego)

    def every(self, stride: int) -> Self:
        """Every stride-th frame of each video, from its first."""
        return self._keep(self.index_in_video % stride == 0)

    def _keep(self, frames: NDArray[np.bool_]) -> Self:
        """(F,) → some frames of each video, at least one."""
        return type(self)(
            self.embeddings[frames],
            None if self.labels is None else self.labels[frames],
            np.add.reduceat(frames, self.starts, dtype=np.int64),
            self.is_ego,
            self.names,
        )

    def select(self, videos: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Some of the videos, by mask or by indices, which also give their order."""
        chosen = np.arange(len(self.lengths))[videos]
        frames = np.concatenate(
            [np.arange(self.starts[v], self.starts[v] + self.lengths[v]) for v in chosen] or [np.empty(0, np.int64)]
        )
        return type(self)(
            self.embeddings[frames],
            None if self.labels is None else self.labels[frames],
            self.lengths[chosen],
            self.is_ego[chosen],
            tuple(self.names[v] for v in chosen),
        )


def absent(is_ego: NDArray[np.bool_], wanted: bool | None, role: str) -> Missing | None:
    """Why videos of these views cannot play a role ("training", "test"), if they cannot."""
    if len(is_ego) == 0:
        return Missing(f"no {role} videos")
    if wanted is None or (is_ego == wanted).any():
        return None
    return Missing(f"no {'ego' if wanted else 'exo'} {role} videos")
