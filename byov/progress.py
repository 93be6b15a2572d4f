"""Progress reporting and cancellation.

Library functions report progress to their `progress` argument. The caller decides whether this
draws a bar, writes a log line, raises Interrupted or does nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

from byov.errors import Interrupted

T = TypeVar("T")
Stop = Callable[[], bool]  # returns True if the caller wants to stop


class Bar(Protocol):
    """Progress bar of one task."""

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        """Report `count` more finished units; `latest` describes the last one."""


class Progress(Protocol):
    """Interface for reporting progress."""

    def bar(
        self, name: str, *, unit: str, total: int | None = None, done: int = 0, brief: bool = False
    ) -> AbstractContextManager[Bar]:
        """Open a progress bar for a task.

        Args:
            name: Name of the task.
            unit: Name of one unit, such as "video".
            total: Number of units, if known.
            done: Number of units already finished.
            brief: Hide the bar if the task finishes quickly.
        """


class _NoProgress:
    def advance(self, *_: object, **__: object) -> None:
        pass

    def bar(self, *_: object, **__: object) -> AbstractContextManager[Bar]:
        return nullcontext(self)


NO_PROGRESS: Progress = _NoProgress()


def track(
    items: Iterable[T],
    progress: Progress,
    name: str,
    *,
    unit: str,
    total: int | None = None,
    brief: bool = False,
) -> Iterator[T]:
    """Iterate over items and report each of them as one finished unit."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with progress.bar(name, unit=unit, total=total, brief=brief) as bar:
        for item in items:
            yield item
            bar.advance()


def never() -> bool:
    """Return False; the default for `stop` arguments."""
    return False


class Stoppable:
    """Progress reporter that raises Interrupted if `stop` returns True at the start of a task or
    after a unit.
    """

    def __init__(self, progress: Progress, stop: Stop) -> None:
        self._progress = progress
        self._stop = stop

    @contextmanager
    def bar(self, name: str, **options: Any) -> Iterator[Bar]:
        raise_if_stopped(self._stop)
        with self._progress.bar(name, **options) as bar:
            yield _StoppableBar(bar, self._stop)


class _StoppableBar:
    def __init__(self, bar: Bar, stop: Stop) -> None:
        self._bar = bar
        self._stop = stop

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        self._bar.advance(count, latest=latest)
        raise_if_stopped(self._stop)


def raise_if_stopped(stop: Stop) -> None:
    """Raise Interrupted if `stop` returns True."""
    if stop():
        raise Interrupted("stopped; finished work is kept")
