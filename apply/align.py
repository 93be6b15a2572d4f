"""Align video B to video A: find the matching frame for each frame of A, and transfer A's key
events to B.
"""

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial.distance import cdist

from byov.apply.embedder import EmbeddedVideo
from byov.apply.references import read_training_frames
from byov.apply.run import Run
from byov.apply.side_by_side import draw_captions, read_panels, write_video
from byov.cache.atomic import write_text
from byov.data.video import STRICT, DecodingPolicy
from byov.errors import ApplyError, ByovError
from byov.evaluate.kendalls_tau import taus_of_columns
from byov.evaluate.neighbors import Points
from byov.progress import NO_PROGRESS, Progress, track

Embeddings = NDArray[np.float32]
Indices = NDArray[np.int64]
Seconds = NDArray[np.float64]

LOGGER = logging.getLogger(__name__)
GAP = 4  # pixels between the panels
MAX_CELLS = 2**30  # maximum size of the DTW table, with one byte per cell
# directions from a cell to its predecessor
_DIAGONAL = 0
_UP = 1
_LEFT = 2


def nearest(a: Embeddings, b: Embeddings) -> Indices:
    """Return the nearest frame of B for each frame of A, using the same search as the
    evaluation.
    """
    points = Points(np.concatenate([a, b]))
    starts = np.array([0, len(a)])
    rows = points.row_blocks(np.arange(len(a)))
    return np.concatenate([points.nearest_in_each(block, starts)[:, 1] for block in rows]) - len(a)


def tau(matched: Indices) -> float | None:
    """Return Kendall's tau between matched frame indices and time;

    None if all matches are the same frame.
    """
    value = float(taus_of_columns(matched[:, None])[0])
    return None if np.isnan(value) else value


def dtw_path(a: Embeddings, b: Embeddings) -> Indices:
    """Return the frame pairs (P, 2) of the path with the smallest total distance, using dynamic
    time warping.

    Ties are broken in favor of the diagonal step, then the step in A.
    """
    if len(a) * len(b) > MAX_CELLS:
        raise ApplyError(
            f"{len(a)} and {len(b)} frames are too many for dynamic time warping (at most "
            f"{MAX_CELLS:,} pairs). Use --method nearest."
        )
    a = a.astype(np.float64)
    b = b.astype(np.float64)
    predecessors = np.empty((len(a), len(b)), np.uint8)
    previous = np.full(len(b) + 1, np.inf)  # costs of the previous row, padded on the left
    previous[0] = 0
    for row, frame in enumerate(a):
        diagonal = previous[:-1]
        up = previous[1:]
        entry = np.minimum(diagonal, up)
        # c[j] = cost[j] + min(entry[j], c[j - 1]). Subtracting the cumulative cost turns this into
        # a running minimum.
        cumulative = np.cumsum(cdist(frame[None], b)[0])
        current = cumulative + np.minimum.accumulate(
            entry - np.concatenate([[0.0], cumulative[:-1]])
        )
        left = np.concatenate([[np.inf], current[:-1]])
        predecessors[row] = np.where(left < entry, _LEFT, np.where(diagonal <= up, _DIAGONAL, _UP))
        previous = np.concatenate([[np.inf], current])
    row = len(a) - 1
    column = len(b) - 1
    path = [(row, column)]
    while row or column:
        step = predecessors[row, column]
        row = row - (step != _LEFT)
        column = column - (step != _UP)
        path.append((row, column))
    return np.array(path[::-1], np.int64)


