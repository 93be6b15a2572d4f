"""Habits that all commands share: options, errors of one line, exit codes."""

import _thread
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, TypeVar

import typer

from byov.cache.atomic import exit_at_once

T = TypeVar("T")

# 0: all done; 1: some work failed; 2: the command or its input was wrong; 128 + n: stopped by signal n.
FAILED, BAD_USAGE = 1, 2

FeaturesDir = Annotated[
    Path, typer.Option(envvar="BYOV_FEATURES", help="The feature cache.", rich_help_panel="Folders")
]
DatasetsDir = Annotated[
    Path, typer.Option(envvar="BYOV_DATASETS", help="Videos and labels.", rich_help_panel="Folders")
]
RunsDir = Annotated[
    Path,
    typer.Option(envvar="BYOV_RUNS", help="Models, embeddings and results.", rich_help_panel="Folders"),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"byov {version('byov')}")
        raise typer.Exit()


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


def new_app(**settings: object) -> typer.Typer:
    return typer.Typer(pretty_exceptions_enable=False, add_completion=False, **settings)  # type: ignore[arg-type]


def note(message: str) -> None:
    """Tell the person, not the pipe."""
    print(printable(message), file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """`text` with control characters spelt out, so that no file's contents can steer the terminal."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def size_text(size_bytes: int) -> str:
    """1536 → "1.5 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


class UsageMistake(Exception):
    """Options that do not go together, or values that an option does not take."""


class Stopped(BaseException):
    """Ctrl-C or SIGTERM. Not a KeyboardInterrupt, whose exit code the command-line library would decide."""

    def __init__(self, signal_number: int) -> None:
        self.exit_code = 128 + signal_number


def run(app: typer.Typer, mistakes: tuple[type[Exception], ...]) -> NoReturn:
    """Run a command. `mistakes` are the errors whose text is all that a user needs; others are our bugs."""
    mistakes = (UsageMistake, *mistakes)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names that the terminal's alphabet lacks must not be an error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a closed pipe or a full disk can still be answered
    except Stopped as stopped:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        note("interrupted")
        sys.exit(stopped.exit_code)
    except mistakes as error:
        note(f"error: {error}")
        sys.exit(BAD_USAGE)
    except BrokenPipeError:
        _drop_output()
        sys.exit(FAILED)
    except OSError as error:
        note(f"error: {describe(error)}")
        _drop_output()
        sys.exit(FAILED)
    raise AssertionError("a typer app ends in SystemExit")


class StopRequest:
    """Whether Ctrl-C or SIGTERM has come, for work that first brings itself to a good end."""

    signal_number: int | None = None

    def obey(self) -> None:
        """Stop now, if that was asked for."""
        if self.signal_number is not None:
            raise Stopped(self.signal_number)


@contextmanager
def deferred_stop() -> Iterator[StopRequest]:
    """Within, the first signal is only noted, and obeyed at the end at the latest; a second one stops at once."""
    request = StopRequest()

    def note_signal(signal_number: int, frame: FrameType | None) -> None:
        if request.signal_number is not None:
            _stop(signal_number, frame)
        request.signal_number = signal_number

    before = {number: signal.signal(number, note_signal) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    request.obey()


def run_in_thread(work: Callable[[], T]) -> T:
    """Run `work` beside the main thread, which stays free to hear signals: one long call into PyTorch or FFmpeg would
    keep Python from seeing Ctrl-C until it returns."""
    results: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            working.release()

    # A bare thread and lock: a signal that raises in the midst of threading's own Python code breaks its locks.
    working = _thread.allocate_lock()
    working.acquire()
    _thread.start_new_thread(target, ())
    while not working.acquire(timeout=0.1):
        pass
    if errors:
        raise errors[0]
    return results[0]


def interruptible(work: Callable[[], T], said: str = "interrupted", *, tidy: Callable[[], object] = lambda: None) -> T:
    """As run_in_thread; Ctrl-C ends the process at once: decoders and fits in other threads are not waited for.

    tidy: what is to be done before that end.
    """
    try:
        return run_in_thread(work)
    except Stopped as stopped:
        note(said)
        tidy()
        exit_at_once(stopped.exit_code)


def describe(error: OSError) -> str:
    """`path: reason` of an operating-system error."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _drop_output() -> None:
    """Send what is still buffered nowhere, else Python tries it once more as it ends, and complains."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stop(signal_number: int, _: FrameType | None) -> None:
    raise Stopped(signal_number)
