"""byov-train: train a method on cached features and embed every video."""

import inspect
import io
import json
import signal
import sys
import time
from collections.abc import Callable, Container
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from byov.cli.app import BAD_USAGE, FAILED, App
from byov.cli.options import (
    Config,
    FeaturesDir,
    Json,
    RunsDir,
    UsageError,
    Version,
    dataset_option,
    parse_numbers,
    parse_ratio,
    run_option,
)
from byov.cli.signals import SIGNALS, Stopped, deferred_stop, exit_now, ignore_signals
from byov.cli.terminal import PROGRESS, note, value_text
from byov.device import Device
from byov.errors import ByovError, Diverged, Interrupted, ProcessLost
from byov.progress import NO_PROGRESS
from byov.text import pluralize
from byov.train import config as train_config
from byov.train.distributed import SINGLE_PROCESS, init_processes
from byov.train.registry import METHODS, all_settings, config_class, methods_with, option_name
from byov.train.runs import Execution, embed_run, resume_run, start_run

# Help panels; settings specific to one method are listed under the method.
PANELS: dict[str, Container[str]] = {
    "Backbone": ("backbone", "context"),
    "Encoder": train_config.EncoderConfig.model_fields,
    "Sampling": train_config.SamplingConfig.model_fields,
    "Optimizer": train_config.OptimizerConfig.model_fields,
    "Validation": train_config.SelectionConfig.model_fields,
}

app = App()
machine_option = partial(typer.Option, rich_help_panel="Machine")


def with_settings(function: Callable[..., None]) -> Callable[..., None]:
    """Replace `**settings` in the signature of a command with one option per setting, before
    --checkpoint-every.
    """
    *parameters, _ = inspect.signature(function).parameters.values()
    options = {
        name: _option(name, field.annotation, field.description)
        for name, field in all_settings().items()
        if field.description
    }
    index = [parameter.name for parameter in parameters].index("checkpoint_every")
    parameters[index:index] = options.values()
    keywords = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    function.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
    return function


def _option(name: str, kind: Any, description: str) -> inspect.Parameter:
    option = option_name(name)
    methods = methods_with(name)
    panel = next((panel for panel, names in PANELS.items() if name in names), None)
    prefix = ""
    if panel is None and len(methods) == 1:
        panel = f"--method {methods[0]}"
    elif panel is None and len(methods) < len(METHODS):
        panel = "Several methods"
        prefix = f"{', '.join(methods)}: "
    is_pair = get_origin(kind) is tuple
    info = typer.Option(
        f"--{option}/--no-{option}" if kind is bool else f"--{option}",
        help=prefix + description,
        show_default=_defaults(name),
        rich_help_panel=panel,
        parser=(lambda text: parse_numbers(f"--{option}", text, 2)) if is_pair else None,
        metavar="LOW,HIGH" if is_pair else None,
    )
    annotation = Annotated[(str if is_pair else kind) | None, info]  # type: ignore[valid-type]
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation
    )


def _defaults(name: str) -> str:
    """Describe the defaults of a setting, such as "1; carl, timeline: 4"."""
    methods = methods_with(name)
    usual = {method: config_class(method).defaults("", {}) for method in methods}
    presets = list(usual.items())
    for method in METHODS:
        for choices in config_class(method).PRESETS.values():
            presets += choices.items()
    presets += train_config.DATASETS.items()
    presets += [
        (dataset if len(methods) == 1 else f"{method} on {dataset}", values)
        for method in methods
        for dataset, values in config_class(method).DATASETS.items()
        if values.get(name) != usual[method][name]
    ]
    users: dict[str, list[str]] = {}
    for user, values in presets:
        if name in values:
            users.setdefault(value_text(values[name]), []).append(user)
    (most_common, _), *others = users.items()
    return "; ".join([most_common, *(f"{', '.join(names)}: {text}" for text, names in others)])


