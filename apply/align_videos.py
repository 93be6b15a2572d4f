"""Two videos aligned by a run: the frame of B for each frame of A, as a video, as a table, and for key events."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from byov.apply.alignment import Match, Matching, match
from byov.apply.run_embedder import EmbeddedVideo, RunEmbedder
from byov.apply.side_by_side import Side, write_side_by_side
from byov.cache.atomic import write_text
from byov.data.video import STRICT, DecodingPolicy
from byov.errors import ApplyError
from byov.progress import SILENT, Progress

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
        progress: Progress = SILENT,
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
    progress: Progress = SILENT,
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
