"""The videos that a report shows frames of, and which frames."""

from collections.abc import Iterable

from byov.report.content import FrameRef


class Gallery:
    """The parts of a report ask for frames before any video is decoded, so that each is decoded once."""

    def __init__(self) -> None:
        self._wanted: dict[int, set[int]] = {}  # frames by the video's index in the split, in the order of asking

    def show(self, video: int, frames: Iterable[int]) -> int:
        """Ask for frames of a video of the split; returns its index among those that are shown."""
        self._wanted.setdefault(video, set()).update(frames)
        return list(self._wanted).index(video)

    def ref(self, video: int, frame: int) -> FrameRef:
        return FrameRef(self.show(video, (frame,)), frame)

    @property
    def videos(self) -> list[int]:
        """Indices in the split."""
        return list(self._wanted)

    def frames(self, video: int) -> tuple[int, ...]:
        """Those that were asked for, rising."""
        return tuple(sorted(self._wanted[video]))
