"""Contents of a report. `byov.report.page` renders them as HTML, `byov.report.figures` as figures
for a paper.

Parts that cannot be shown are `Unavailable`, with the reason. Videos are given as indices into
`Content.videos`, and frames as indices into the video.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.table import Table
from byov.records import UNLABELED

SECTIONS = {  # attribute of Content → section of the page
    "vectors": "player and alignment",
    "predictions": "predicted progress",
    "tables": "scores",
    "projection": "before and after training",
    "strips": "retrieval",
    "progress": "progress labels",
    "curves": "training",
    "tokens": "selected tokens",
    "failures": "failures",
}
FIGURES = (
    "tsne",
    "retrieval_ego2exo",
    "retrieval_exo2ego",
    "tokens_ego",
    "tokens_exo",
    "alignment",
    "failures",
    "scores",
    "curves",
    "diagnostics",
    "softmax",
    "progress",
)


def figure_files(folder: Path) -> list[Path]:
    """Return the paths of all figures that a report may have."""
    return [folder / f"{name}{suffix}" for name in FIGURES for suffix in (".png", ".pdf")]


@dataclass(frozen=True)
class Unavailable:
    """Placeholder for a part of the report that cannot be shown, with the reason. Always falsy."""

    reason: str

    def __bool__(self) -> Literal[False]:
        return False


# A query and its nearest frames in videos of the other view, nearest first.
Strip = tuple["FrameRef", ...]


@dataclass(frozen=True)
class VideoClip:
    """Frames of a video as an MP4 file, see `byov.report.clips`."""

    mp4: bytes
    width: int
    height: int
    stride: int  # the clip has every stride-th frame of the video


@dataclass(frozen=True)
class ShownVideo:
    name: str  # such as "ego/004"
    view: str
    frames: int
    pts_seconds: NDArray[np.float64]  # (frames,)
    labels: tuple[int, ...] | None  # phase of each frame, or UNLABELED
    samples: tuple[int, ...]  # frames with embeddings in the page, ascending
    clip: VideoClip | Unavailable
    # Stills by frame, as JPEG: the middle frame, and all frames that other parts refer to. Empty if
    # the clip is unavailable.
    pictures: Mapping[int, bytes]

    def time(self, frame: int) -> str:
        return f"{self.pts_seconds[frame]:.2f} s"

    def phase(self, frame: int) -> int | None:
        return (
            None if self.labels is None or self.labels[frame] == UNLABELED else self.labels[frame]
        )

    @property
    def middle(self) -> int:
        return self.frames // 2

    def phase_runs(self) -> list[tuple[int, int, int]]:
        """Return (first frame, end frame, phase) for each labeled segment."""
        runs = []
        first = 0
        for phase, stretch in groupby(self.labels or ()):
            end = first + len(list(stretch))
            if phase != UNLABELED:
                runs.append((first, end, phase))
            first = end
        return runs


class FrameRef(NamedTuple):
    video: int
    frame: int


class Curve(NamedTuple):
    name: str
    epochs: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Curves:
    losses: tuple[Curve, ...]
    validation: tuple[Curve, ...]  # empty if there is no val split
    kept_epoch: int | None  # epoch of the saved model, if validation selected it
    # Losses on fixed clips, with changed contexts, and of trivial predictors.
    diagnostics: tuple[Curve, ...] = ()


@dataclass(frozen=True)
class Projection:
    """t-SNE maps of the same frames for the frozen features, the untrained model and the trained
    runs.
    """

    frames: tuple[FrameRef, ...]  # n frames, in the order of the points
    maps: tuple[tuple[str, NDArray[np.float64]], ...]  # title and (n, 2) points


@dataclass(frozen=True)
class TokenSelection:
    """Tokens kept by selective token merging, as pictures in which excluded patches are
    darkened.
    """

    video: int
    frames: tuple[int, ...]  # F frames
    ratios: tuple[float, ...]  # R ratios
    pictures: NDArray[np.uint8]  # (R, F, height, width, 3)


@dataclass(frozen=True)
class WorstVideo:
    """Video with a low Kendall's tau, and the partner with which its tau is lowest."""

    video: int
    tau: float  # mean over its pairs
    partner: int
    partner_tau: float
    # Frames of the video, each with the partner's nearest frame.
    pairs: tuple[tuple[FrameRef, FrameRef], ...]


