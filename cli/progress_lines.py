"""Progress where nobody watches a terminal: a line now and then, for the log of a cluster or of CI."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from byov.progress import Bar
from byov.text import format_duration

EVERY_SECONDS = 30.0


class ProgressLines:
    """Every 30 seconds one line of all work that is under way; at once for a word that comes without units.

    But not for a word on brief work, of which there may be many a second.
    """

    def __init__(
        self,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        every_seconds: float = EVERY_SECONDS,
    ) -> None:
        self._say, self._clock, self._every = say, clock, every_seconds
        self._open: list[_Work] = []
        self._said_at = clock()

    @contextmanager
    def bar(
        self,
        name: str,
        *,
        unit: str,
        total: int | None = None,
        done: int = 0,
        brief: bool = False,
    ) -> Iterator[Bar]:
        if not self._open:
            self._said_at = self._clock()
        work = _Work(self, name, unit, total, done, self._clock(), brief=brief)
        self._open.append(work)
        try:
            yield work
        finally:
            self._open.remove(work)

    def advanced(self, *, at_once: bool) -> None:
        """Some work has gone on: say so if it is time to."""
        now = self._clock()
        if at_once or now - self._said_at >= self._every:
            self._said_at = now
            self._say("; ".join(work.text(now) for work in self._open))


class _Work:
    """One piece of work under way."""

    def __init__(
        self, lines: ProgressLines, name: str, unit: str, total: int | None, done: int, started: float, *, brief: bool
    ) -> None:
        self._lines, self._name, self._unit, self._total, self._brief = lines, name, unit, total, brief
        self._first, self._done, self._started = done, done, started
        self._latest = ""

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        self._done += count
        self._latest = latest or self._latest
        self._lines.advanced(at_once=not (count or self._brief) and bool(latest))

    def text(self, now: float) -> str:
        """ "frames: 1,200 of 9,000 (13%), 45.1 frames/s, 2 min left" """
        done = f"{self._name}: {self._done:,}"
        if self._total:
            done += f" of {self._total:,} ({min(1.0, self._done / self._total):.0%})"
        parts = [done]
        seconds, new = now - self._started, self._done - self._first
        if seconds > 0 and new > 0:
            rate = new / seconds
            parts.append(f"{rate:,.1f} {self._unit}s/s" if rate >= 1 else f"{1 / rate:,.1f} s/{self._unit}")
            if self._total and self._total > self._done:
                parts.append(f"{format_duration((self._total - self._done) / rate)} left")
        return ", ".join([*parts, self._latest] if self._latest else parts)
