"""Handle Ctrl-C and SIGTERM: stop at once, or after the current step."""

import _thread
import io
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stdout
from types import FrameType
from typing import NoReturn, TypeVar

from byov.cache.atomic import creation, discard_own
from byov.cli.terminal import note
from byov.errors import Interrupted
from byov.progress import Stop

T = TypeVar("T")
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """Raised on Ctrl-C and SIGTERM.

    Not a KeyboardInterrupt, for which typer would choose the exit code.
    """

    def __init__(self, signal_number: int, message: str = "interrupted") -> None:
        self.exit_code = 128 + signal_number
        self.message = message


def raise_stopped(signal_number: int, _frame: FrameType | None) -> None:
    """Raise `Stopped`. This is the signal handler of the commands."""
    raise Stopped(signal_number)


def ignore_signals() -> None:
    """Ignore further signals while the process exits."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)


class StopRequest:
    """Callable that returns whether a signal has arrived, for loops that stop after the current
    step.
    """

    signal_number: int | None = None

    def __call__(self) -> bool:
        return self.signal_number is not None


@contextmanager
def deferred_stop() -> Iterator[StopRequest]:
    """Defer the first signal: `Stopped` is raised when the block ends.

    A second signal raises it at once.
    """
    request = StopRequest()

    def handler(signal_number: int, frame: FrameType | None) -> None:
        if request():
            raise_stopped(signal_number, frame)
        # Cancel the alarm of Ray's handler, which ran before and aborts after three seconds.
        signal.alarm(0)
        request.signal_number = signal_number

    previous = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, old_handler in previous.items():
            signal.signal(number, old_handler)
    if request.signal_number is not None:
        raise Stopped(request.signal_number)


def interruptible(work: Callable[[], T], message: str = "interrupted") -> T:
    """Run `work` in another thread and return its result.

    On a signal, print the message and end the process at once.

    The main thread stays free to handle signals, which Python defers during a long call into
    PyTorch or FFmpeg.
    """
    future: Future[T] = Future()

    def target() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)
        finally:
            running.release()

    # Not threading.Thread, because a signal handler that raises inside its Python code leaves its
    # locks broken.
    running = _thread.allocate_lock()
    running.acquire()
    try:
        _thread.start_new_thread(target, ())
        while not running.acquire(timeout=0.1):
            pass
    except Stopped as stopped:
        note(message)
        exit_now(stopped.exit_code)
    return future.result()


def run_stoppable(work: Callable[[Stop], T], message: str) -> T:
    """Return `work(stop)`, where `stop()` is True after the first signal. A second signal ends the
    process at once.

    `work` runs in another thread, because Ray replaces the signal handlers of the main thread.
    """
    # Hide Ray's messages about dead workers.
    with deferred_stop() as stop, redirect_stdout(io.StringIO()):
        try:
            return interruptible(lambda: work(stop), message)
        except Interrupted:
            raise Stopped(stop.signal_number or signal.SIGTERM, message) from None


def exit_now(code: int) -> NoReturn:
    """Remove temporary files and end the process without waiting for other threads."""
    with creation:
        discard_own()
        os._exit(code)
