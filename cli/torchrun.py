"""A command in several processes at once, as torchrun starts them: one of them speaks."""

import io
import signal
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import NoReturn

import typer

from byov.cli import command
from byov.errors import ByovError, ProcessLost
from byov.train.distributed import ALONE, Processes, join


def run(app: typer.Typer) -> NoReturn:
    """As command.run, which it is in a single process.

    The process that leads shows what it always shows. The others show nothing, unless one fails and the leader, which
    in most cases fails of the same, has not said why.
    """
    processes = _join()
    if processes is ALONE:
        command.run(app)
    said = io.StringIO()
    with ExitStack() as silence:
        if not processes.leads:
            silence.enter_context(redirect_stdout(said))
            silence.enter_context(redirect_stderr(said))
        code = _run(app, processes)
    _ignore_signals()
    if processes.leads and code:
        processes.speaks()  # it has
    elif code in (command.FAILED, command.BAD_USAGE) and processes.speaks():
        command.note(said.getvalue().strip().rpartition("\n")[2])
    sys.exit(code)


def end(processes: Processes, reason: str) -> NoReturn:
    """End this process, since another is gone: at once, as what waits for the other may wait forever."""
    _ignore_signals()
    if processes.speaks():
        with redirect_stderr(sys.__stderr__):
            command.note(f"error: {reason}")
    command.exit_at_once(command.FAILED)


def _join() -> Processes:
    """Signals end it as they would any program: there is nothing to bring to a good end yet."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in command.SIGNALS}
    try:
        return join()
    except (ByovError, ProcessLost) as error:
        command.note(f"error: {error}")
        sys.exit(command.BAD_USAGE if isinstance(error, ByovError) else command.FAILED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(app: typer.Typer, processes: Processes) -> int:
    """The exit code of the command."""
    try:
        command.run(app)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except ProcessLost as error:
        end(processes, str(error))


def _ignore_signals() -> None:
    """torchrun sends one to all as soon as one has ended."""
    for number in command.SIGNALS:
        signal.signal(number, signal.SIG_IGN)
