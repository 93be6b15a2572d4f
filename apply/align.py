"""Two videos aligned by a run: the frame of B for each frame of A, as a video, as a table, and for key events."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from byov.apply.embedder import EmbeddedVideo, RunEmbedder
from byov.apply.video_writer import Side, write_side_by_side
from byov.cache.atomic import write_text
from byov.data.video import STRICT, DecodingPolicy
from byov.errors import ApplyError
from byov.evaluate.kendalls_tau import taus_of_columns
from byov.evaluate.neighbors import Points
from byov.progress import NO_PROGRESS, Progress

Embeddings = NDArray[np.float32]
Indices = NDArray[np.int64]
Matching = Literal["dtw", "nearest"]

MOST_CELLS = 2**30  # of the DTW table: it keeps one byte for each pair of frames
_DIAGONAL, _UP, _LEFT = 0, 1, 2  # where a cell of the table was reached from


@dataclass(frozen=True)
class Match:
    """For each frame of a the matched frame of b, and Kendall's tau in both directions."""

    frames: Indices  # (Ta,)
    distances: NDArray[np.float64]  # (Ta,) between the embeddings of the two
    tau_a_in_b: float | None  # of the nearest frames, whatever the method
    tau_b_in_a: float | None


def match(a: Embeddings, b: Embeddings, method: Matching) -> Match:
    """dtw: in order, and both from beginning to end. nearest: each frame on its own."""
    in_b = nearest(a, b)
    frames = in_b if method == "nearest" else middle_frames(dtw_path(a, b))
    distances = np.linalg.norm(a.astype(np.float64) - b[frames], axis=1)
    return Match(frames, distances, tau(in_b), tau(nearest(b, a)))


def nearest(a: Embeddings, b: Embeddings) -> Indices:
    """(Ta,) for each frame of a, the nearest of b, by the evaluator's own search."""
    points, starts = Points(np.concatenate([a, b])), np.array([0, len(a)])
    rows = points.row_blocks(slice(0, len(a)))
    return np.concatenate([points.nearest_in_each(block, starts)[:, 1] for block in rows]) - len(a)


def tau(matched: Indices) -> float | None:
    """Kendall's tau of the matched frames' order; None if they never change, or there is only one."""
    value = float(taus_of_columns(matched[:, None])[0])
    return None if np.isnan(value) else value


def dtw_path(a: Embeddings, b: Embeddings) -> Indices:
    """(P, 2) the dynamic time warping path: pairs of frames from (0, 0) to (Ta - 1, Tb - 1), neither running backwards.

    The sum of distances along it is the least. Ties go to the diagonal step, then to the step in a.
    """
    if len(a) * len(b) > MOST_CELLS:
        raise ApplyError(
            f"{len(a)} and {len(b)} frames are too many to match in order (at most {MOST_CELLS:,} pairs of frames); "
            "match each by its nearest with --method nearest"
        )
    a, b = a.astype(np.float64), b.astype(np.float64)  # once, and not anew in every row
    came_from = np.empty((len(a), len(b)), np.uint8)
    before = np.full(len(b) + 1, np.inf)  # costs of the row above, with a wall on its left
    before[0] = 0  # from which the path enters (0, 0)
    for row, frame in enumerate(a):
        diagonal, up = before[:-1], before[1:]
        entry = np.minimum(diagonal, up)
        costs = np.cumsum(cdist(frame[None], b)[0])
        # Along a row, c[j] = cost[j] + min(entry[j], c[j - 1]): less the running sum of costs, a running minimum.
        skipped = np.concatenate([[0.0], costs[:-1]])
        reached = costs + np.minimum.accumulate(entry - skipped)
        left = np.concatenate([[np.inf], reached[:-1]])
        came_from[row] = np.where(left < entry, _LEFT, np.where(diagonal <= up, _DIAGONAL, _UP))
        before = np.concatenate([[np.inf], reached])
    return _trace(came_from)


