"""Write a report, and its figures."""

import os
from collections.abc import Sequence
from pathlib import Path

from byov.cache.atomic import write_text
from byov.cache.runs import choose_run, read_run
from byov.folders import Folder, features_folder, runs_folder
from byov.progress import NO_PROGRESS, Progress
from byov.records import Split
from byov.report.collect import collect
from byov.report.content import Content
from byov.report.figures import write_figures
from byov.report.page.render import render_page


def write_report(
    page: str | os.PathLike[str],
    run: str | None = None,
    *,
    compare: Sequence[str] = (),
    figures: str | os.PathLike[str] | None = None,
    split: Split | None = None,
    videos: Path | None = None,
    seed: int = 0,
    max_mb: float = 15.0,
    runs_dir: Folder = None,
    features_dir: Folder = None,
    progress: Progress = NO_PROGRESS,
) -> Content:
    """Write a report of a run to one HTML file, and return its contents.

    Args:
        page: Path of the HTML file.
        run: Name of the run. Default: the newest.
        compare: Names of runs to compare with. Only the first is in all sections.
        figures: Folder for the figures as PNG and PDF files. Default: do not write them.
        split: Split to show. Default: test, or val if there is no test split.
        videos: Folder of the videos, if they were moved.
        seed: Random seed for t-SNE.
        max_mb: Maximum size of the page in MB.
        runs_dir: Folder that contains the runs. Default: BYOV_RUNS, else runs/.
        features_dir: Folder of the feature cache. Default: BYOV_FEATURES, else features/.
        progress: Receives progress updates.

    >>> write_report("report.html", "demo-byov").split
    'test'
    """
    runs = runs_folder(runs_dir)
    content = collect(
        runs,
        features_folder(features_dir),
        choose_run(runs, run),
        [read_run(runs, name) for name in compare],
        split=split,
        videos=videos,
        seed=seed,
        max_mb=max_mb,
        progress=progress,
    )
    write_text(Path(page), render_page(content))
    if figures is not None:
        write_figures(content, Path(figures), progress)
    return content
