"""byov-runs: what runs there are, how far each has come, how two differ; delete them or their checkpoints."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from byov.cache.layout import encoder_slug
from byov.cache.runs import (
    BYOV,
    RunProgress,
    RunRecord,
    checkpoint_files,
    delete_run,
    list_runs,
    prune_checkpoints,
    read_progress,
    read_run,
    size_bytes,
)
from byov.cli import command
from byov.cli.command import UsageMistake, note
from byov.cli.option_file import to_toml
from byov.cli.tables import wide_console
from byov.errors import CacheError
from byov.text import format_size, pluralize, printable
from byov.train.settings import option_name, settings_classes

app = command.new_app(help="List, compare and delete runs, and delete the checkpoints of finished ones.")
DATA = ("dataset", "encoder", "encoder_revision", "column", "preprocessing")  # of a run, beside its settings
TRAINED_ON = "train and val videos, features, labels"  # by their digest, without which a run is not resumed

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Names = Annotated[list[str], typer.Argument(help="Runs, by name.", show_default=False)]


@app.callback(invoke_without_command=True)
def _options(
    context: typer.Context,
    as_json: command.Json = False,
    runs_dir: command.RunsDir = Path("runs"),
    _version: command.Version = False,
) -> None:
    if context.invoked_subcommand is None:
        list_all(runs_dir, as_json)


@app.command("ls")
def list_all(runs_dir: command.RunsDir = Path("runs"), as_json: command.Json = False) -> None:
    """List the runs, the newest first: method, dataset, epoch, best val, size. What byov-runs alone does."""
    runs = _all_runs(runs_dir)
    entries = [(run, read_progress(run), size_bytes(run.folder)) for run in runs]
    if as_json:
        print(json.dumps([_entry(*entry) for entry in entries], indent=1))
        return
    if not runs:
        print(printable(f"{runs_dir} holds no runs; make one with byov-train --ratio 0.3"))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("run", "method", "recipe", "dataset", "epoch", "state", "best val", "size"):
        table.add_column(heading, overflow="fold")
    for run, progress, size in entries:
        table.add_row(*(Text(printable(cell)) for cell in _cells(run, progress, size)))
    wide_console().print(table)


@app.command()
def compare(
    first: Annotated[str, typer.Argument(help="A run.")],
    second: Annotated[str, typer.Argument(help="Another.")],
    runs_dir: command.RunsDir = Path("runs"),
    as_json: command.Json = False,
) -> None:
    """Show in which settings, data and scores two runs differ."""
    names = first, second
    facts = [_facts(read_run(runs_dir, name)) for name in names]
    different = {
        key: [each.get(key) for each in facts]
        for key in dict.fromkeys((*facts[0], *facts[1]))
        if facts[0].get(key) != facts[1].get(key)
    }
    if as_json:
        print(json.dumps({"runs": names, "different": different}, indent=1))
        return
    if not different:
        print(printable(f"{first} and {second} have the same settings, data and scores"))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("", *names):
        table.add_column(Text(printable(heading)), overflow="fold")
    for key, values in different.items():
        table.add_row(Text(printable(key)), *(Text(printable(_shown(value))) for value in values))
    wide_console().print(table)


@app.command()
def settings(run: Annotated[str, typer.Argument(help="A run.")], runs_dir: command.RunsDir = Path("runs")) -> None:
    """Print a run's settings as a file for byov-train --config."""
    record = read_run(runs_dir, run)
    data = {"dataset": record.dataset, "encoder": _encoder(record), "ratio": record.ratio}
    given = {name: value for name, value in record.settings.items() if name in _options_of(record.method)}
    named = {option_name(name): value for name, value in given.items()}
    print(to_toml(data | {"method": record.method} | named), end="")


@app.command()
def delete(runs: Names, yes: Yes = False, runs_dir: command.RunsDir = Path("runs")) -> None:
    """Delete runs: models, embeddings, results. Asks first."""
    records = [read_run(runs_dir, name) for name in dict.fromkeys(runs)]
    sizes = {run.name: size_bytes(run.folder) for run in records}
    _ask(f"delete {', '.join(f'{name} ({format_size(size)})' for name, size in sizes.items())}?", yes=yes)
    for run in records:
        delete_run(run)
        print(printable(f"{run.folder}: deleted"))


