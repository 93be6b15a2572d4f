"""Align video B to video A: find the matching frame for each frame of A, and transfer A's key events to B."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial.distance import cdist

from byov.apply.embedder import EmbeddedVideo, RunEmbedder
from byov.apply.video_writer import Side, draw_captions, write_video
from byov.cache.atomic import write_text
from byov.data.video import STRICT, DecodingPolicy
from byov.errors import ApplyError
from byov.evaluate.kendalls_tau import taus_of_columns
from byov.evaluate.neighbors import Points
from byov.progress import NO_PROGRESS, Progress, track

Embeddings = NDArray[np.float32]
Indices = NDArray[np.int64]
Matching = Literal["dtw", "nearest"]

GAP = 4  # pixels between the panels
JPEG_QUALITY = 95
MAX_CELLS = 2**30  # DTW table size; one byte per cell
_DIAGONAL, _UP, _LEFT = 0, 1, 2  # predecessor of a cell


def nearest(a: Embeddings, b: Embeddings) -> Indices:
    """Return the nearest frame of B for each frame of A, using the same search as the evaluation."""
    points, starts = Points(np.concatenate([a, b])), np.array([0, len(a)])
    rows = points.row_blocks(slice(0, len(a)))
    return np.concatenate([points.nearest_in_each(block, starts)[:, 1] for block in rows]) - len(a)


def tau(matched: Indices) -> float | None:
    """Return Kendall's tau between the matched frames and their order; None if all matches are the same frame."""
    value = float(taus_of_columns(matched[:, None])[0])
    return None if np.isnan(value) else value


def dtw_path(a: Embeddings, b: Embeddings) -> Indices:
    """Compute the dynamic time warping path with the smallest total distance.

    Returns:
        (P, 2) pairs of frames from (0, 0) to (Ta - 1, Tb - 1). Ties prefer the diagonal step, then the step in A.
    """
    if len(a) * len(b) > MAX_CELLS:
        raise ApplyError(
            f"{len(a)} and {len(b)} frames are too many for dynamic time warping (at most {MAX_CELLS:,} pairs). "
            "Use --method nearest."
        )
    a, b = a.astype(np.float64), b.astype(np.float64)
    predecessors = np.empty((len(a), len(b)), np.uint8)
    previous = np.full(len(b) + 1, np.inf)  # costs of the previous row, padded on the left
    previous[0] = 0
    for row, frame in enumerate(a):
        diagonal, up = previous[:-1], previous[1:]
        entry = np.minimum(diagonal, up)
        # c[j] = cost[j] + min(entry[j], c[j - 1]). Subtracting the cumulative cost turns this into a running minimum.
        cumulative = np.cumsum(cdist(frame[None], b)[0])
        current = cumulative + np.minimum.accumulate(entry - np.concatenate([[0.0], cumulative[:-1]]))
        left = np.concatenate([[np.inf], current[:-1]])
        predecessors[row] = np.where(left < entry, _LEFT, np.where(diagonal <= up, _DIAGONAL, _UP))
        previous = np.concatenate([[np.inf], current])
    row, column = len(a) - 1, len(b) - 1
    path = [(row, column)]
    while row or column:
        step = predecessors[row, column]
        row, column = row - (step != _LEFT), column - (step != _UP)
        path.append((row, column))
    return np.array(path[::-1], np.int64)


