"""byov-report: write an HTML report of a run."""

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import byov
from byov.cache.runs import choose_run, choose_runs
from byov.cli.app import App
from byov.cli.options import Config, FeaturesDir, Json, RunOption, RunsDir, Version, check_outputs
from byov.cli.score_table import print_tables
from byov.cli.signals import interruptible
from byov.cli.terminal import PROGRESS, note, note_unfinished
from byov.evaluate.protocols import ScoredSplit
from byov.report.content import SECTIONS, Content, Unavailable, figure_files
from byov.text import format_size, printable

REPORT_NAME = "report.html"

main = App()


@main.command()
def report(
    run: RunOption = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(help="Run to compare with; repeatable. Only the first is in all sections."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output file (.html) or folder.", show_default=f"runs/RUN/{REPORT_NAME}"),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures as PNG and PDF files.")
    ] = None,
    videos: Annotated[
        Path | None,
        typer.Option(
            help="New folder of the videos, if they were moved.", exists=True, file_okay=False
        ),
    ] = None,
    split: Annotated[
        ScoredSplit | None,
        typer.Option(help="Split to show.", show_default="test, or val if there is no test split"),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace existing figures.")
    ] = False,
    max_mb: Annotated[
        float, typer.Option(min=3, max=500, help="Maximum size of the page in MB.")
    ] = 15.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Random seed for t-SNE.")] = 0,
    as_json: Json = False,
    runs_dir: RunsDir = Path("runs"),
    features_dir: FeaturesDir = Path("features"),
    _config: Config = None,
    _version: Version = False,
) -> None:
    """Write scores, curves, projections and frames of a run to one HTML file that works offline;
    print the scores.
    """
    if figures is not None:
        check_outputs(figure_files(figures), (), overwrite=overwrite, option="--figures")
    chosen = choose_run(runs_dir, run)
    _, *compared = choose_runs(runs_dir, [chosen.name, *(compare or [])])
    note_unfinished([chosen, *compared])
    page = out or chosen.folder
    if page.suffix.lower() not in (".html", ".htm") or page.is_dir():
        page = page / REPORT_NAME
    check_outputs([page], (), overwrite=True, option="--out")

    content = interruptible(
        partial(
            byov.write_report,
            page,
            chosen.name,
            compare=[record.name for record in compared],
            figures=figures,
            split=split,
            videos=videos,
            seed=seed,
            max_mb=max_mb,
            runs_dir=runs_dir,
            features_dir=features_dir,
            progress=PROGRESS,
        )
    )
    figure_paths = [path for path in figure_files(figures) if path.exists()] if figures else []
    _note_missing(content)
    size = page.stat().st_size
    if as_json:
        summary = {
            "run": content.run,
            "dataset": content.dataset,
            "split": content.split,
            "report": str(page),
            "bytes": size,
            "figures": [str(path) for path in figure_paths],
            "missing": content.missing,
        }
        print(json.dumps(summary, indent=1))
        return
    print_tables([table for table in content.tables or () if table.is_main], content.verdict)
    note(f"{content.dataset}, {content.split} split; open in a browser ({format_size(size)}):")
    for path in (*figure_paths, page):
        print(printable(str(path)))


def _note_missing(content: Content) -> None:
    reasons = {SECTIONS[name]: reason for name, reason in content.missing.items()}
    lost = [video.clip.reason for video in content.videos if isinstance(video.clip, Unavailable)]
    if lost:
        reasons[f"clips of {len(lost)} of {len(content.videos)} videos"] = lost[0]
    for reason in dict.fromkeys(reasons.values()):
        note(
            f"not in the report: {', '.join(name for name in reasons if reasons[name] == reason)} "
            f"({reason})"
        )
