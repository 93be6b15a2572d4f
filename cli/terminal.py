"""Messages, log records, progress and tables in the terminal."""

import io
import logging
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from byov.cache.runs import RunRecord, is_training, unfinished_text
from byov.progress import Bar
from byov.text import printable

LOG_INTERVAL_SECONDS = 30.0


def note(message: str) -> None:
    """Print a message to standard error, so that standard output can be piped."""
    print(printable(message), file=sys.stderr, flush=True)


def note_unfinished(runs: Iterable[RunRecord]) -> None:
    """Print a note about each run whose training has not finished, and how to resume it."""
    for run in runs:
        if text := unfinished_text(run):
            advice = f"; resume with byov-train --run {run.name} --resume"
            note(f"{run.name}: {text}{'' if is_training(run.folder) else advice}")


def table_console() -> Console:
    """Return a console with the width of the terminal, or 160 if the output is piped."""
    return Console() if sys.stdout.isatty() else Console(width=160)


def print_rows(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a plain table whose cells wrap instead of being truncated."""
    table = Table(box=None, pad_edge=False)
    for heading in headings:
        table.add_column(Text(printable(heading)), overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    table_console().print(table)


def value_text(value: Any) -> str:
    """Format the value of a setting."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list | tuple):
        return ",".join(map(value_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


class _NoteHandler(logging.Handler):
    """Logging handler that prints records above any progress bars."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode():
            note(record.getMessage())


@contextmanager
def show_log() -> Iterator[None]:
    """Print the log records of the `byov` logger to standard error within the block."""
    logger = logging.getLogger("byov")
    handler = _NoteHandler()
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


class _TqdmBar(tqdm):  # type: ignore[misc]
    monitor_interval = 0  # no monitor thread; only bars that skip updates need one

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        if latest:
            self.set_postfix_str(latest, refresh=False)
        self.update(count)
        if latest and not count and self.leave:  # `latest` is a result, such as a validation score
            self.refresh()


class _NoteFile(io.TextIOBase):
    """File-like object that prints the output of tqdm line by line."""

    def write(self, text: str) -> int:
        if text.strip():
            note(text.strip())
        return len(text)


class TerminalProgress:
    """Progress bars if standard error is a terminal, otherwise one line every 30 seconds for each
    long task.
    """

    def bar(
        self, name: str, *, unit: str, total: int | None = None, done: int = 0, brief: bool = False
    ) -> AbstractContextManager[Bar]:
        if sys.stderr is not None and sys.stderr.isatty():
            where: dict[str, Any] = {"dynamic_ncols": True, "delay": 1 if brief else 0}
        else:
            interval = LOG_INTERVAL_SECONDS
            where = {"file": _NoteFile(), "position": 0, "mininterval": interval, "delay": interval}
        return _TqdmBar(
            desc=name, unit=unit, total=total, initial=done, leave=not brief, miniters=1, **where
        )


PROGRESS = TerminalProgress()
