"""Progress as bars on standard error; silent where that is no terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from byov.progress import Bar


class _TqdmBar:
    def __init__(self, bar: "tqdm[None]") -> None:
        self._bar = bar

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        if latest:
            self._bar.set_postfix_str(latest, refresh=False)  # else it is drawn before its delay, and stays
        self._bar.update(count)


class TerminalBars:
    """A bar for each piece of work, below each other if there are several at once."""

    @contextmanager
    def bar(
        self, name: str, *, unit: str, total: int | None = None, done: int = 0, brief: bool = False
    ) -> Iterator[Bar]:
        with tqdm(
            desc=name,
            unit=unit,
            total=total,
            initial=done,
            disable=None,
            dynamic_ncols=True,
            leave=not brief,
            delay=1 if brief else 0,
        ) as bar:
            yield _TqdmBar(bar)


BARS = TerminalBars()
