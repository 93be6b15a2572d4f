"""Habits that all commands share: options, errors of one line, exit codes."""

import io
import os
import signal
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from byov.cli.interruption import SIGNALS, Stopped, raise_stopped
from byov.cli.messages import note, showing_log
from byov.errors import ByovError

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


class UsageMistake(ByovError):
    """Options that do not go together, or values that an option does not take."""


def run(app: typer.Typer) -> NoReturn:
    """Run a command. Of a user's mistake the text is all that is shown; other errors are our bugs."""
    for number in SIGNALS:
        signal.signal(number, raise_stopped)
    if isinstance(sys.stdout, io.TextIOWrapper):  # names that the terminal's alphabet lacks must not be an error
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            with showing_log():
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
    except OSError as error:
        note(f"error: {describe(error)}")
        _drop_output()
        sys.exit(FAILED)
    raise AssertionError("a typer app ends in SystemExit")


def describe(error: OSError) -> str:
    """`path: reason` of an operating-system error."""
    reason = error.strerror or str(error)
    return f"{error.filename}: {reason}" if error.filename else reason


def _drop_output() -> None:
    """Send what is still buffered nowhere, else Python tries it once more as it ends, and complains."""
    if sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