def middle_frames(path: Indices) -> Indices:
    """Return, for each frame of A, the middle of the frames of B that a DTW path pairs with it."""
    _, first, counts = np.unique(path[:, 0], return_index=True, return_counts=True)
    middle: Indices = path[first + (counts - 1) // 2, 1]
    return middle


@dataclass(frozen=True)
class AlignedVideos:
    """Two embedded videos, the matching frame of B for each frame of A, and the times of A's key events in both.

    The taus are those of the nearest frames, in both directions.
    """

    a: EmbeddedVideo
    b: EmbeddedVideo
    frames: Indices  # (Ta,)
    tau_a_in_b: float | None
    tau_b_in_a: float | None
    a_events: tuple[float, ...] | None  # seconds
    b_events: tuple[float, ...] | None

    def write_table(self, path: Path) -> None:
        """Write a CSV with one row per frame of A."""
        distances = np.linalg.norm(self.a.embedding.astype(np.float64) - self.b.embedding[self.frames], axis=1)
        columns = zip(self.a.pts_seconds, self.frames, self.b.pts_seconds[self.frames], distances, strict=True)
        rows = [
            f"{a_frame},{a_seconds:.6f},{b_frame},{b_seconds:.6f},{distance:.6g}\n"
            for a_frame, (a_seconds, b_frame, b_seconds, distance) in enumerate(columns)
        ]
        write_text(path, "a_frame,a_seconds,b_frame,b_seconds,distance\n" + "".join(rows))

    def write_video(
        self,
        path: Path,
        scratch: Path,
        *,
        height: int = 360,
        policy: DecodingPolicy = STRICT,
        progress: Progress = NO_PROGRESS,
    ) -> None:
        """Write an .mp4, .mov or .mkv video of A next to the matching frames of B, with captions.

        `policy` must be that of `align_videos`. The panels of B are stored in the folder `scratch`, since they may be
        needed in any order.
        """
        b_events = self.b_events if self.b_events is not None and in_order(self.b_events) else None
        side_a = Side("A", self.a.path, self.a.pts_seconds, self.a_events)
        side_b = Side("B", self.b.path, self.b.pts_seconds, b_events)
        frames = self.frames.tolist()
        wanted = set(frames)
        for frame, panel in enumerate(side_b.panels(height, policy)):
            if frame in wanted:
                panel.save(scratch / f"{frame}.jpg", quality=JPEG_QUALITY)

        def images() -> Iterator[NDArray[np.uint8]]:
            panels = track(side_a.panels(height, policy), progress, "drawing", unit="frame", total=len(frames))
            for frame, (left, matched) in enumerate(zip(panels, frames, strict=True)):
                with Image.open(scratch / f"{matched}.jpg") as right:
                    image = Image.new("RGB", (left.width + GAP + right.width, height))
                    image.paste(left, (0, 0))
                    image.paste(right, (left.width + GAP, 0))
                draw_captions(image, [(0, side_a.caption(frame)), (left.width + GAP, side_b.caption(matched))])
                yield np.asarray(image)

        write_video(path, images(), self.a.pts_seconds)


def align_videos(
    embedder: RunEmbedder,
    a: Path,
    b: Path,
    scratch: Path,
    *,
    method: Matching = "dtw",
    events: tuple[float, ...] | None = None,
    policy: DecodingPolicy = STRICT,
    progress: Progress = NO_PROGRESS,
) -> AlignedVideos:
    """Embed two videos and match their frames.

    Args:
        embedder: Embedder of a run.
        a: Reference video.
        b: Video to match to A.
        scratch: Empty folder for temporary features.
        method: "dtw" finds a monotonic alignment of the whole videos; "nearest" matches each frame independently.
        events: Event times in A, in seconds, to transfer to B.
        policy: How to handle truncated and corrupt videos.
        progress: Progress of decoding.
    """
    failures, embedded = embedder.embed({"A": a, "B": b}, scratch, policy, progress)
    if failures:
        raise ApplyError(f"Cannot align without {' and '.join(sorted(failures))}.")
    videos = dict(embedded)
    in_a, in_b = videos["A"], videos["B"]
    nearest_in_b = nearest(in_a.embedding, in_b.embedding)
    matched = nearest_in_b if method == "nearest" else middle_frames(dtw_path(in_a.embedding, in_b.embedding))
    b_events = None if events is None else transfer_events(events, in_a.pts_seconds, in_b.pts_seconds, matched)
    tau_b_in_a = tau(nearest(in_b.embedding, in_a.embedding))
    return AlignedVideos(in_a, in_b, matched, tau(nearest_in_b), tau_b_in_a, events, b_events)


def transfer_events(
    event_seconds: Sequence[float],
    a_seconds: NDArray[np.float64],
    b_seconds: NDArray[np.float64],
    matched: Indices,
) -> tuple[float, ...]:
    """Transfer event times from A to B: the first frame of A at or after an event determines the frame of B.

    Shapes: a_seconds (Ta,), b_seconds (Tb,), matched (Ta,) frames of B.
    """
    late = [event for event in event_seconds if event > a_seconds.max()]
    if late:
        raise ApplyError(
            f"--phases: the event at {late[0]:g} s is after the last frame of A ({a_seconds.max():.3f} s)."
        )
    frames = [int(np.argmax(a_seconds >= event)) for event in event_seconds]
    return tuple(b_seconds[matched[frames]].tolist())


def in_order(event_seconds: Sequence[float]) -> bool:
    """Return whether event times are non-decreasing, as required for the events of a video."""
    return list(event_seconds) == sorted(event_seconds)


def events_cell(event_seconds: Sequence[float]) -> str:
    """Format times for the events column of a CSV of videos: (2.5, 7.1) → "2.500;7.100".

    Times are rounded down, since an event after its frame would start the phase one frame late.
    """
    return ";".join(str(Decimal(event).quantize(Decimal("0.001"), ROUND_FLOOR)) for event in event_seconds)
