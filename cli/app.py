"""Typer app of the commands: signals, log records, errors and exit codes.

Exit codes: 0 success, 1 failure, 2 invalid usage or input, 128 + n stopped by signal n.
"""

import io
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import typer
from pydantic import ValidationError
from rich.columns import Columns
from typer import rich_utils

from byov.cli.options import UsageError, folder_option
from byov.cli.signals import SIGNALS, Stopped, ignore_signals, raise_stopped
from byov.cli.terminal import note, show_log
from byov.errors import ByovError, is_out_of_memory
from byov.plugins import PROBLEMS
from byov.records import problem

FAILED = 1
BAD_USAGE = 2
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}

# The class comes from click, or from the copy of click inside newer versions of typer.
ClickException: type[Any] = typer.BadParameter.__mro__[2]


class _FoldingColumns(Columns):
    """Columns in --help that wrap long words instead of truncating them."""

    def __rich_console__(self, *arguments: Any) -> Any:
        for table in super().__rich_console__(*arguments):
            for column in table.columns:  # type: ignore[union-attr]
                column.overflow = "fold"
            yield table


rich_utils.Columns = _FoldingColumns  # type: ignore[attr-defined]


class App(typer.Typer):
    """Typer app with -h, one-line errors and exit codes.

    Call it to run the command and exit.
    """

    def __init__(self, help: str | None = None, **settings: Any) -> None:
        super().__init__(
            help=help,
            context_settings=CONTEXT_SETTINGS,
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
            code, message = describe_failure(error)
            if message is None:
                raise
            if message:
                note(message)
            # Redirect stdout to /dev/null; otherwise, Python would try to write buffered output
            # again at exit.
            with suppress(AttributeError, OSError, ValueError):  # if stdout has no descriptor
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(code)

    def _run(self) -> int:
        """Run the command and return its exit code."""
        try:
            for message in PROBLEMS:  # from plug-ins loaded before this call
                note(message)
            if "" in sys.argv[1:]:  # it would be the current folder
                raise UsageError(f"The argument after {sys.argv[sys.argv.index('') - 1]} is empty.")
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


def describe_failure(error: Exception) -> tuple[int, str | None]:
    """Return the exit code and the message of an exception; the message of a bug is None."""
    for kind, code, describe in _FAILURES:
        if isinstance(error, kind):
            return code, describe(error)
    return FAILED, None


def _describe_usage(error: Any) -> str:
    message: str = error.format_message()
    if isinstance(error.__cause__, ValidationError):
        message = f"{error.param.opts[0]}: {problem(error.__cause__)}"
    message = message.rstrip(".")
    if not message:  # typer has printed the help
        return ""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else Path(sys.argv[0]).name
    message += "." * (message[-1] != "?") + _usage_advice(error, context)
    return f"error: {message} See {command} --help."


def _usage_advice(error: Any, context: Any) -> str:
    """Return the option or the subcommands that the user may have meant, or what is required."""
    option = getattr(error, "option_name", "")
    if option and not getattr(error, "possibilities", True):
        words = option.lstrip("-").replace("-", " ").replace("_", " ")
        helps = {each.opts[0]: getattr(each, "help", None) or "" for each in context.command.params}
        similar = [name for name, text in helps.items() if words in text.lower()]
        return f" Did you mean {similar[0]}?" if similar else ""
    commands = getattr(context.command, "commands", {}) if context else {}
    if commands and "?" not in error.message:
        return f" Choose one of {', '.join(commands)}."
    if type(error).__name__ == "MissingParameter":
        required = [each for each in context.command.params if each.required]
        words = [
            f"{each.opts[0]} " * each.opts[0].startswith("-") + (each.metavar or each.name).upper()
            for each in required
        ]
        return f" Usage: {context.command_path} [OPTIONS] {' '.join(words)}."
    return ""


def _describe_os_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    option = folder_option(Path(os.fsdecode(error.filename or "/")))
    hint = f". Choose another folder with {option}" if option else ""
    return f"error: {where}{error.strerror or error}{hint}"


def _describe_out_of_memory(error: Exception) -> str | None:
    if not is_out_of_memory(error):
        return None
    reason = (str(error).splitlines() or ["allocation failed"])[0]
    return f"error: out of memory ({reason}). Close other programs or raise the limit (ulimit -v)."


# The first class that matches applies. Exceptions that are not listed are bugs.
_FAILURES: tuple[tuple[type[Any], int, Callable[[Any], str | None]], ...] = (
    (ClickException, BAD_USAGE, _describe_usage),
    (ByovError, BAD_USAGE, lambda error: f"error: {error}"),
    # A confirmation was declined.
    (typer.Abort, FAILED, lambda _: "aborted; nothing was changed"),
    (BrokenPipeError, FAILED, lambda _: ""),
    (OSError, FAILED, _describe_os_error),
    (MemoryError, FAILED, _describe_out_of_memory),
    (RuntimeError, FAILED, _describe_out_of_memory),
    (ImportError, FAILED, _describe_out_of_memory),
)
