"""Ctrl-C and SIGTERM: how a command hears them, and how it ends."""

import _thread
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn, TypeVar

from byov.cache.atomic import creation, discard_own
from byov.cli.messages import note

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


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


def exit_at_once(code: int) -> NoReturn:
    """End the process without waiting for its writers, and leave none of their temporary files."""
    with creation:
        discard_own()
        os._exit(code)
