"""Which frames of the split's videos a report shows."""

from collections.abc import Iterable

from byov.report.content import FrameRef


class Gallery:
    """The parts of a report ask for frames before any video is decoded, so that each is decoded once."""

    def __init__(self, videos: int) -> None:
        self._wanted: list[set[int]] = [set() for _ in range(videos)]

    def show(self, video: int, frames: Iterable[int]) -> None:
        self._wanted[video].update(frames)

    def ref(self, video: int, frame: int) -> FrameRef:
        self.show(video, (frame,))
        return FrameRef(video, frame)

    def frames(self, video: int) -> tuple[int, ...]:
        """Those that were asked for, rising."""
        return tuple(sorted(self._wanted[video]))
