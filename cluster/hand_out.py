"""Which videos a worker gets next, and what becomes of those whose worker is lost.

The largest first and in shrinking chunks, so that all workers end at about the same time.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence

from byov.extract.plan import Job

MOST_VIDEOS = 64  # of a chunk: they are done again one by one if their worker is lost
MOST_ATTEMPTS = 3  # of a video whose worker is lost each time


class HandOut:
    """sizes: of the videos, by id, in any unit."""

    def __init__(self, jobs: Sequence[Job], sizes: Mapping[str, int], workers: int) -> None:
        self._sizes, self._workers = sizes, workers
        self._waiting = deque(sorted(jobs, key=lambda job: -sizes[job.video.id]))
        self._left = sum(sizes[job.video.id] for job in jobs)  # of those that wait
        self._alone: deque[Job] = deque()
        self._attempts: Counter[str] = Counter()

    @property
    def waiting(self) -> int:
        """How many videos nobody has been given."""
        return len(self._waiting) + len(self._alone)

    def chunk(self) -> list[Job]:
        """What a free worker is to do; [] if nothing waits: half of its share of what is left, and one video at least.

        A video that was lost with others is alone.
        """
        if self._alone:
            return [self._alone.popleft()]
        chunk: list[Job] = []
        size, wanted = 0, self._left / (2 * self._workers)
        while self._waiting and len(chunk) < MOST_VIDEOS and (not chunk or size < wanted):
            chunk.append(self._waiting.popleft())
            size += self._sizes[chunk[-1].video.id]
        self._left -= size
        return chunk

    def lost(self, chunk: Sequence[Job], unfinished: Sequence[Job]) -> list[Job]:
        """A worker is gone before it could do these of its chunk; those of them that are given up.

        Which one of several is to blame cannot be told: an attempt counts if it was alone.
        """
        if len(chunk) > 1:
            self._alone.extend(unfinished)
            return []
        given_up = []
        for job in unfinished:
            self._attempts[job.video.id] += 1
            if self._attempts[job.video.id] < MOST_ATTEMPTS:
                self._alone.append(job)
            else:
                given_up.append(job)
        return given_up