def middle_frames(path: Indices) -> Indices:
    """Return, for each frame of A, the middle of the frames of B that a DTW path pairs with it."""
    _, first, counts = np.unique(path[:, 0], return_index=True, return_counts=True)
    return np.asarray(path[first + (counts - 1) // 2, 1])


@dataclass(frozen=True)
class AlignedVideos:
    """Two aligned videos: embeddings, the matching frame of B for each frame of A, and event times
    in both.
    """

    a: EmbeddedVideo
    b: EmbeddedVideo
    frames: Indices  # (Ta,) matching frames of B
    tau_a_in_b: float | None  # Kendall's tau of A's nearest frames in B
    tau_b_in_a: float | None
    a_events: Sequence[float] | None  # event times in seconds
    b_events: Sequence[float] | None
    # Reasons to doubt that a video shows the action; None if the training videos are not available.
    a_problems: Sequence[str] | None = None
    b_problems: Sequence[str] | None = None

    def write_table(self, path: Path) -> None:
        """Write a CSV with one row per frame of A."""
        distances = np.linalg.norm(
            self.a.embedding.astype(np.float64) - self.b.embedding[self.frames], axis=1
        )
        columns = zip(
            self.a.pts_seconds, self.frames, self.b.pts_seconds[self.frames], distances, strict=True
        )
        rows = [
            f"{a_frame},{a_seconds:.6f},{b_frame},{b_seconds:.6f},{distance:.6g}\n"
            for a_frame, (a_seconds, b_frame, b_seconds, distance) in enumerate(columns)
        ]
        write_text(path, "a_frame,a_seconds,b_frame,b_seconds,distance\n" + "".join(rows))

    def write_video(
        self,
        path: Path,
        *,
        height: int = 360,
        policy: DecodingPolicy = STRICT,
        progress: Progress = NO_PROGRESS,
    ) -> None:
        """Write an .mp4, .mov or .mkv video of A next to the matching frames of B, with captions.

        `policy` must match the decoding options that were passed to `align_videos`.
        """
        a = read_panels(self.a.path, len(self.a.pts_seconds), height, policy)
        b = read_panels(self.b.path, len(self.b.pts_seconds), height, policy)
        # Random access to B, whose matching frames may repeat or go back in time.
        with TemporaryDirectory() as folder:
            for frame, panel in enumerate(b):
                if frame in self.frames:
                    panel.save(Path(folder) / f"{frame}.jpg", quality=95)

            def images() -> Iterator[NDArray[np.uint8]]:
                pairs = zip(a, self.frames.tolist(), strict=True)
                for frame, (left, matched) in enumerate(
                    track(pairs, progress, "drawing", unit="frame", total=len(self.frames))
                ):
                    right = Image.open(Path(folder) / f"{matched}.jpg")
                    edge = left.width + GAP
                    image = Image.new("RGB", (edge + right.width, height))
                    image.paste(left, (0, 0))
                    image.paste(right, (edge, 0))
                    captions = (
                        (0, caption("A", self.a.pts_seconds[frame], self.a_events)),
                        (edge, caption("B", self.b.pts_seconds[matched], self.b_events)),
                    )
                    draw_captions(image, captions)
                    yield np.asarray(image)

            write_video(path, images(), self.a.pts_seconds)


def caption(letter: str, seconds: float, event_seconds: Sequence[float] | None) -> str:
    """Return the caption of a frame, with its phase if the events are known."""
    phase = (
        ""
        if event_seconds is None
        else f"   phase {np.searchsorted(event_seconds, seconds, side='right')}"
    )
    return f"{letter}   {seconds:.2f} s{phase}"


def align_videos(
    run: Run,
    a: Path,
    b: Path,
    *,
    method: Literal["dtw", "nearest"] = "dtw",
    events: Sequence[float] | None = None,
    **options: Any,
) -> AlignedVideos:
    """Embed two videos and match their frames.

    `events` are times in A, in seconds; `options` are passed to `Run.embed_video`. "dtw" finds a
    monotonic alignment of the whole videos; "nearest" matches each frame of A independently.

    >>> a, b = (Path(f"datasets/demo/test/{view}/test_{view}_00.mp4") for view in ("ego", "exo"))
    >>> aligned = align_videos(byov.load_run("demo-byov"), a, b)
    >>> len(aligned.frames) == len(aligned.a.embedding)
    True
    """
    in_a, in_b = (run.embed_video(path, **options) for path in (a, b))
    nearest_in_b = nearest(in_a.embedding, in_b.embedding)
    matched = (
        nearest_in_b
        if method == "nearest"
        else middle_frames(dtw_path(in_a.embedding, in_b.embedding))
    )
    a_problems, b_problems = _problems(run, (in_a, in_b))
    b_events = (
        None
        if events is None
        else transfer_events(events, in_a.pts_seconds, in_b.pts_seconds, matched)
    )
    return AlignedVideos(
        in_a,
        in_b,
        matched,
        tau_a_in_b=tau(nearest_in_b),
        tau_b_in_a=tau(nearest(in_b.embedding, in_a.embedding)),
        a_events=events,
        b_events=b_events,
        a_problems=a_problems,
        b_problems=b_problems,
    )


def _problems(run: Run, videos: Sequence[EmbeddedVideo]) -> list[Sequence[str] | None]:
    """Return reasons to doubt that each video shows the action of the training videos."""
    try:
        training = read_training_frames(run)
    except ByovError as error:
        LOGGER.info(f"cannot check whether the videos show the action ({error})")
        return [None for _ in videos]
    return [training.estimate(video.embedding).problems() for video in videos]


def transfer_events(
    event_seconds: Sequence[float], a_seconds: Seconds, b_seconds: Seconds, matched: Indices
) -> list[float]:
    """Transfer event times from A to B: the first frame of A at or after an event determines the
    frame of B.
    """
    last = a_seconds.max()
    if event_seconds[-1] > last:
        raise ApplyError(
            f"--phases: the event at {event_seconds[-1]:g} s is after the last frame of A "
            f"({last:.3f} s)."
        )
    frames = [int(np.argmax(a_seconds >= event)) for event in event_seconds]
    in_b: list[float] = b_seconds[matched[frames]].tolist()
    if in_b != sorted(in_b):
        raise ApplyError(
            "--phases: the events are not in order in B. Use --method dtw or omit --phases."
        )
    return in_b