@dataclass(frozen=True)
class Failures:
    """Failure analysis as in the paper."""

    worst: tuple[WorstVideo, ...]  # worst first
    reference: FrameRef  # frame in the worst video
    # (T,) softmax of z_ref · z_t / sqrt(D); None for unit vectors.
    similarity: NDArray[np.float64] | None


@dataclass(frozen=True)
class RunVectors:
    """A run's embeddings of the sampled frames, from which the page computes nearest frames and
    alignments.
    """

    name: str
    embeddings: tuple[NDArray[np.float32], ...]  # (samples, D) per video
    # (V, V) Kendall's tau for each query and candidate video; NaN if undefined.
    taus: NDArray[np.float64]


@dataclass(frozen=True)
class PredictedProgress:
    """Progress of the action at each frame of a video, from 0 to 1, all of shape (T,)."""

    reference: NDArray[np.float64]  # from the labels
    clock: NDArray[np.float64]  # predicted from normalized time
    runs: tuple[NDArray[np.float64], ...]  # predicted by each run

    def errors(self) -> list[float]:
        """Return the mean absolute error of the clock and of each run."""
        return [float(np.abs(each - self.reference).mean()) for each in (self.clock, *self.runs)]


@dataclass(frozen=True)
class Opening:
    """Pair of videos that the player shows first."""

    video: int
    frame: int
    other: int
    # Mean errors at the starts of phases, in seconds: of the aligned frames and of the clock. None
    # without labels.
    aligned_error: float | None = None
    clock_error: float | None = None


@dataclass(frozen=True)
class Summary:
    """What a newcomer should know, in sentences."""

    sentence: str
    basis: str = ""  # how the numbers in the sentence were measured
    compared: tuple[str, ...] = ()  # results of the compared runs
    worse: tuple[str, ...] = ()  # where the run is worse than a baseline


class ScoreBars(NamedTuple):
    """Scores of several rows, as a group of bars."""

    metric: str
    protocol: str
    setting: str
    scores: tuple[float | None, ...]  # fractions, one per row


@dataclass(frozen=True)
class ScoreChart:
    """Scores of the runs, the clock and the frozen features."""

    rows: tuple[str, ...]
    groups: tuple[ScoreBars, ...]


@dataclass(frozen=True)
class ProgressLabels:
    """Progress labels of a training video for the timeline method, and some frames of the video."""

    name: str
    labels: NDArray[np.float64]  # (T,)
    frames: tuple[int, ...]  # F frames
    pictures: NDArray[np.uint8] | None  # (F, height, width, 3); None if the video cannot be read


@dataclass(frozen=True)
class Content:
    run: str
    dataset: str
    facts: tuple[tuple[str, str], ...]  # shown below the title
    split: str
    phases: tuple[str, ...]  # empty if there are no labels
    videos: tuple[ShownVideo, ...]
    summary: Summary
    opening: Opening
    verdict: str  # one sentence; "" if there is nothing to compare
    predictions: tuple[PredictedProgress | None, ...] | Unavailable  # of each video, or empty
    tables: tuple[Table, ...] | Unavailable
    chart: ScoreChart | None
    own_row: str  # name of this run's row in the tables
    curves: Curves | Unavailable
    projection: Projection | Unavailable
    strips: tuple[Strip, ...] | Unavailable  # examples of cross-view retrieval
    tokens: tuple[TokenSelection, ...] | Unavailable
    failures: Failures | Unavailable
    progress: tuple[ProgressLabels, ...] | Unavailable  # empty for methods without progress labels
    vectors: tuple[RunVectors, ...] | Unavailable  # this run, and the first compared run
    # All videos in the dataset, for byov-extract --manifest.
    manifest_rows: tuple[dict[str, str], ...]
    provenance: tuple[tuple[str, str], ...]

    @property
    def missing(self) -> dict[str, str]:
        """Dict mapping the names of parts that cannot be shown to the reasons."""
        return {
            name: part.reason
            for name in SECTIONS
            if isinstance(part := getattr(self, name), Unavailable)
        }

    def same_phase(self, one: FrameRef, other: FrameRef) -> bool | None:
        """Return whether two frames have the same phase, or None if a label is missing."""
        phases = [self.videos[ref.video].phase(ref.frame) for ref in (one, other)]
        return None if None in phases else phases[0] == phases[1]
