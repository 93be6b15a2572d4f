"""A command in several processes at once, as torchrun starts them: one of them speaks."""

import io
import signal
import sys
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from typing import NoReturn

import typer

from byov.cli import common
from byov.cli.signals import SIGNALS, exit_now, ignore_signals
from byov.cli.terminal import note
from byov.errors import ByovError, ProcessLost
from byov.train.distributed import SINGLE_PROCESS, Processes, init_processes


def run(app: typer.Typer) -> NoReturn:
    """As common.run, which it is in a single process.

    The process that leads shows what it always shows. The others show nothing, unless one fails and the leader, which
    in most cases fails of the same, has not said why.
    """
    processes = _join()
    if processes is SINGLE_PROCESS:
        common.run(app)
    said = io.StringIO()
    with ExitStack() as silence:
        if not processes.is_main:
            silence.enter_context(redirect_stdout(said))
            silence.enter_context(redirect_stderr(said))
        code = _run(app, processes)
    ignore_signals()
    if processes.is_main and code:
        processes.reports_error()  # it has
    elif code in (common.FAILED, common.BAD_USAGE) and processes.reports_error():
        note(said.getvalue().strip().rpartition("\n")[2])
    sys.exit(code)


def end(processes: Processes, reason: str) -> NoReturn:
    """End this process, since another is gone: at once, as what waits for the other may wait forever."""
    ignore_signals()
    if processes.reports_error():
        with redirect_stderr(sys.__stderr__):
            note(f"error: {reason}")
    exit_now(common.FAILED)


def _join() -> Processes:
    """Signals end it as they would any program: there is nothing to bring to a good end yet."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    try:
        return init_processes()
    except (ByovError, ProcessLost) as error:
        note(f"error: {error}")
        sys.exit(common.BAD_USAGE if isinstance(error, ByovError) else common.FAILED)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(app: typer.Typer, processes: Processes) -> int:
    """The exit code of the common."""
    try:
        common.run(app)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    except ProcessLost as error:
        end(processes, str(error))
