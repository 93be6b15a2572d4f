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
    """Some frames of a video as tiles, some side by side in each of a few JPEG pictures.

    Not all in one: a browser decodes a picture as a whole, and of a long video that would be slow.
    """

    frames: tuple[int, ...]  # rising; the i-th stands in row i // columns, column i % columns
    tile_width: int
    tile_height: int
    columns: int
    rows: tuple[bytes, ...]  # JPEG


@dataclass(frozen=True)
class ShownVideo:
    """A video of the split."""

    name: str  # "ego/004"
    view: str
    frames: int  # of the whole video
    pts_seconds: NDArray[np.float64]  # (frames,)
    labels: tuple[int, ...] | None  # phase of each frame, or UNLABELED
    moments: tuple[int, ...]  # rising: the frames that the page knows, by picture and embedding
    tau: float | None  # mean over its pairs with all other videos, in both roles
    sheet: Sheet | Unavailable  # of the moments


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
class PointMap:
    """Frames as points of a plane, by t-SNE."""

    title: str  # whose embeddings they are
    points: NDArray[np.float64]  # (n, 2)


@dataclass(frozen=True)
class Projection:
    """The same frames by frozen features, by the untrained model and by the runs, all in the order of `frames`."""

    frames: tuple[FrameRef, ...]
    maps: tuple[PointMap, ...]
    frames_of_split: int  # of which these are some


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
    partner: int  # the video that it is matched worst to
    partner_tau: float
    matched: tuple[int, ...]  # the frame of the partner that is nearest to each of `frames`


@dataclass(frozen=True)
class Failures:
    """The paper's analysis: what goes wrong, and whether one frame is alike to all others there."""

    worst: tuple[WorstVideo, ...]  # the worst first
    reference: FrameRef  # among the frames of the worst video
    similarity: NDArray[np.float64]  # (T,) softmax over that video's frames of z_ref · z_t / sqrt(D); sums to 1


@dataclass(frozen=True)
class RunVectors:
    """The embeddings of all moments by one run, from which the page finds what is near."""

    name: str
    of_video: tuple[NDArray[np.float32], ...]  # (moments, D) of each shown video


@dataclass(frozen=True)
class ListedVideo:
    """A line of the CSV that byov-extract reads; all texts, "" where there is none."""

    path: str  # relative to the folder that holds all of them
    view: str
    split: str
    id: str
    events: str
    pair: str


@dataclass(frozen=True)
class Content:
    run: str
    dataset: str
    facts: tuple[tuple[str, str], ...]  # under the title: recipe, encoder, ratio, ...
    split: str  # that the figures are of
    phases: tuple[str, ...]  # () without labels: points are then colored by time
    videos: tuple[ShownVideo, ...]
    tables: tuple[Table, ...] | Unavailable
    own_rows: tuple[str, ...]  # of the tables: this run's
    curves: Curves | Unavailable
    projection: Projection | Unavailable
    strips: tuple[Strip, ...] | Unavailable
    tokens: tuple[TokenClip, ...] | Unavailable
    similarity: Similarity | Unavailable
    failures: Failures | Unavailable
    vectors: tuple[RunVectors, ...] | Unavailable  # this run's, and that of the first that it is compared with
    listing: tuple[ListedVideo, ...]  # all videos of the dataset
    provenance: tuple[tuple[str, str], ...]
