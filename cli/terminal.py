"""Messages, log records and progress on standard error."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from tqdm import tqdm

from byov.progress import Bar
from byov.text import format_duration, printable

LOG_INTERVAL_SECONDS = 30.0
LOG_WIDTH = 160  # columns of a table that does not go to a terminal
HUB_LOGGER = logging.getLogger("huggingface_hub.utils._http")
_HUB_RETRY_TEXTS = (" thrown while requesting ", "Retrying in ", "Rate limited. Waiting ")


def note(message: str) -> None:
    """Print a message to standard error, so that standard output can be piped."""
    print(printable(message), file=sys.stderr, flush=True)


def table_console() -> Console:
    """Return a console as wide as the terminal, or wide enough for whole lines if the output is piped."""
    return Console() if sys.stdout.isatty() else Console(width=LOG_WIDTH)


class _NoteHandler(logging.Handler):
    """Logging handler that prints records above any progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode():
            note(record.getMessage())


class _HubRetryFilter(logging.Filter):
    """Replaces the Hugging Face Hub's two warnings per retry by a single note."""

    noted = False

    def filter(self, record: logging.LogRecord) -> bool:
        if not any(text in record.getMessage() for text in _HUB_RETRY_TEXTS):
            return True
        if not self.noted:
            self.noted = True
            note("the Hugging Face Hub does not answer; retrying (set HF_HUB_OFFLINE=1 to use local files only)")
        return False


@contextmanager
def show_log() -> Iterator[None]:
    """Print the log records of the `byov` logger to standard error within the block."""
    logger, handler, retry_filter = logging.getLogger("byov"), _NoteHandler(), _HubRetryFilter()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    HUB_LOGGER.addFilter(retry_filter)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        HUB_LOGGER.removeFilter(retry_filter)


class _TqdmBar:
    def __init__(self, bar: "tqdm[None]") -> None:
        self._bar = bar

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        if latest:
            # A refresh would draw a delayed bar too early.
            self._bar.set_postfix_str(latest, refresh=False)
        self._bar.update(count)


class LogProgress:
    """Progress as log lines: one line about all running tasks every 30 seconds.

    `advance(0, latest=...)` prints a line at once, except for brief tasks, which may send many per second.

    Args:
        write: Receives the lines.
        clock: Current time in seconds.
    """

    def __init__(self, write: Callable[[str], None] = note, clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._tasks: list[_Task] = []
        self._last_line = clock()

    @contextmanager
    def bar(
        self, name: str, *, unit: str, total: int | None = None, done: int = 0, brief: bool = False
    ) -> Iterator[Bar]:
        if not self._tasks:
            self._last_line = self._clock()
        task = _Task(self.update, name, unit, total, brief, self._clock(), initial=done, done=done)
        self._tasks.append(task)
        try:
            yield task
        finally:
            self._tasks.remove(task)

    def update(self, now: bool) -> None:
        """Print a line if `now` is set or the interval has passed."""
        seconds = self._clock()
        if now or seconds - self._last_line >= LOG_INTERVAL_SECONDS:
            self._last_line = seconds
            self._write("; ".join(task.describe(seconds) for task in self._tasks))


@dataclass(eq=False)
class _Task:
    update: Callable[[bool], None]
    name: str
    unit: str
    total: int | None
    brief: bool
    started: float
    initial: int
    done: int
    latest: str = ""

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        self.done += count
        self.latest = latest or self.latest
        self.update(bool(latest) and not count and not self.brief)

    def describe(self, now: float) -> str:
        """Return, for example, "frames: 1,200 of 9,000 (13%), 45.1 frames/s, 2 min left"."""
        total, seconds, new = self.total or 0, now - self.started, self.done - self.initial
        parts = [f"{self.name}: {self.done:,}"]
        if total:
            parts[0] += f" of {total:,} ({min(1.0, self.done / total):.0%})"
        if seconds > 0 and new > 0:
            rate = new / seconds
            parts.append(f"{rate:,.1f} {self.unit}s/s" if rate >= 1 else f"{1 / rate:,.1f} s/{self.unit}")
            if total > self.done:
                parts.append(f"{format_duration((total - self.done) / rate)} left")
        if self.latest:
            parts.append(self.latest)
        return ", ".join(parts)


class TerminalProgress:
    """Progress bars if standard error is a terminal, log lines otherwise."""

    def __init__(self) -> None:
        self._log = LogProgress()

    @contextmanager
    def bar(
        self, name: str, *, unit: str, total: int | None = None, done: int = 0, brief: bool = False
    ) -> Iterator[Bar]:
        if sys.stderr is None or not sys.stderr.isatty():
            with self._log.bar(name, unit=unit, total=total, done=done, brief=brief) as task:
                yield task
            return
        delay_seconds = 1 if brief else 0
        with tqdm(
            desc=name, unit=unit, total=total, initial=done, dynamic_ncols=True, leave=not brief, delay=delay_seconds
        ) as bar:
            yield _TqdmBar(bar)


PROGRESS = TerminalProgress()
