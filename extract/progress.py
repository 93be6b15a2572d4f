"""Progress bars of an extraction: videos with the time left, and frames per second. Silent when not on a terminal."""

from types import TracebackType
from typing import Self

from tqdm import tqdm

from byov.cache.command import note
from byov.extract.plan import Job


class Bars:
    def __init__(self, jobs: list[Job]) -> None:
        labels = [job.label_count for job in jobs]
        frames = None if None in labels else sum(count or 0 for count in labels)
        self._videos = tqdm(total=len(jobs), desc="videos", unit="video", position=0, disable=None)
        self._frames = tqdm(
            total=frames, desc="frames", unit="frame", position=1, leave=False, smoothing=0.1, disable=None
        )

    def frames_done(self, count: int) -> None:
        self._frames.update(count)

    def video_done(self, job: Job, failure: str | None) -> None:
        if failure is not None:
            with tqdm.external_write_mode():
                note(f"failed: {failure}")
        self._videos.set_postfix_str(job.video.id, refresh=False)
        self._videos.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._frames.close()
        self._videos.close()
