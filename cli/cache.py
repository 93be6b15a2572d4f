"""byov-cache: look into the feature cache and check it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from byov.cache.contents import summarise, verify_folder
from byov.cache.features import Header, read_header
from byov.cache.layout import cached_files, encoder_folders
from byov.cache.row_reader import read_columns
from byov.cli import command
from byov.text import printable, size_text

app = command.new_app(help="Look into the feature cache and check it.", no_args_is_help=True)


@app.callback()
def _options(_version: command.Version = False) -> None:
    pass


@app.command("ls")
def list_contents(features_dir: command.FeaturesDir = Path("features"), as_json: command.Json = False) -> None:
    """List what is cached: datasets, encoders, videos, frames, ratios, size."""
    summaries = [summarise(folder) for folder in encoder_folders(features_dir)]
    if as_json:
        _print_json([asdict(summary) for summary in summaries])
        return
    if not summaries:
        print(printable(f"{features_dir} holds no features"))
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("dataset", "encoder", "videos", "frames", "STM ratios", "size"):
        table.add_column(heading, overflow="fold")
    for summary in summaries:
        table.add_row(
            Text(printable(summary.dataset)),
            Text(printable(summary.encoder)),
            f"{summary.cached_videos}/{summary.dataset_videos}"
            + (f", {summary.unreadable} unreadable" if summary.unreadable else "")
            + (f", {summary.failures} failed" if summary.failures else ""),
            f"{summary.frames:,}",
            " ".join(summary.ratios),
            size_text(summary.disk_bytes),
        )
    Console().print(table)


@app.command()
def show(file: Annotated[Path, typer.Argument(help="A .h5 file of the cache.")], as_json: command.Json = False) -> None:
    """Show one file's arrays and where its numbers come from."""
    header = read_header(file)
    columns = read_columns(file)
    facts = _facts(header)
    if as_json:
        _print_json({"columns": columns, **facts})
        return
    for name, (shape, dtype) in columns.items():
        print(f"{printable(name):<20} {'x'.join(map(str, shape)):<14} {dtype}")
    print()
    for key, value in facts.items():
        # As JSON, so that no control character of a hostile file reaches the terminal.
        print(f"{key:<20} {json.dumps(value)}")


@app.command()
def verify(
    dataset: Annotated[str | None, typer.Argument(help="One dataset; all of them if left out.")] = None,
    features_dir: command.FeaturesDir = Path("features"),
    as_json: command.Json = False,
) -> None:
    """Read every file from end to end and compare its arrays with their digests."""
    bad: dict[str, str] = {}
    checked = 0
    for folder in encoder_folders(features_dir, dataset):
        total = sum(1 for _ in cached_files(folder))
        for path, problem in tqdm(verify_folder(folder), desc=folder.name, total=total, unit="file", disable=None):
            checked += 1
            if problem is not None:
                bad[str(path)] = problem
    if as_json:
        _print_json({"checked": checked, "bad": bad})
    else:
        for name, problem in bad.items():
            print(printable(f"{name}: {problem}"))
        print(f"{checked} files checked, {len(bad)} bad")
    raise typer.Exit(command.FAILED if bad else 0)


def _facts(header: Header) -> dict[str, Any]:
    return {
        "frames": header.frames,
        "fps": header.fps,
        "truncated": header.truncated,
        **asdict(header.provenance),
    }


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1, default=str))


def main() -> None:
    command.run(app)
