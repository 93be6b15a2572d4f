"""Exit codes and one-line messages of exceptions.

Exit codes: 0 success, 1 failure, 2 invalid usage or input, 128 + n stopped by signal n.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from byov.cli.options import folder_option
from byov.errors import ByovError, is_out_of_memory
from byov.records import problem

FAILED = 1
BAD_USAGE = 2

# The class comes from click, or from the copy of click inside newer versions of typer.
ClickException: type[Any] = typer.BadParameter.__mro__[2]


def describe_failure(error: Exception) -> tuple[int, str] | None:
    """Return the exit code and the message of an exception; None if it is a bug."""
    for kind, code, describe in _FAILURES:
        if isinstance(error, kind):
            message = describe(error)
            return None if message is None else (code, message)
    return None


def _describe_usage(error: Any) -> str:
    message: str = error.format_message()
    if isinstance(error.__cause__, ValidationError):
        message = f"{error.param.opts[0]}: {problem(error.__cause__)}"
    message = message.rstrip(".")
    if not message:  # typer has printed the help
        return ""
    context = getattr(error, "ctx", None)
    command = context.command_path if context else Path(sys.argv[0]).name
    return f"error: {message}{'.' * (message[-1] != '?')} See {command} --help."


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
