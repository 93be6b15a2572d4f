"""The report's figures as files for papers: each as PNG and PDF, in the sizes of the CVPR template.

The same content gives the same bytes: files hold no time of their making.
"""

import math
from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from byov.cache.atomic import make_folder, replacing_file
from byov.errors import ApplyError
from byov.progress import NO_PROGRESS, Progress, track
from byov.report.content import Content, Unavailable
from byov.report.paper import NAMES, figure_files
from byov.report.paper.grid import FrameGrid
from byov.report.paper.pictures import draw_failures, draw_retrieval, draw_tokens
from byov.report.paper.plots import draw_curves, draw_projection, draw_similarity
from byov.report.paper.style import DOTS_PER_INCH, paper_style

VIEWS = ("ego", "exo")
MOST_OWN_PIXELS = 2**18  # of a picture in a PDF


def write_figures(content: Content, folder: Path, progress: Progress = NO_PROGRESS) -> list[Path]:
    """What was written: <name>.png and <name>.pdf of each part that can be shown.

    Those of other parts are removed: they would be of an earlier report.
    """
    try:
        make_folder(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise ApplyError(f"{folder}: is not a folder; give one for the figures") from error
    written = []
    with paper_style():
        for name, figure in track(_figures(content), progress, "figures", unit="figure", total=len(NAMES), brief=True):
            written += save_figure(figure, folder, name)
    for path in figure_files(folder):
        if path not in written:
            path.unlink(missing_ok=True)
    return written


def save_figure(figure: Figure, folder: Path, name: str) -> list[Path]:
    """<name>.png and <name>.pdf."""
    return [_save_png(figure, folder / f"{name}.png"), _save_pdf(figure, folder / f"{name}.pdf")]


def _save_png(figure: Figure, path: Path) -> Path:
    faster = {"compress_level": 4}  # than 6, by half, and hardly larger
    with replacing_file(path) as file:
        figure.savefig(file, format="png", dpi=DOTS_PER_INCH, metadata={"Software": None}, pil_kwargs=faster)
    return path


def _save_pdf(figure: Figure, path: Path) -> Path:
    """Small pictures go in as they are; large ones as the page needs them, as in the PNG."""
    for image in figure.findobj(AxesImage):
        if isinstance(image, AxesImage) and math.prod(image.get_size()) <= MOST_OWN_PIXELS:
            image.set_interpolation("none")
    unsaid = {"Creator": None, "Producer": None, "CreationDate": None}
    with replacing_file(path) as file:
        figure.savefig(file, format="pdf", dpi=DOTS_PER_INCH, metadata=unsaid)
    return path


def _figures(content: Content) -> Iterator[tuple[str, Figure]]:
    """One at a time, so that no two are in memory."""
    frames = FrameGrid(content)
    if not isinstance(content.curves, Unavailable):
        yield from _if_any("curves", draw_curves(content.curves))
    if not isinstance(content.projection, Unavailable):
        yield from _if_any("tsne", draw_projection(content, content.projection))
    if not isinstance(content.strips, Unavailable):
        for query, candidate in (VIEWS, VIEWS[::-1]):
            strips = [strip for strip in content.strips if content.videos[strip.query.video].view == query]
            yield from _if_any(f"retrieval_{query}2{candidate}", draw_retrieval(content, frames, strips))
    if not isinstance(content.tokens, Unavailable):
        for view in VIEWS:
            clips = [clip for clip in content.tokens if content.videos[clip.video].view == view]
            for clip in clips[:1]:
                yield from _if_any(f"tokens_{view}", draw_tokens(frames, clip))
    if not isinstance(content.similarity, Unavailable):
        yield "similarity", draw_similarity(content, content.similarity)
    if not isinstance(content.failures, Unavailable):
        yield from _if_any("failures", draw_failures(content, frames, content.failures))


def _if_any(name: str, figure: Figure | None) -> Iterator[tuple[str, Figure]]:
    if figure is not None:
        yield name, figure