def _trace(came_from: NDArray[np.uint8]) -> Indices:
    """The path that ends in the last cell."""
    row, column = came_from.shape[0] - 1, came_from.shape[1] - 1
    path = [(row, column)]
    while row or column:
        step = came_from[row, column]
        row, column = row - (step != _LEFT), column - (step != _UP)
        path.append((row, column))
    return np.array(path[::-1], np.int64)


def middle_frames(path: Indices) -> Indices:
    """(Ta,) one frame of b for each of a: of those that the path pairs with it, the middle one."""
    frames, first, counts = np.unique(path[:, 0], return_index=True, return_counts=True)
    middle: Indices = path[first + (counts - 1) // 2, 1]
    assert len(frames) == path[-1, 0] + 1
    return middle


_CELL_STEP = Decimal("0.001")  # seconds


@dataclass(frozen=True)
class AlignedVideos:
    """a and b, the frame of b for each frame of a, and the times of a's key events in both."""

    a: EmbeddedVideo
    b: EmbeddedVideo
    match: Match
    method: Matching
    a_events: tuple[float, ...] | None  # in seconds
    b_events: tuple[float, ...] | None

    def write_table(self, path: Path) -> None:
        """A CSV with a row for each frame of a."""
        b_seconds = self.b.pts_seconds[self.match.frames]
        columns = zip(self.a.pts_seconds, self.match.frames, b_seconds, self.match.distances, strict=True)
        rows = [
            f"{a_frame},{a_seconds:.6f},{b_frame},{seconds:.6f},{distance:.6g}\n"
            for a_frame, (a_seconds, b_frame, seconds, distance) in enumerate(columns)
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
        """a at its own times on the left, on the right the frame of b that goes with each of a.

        height: in pixels, even. scratch: a folder for frames of b.
        """
        b_events = self.b_events if self.b_events is not None and in_order(self.b_events) else None
        write_side_by_side(
            path,
            Side("A", self.a.path, self.a.pts_seconds, self.a_events),
            Side("B", self.b.path, self.b.pts_seconds, b_events),
            self.match.frames,
            height=height,
            policy=policy,
            scratch=scratch,
            progress=progress,
        )


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
    """Embed both videos and match their frames. events: of a, in seconds, to carry over to b.

    scratch: an empty folder for the features of both, no longer needed on return.
    """
    failures, embedded = embedder.embed({"A": a, "B": b}, scratch, policy, progress)
    if failures:
        raise ApplyError(f"nothing to align without {' and '.join(sorted(failures))}")
    videos = dict(embedded)
    found = match(videos["A"].embedding, videos["B"].embedding, method)
    seconds = videos["A"].pts_seconds, videos["B"].pts_seconds
    b_events = None if events is None else transfer_events(events, *seconds, found.frames)
    return AlignedVideos(videos["A"], videos["B"], found, method, events, b_events)


def transfer_events(
    event_seconds: Sequence[float],
    a_seconds: NDArray[np.float64],
    b_seconds: NDArray[np.float64],
    matched: NDArray[np.int64],
) -> tuple[float, ...]:
    """The times in b of a's events: of the frame that goes with a's first frame at or after the event.

    a_seconds (Ta,), b_seconds (Tb,): times of the frames; matched (Ta,): for each frame of a, that of b.
    """
    late = [event for event in event_seconds if event > a_seconds.max()]
    if late:
        raise ApplyError(
            f"--phases: the event at {late[0]:g} s is after the last frame of A, which is at {a_seconds.max():.3f} s"
        )
    frames = [int(np.argmax(a_seconds >= event)) for event in event_seconds]
    return tuple(b_seconds[matched[frames]].tolist())


def in_order(event_seconds: Sequence[float]) -> bool:
    """Whether the events come in order, as those of a video must."""
    return list(event_seconds) == sorted(event_seconds)


def events_cell(event_seconds: Sequence[float]) -> str:
    """(2.5, 7.1) → "2.500;7.100", for the events column of one's own videos.

    Rounded down: an event a little after its frame would begin its phase one frame late.
    """
    return ";".join(str(Decimal(event).quantize(_CELL_STEP, ROUND_FLOOR)) for event in event_seconds)
