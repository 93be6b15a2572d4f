"""What a report shows, as data; drawn by `page` for the browser and by `paper` for print.

A part that cannot be shown is Unavailable and says why. Videos are named by their index in Content.videos, frames by
their number in the video.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.table import Table

WIDE = 20  # highest by lowest loss
LOWEST_LOSS = 1e-30


@dataclass(frozen=True)
class Unavailable:
    """Why a part is not there, in one line for the reader."""

    reason: str


@dataclass(frozen=True)
class Sheet:
    """Some frames of a video as the tiles of one JPEG picture, row by row."""

    frames: tuple[int, ...]  # rising; the i-th stands in row i // columns, column i % columns
    tile_width: int
    tile_height: int
    columns: int
    jpeg: bytes


@dataclass(frozen=True)
class ShownVideo:
    """A video that some part of the report shows frames of."""

    name: str  # "ego/004"
    view: str
    frames: int  # of the whole video
    pts_seconds: NDArray[np.float64]  # (frames,)
    labels: tuple[int, ...] | None  # phase of each frame
    sheet: Sheet | Unavailable


@dataclass(frozen=True)
class FrameRef:
    """One frame of one shown video."""

    video: int
    frame: int


@dataclass(frozen=True)
class Curve:
    name: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Curves:
    losses: tuple[Curve, ...]
    validation: tuple[Curve, ...]  # () without a val split
    kept_epoch: int | None  # of the model that was kept, if the validation chose it

    @property
    def wide_losses(self) -> bool:
        """Whether the losses differ so much that only their logarithms can be told apart in one plot."""
        values = [value for curve in self.losses for value in curve.values if isfinite(value)]
        return bool(values) and min(values) > LOWEST_LOSS and max(values) > WIDE * min(values)


@dataclass(frozen=True)
class Projection:
    """t-SNE of the same frames before and after: points of both are in the order of `frames`."""

    frames: tuple[FrameRef, ...]
    before: NDArray[np.float64]  # (n, 2) of the frozen features that the run was trained on
    after: NDArray[np.float64]  # (n, 2) of the run's embeddings
    before_name: str


@dataclass(frozen=True)
class Strip:
    """A query frame, and the nearest frames of the other view: the nearest of each video, nearest video first."""

    query: FrameRef
    retrieved: tuple[FrameRef, ...]


@dataclass(frozen=True)
class TokenClip:
    """What selective token merging keeps: for each ratio a row of frames, excluded patches dark."""

    video: int
    frames: tuple[int, ...]  # F
    ratios: tuple[float, ...]  # R
    pictures: NDArray[np.uint8]  # (R, F, height, width, 3)


@dataclass(frozen=True)
class Similarity:
    """How near frames of one video are to those of another, and the alignment; of long videos only some, evenly spread.

    `path` and `nearest` count rows and columns.
    """

    rows: int  # an ego video
    row_frames: tuple[int, ...]  # (Ta,) of it
    columns: int  # an exo video
    column_frames: tuple[int, ...]  # (Tb,) of it
    distances: NDArray[np.float32]  # (Ta, Tb) Euclidean
    path: NDArray[np.int64]  # (P, 2), by dynamic time warping
    nearest: NDArray[np.int64]  # (Ta,)
    tau: float | None  # of `nearest`


@dataclass(frozen=True)
class WorstVideo:
    video: int
    tau: float  # mean over its pairs with all other videos, in both roles
    frames: tuple[int, ...]  # some, evenly spread


@dataclass(frozen=True)
class Failures:
    """The paper's analysis: what goes wrong, and whether one frame is alike to all others there."""

    worst: tuple[WorstVideo, ...]  # the worst first
    reference: FrameRef  # of the worst video
    similarity: NDArray[np.float64]  # (T,) softmax over that video's frames of z_ref · z_t / sqrt(D); sums to 1

    def frames_of(self, worst: WorstVideo) -> list[FrameRef]:
        """The frames to show of one of the worst videos, in order of time, the reference among them."""
        refs = {FrameRef(worst.video, frame) for frame in worst.frames}
        if worst.video == self.reference.video:
            refs.add(self.reference)
        return sorted(refs, key=lambda ref: ref.frame)


@dataclass(frozen=True)
class PlayerMatch:
    """For each frame on the sheet of video `query`, the nearest frame of video `candidate`.

    Where that is not on its sheet, since of long videos not all are, the closest to it in time that is.
    """

    query: int
    candidate: int
    frames: tuple[int, ...]


@dataclass(frozen=True)
class Content:
    run: str
    dataset: str
    facts: tuple[tuple[str, str], ...]  # under the title: recipe, encoder, ratio, ...
    split: str  # that the figures are of
    phases: tuple[str, ...]  # () without labels: points are then coloured by time
    videos: tuple[ShownVideo, ...]
    tables: tuple[Table, ...] | Unavailable
    curves: Curves | Unavailable
    projection: Projection | Unavailable
    strips: tuple[Strip, ...] | Unavailable
    tokens: tuple[TokenClip, ...] | Unavailable
    similarity: Similarity | Unavailable
    failures: Failures | Unavailable
    matches: tuple[PlayerMatch, ...] | Unavailable  # of the player: each video with each of the other view
    provenance: tuple[tuple[str, str], ...]
