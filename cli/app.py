"""Typer app of the commands: signals, log records, errors and exit codes."""

import io
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.columns import Columns
from typer import rich_utils

from byov.cli.exit_codes import describe_failure
from byov.cli.signals import SIGNALS, Stopped, ignore_signals, raise_stopped
from byov.cli.terminal import note, show_log
from byov.plugins import PROBLEMS


class _FoldingColumns(Columns):
    """Columns in --help that wrap long words instead of truncating them."""

    def __rich_console__(self, *arguments: Any) -> Any:
        for table in super().__rich_console__(*arguments):
            for column in table.columns:  # type: ignore[union-attr]
                column.overflow = "fold"
            yield table


rich_utils.Columns = _FoldingColumns  # type: ignore[attr-defined]


class App(typer.Typer):
    """Typer app with -h, one-line errors and the exit codes in `byov.cli.exit_codes`.

    Call it to run the command and exit.
    """

    def __init__(self, help: str | None = None, **settings: Any) -> None:
        super().__init__(
            help=help,
            context_settings={"help_option_names": ["-h", "--help"]},
            pretty_exceptions_enable=False,
            rich_markup_mode="markdown",  # joins the lines of a paragraph
            **settings,
        )

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Run the command and exit. User errors are printed as one line; bugs print a traceback."""
        for number in SIGNALS:
            signal.signal(number, raise_stopped)
        _prepare_streams()
        try:
            sys.exit(self._run())
        except Stopped as stopped:
            ignore_signals()
            note(stopped.message)
            sys.exit(stopped.exit_code)
        except Exception as error:
            failure = describe_failure(error)
            if failure is None:
                raise
            code, message = failure
            if message:
                note(message)
            _discard_output()
            sys.exit(code)

    def _run(self) -> int:
        """Run the command and return its exit code."""
        try:
            for message in PROBLEMS:  # from plug-ins loaded before this call
                note(message)
            with show_log():
                code = super().__call__(prog_name=Path(sys.argv[0]).name, standalone_mode=False)
                return code or 0
        finally:
            # Raises here rather than at exit if the pipe is closed or the disk is full.
            sys.stdout.flush()


def _prepare_streams() -> None:
    for name in ("stdout", "stderr"):
        # Closed by the caller (`>&-`); no output file may reuse its descriptor.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False))
    if isinstance(sys.stdout, io.TextIOWrapper):  # file names may not be encodable
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Redirect stdout to /dev/null; otherwise, Python would try to write buffered output again at
    exit.
    """
    with suppress(AttributeError, OSError, ValueError):  # if stdout has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