@app.command()
def prune(
    runs: Annotated[list[str] | None, typer.Argument(help="Runs, by name; all if left out.")] = None,
    yes: Yes = False,
    runs_dir: command.RunsDir = Path("runs"),
) -> None:
    """Delete the checkpoints of finished runs. Models, embeddings and results stay; such a run cannot be resumed."""
    records = [read_run(runs_dir, name) for name in dict.fromkeys(runs)] if runs else _all_runs(runs_dir)
    wanted = []
    for run in records:
        progress = read_progress(run)
        if progress.state == "finished":
            wanted += [run] if checkpoint_files(run) else []
        elif runs:
            note(f"{run.name}: kept, it is {progress.said}")
    if not wanted:
        print("nothing to prune: no finished run has checkpoints")
        return
    freed = sum(path.stat().st_size for run in wanted for path in checkpoint_files(run))
    _ask(f"delete the checkpoints of {pluralize(len(wanted), 'run')} ({format_size(freed)})?", yes=yes)
    for run in wanted:
        print(printable(f"{run.name}: {format_size(prune_checkpoints(run))} freed"))


def _all_runs(runs_dir: Path) -> list[RunRecord]:
    runs = []
    for name in list_runs(runs_dir):
        try:
            runs.append(read_run(runs_dir, name))
        except CacheError as error:
            note(f"{name}: not listed ({error})")
    return runs


def _ask(question: str, *, yes: bool) -> None:
    if yes:
        return
    try:
        agreed = typer.confirm(printable(question), err=True)
    except typer.Abort:
        raise UsageMistake("no answer; nothing was deleted (--yes does it without asking)") from None
    if not agreed:  # an answer, not a mistake
        note("nothing was deleted")
        raise typer.Exit(command.FAILED)


def _encoder(run: RunRecord) -> str:
    """By the name that people know; by its folder, where byov-train would not find that by the name."""
    return run.encoder if encoder_slug(run.encoder) == run.encoder_folder else run.encoder_folder


def _options_of(method: str) -> set[str]:
    """The settings that byov-train has an option for; a method fixes the others."""
    kind = settings_classes().get(method)
    return set() if kind is None else {name for name, field in kind.model_fields.items() if field.description}


def _cells(run: RunRecord, progress: RunProgress, size: int) -> list[str]:
    recipe = "" if run.recipe == run.method else run.recipe
    of = "?" if progress.epochs is None else progress.epochs
    epoch = "-" if progress.epoch is None else f"{progress.epoch} of {of}"
    best = "-" if progress.best is None else f"{progress.metric} {progress.best:.4f}"
    return [run.name, run.method, recipe, run.dataset, epoch, progress.state, best, format_size(size)]


def _entry(run: RunRecord, progress: RunProgress, size: int) -> dict[str, Any]:
    return {
        "run": run.name,
        "method": run.method,
        "recipe": run.recipe if run.method == BYOV else None,
        "dataset": run.dataset,
        "encoder": run.encoder,
        "column": run.column,
        "seed": run.seed,
        "state": progress.state,
        "epoch": progress.epoch,
        "epochs": progress.epochs,
        "metric": progress.metric,
        "best": progress.best,
        "bytes": size,
    }


def _facts(run: RunRecord) -> dict[str, Any]:
    """All in which a run may differ from another: data, settings, how far it is, what it scores on val."""
    progress = read_progress(run)
    validation = run.training.get("validation")
    scores = validation if isinstance(validation, dict) else {}
    return {
        **{key: run.training.get(key) for key in DATA},
        TRAINED_ON: _short_digest(run.training.get("videos_sha256")),
        "epochs done": progress.epoch,
        "selected by": progress.metric,  # without labels it is not what the settings say
        **{f"val {name}": value for name, value in scores.items()},
        **run.settings,
    }


def _short_digest(digest: Any) -> str | None:
    return digest[:12] if isinstance(digest, str) else None


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(map(_shown, value)) if isinstance(value, Sequence) and not isinstance(value, str) else str(value)


def main() -> None:
    command.run(app)
