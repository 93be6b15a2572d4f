"""Shared code for the commands: errors and exit codes, --config, common options, output checks."""

import io
import os
import signal
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

import typer
from pydantic import ValidationError
from rich.columns import Columns
from typer import rich_utils

from byov import __version__
from byov.cache.atomic import remove_abandoned
from byov.cache.runs import RunRecord, is_training, list_runs, unfinished_text
from byov.cli.signals import (
    SIGNALS,
    Stopped,
    deferred_stop,
    ignore_signals,
    interruptible,
    raise_stopped,
)
from byov.cli.terminal import note, show_log
from byov.device import Device
from byov.errors import ByovError, Interrupted, is_out_of_memory
from byov.folders import features_folder, runs_folder
from byov.plugins import PROBLEMS
from byov.progress import Stop
from byov.records import problem
from byov.workers import ClusterOptions

T = TypeVar("T")


class _FoldingColumns(Columns):
    """Columns in --help that wrap long words instead of truncating them."""

    def __rich_console__(self, *arguments: Any) -> Any:
        for table in super().__rich_console__(*arguments):
            for column in table.columns:  # type: ignore[union-attr]
                column.overflow = "fold"
            yield table


rich_utils.Columns = _FoldingColumns  # type: ignore[attr-defined]

# Exit codes: 0 success, 1 failure, 2 invalid usage or input, 128 + n stopped by signal n.
FAILED = 1
BAD_USAGE = 2

_folders: dict[str, Path] = {}  # option (such as --runs-dir) → folder chosen with it

# The class comes from click, or from the copy of click inside newer versions of typer.
ClickException: type[Any] = typer.BadParameter.__mro__[2]


class UsageError(ByovError):
    """Invalid value of an option, or options that cannot be combined."""


