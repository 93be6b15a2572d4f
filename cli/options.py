"""Options shared by the commands, and how their values are parsed."""

import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from byov import __version__
from byov.cache.atomic import remove_abandoned
from byov.cache.runs import list_runs
from byov.device import Device
from byov.errors import ByovError
from byov.files import read_toml
from byov.folders import features_folder, runs_folder
from byov.workers import ClusterOptions

_folders: dict[str, Path] = {}  # option (such as --runs-dir) → folder chosen with it


class UsageError(ByovError):
    """Invalid value of an option, or options that cannot be combined."""


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"byov {__version__}")
        raise typer.Exit()


def _remember_folder(option: typer.CallbackParam, folder: Path | None) -> Path | None:
    if folder is not None:
        _folders[option.opts[0]] = folder
    return folder


def folder_option(path: Path) -> str | None:
    """Return the option, such as --runs-dir, that chose a folder containing `path`."""
    for option, folder in _folders.items():
        if path.absolute().is_relative_to(folder.absolute()):
            return option
    return None


def _load_config(context: typer.Context, path: Path | None) -> None:
    """Use the values in a TOML file as defaults for the options of the command."""
    if path is None:
        return
    try:
        values = read_toml(path)
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
    manifests = features_folder(context.params.get("features_dir")).glob("*/manifest.json")
    return sorted(path.parent.name for path in manifests)


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


# Parsing and validation of arguments


def parse_ratio(text: str) -> float:
    """Parse an STM ratio with 0 < ratio <= 1."""
    with suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise UsageError(f"--ratio {text}: expected a number above 0 and at most 1, such as 0.3.")


def parse_numbers(option: str, text: str, count: int | None = None) -> tuple[float, ...]:
    """Parse comma-separated numbers; `count` None means any number of them."""
    with suppress(ValueError):
        numbers = tuple(float(part) for part in text.split(","))
        if count in (None, len(numbers)):
            return numbers
    expected = "comma-separated" if count is None else f"{count} comma-separated"
    raise UsageError(f"{option} {text}: expected {expected} numbers, such as 0.3,1.0.")


# Output files and folders, checked before a command starts to work


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
