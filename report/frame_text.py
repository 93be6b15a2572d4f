"""What can be said of one frame that is shown: its time, its phase, its tile."""

from bisect import bisect_left

from byov.records import UNLABELED
from byov.report.content import Sheet, ShownVideo, Unavailable

MOST_SECONDS = 1e7


def known_seconds(video: ShownVideo, frame: int) -> float | None:
    """None where the file's time is no time of a video."""
    value = float(video.pts_seconds[frame])
    return value if abs(value) < MOST_SECONDS else None


def seconds_text(video: ShownVideo, frame: int) -> str:
    value = known_seconds(video, frame)
    return "time unknown" if value is None else f"{value:.2f} s"


def phase_of(video: ShownVideo, frame: int) -> int | None:
    return None if video.labels is None or video.labels[frame] == UNLABELED else video.labels[frame]


def phase_name(phases: tuple[str, ...], phase: int | None) -> str:
    """A phase that has no name goes by its number."""
    if phase is None:
        return ""
    return phases[phase] if 0 <= phase < len(phases) else f"phase {phase}"


def tile_index(sheet: Sheet | Unavailable, frame: int) -> int | None:
    """Which tile shows the frame; None if there is none."""
    if isinstance(sheet, Unavailable):
        return None
    index = bisect_left(sheet.frames, frame)
    return index if index < len(sheet.frames) and sheet.frames[index] == frame else None
