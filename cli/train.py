"""byov-train: train the masked ego-exo autoencoder on cached features, and embed every frame with it."""

import inspect
import json
import signal
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from byov.cli import common, torchrun
from byov.cli.common import UsageError, check_ratio
from byov.cli.signals import Stopped, deferred_stop
from byov.cli.terminal import PROGRESS, note
from byov.device import Device
from byov.errors import Diverged, Interrupted, ProcessLost
from byov.progress import NO_PROGRESS
from byov.text import pluralize
from byov.train.distributed import SINGLE_PROCESS, init_processes
from byov.train.methods.byov import ByovSettings
from byov.train.settings import (
    CHECKPOINT_EVERY,
    DEFAULT_RATIO,
    GROUPS,
    PRELOAD_GIB,
    SHARED_PRESETS,
    methods_with,
    option_name,
    settings_classes,
)

SETTINGS = settings_classes()
SEVERAL = "Several methods"  # the panel of what some have in common

METHOD_HELP = (
    "What to learn. " + " ".join(f"{name}: {kind.summary}" for name, kind in SETTINGS.items()) + " Default byov."
)

app = common.new_app()


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for each setting in the place of its parameter `given`.

    given: name → value of the settings that were given on the command line.
    """
    fields = {name: field for kind in SETTINGS.values() for name, field in kind.model_fields.items()}
    options = {name: _option(name, field) for name, field in fields.items() if field.description}

    @wraps(function)
    def run(**arguments: Any) -> None:
        given = {name: value for name in options if (value := arguments.pop(name)) is not None}
        function(**arguments, given=given)

    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        parameters += options.values() if parameter.name == "given" else [parameter]
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return run


def _option(name: str, field: FieldInfo) -> inspect.Parameter:
    shown = option_name(name)
    kind, names = _plain_type(field.annotation), f"--{shown}"
    is_pair = get_origin(kind) is tuple
    if is_pair:
        kind = str  # which the parser reads
    if kind is bool:
        names = f"--{shown}/--no-{shown}"
    whose = f"{', '.join(methods_with(name))}: " if _panel(name) == SEVERAL else ""
    option = typer.Option(
        names,
        help=f"{whose}{field.description} {_defaults(name)}",
        rich_help_panel=_panel(name),
        parser=_parse_pair if is_pair else None,
        metavar="LOW,HIGH" if is_pair else None,
    )
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _plain_type(annotation: Any) -> Any:
    """Without limits and None, which the settings check themselves."""
    if get_origin(annotation) is Annotated:
        return _plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        (kind,) = (kind for kind in get_args(annotation) if kind is not NoneType)
        return _plain_type(kind)
    return annotation


def _panel(name: str) -> str | None:
    """A method's own settings are under its name, those of a group under the group's."""
    groups = [group for group, kind in GROUPS.items() if name in kind.model_fields]
    if groups:
        return groups[0]
    of = methods_with(name)
    return f"--method {of[0]}" if len(of) == 1 else None if len(of) == len(SETTINGS) else SEVERAL


def _defaults(name: str) -> str:
    """ "Default 0; cycle: 5." """
    by_method = {
        method: kind.model_fields[name].default for method, kind in SETTINGS.items() if method in methods_with(name)
    }
    usual = next(iter(by_method.values()))
    presets = (*ByovSettings.RECIPES.items(), *SHARED_PRESETS.items(), *_of_datasets(methods_with(name)))
    others = [(method, value) for method, value in by_method.items() if value != usual]
    others += [(where, values[name]) for where, values in presets if name in values]
    of_value: dict[str, list[str]] = {}
    for where, value in others:
        of_value.setdefault(_text(value), []).append(where)
    texts = [f"Default {_text(usual)}", *(f"{', '.join(where)}: {text}" for text, where in of_value.items())]
    return "; ".join(texts) + "."


def _of_datasets(methods: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """ "tcc on break_eggs", of one method "break_eggs", and what is there in the place of its defaults."""
    for method in methods:
        for dataset, values in SETTINGS[method].DATASET_PRESETS.items():
            yield dataset if len(methods) == 1 else f"{method} on {dataset}", values


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parse_pair(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"--crop {text}: expected LOW,HIGH, like 0.5,1.0") from None
    return low, high


@app.command()
@with_settings
def train(
    method: Annotated[str | None, typer.Option(help=METHOD_HELP)] = None,
    ratio: Annotated[float | None, typer.Option(help=f"STM ratio, as cached. Default {DEFAULT_RATIO}.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Of those in the cache; the only one if left out.")] = None,
    encoder: Annotated[str | None, typer.Option(help="Of those in the cache; the only one if left out.")] = None,
    run: Annotated[
        str | None, typer.Option(help="Name of the run. Default DATASET-METHOD-rRATIO-sSEED (byov: its recipe).")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was interrupted.")] = False,
    embed_only: Annotated[bool, typer.Option("--embed-only", help="Write a run's embeddings again.")] = False,
    *,
    given: dict[str, Any],
    checkpoint_every: Annotated[
        int, typer.Option(min=1, help="Epochs between checkpoints.", rich_help_panel="Machine")
    ] = CHECKPOINT_EVERY,
    device: Annotated[Device, typer.Option(help="Where to train.", rich_help_panel="Machine")] = "auto",
    preload_gib: Annotated[
        float,
        typer.Option(
            min=0, max=2**20, help="Features up to this size are held in memory, in GiB.", rich_help_panel="Machine"
        ),
    ] = PRELOAD_GIB,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write TensorBoard's files too.", rich_help_panel="Machine")
    ] = False,
    wandb: Annotated[
        bool,
        typer.Option(
            "--wandb", help="Log to Weights & Biases too (WANDB_MODE=offline: to files).", rich_help_panel="Machine"
        ),
    ] = False,
    as_json: common.Json = False,
    features_dir: common.FeaturesDir = Path("features"),
    runs_dir: common.RunsDir = Path("runs"),
    _config: common.Config = None,
    _version: common.Version = False,
) -> None:
    """Train on cached features: no video and no vision model needed. Validates, keeps the best model, embeds."""
    from byov.train.run import train_run

    started, processes = time.monotonic(), init_processes()
    if ratio is not None:
        check_ratio("--ratio", ratio)
    if resume and embed_only:
        raise UsageError("give --resume or --embed-only, not both")
    if embed_only:  # which one process does
        if not processes.is_main:
            return
        processes = SINGLE_PROCESS
    with deferred_stop() as stop:
        try:
            summary = train_run(
                run,
                method=method,
                dataset=dataset,
                encoder=encoder,
                ratio=ratio,
                resume=resume,
                embed_only=embed_only,
                device=device,
                preload_gib=preload_gib,
                checkpoint_every=checkpoint_every,
                tensorboard=tensorboard,
                wandb=wandb,
                features_dir=features_dir,
                runs_dir=runs_dir,
                progress=PROGRESS if processes.is_main else NO_PROGRESS,
                stop=stop,
                processes=processes,
                **given,
            )
        except Diverged as error:
            note(f"error: {error}")
            raise typer.Exit(common.FAILED) from None
        except ProcessLost as error:
            torchrun.end(processes, str(error))
        except Interrupted as error:  # by a signal to this process, or to another that trains with it
            note(str(error))
            raise Stopped(stop.signal_number or signal.SIGTERM) from None
    if processes.is_main:
        _report(summary | {"seconds": round(time.monotonic() - started, 1)}, as_json=as_json)


def _report(summary: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary, indent=1))
        return
    scores = ", ".join(f"{name} {value:.4f}" for name, value in summary.get("validation", {}).items())
    if scores:
        print(f"val, of the model that is kept: {scores}")
    files = pluralize(summary["embedding_files"], "embedding file")
    print(f"{summary['run']}: {files}; {summary['seconds']} s; {summary['folder']}")


def main() -> None:
    torchrun.run(app)
