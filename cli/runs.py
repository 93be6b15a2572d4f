"""byov-runs: list, compare and delete runs."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from byov.cache.layout import encoder_slug
from byov.cache.runs import (
    BYOV,
    METRICS_NAME,
    RunRecord,
    RunSummary,
    checkpoint_files,
    delete_run,
    prune_checkpoints,
    read_run,
    readable_runs,
    size_bytes,
    summarize_run,
)
from byov.cli.app import App
from byov.cli.options import Json, RunsDir, Version, complete_runs
from byov.cli.terminal import note, print_rows, value_text
from byov.text import format_size, pluralize, printable
from byov.train.registry import METHODS, config_class, option_name

RunName = Annotated[str, typer.Argument(help="Name of a run.", autocompletion=complete_runs)]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

main = App("List, compare and delete runs, and delete checkpoints of finished runs.")


@main.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
    _version: Version = False,
) -> None:
    if context.invoked_subcommand is None:
        list_all(runs_dir, as_json)


@main.command("ls")
def list_all(runs_dir: RunsDir = Path("runs"), as_json: Json = False) -> None:
    """List runs, newest first, with method, dataset, epoch, best validation score and size (default
    command).
    """
    entries = [_entry(run) for run in readable_runs(runs_dir)]
    if as_json:
        print(json.dumps(entries, indent=1))
        return
    if not entries:
        print(printable(f"No runs in {runs_dir}. Train one with byov-train --ratio 0.3."))
        return
    print_rows(
        ("run", "method", "recipe", "dataset", "epoch", "state", "best val", "size"),
        map(_row, entries),
    )


@main.command()
def compare(
    first: RunName,
    second: RunName,
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Show the settings, data and scores in which two runs differ."""
    facts_a, facts_b = (_facts(read_run(runs_dir, name)) for name in (first, second))
    different = {
        key: [facts_a.get(key), facts_b.get(key)]
        for key in facts_a | facts_b
        if facts_a.get(key) != facts_b.get(key)
    }
    if as_json:
        print(json.dumps({"runs": [first, second], "different": different}, indent=1))
    elif different:
        print_rows(
            ("", first, second),
            [[key, *map(value_text, values)] for key, values in different.items()],
        )
    else:
        print(printable(f"{first} and {second} have the same settings, data and scores"))


@main.command()
def settings(run: RunName, runs_dir: RunsDir = Path("runs")) -> None:
    """Print the settings of a run as TOML for byov-train --config."""
    record = read_run(runs_dir, run)
    # Print the folder only if byov-train cannot derive it from the encoder's name.
    has_own_folder = encoder_slug(record.encoder) != record.encoder_folder
    values: dict[str, Any] = {
        "dataset": record.dataset,
        "encoder": record.encoder_folder if has_own_folder else record.encoder,
        "ratio": record.ratio,
        "method": record.method,
    }
    fields = config_class(record.method).settings() if record.method in METHODS else {}
    options = {name for name, field in fields.items() if field.description}
    if record.settings.get("steps") is not None:
        options -= {"epochs"}  # determined by `steps`
    values |= {
        option_name(name): value for name, value in record.settings.items() if name in options
    }
    for key, value in values.items():
        if value is not None:
            # JSON scalars and lists are valid TOML.
            print(f"{key} = {json.dumps(value, ensure_ascii=False)}")


@main.command()
def delete(
    runs: Annotated[
        list[str],
        typer.Argument(help="Names of runs.", show_default=False, autocompletion=complete_runs),
    ],
    yes: Yes = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Delete runs with their models, embeddings and results."""
    records = [read_run(runs_dir, name) for name in dict.fromkeys(runs)]
    names = ", ".join(f"{run.name} ({format_size(size_bytes(run.folder))})" for run in records)
    if not yes:
        typer.confirm(printable(f"Delete {names}?"), err=True, abort=True)
    for run in records:
        delete_run(run)
        print(printable(f"{run.folder}: deleted"))


@main.command()
def prune(
    runs: Annotated[
        list[str] | None,
        typer.Argument(help="Names of runs.", show_default="all", autocompletion=complete_runs),
    ] = None,
    yes: Yes = False,
    runs_dir: RunsDir = Path("runs"),
) -> None:
    """Delete the checkpoints of finished runs; models, embeddings and results stay.

    Pruned runs cannot be resumed.
    """
    records = (
        [read_run(runs_dir, name) for name in dict.fromkeys(runs)]
        if runs
        else readable_runs(runs_dir)
    )
    finished = []
    for run in records:
        summary = _summarize(run)
        if summary.state == "finished":
            finished += [run] if checkpoint_files(run) else []
        elif runs:
            note(f"{run.name}: kept, because it is {summary.description}")
    if not finished:
        print("nothing to prune: no finished run has checkpoints")
        return
    sizes = [sum(path.stat().st_size for path in checkpoint_files(run)) for run in finished]
    if not yes:
        count = pluralize(len(finished), "run")
        typer.confirm(
            f"Delete the checkpoints of {count} ({format_size(sum(sizes))})?", err=True, abort=True
        )
    for run, size in zip(finished, sizes, strict=True):
        prune_checkpoints(run)
        print(printable(f"{run.name}: {format_size(size)} freed"))


def _summarize(run: RunRecord) -> RunSummary:
    summary = summarize_run(run)
    if summary.damaged:
        note(
            f"{run.name}: epoch and best score unknown, {METRICS_NAME} is damaged; see "
            "byov-cache verify"
        )
    return summary


def _entry(run: RunRecord) -> dict[str, Any]:
    summary = _summarize(run)
    return {
        "run": run.name,
        "method": run.method,
        "recipe": run.recipe if run.method == BYOV else None,
        "dataset": run.dataset,
        "encoder": run.encoder,
        "column": run.column,
        "seed": run.seed,
        **{key: getattr(summary, key) for key in ("state", "epoch", "epochs", "metric", "best")},
        "bytes": size_bytes(run.folder),
    }


def _row(run: dict[str, Any]) -> list[str]:
    epoch = "-" if run["epoch"] is None else f"{run['epoch']} of {run['epochs'] or '?'}"
    best = "-" if run["best"] is None else f"{run['metric']} {run['best']:.4f}"
    names = (run["run"], run["method"], run["recipe"] or "", run["dataset"])
    return [*names, epoch, run["state"], best, format_size(run["bytes"])]


def _facts(run: RunRecord) -> dict[str, Any]:
    """Return the data, progress, validation scores and settings of a run as a flat dict."""
    summary = _summarize(run)
    validation = run.training.get("validation")
    return {
        **run.model_dump(
            include={"dataset", "encoder", "encoder_revision", "column", "preprocessing"}
        ),
        "train and val features": run.features_sha256[:12],
        "train and val labels": run.labels_sha256[:12],
        "epochs done": summary.epoch,
        # Tau if val is unlabeled.
        "selected by": "last" if run.settings.get("select") == "last" else summary.metric,
        **{
            f"val {name}": value
            for name, value in (validation if isinstance(validation, dict) else {}).items()
        },
        **run.settings,
    }
