"""A stop for work that knows nothing of one: it ends where it would advance its progress.

Work that can do better, as the training, which leaves a checkpoint, asks for itself.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from byov.errors import Interrupted
from byov.progress import Bar, Progress

Stop = Callable[[], bool]


def never() -> bool:
    return False


class Stoppable:
    """A progress that raises Interrupted once it is to stop: before a piece of work, and after each unit of it."""

    def __init__(self, progress: Progress, stop: Stop) -> None:
        self._progress, self._stop = progress, stop

    @contextmanager
    def bar(
        self, name: str, *, unit: str, total: int | None = None, done: int = 0, brief: bool = False
    ) -> Iterator[Bar]:
        obey(self._stop)
        with self._progress.bar(name, unit=unit, total=total, done=done, brief=brief) as bar:
            yield _StoppableBar(bar, self._stop)


class _StoppableBar:
    def __init__(self, bar: Bar, stop: Stop) -> None:
        self._bar, self._stop = bar, stop

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        self._bar.advance(count, latest=latest)
        obey(self._stop)


def obey(stop: Stop) -> None:
    """Raise Interrupted if it is time to."""
    if stop():
        raise Interrupted("stopped; what is finished is kept")
