"""How far a piece of work is.

Libraries advance what they are handed; who hands it to them decides what becomes of it: a bar in a terminal, a line in
a log, a message to another machine, or nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, TypeVar

from byov.errors import Interrupted

T = TypeVar("T")


class Bar(Protocol):
    """One piece of work that is under way."""

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        """So many more units are done; `latest` is a word on the last one. count 0: a word that is worth being seen."""


class Progress(Protocol):
    def bar(
        self, name: str, *, unit: str, total: int | None = None, done: int = 0, brief: bool = False
    ) -> AbstractContextManager[Bar]:
        """A piece of work begins, `done` of `total` units of it done before. brief: not worth a word if it is short."""


class _Silent:
    def advance(self, count: int = 1, *, latest: str = "") -> None:
        pass

    def bar(
        self,
        name: str,  # noqa: ARG002
        *,
        unit: str,  # noqa: ARG002
        total: int | None = None,  # noqa: ARG002
        done: int = 0,  # noqa: ARG002
        brief: bool = False,  # noqa: ARG002
    ) -> AbstractContextManager[Bar]:
        return nullcontext(self)


NO_PROGRESS: Progress = _Silent()


def track(
    items: Iterable[T], progress: Progress, name: str, *, unit: str, total: int | None = None, brief: bool = False
) -> Iterator[T]:
    """The items, one unit of progress each."""
    if total is None and isinstance(items, Sized):
        total = len(items)
    with progress.bar(name, unit=unit, total=total, brief=brief) as bar:
        for item in items:
            yield item
            bar.advance()


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
        raise_if_stopped(self._stop)
        with self._progress.bar(name, unit=unit, total=total, done=done, brief=brief) as bar:
            yield _StoppableBar(bar, self._stop)


class _StoppableBar:
    def __init__(self, bar: Bar, stop: Stop) -> None:
        self._bar, self._stop = bar, stop

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        self._bar.advance(count, latest=latest)
        raise_if_stopped(self._stop)


def raise_if_stopped(stop: Stop) -> None:
    """Raise Interrupted if it is time to."""
    if stop():
        raise Interrupted("stopped; what is finished is kept")
