"""Inputs and outputs of all metrics: frame embeddings of several videos as flat arrays, and scores.

Shapes: V videos, F frames in total, D dimensions, C actions.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from byov.records import UNLABELED

# Setting → is_ego of the training (or query) videos and of the test (or candidate) videos; None
# means both views.
SETTINGS: dict[str, tuple[bool | None, bool | None]] = {
    "regular": (None, None),
    "ego2exo": (True, False),
    "exo2ego": (False, True),
}


@dataclass(frozen=True)
class Missing:
    """Reason why a score cannot be computed. Tables show "n/a" with a footnote."""

    reason: str


@dataclass(frozen=True)
class Score:
    """Value of a metric, or the reason why it is missing."""

    value: float | None  # fraction or correlation, not percent
    missing: str | None = None
    deviation: float | None = None  # sample standard deviation over draws or runs
    draws: int | None = None  # number of draws that the mean is taken over
    interval: tuple[float, float] | None = None  # 95% bootstrap confidence interval
    pairs: int | None = None  # number of video pairs (Kendall's tau)
    pairs_with_tau: int | None = None
    remark: str | None = None  # text of a footnote

    @classmethod
    def of(cls, value: float | Missing, **details: Any) -> Self:
        if isinstance(value, Missing):
            return cls(None, missing=value.reason, **details)
        return cls(float(value), **details)


@dataclass(frozen=True, eq=False)
class Frames:
    """Frames of V videos (or sub-clips), concatenated."""

    embeddings: NDArray[np.float32]  # (F, D)
    labels: NDArray[np.int64] | None  # (F,) phase indices or UNLABELED; None if no frame is labeled
    lengths: NDArray[np.int64]  # (V,) number of frames of each video, at least 1
    is_ego: NDArray[np.bool_]  # (V,)
    # (V,) non-decreasing index of the recording that each sub-clip was cut from; None if there are
    # no sub-clips. Sub-clips of one recording are never matched with each other.
    recordings: NDArray[np.int64] | None = None
    actions: NDArray[np.bool_] | None = None  # (V, C) whether each video shows each action
    # (F,) progress of the action at each frame, see evaluate/progress_error.py.
    reference_progress: NDArray[np.float64] | None = None
    fps: NDArray[np.float64] | None = None  # (V,) frames per second; NaN if unknown

    def __post_init__(self) -> None:
        frames = len(self.embeddings)
        videos = len(self.lengths)
        total = sum(self.lengths.tolist())  # Python integers do not overflow
        if self.embeddings.ndim != 2 or total != frames or (self.lengths < 1).any():
            raise ValueError(
                f"embeddings of shape {self.embeddings.shape} for videos with {total} frames"
            )
        if len(self.is_ego) != videos:
            raise ValueError(f"{videos} lengths but {len(self.is_ego)} values of is_ego")
        if self.labels is not None and self.labels.shape != (frames,):
            raise ValueError(f"{len(self.labels)} labels for {frames} frames")

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Index of the first frame of each video, shape (V,)."""
        return np.cumsum(self.lengths) - self.lengths

    @cached_property
    def video_of_frame(self) -> NDArray[np.int64]:
        """Index of the video of each frame, shape (F,)."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)

    @cached_property
    def index_in_video(self) -> NDArray[np.int64]:
        """Index of each frame within its video, shape (F,)."""
        return np.arange(len(self.embeddings)) - self.starts[self.video_of_frame]

    @property
    def recording_of_video(self) -> NDArray[np.int64]:
        """Index of the recording of each video, shape (V,)."""
        return np.arange(len(self.lengths)) if self.recordings is None else self.recordings

    @property
    def phases(self) -> NDArray[np.int64]:
        """Phase labels, shape (F,); raises ValueError if there are none."""
        if self.labels is None:
            raise ValueError("these frames have no phase labels")
        return self.labels

    @property
    def is_labeled(self) -> NDArray[np.bool_]:
        """Mask of labeled frames, shape (F,)."""
        return (
            np.zeros(len(self.embeddings), np.bool_)
            if self.labels is None
            else self.labels != UNLABELED
        )

    @cached_property
    def has_labels(self) -> NDArray[np.bool_]:
        """Mask of videos with at least one labeled frame, shape (V,)."""
        return np.logical_or.reduceat(self.is_labeled, self.starts)

    @cached_property
    def labeled(self) -> Self:
        """Videos with at least one labeled frame; `self` if that holds for all or none."""
        return (
            self if self.labels is None or self.has_labels.all() else self.select(self.has_labels)
        )

    @cached_property
    def labeled_frames(self) -> Self:
        """Labeled frames of all videos that have any; `self` if all frames or none are labeled."""
        kept = self.labeled.is_labeled
        return self.labeled if self.labels is None or kept.all() else self.labeled._keep(kept)

    def of_view(self, is_ego: bool | None) -> Self:
        """Return the videos of one view; None selects both."""
        return self if is_ego is None else self.select(self.is_ego == is_ego)

    def every(self, stride: int) -> Self:
        """Return every stride-th frame of each video, starting with the first."""
        if stride < 1:
            raise ValueError(f"stride must be at least 1, not {stride}")
        return self._keep(self.index_in_video % stride == 0)

    def select(self, videos: NDArray[np.bool_] | NDArray[np.int64]) -> Self:
        """Select videos by a mask, or by indices in the given order."""
        chosen = np.arange(len(self.lengths))[videos]
        frames = np.concatenate(
            [np.arange(self.starts[v], self.starts[v] + self.lengths[v]) for v in chosen]
            or [np.empty(0, np.int64)]
        )
        return self._take(
            frames,
            lengths=self.lengths[chosen],
            is_ego=self.is_ego[chosen],
            recordings=None
            if self.recordings is None
            else np.unique(self.recordings[chosen], return_inverse=True)[1],
            actions=None if self.actions is None else self.actions[chosen],
            fps=None if self.fps is None else self.fps[chosen],
        )

    def merge_recordings(self) -> Self:
        """Merge the sub-clips of each recording into one video."""
        if self.recordings is None:
            return self
        first = np.flatnonzero(np.diff(self.recordings, prepend=-1))
        lengths = np.add.reduceat(self.lengths, first)
        return type(self)(self.embeddings, self.labels, lengths, self.is_ego[first])

    def _keep(self, frames: NDArray[np.bool_]) -> Self:
        """Select frames with an (F,) mask, which must keep at least one frame of each video."""
        return self._take(frames, lengths=np.add.reduceat(frames, self.starts, dtype=np.int64))

    def _take(self, frames: NDArray[np.bool_] | NDArray[np.int64], **per_video: Any) -> Self:
        """Index the arrays with one entry per frame, and replace those with one entry per video."""
        return replace(
            self,
            embeddings=self.embeddings[frames],
            labels=None if self.labels is None else self.labels[frames],
            reference_progress=None
            if self.reference_progress is None
            else self.reference_progress[frames],
            **per_video,
        )


def view_mask(is_ego: NDArray[np.bool_], view: bool | None) -> NDArray[np.bool_]:
    """Return a mask of the videos with the given view; None selects both views."""
    return np.ones_like(is_ego) if view is None else is_ego == view


def missing_view(is_ego: NDArray[np.bool_], wanted: bool | None, role: str) -> Missing | None:
    """Return the reason if no video in a role ("training" or "test") has the wanted view, otherwise
    None.

    >>> missing_view(np.array([True, True]), False, "test")
    Missing(reason='no exo test videos')
    """
    if len(is_ego) == 0:
        return Missing(f"no {role} videos")
    if wanted is None or (is_ego == wanted).any():
        return None
    return Missing(f"no {'ego' if wanted else 'exo'} {role} videos")
