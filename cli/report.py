"""byov-report: one page that shows what a run has learned: tables, curves, maps, and the frames themselves."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from byov.cache.atomic import write_text
from byov.cache.runs import choose_run, choose_runs
from byov.cli import command
from byov.cli.command import BARS, UsageMistake, interruptible, note
from byov.cli.outputs import refuse_outputs
from byov.cli.unfinished import say_unfinished
from byov.evaluate.protocols import ScoredSplit
from byov.report.paper import figure_files
from byov.text import format_size, printable

# scikit-learn, SciPy, Pillow and matplotlib take seconds to import; --help and wrong usage get by without them.
if TYPE_CHECKING:
    from byov.report.collect import Request
    from byov.report.content import Content

REPORT_NAME = "report.html"
PARTS = {  # of Content, by the headings that they have on the page
    "vectors": "player",
    "tables": "scores",
    "projection": "before and after training",
    "strips": "retrieval",
    "similarity": "alignment",
    "curves": "training",
    "tokens": "selected tokens",
    "failures": "failures",
}

app = command.new_app()


@app.command()
def report(
    run: Annotated[str | None, typer.Option(help="The run. Default: the newest.")] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(help="Another run of the same dataset, beside it in the tables; the first one everywhere."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for the figures as PNG and PDF too, for a paper.")
    ] = None,
    videos: Annotated[
        Path | None, typer.Option(help="Where the videos are now, if not where they were extracted from.")
    ] = None,
    split: Annotated[ScoredSplit | None, typer.Option(help="Default test; val if there is no test split.")] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace figures that are there; the page always is.")
    ] = False,
    max_mb: Annotated[
        float, typer.Option(min=3, max=500, help="Megabytes of the page, at most: how large its pictures may be.")
    ] = 15.0,
    seed: Annotated[int, typer.Option(min=0, max=2**32 - 1, help="Of t-SNE.")] = 0,
    as_json: command.Json = False,
    runs_dir: command.RunsDir = Path("runs"),
    features_dir: command.FeaturesDir = Path("features"),
    _version: command.Version = False,
) -> None:
    """Write runs/RUN/report.html: tables, curves, maps and frames of a run, in one file that needs nothing else."""
    if videos is not None and not videos.is_dir():
        raise UsageMistake(f"--videos {videos}: no such folder")
    if figures is not None:
        refuse_outputs(figure_files(figures), (), overwrite=overwrite, option="--figures")
    chosen = choose_run(runs_dir, run)
    _, *compared = choose_runs(runs_dir, [chosen.name, *(compare or [])])
    say_unfinished([chosen, *compared])
    refuse_outputs([chosen.folder / REPORT_NAME], (), overwrite=True, option="--run")
    from byov.report.collect import Request

    request = Request(runs_dir, features_dir, chosen, tuple(compared), split, videos, seed, max_mb)
    content, page, drawn = interruptible(lambda: _make(request, figures))
    _say_missing(content)
    if as_json:
        print(json.dumps(_summary(content, page, drawn), indent=1))
        return
    note(f"{content.dataset}, {content.split} split; open in a browser ({format_size(page.stat().st_size)}):")
    for path in (*drawn, page):
        print(printable(str(path)))


def _make(request: "Request", figures: Path | None) -> "tuple[Content, Path, list[Path]]":
    """Write the page, and the figures if they are wanted; returns what they show and where they are."""
    from byov.report.collect import collect
    from byov.report.page.html_page import render

    content = collect(request, BARS)
    page = request.run.folder / REPORT_NAME
    write_text(page, render(content))
    if figures is None:
        return content, page, []
    from byov.report.paper.figures import write_figures

    return content, page, write_figures(content, figures, BARS)


def _missing(content: "Content") -> dict[str, str]:
    """Part → why it is not there."""
    from byov.report.content import Unavailable

    parts = {name: getattr(content, name) for name in PARTS}
    return {name: part.reason for name, part in parts.items() if isinstance(part, Unavailable)}


def _say_missing(content: "Content") -> None:
    """What cannot be shown, each reason once; and the first video that has no pictures, if they are not all told."""
    from byov.report.content import Unavailable

    parts = _missing(content)
    for reason in dict.fromkeys(parts.values()):
        note(f"without {', '.join(PARTS[name] for name, why in parts.items() if why == reason)}: {reason}")
    blind = [video.sheet.reason for video in content.videos if isinstance(video.sheet, Unavailable)]
    if blind and blind[0] not in parts.values():
        note(f"no pictures of {len(blind)} of {len(content.videos)} videos: {blind[0]}")


def _summary(content: "Content", page: Path, drawn: list[Path]) -> dict[str, object]:
    return {
        "run": content.run,
        "dataset": content.dataset,
        "split": content.split,
        "report": str(page),
        "bytes": page.stat().st_size,
        "figures": [str(path) for path in drawn],
        "missing": _missing(content),
    }


def main() -> None:
    command.run(app)
