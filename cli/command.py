"""Habits that all commands share: options, messages, progress bars, errors of one line, Ctrl-C, exit codes."""

import _thread
import io
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, NoReturn, TypeVar

import typer
from tqdm import tqdm

from byov import __version__
from byov.cache.atomic import creation, discard_own
from byov.cli.app import App, HelpfulGroup
from byov.cli.app import UsageMistake as UsageMistake
from byov.cli.hub_retries import retries_said_once
from byov.cli.progress_lines import ProgressLines
from byov.errors import ByovError
from byov.progress import Bar
from byov.text import printable

T = TypeVar("T")

# 0: all done; 1: some work failed; 2: the command or its input was wrong; 128 + n: stopped by signal n.
FAILED, BAD_USAGE = 1, 2
SIGNALS = (signal.SIGINT, signal.SIGTERM)
LIBRARIES = logging.getLogger("byov")

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
        print(f"byov {__version__}")
        raise typer.Exit()


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


def new_app(**settings: object) -> typer.Typer:
    return App(pretty_exceptions_enable=False, cls=HelpfulGroup, **settings)  # type: ignore[arg-type]


def run(app: typer.Typer) -> NoReturn:
    """Run a command. Of a user's mistake the text is all that is shown; other errors are our bugs."""
    for number in SIGNALS:
        signal.signal(number, raise_stopped)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names that the terminal's alphabet lacks must not be an error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            with showing_log(), retries_said_once(note):
                app()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where a closed pipe or a full disk can still be answered
    except Stopped as stopped:
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        note("interrupted")
        sys.exit(stopped.exit_code)
    except ByovError as error:
        note(f"error: {error}")
        sys.exit(BAD_USAGE)
    except BrokenPipeError:
        _drop_output()
        sys.exit(FAILED)
    except (MemoryError, RuntimeError, ImportError) as error:
        if not is_shortage(error):
            raise
        reason = (str(error).splitlines() or ["no more to be had"])[0]
        note(f"error: not enough memory ({reason}); close other programs, or raise the limit, like that of ulimit -v")
        sys.exit(FAILED)
    except OSError as error:
        note(f"error: {describe(error)}")
        _drop_output()
        sys.exit(FAILED)
    raise AssertionError("a typer app ends in SystemExit")


def describe(error: OSError) -> str:
    """`path: reason` of an operating-system error."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


# How PyTorch, Python's threads and the loader of libraries say that there is no memory left.
_SHORTAGE = (
    "can't allocate memory",
    "not enough memory",
    "can't start new thread",
    "failed to map segment",
    "out of memory",
)


def is_shortage(error: BaseException) -> bool:
    """Of memory, whoever says it and in whatever words."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in _SHORTAGE)


def _drop_output() -> None:
    """Send what is still buffered nowhere, else Python tries it once more as it ends, and complains."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# What a command says: on standard error, so that pipes stay clean.


def note(message: str) -> None:
    """Tell the person, not the pipe."""
    print(printable(message), file=sys.stderr, flush=True)


class _Notes(logging.Handler):
    """What libraries log becomes a note, above the progress bars that are on the screen."""

    def emit(self, record: logging.LogRecord) -> None:
        with tqdm.external_write_mode():
            note(record.getMessage())


@contextmanager
def showing_log() -> Iterator[None]:
    """Within, what byov's libraries log is shown."""
    handler, level = _Notes(), LIBRARIES.level
    LIBRARIES.addHandler(handler)
    LIBRARIES.setLevel(logging.INFO)
    try:
        yield
    finally:
        LIBRARIES.removeHandler(handler)
        LIBRARIES.setLevel(level)


class _TqdmBar:
    def __init__(self, bar: "tqdm[None]") -> None:
        self._bar = bar

    def advance(self, count: int = 1, *, latest: str = "") -> None:
        if latest:
            self._bar.set_postfix_str(latest, refresh=False)  # else it is drawn before its delay, and stays
        self._bar.update(count)


class TerminalBars:
    """A bar for each piece of work, below each other if there are several at once; lines where there is no terminal."""

    def __init__(self, lines: ProgressLines) -> None:
        self._lines = lines

    @contextmanager
    def bar(
        self, name: str, *, unit: str, total: int | None = None, done: int = 0, brief: bool = False
    ) -> Iterator[Bar]:
        if sys.stderr is None or not sys.stderr.isatty():
            with self._lines.bar(name, unit=unit, total=total, done=done, brief=brief) as line:
                yield line
            return
        with tqdm(
            desc=name,
            unit=unit,
            total=total,
            initial=done,
            dynamic_ncols=True,
            leave=not brief,
            delay=1 if brief else 0,
        ) as bar:
            yield _TqdmBar(bar)


BARS = TerminalBars(ProgressLines(note))


# Ctrl-C and SIGTERM: how a command hears them, and how it ends.


class Stopped(BaseException):
    """Ctrl-C or SIGTERM. Not a KeyboardInterrupt, whose exit code the command-line library would decide."""

    def __init__(self, signal_number: int) -> None:
        self.exit_code = 128 + signal_number


def raise_stopped(signal_number: int, _: FrameType | None) -> None:
    """The handler of a command's signals."""
    raise Stopped(signal_number)


class StopRequest:
    """Whether Ctrl-C or SIGTERM has come, for work that first brings itself to a good end."""

    signal_number: int | None = None

    def __call__(self) -> bool:
        return self.signal_number is not None

    def obey(self) -> None:
        """Stop now, if that was asked for."""
        if self.signal_number is not None:
            raise Stopped(self.signal_number)


@contextmanager
def deferred_stop() -> Iterator[StopRequest]:
    """Within, the first signal is only noted, and obeyed at the end at the latest; a second one stops at once."""
    request = StopRequest()

    def note_signal(signal_number: int, frame: FrameType | None) -> None:
        if request():
            raise_stopped(signal_number, frame)
        request.signal_number = signal_number

    before = {number: signal.signal(number, note_signal) for number in SIGNALS}
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


def interruptible(
    work: Callable[[], T],
    said: str = "interrupted",
    *,
    close: Callable[[], object] = lambda: None,
    scratch: Path | None = None,
) -> T:
    """As run_in_thread; Ctrl-C ends the process at once: decoders and fits in other threads are not waited for.

    close: what is to be done before that end. scratch: a folder that goes with it.
    """
    try:
        return run_in_thread(work)
    except Stopped as stopped:
        note(said)
        close()
        exit_at_once(stopped.exit_code, scratch)


def exit_at_once(code: int, scratch: Path | None = None) -> NoReturn:
    """End the process without waiting for its writers, and leave neither their temporary files nor that folder."""
    with creation:
        discard_own()
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        os._exit(code)
