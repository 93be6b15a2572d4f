"""What every task sees: the frames of some videos, joined into arrays.

V videos, F frames in all, D dimensions.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

SETTINGS = ("regular", "ego2exo", "exo2ego")


@dataclass(frozen=True)
class Missing:
    """A score that cannot be given, and why; printed as n/a."""

    reason: str


Score = float | Missing


@dataclass(frozen=True)
class Frames:
    """The frames of V videos, one video after the other."""

    embeddings: NDArray[np.float32]  # (F, D)
    labels: NDArray[np.int64] | None  # (F,) phase index of each frame
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