@app.command()
@with_settings
def train(
    method: Annotated[
        str | None,
        typer.Option(
            help="Training method. "
            + " ".join(f"{name}: {config_class(name).summary}" for name in METHODS),
            show_default=train_config.DEFAULT_METHOD,
            autocompletion=lambda: list(METHODS),
        ),
    ] = None,
    ratio: Annotated[
        float | None,
        typer.Option(
            parser=parse_ratio,
            metavar="FRACTION",
            help="STM ratio of the cached features.",
            show_default=str(train_config.DEFAULT_RATIO),
        ),
    ] = None,
    dataset: Annotated[
        str | None, dataset_option(help="Dataset in the cache.", show_default="the only one")
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(help="Encoder of the cached features.", show_default="the only one"),
    ] = None,
    run: Annotated[
        str | None,
        run_option(help="Name of the run.", show_default="DATASET-METHOD-rRATIO-sSEED"),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Resume an interrupted run, or extend it to more --epochs."),
    ] = False,
    embed_only: Annotated[
        bool, typer.Option("--embed-only", help="Recompute the embeddings of a trained run.")
    ] = False,
    checkpoint_every: Annotated[
        int, machine_option(min=1, help="Epochs between checkpoints.")
    ] = train_config.CHECKPOINT_EVERY,
    device: Annotated[Device, machine_option(help="Device for training.")] = "auto",
    preload_gib: Annotated[
        float,
        machine_option(min=0, max=2**20, help="Maximum size of features kept in memory, in GiB."),
    ] = train_config.PRELOAD_GIB,
    tensorboard: Annotated[
        bool, machine_option("--tensorboard", help="Log to TensorBoard.")
    ] = False,
    wandb: Annotated[
        bool,
        machine_option(
            "--wandb", help="Log to Weights & Biases (set WANDB_MODE=offline to log to files)."
        ),
    ] = False,
    as_json: Json = False,
    features_dir: FeaturesDir = Path("features"),
    runs_dir: RunsDir = Path("runs"),
    _config: Config = None,
    _version: Version = False,
    **settings: Any,
) -> None:
    """Train a method on cached features, keep the best model on the val split, and embed every
    video with it.

    Needs neither the videos nor the vision model. Start it with torchrun to train on several
    devices.
    """
    started = time.monotonic()
    processes = init_processes()
    if resume and embed_only:
        raise UsageError("--resume and --embed-only cannot be combined.")
    if embed_only:
        if not processes.is_main:
            return
        processes = SINGLE_PROCESS
    execute = embed_run if embed_only else resume_run if resume else start_run
    trackers = {"tensorboard": tensorboard, "wandb": wandb}
    with deferred_stop() as stop:
        execution = Execution(
            device=device,
            preload_gib=preload_gib,
            checkpoint_every=checkpoint_every,
            trackers=tuple(name for name, is_used in trackers.items() if is_used),
            features_dir=features_dir,
            runs_dir=runs_dir,
            progress=PROGRESS if processes.is_main else NO_PROGRESS,
            stop=stop,
            processes=processes,
        )
        try:
            summary = execute(
                run,
                execution,
                method=method,
                dataset=dataset,
                encoder=encoder,
                ratio=ratio,
                **{name: value for name, value in settings.items() if value is not None},
            )
        except Diverged as error:
            note(f"error: {error}")
            raise typer.Exit(FAILED) from None
        # Exit at once, as other threads may wait forever for the lost process.
        except ProcessLost as error:
            ignore_signals()
            if processes.reports_error():
                with redirect_stderr(sys.__stderr__):
                    note(f"error: {error}")
            exit_now(FAILED)
        except Interrupted as error:  # stopped by a signal to this or another process of the run
            note(str(error))
            raise Stopped(stop.signal_number or signal.SIGTERM) from None
    if not processes.is_main:
        return
    summary["seconds"] = round(time.monotonic() - started, 1)
    if as_json:
        print(json.dumps(summary, indent=1))
        return
    if scores := summary.get("validation"):
        print(
            "val scores of the selected model: "
            + ", ".join(f"{name} {score:.4f}" for name, score in scores.items())
        )
    for sentence in summary.get("findings", ()):
        print(sentence)
    files = pluralize(summary["embedding_files"], "embedding file")
    print(f"{summary['run']}: {files}; {summary['seconds']} s; {summary['folder']}")


def main() -> None:
    """Run the command.

    Under torchrun, only the main process prints, unless another process fails.
    """
    for number in SIGNALS:  # while waiting for other processes, signals end this one at once
        signal.signal(number, signal.SIG_DFL)
    try:
        processes = init_processes()
    except (ByovError, ProcessLost) as error:
        note(f"error: {error}")
        sys.exit(FAILED)
    hidden = io.StringIO()
    code = 0
    out, err = (sys.stdout, sys.stderr) if processes.is_main else (hidden, hidden)
    try:
        with redirect_stdout(out), redirect_stderr(err):
            app()
    except SystemExit as ended:
        code = int(ended.code or 0)
    ignore_signals()  # torchrun signals all processes as soon as one exits
    if processes.is_main and code:
        processes.reports_error()  # tells the others that the error has been printed
    elif code in (FAILED, BAD_USAGE) and processes.reports_error():
        note(hidden.getvalue().strip().rpartition("\n")[2])
    if not processes.is_main:
        # PyTorch's threads sometimes abort a process that exits normally, which stops the others.
        exit_now(code)
    sys.exit(code)