class App(typer.Typer):
    """Typer app with -h, one-line errors and the exit codes above.

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
        for name in ("stdout", "stderr"):
            # Closed by the caller (`>&-`); no output file may reuse its descriptor.
            if getattr(sys, name) is None:
                setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", closefd=False))
        if isinstance(sys.stdout, io.TextIOWrapper):  # file names may not be encodable
            sys.stdout.reconfigure(errors="backslashreplace")
        try:
            try:
                for message in PROBLEMS:  # from plug-ins loaded before this call
                    note(message)
                with show_log():
                    code = super().__call__(prog_name=Path(sys.argv[0]).name, standalone_mode=False)
            finally:
                # Raises here rather than at exit if the pipe is closed or the disk is full.
                sys.stdout.flush()
            sys.exit(code or 0)
        except Stopped as stopped:
            ignore_signals()
            note(stopped.message)
            sys.exit(stopped.exit_code)
        except ClickException as error:
            command = (
                error.ctx.command_path if getattr(error, "ctx", None) else Path(sys.argv[0]).name
            )
            message = error.format_message()
            if isinstance(error.__cause__, ValidationError):
                message = f"{error.param.opts[0]}: {problem(error.__cause__)}"
            if message := message.rstrip("."):  # empty if typer printed the help
                note(f"error: {message}{'.' * (message[-1] != '?')} See {command} --help.")
            sys.exit(BAD_USAGE)
        except ByovError as error:
            note(f"error: {error}")
            sys.exit(BAD_USAGE)
        except typer.Abort:  # A confirmation was declined.
            note("aborted; nothing was changed")
            sys.exit(FAILED)
        except BrokenPipeError:
            _discard_output()
            sys.exit(FAILED)
        except (MemoryError, RuntimeError, ImportError) as error:
            if not is_out_of_memory(error):
                raise
            reason = (str(error).splitlines() or ["allocation failed"])[0]
            note(
                f"error: out of memory ({reason}). Close other programs or raise the limit (ulimit "
                "-v)."
            )
            sys.exit(FAILED)
        except OSError as error:
            where = f"{error.filename}: " if error.filename else ""
            path = Path(os.fsdecode(error.filename or "/")).absolute()
            options = [
                option
                for option, folder in _folders.items()
                if path.is_relative_to(folder.absolute())
            ]
            hint = f". Choose another folder with {options[0]}" if options else ""
            note(f"error: {where}{error.strerror or error}{hint}")
            _discard_output()
            sys.exit(FAILED)


def _discard_output() -> None:
    """Redirect stdout to /dev/null; otherwise, Python would try to write buffered output again at
    exit.
    """
    with suppress(AttributeError, OSError, ValueError):  # if stdout has no descriptor
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Options shared by all commands


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"byov {__version__}")
        raise typer.Exit()


def _remember_folder(option: typer.CallbackParam, folder: Path | None) -> Path | None:
    if folder is not None:
        _folders[option.opts[0]] = folder
    return folder


def _load_config(context: typer.Context, path: Path | None) -> None:
    """Use the values in a TOML file as defaults for the options of the command."""
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--config {path}: cannot read TOML, such as ratio = 0.3 ({error})."
        ) from None
    options: dict[str, Any] = {
        name.lstrip("-"): option for option in context.command.params for name in option.opts
    }
    defaults: dict[str, Any] = {}
    for key, value in values.items():
        option = options.get(key.replace("_", "-"))
        if option is None:
            raise UsageError(
                f"--config {path}: unknown option {key!r}. See {context.command_path} --help."
            )
        texts = [str(item) for item in value] if isinstance(value, list) else [str(value)]
        defaults[option.name] = texts if getattr(option, "multiple", False) else ",".join(texts)
    context.default_map = defaults


Version = Annotated[
    bool,
    typer.Option(
        "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        callback=_load_config,
        is_eager=True,
        help="TOML file with option values. Options on the command line take precedence.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")]


def _folder_option(envvar: str, help: str) -> Any:
    return typer.Option(
        envvar=envvar, help=help, callback=_remember_folder, rich_help_panel="Folders"
    )


FeaturesDir = Annotated[Path, _folder_option("BYOV_FEATURES", "Folder of the feature cache.")]
DatasetsDir = Annotated[Path, _folder_option("BYOV_DATASETS", "Folder with videos and labels.")]
RunsDir = Annotated[Path, _folder_option("BYOV_RUNS", "Folder for models, embeddings and results.")]


def complete_datasets(context: typer.Context) -> list[str]:
    """Return the names of the datasets in the feature cache."""
    folder = features_folder(context.params.get("features_dir"))
    return sorted(path.parent.name for path in folder.glob("*/manifest.json"))


def complete_runs(context: typer.Context) -> list[str]:
    """Return the names of the runs, newest first."""
    return list_runs(runs_folder(context.params.get("runs_dir")))


dataset_option = partial(typer.Option, autocompletion=complete_datasets)
run_option = partial(typer.Option, autocompletion=complete_runs)
RunOption = Annotated[
    str | None, run_option("--run", help="Name of the run.", show_default="newest")
]

# Options for commands that can run on a Ray cluster

cluster_option = partial(typer.Option, rich_help_panel="Cluster")
Cluster = Annotated[
    str | None, cluster_option(metavar="local|auto|HOST:PORT", help="Ray cluster to run on.")
]
Workers = Annotated[
    int | None, cluster_option(min=1, help="Number of workers.", show_default="as many as fit")
]
Cpus = Annotated[int | None, cluster_option(min=1, help="CPU cores per worker.", show_default="1")]
Gpus = Annotated[
    float | None,
    cluster_option(min=0, help="GPUs per worker; may be fractional.", show_default="0"),
]


def parse_cluster(
    address: str | None, workers: int | None, cpus: int | None, gpus: float | None, device: Device
) -> ClusterOptions | None:
    """Return the cluster options, or None without --cluster."""
    if address is None:
        given = {"--workers": workers, "--cpus-per-worker": cpus, "--gpus-per-worker": gpus}
        for name, value in given.items():
            if value is not None:
                raise UsageError(
                    f"{name} needs --cluster. Add --cluster local to use this machine."
                )
        return None
    if device == "cuda" and not gpus:
        raise UsageError("--device cuda on a cluster needs --gpus-per-worker, for example 1.")
    options = ClusterOptions(address, workers, cpus or 1, gpus or 0.0)
    options.check()
    return options


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


# Parsing and validation of arguments


def parse_ratio(text: str) -> float:
    """Parse an STM ratio with 0 < ratio <= 1."""
    with suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise UsageError(f"--ratio {text}: expected a number above 0 and at most 1, such as 0.3.")


def parse_numbers(option: str, text: str) -> tuple[float, ...]:
    """Parse comma-separated numbers."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(
            f"{option} {text}: expected comma-separated numbers, such as 0.3,1.0."
        ) from None


def check_outputs(
    outputs: Sequence[Path], inputs: Iterable[Path], *, overwrite: bool, option: str = "-o"
) -> None:
    """Raise UsageError naming `option` if an output cannot be written or is an input; remove
    leftover partial files.
    """
    for path in outputs:
        if path.is_dir():
            raise UsageError(f"{path} is a folder. Choose another output with {option}.")
        if path.exists() and any(path.samefile(source) for source in inputs):
            raise UsageError(
                f"{path} is one of the input videos. Choose another output with {option}."
            )
        if path.exists() and not overwrite:
            raise UsageError(
                f"{path} exists. Pass --overwrite to replace it, or choose another output with "
                f"{option}."
            )
        check_folder(path.parent, option)
        remove_abandoned(path.parent, recursive=False)


def check_folder(folder: Path, option: str) -> None:
    """Raise UsageError, naming `option`, if files cannot be written to a folder, which need not
    exist yet.
    """
    existing = next(
        path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
    )
    if not existing.is_dir():
        raise UsageError(
            f"{existing} is a file, not a folder. Choose another output with {option}."
        )
    try:
        # os.access does not detect full or virtual file systems.
        tempfile.TemporaryFile(dir=existing).close()
    except OSError as error:
        raise UsageError(
            f"{existing}: not writable ({error.strerror}). Choose another output with {option}."
        ) from None


def note_unfinished(runs: Iterable[RunRecord]) -> None:
    """Print a note about each run whose training has not finished, and how to resume it."""
    for run in runs:
        if text := unfinished_text(run):
            advice = (
                ""
                if is_training(run.folder)
                else f"; resume with byov-train --run {run.name} --resume"
            )
            note(f"{run.name}: {text}{advice}")
