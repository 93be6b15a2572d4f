"""byov-cache: look into the feature cache, and check it and the runs."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from tqdm import tqdm

from byov.cache.features import Header, read_header
from byov.cache.hdf5 import read_columns
from byov.cache.layout import encoder_folders
from byov.cache.verify import Checked, count_files, summarize, verify_all
from byov.cli import command
from byov.text import format_size, pluralize, printable

app = command.new_app(help="Look into the feature cache, and check it and the runs.", no_args_is_help=True)


@app.callback()
def _options(_version: command.Version = False) -> None:
    pass


@app.command("ls")
def list_contents(features_dir: command.FeaturesDir = Path("features"), as_json: command.Json = False) -> None:
    """List what is cached: datasets, encoders, videos, frames, ratios, size."""
    summaries = [summarize(folder) for folder in encoder_folders(features_dir)]
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
            + (f", pairs: {summary.dataset_pairs}" if summary.dataset_pairs else "")
            + (f", {summary.unreadable} unreadable" if summary.unreadable else "")
            + (f", {summary.failures} failed" if summary.failures else ""),
            f"{summary.frames:,}",
            " ".join(summary.ratios),
            format_size(summary.disk_bytes),
        )
    Console().print(table)


@app.command()
def show(file: Annotated[Path, typer.Argument(help="A .h5 file of the cache.")], as_json: command.Json = False) -> None:
    """Show one file's arrays and where its numbers come from."""
    if file.is_dir():
        first = next((path for path in sorted(file.rglob("*.h5")) if not path.name.startswith(".")), None)
        advice = f"byov-cache show {first}" if first else "byov-cache ls lists what is cached"
        raise command.UsageMistake(f"{file}: a folder, and show takes one file of it; {advice}")
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
    runs_dir: command.RunsDir = Path("runs"),
    as_json: command.Json = False,
) -> None:
    """Read every file of the cache and of the runs from end to end and compare it with its digest."""
    total = count_files(features_dir, runs_dir, dataset)
    checks = verify_all(features_dir, runs_dir, dataset)
    checked = list(tqdm(checks, desc="verifying", total=total, unit="file", disable=None))
    bad = [file for file in checked if file.problem is not None]
    uncovered = [file for file in checked if file.problem is None and not file.covered]
    if as_json:
        _print_json(
            {
                "checked": len(checked),
                "bad": {str(file.path): file.problem for file in bad},
                "remedies": {str(file.path): file.remedy for file in bad},
                "without_digest": [str(file.path) for file in uncovered],
            }
        )
    else:
        for file in bad:
            remedy = "" if file.remedy in str(file.problem) else f"; {file.remedy}"
            print(printable(f"{file.path}: {file.problem}{remedy}"))
        _say_uncovered(uncovered)
        print(f"{pluralize(len(checked), 'file')} checked, {len(bad)} bad")
    raise typer.Exit(command.FAILED if bad else 0)


def _say_uncovered(files: Sequence[Checked]) -> None:
    """What was not checked, and why: files of runs that are not finished apart from those of older versions."""
    if growing := [file for file in files if file.growing]:
        one = len(growing) == 1
        what = "1 file of an unfinished run has" if one else f"{len(growing):,} files of unfinished runs have"
        rest = "it is" if one else "they are"
        print(printable(f"{what} no digest before training ends, like {growing[0].path}: {rest} not checked"))
    if old := [file for file in files if not file.growing]:
        one = len(old) == 1
        what = (
            "1 file carries no digest of all it holds"
            if one
            else f"{len(old):,} files carry no digest of all they hold"
        )
        why, rest = "byov 0.2 and before wrote none", "it" if one else "them"
        print(printable(f"{what} ({why}), like {old[0].path}: the rest of {rest} is not checked"))


def _facts(header: Header) -> dict[str, Any]:
    return {
        "frames": header.frames,
        "fps": header.fps,
        "truncated": header.truncated,
        "corrupt_frames": header.corrupt_frames,
        **asdict(header.provenance),
    }


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=1, default=str))


def main() -> None:
    command.run(app)
