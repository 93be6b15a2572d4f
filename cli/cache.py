"""byov-cache: list, show and verify cached files."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from byov.cache.features import read_header
from byov.cache.hdf5 import read_columns
from byov.cache.layout import encoder_folders
from byov.cache.verify import summarize, verify_all
from byov.cli.app import FAILED, App
from byov.cli.options import FeaturesDir, Json, RunsDir, Version
from byov.cli.terminal import PROGRESS, print_rows
from byov.progress import track
from byov.text import format_size, pluralize, printable

main = App(
    "Inspect the feature cache, and verify the cache and the runs. To delete features, delete "
    "their folder.",
    no_args_is_help=True,
)


@main.callback()
def _options(_version: Version = False) -> None:
    pass


@main.command("ls")
def list_contents(features_dir: FeaturesDir = Path("features"), as_json: Json = False) -> None:
    """List cached datasets and encoders with videos, frames, STM ratios and size."""
    summaries = [summarize(folder) for folder in encoder_folders(features_dir)]
    if as_json:
        print(json.dumps(summaries, indent=1))
        return
    if not summaries:
        print(
            printable(f"No features in {features_dir}. Extract some: byov-extract --dataset demo")
        )
        return
    print_rows(
        ("dataset", "encoder", "videos", "frames", "STM ratios", "size"), map(_row, summaries)
    )


def _row(summary: dict[str, Any]) -> list[str]:
    videos = f"{summary['cached_videos']}/{summary['dataset_videos']}"
    for key, name in {
        "dataset_pairs": "pairs",
        "unreadable": "unreadable",
        "failures": "failed",
    }.items():
        videos += f", {summary[key]} {name}" if summary[key] else ""
    return [
        summary["dataset"],
        summary["encoder"],
        videos,
        f"{summary['frames']:,}",
        " ".join(summary["ratios"]),
        format_size(summary["disk_bytes"]),
    ]


@main.command()
def show(
    file: Annotated[
        Path, typer.Argument(help="HDF5 file in the feature cache.", exists=True, dir_okay=False)
    ],
    as_json: Json = False,
) -> None:
    """Show the arrays and the provenance of a cached file."""
    header = read_header(file, "pass an intact .h5 file from the feature cache")
    columns = read_columns(file)
    attributes = {
        "frames": header.frames,
        "fps": header.fps,
        "truncated": header.truncated,
        "corrupt_frames": header.corrupt_frames,
        **asdict(header.provenance),
    }
    if as_json:
        print(json.dumps({"columns": columns, **attributes}, indent=1, default=str))
        return
    for name, (shape, dtype) in columns.items():
        print(f"{printable(name):<20} {'x'.join(map(str, shape)):<14} {dtype}")
    print()
    for key, value in attributes.items():
        print(f"{key:<20} {json.dumps(value)}")  # JSON escapes control characters


@main.command()
def verify(
    dataset: Annotated[
        str | None, typer.Argument(help="Dataset to verify.", show_default="all")
    ] = None,
    features_dir: FeaturesDir = Path("features"),
    runs_dir: RunsDir = Path("runs"),
    as_json: Json = False,
) -> None:
    """Read all files in the cache and the runs and compare them with their checksums."""
    checked = list(
        track(verify_all(features_dir, runs_dir, dataset), PROGRESS, "verifying", unit="file")
    )
    bad = [file for file in checked if file.problem is not None]
    unchecked = [file for file in checked if file.problem is None and not file.covered]
    if as_json:
        summary = {
            "checked": len(checked),
            "bad": {str(file.path): file.problem for file in bad},
            "remedies": {str(file.path): file.remedy for file in bad},
            "without_digest": [str(file.path) for file in unchecked],
        }
        print(json.dumps(summary, indent=1))
    else:
        for file in bad:
            remedy = "" if file.remedy in str(file.problem) else f"; {file.remedy}"
            print(printable(f"{file.path}: {file.problem}{remedy}"))
        if unchecked:
            print(
                printable(
                    f"{pluralize(len(unchecked), 'file')} without a checksum (edited, or from an "
                    f"unfinished run): {unchecked[0].path}"
                )
            )
        print(f"{pluralize(len(checked), 'file')} checked, {len(bad)} bad")
    raise typer.Exit(FAILED if bad else 0)
