"""Figures of video frames for papers: retrieval, token selection, failures."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from byov.report.content import Content, Failures, FrameRef, Strip, TokenClip, WorstVideo
from byov.report.frame_text import phase_of
from byov.report.paper.grid import GAP_INCHES, MARGIN_INCHES, FrameGrid, Grid, GridCell
from byov.report.paper.style import (
    FAINT,
    QUERY,
    RETRIEVED,
    TEXT_POINTS,
    decimals,
    fitted,
    legend,
    phase_colour,
    whole_numbers,
)

SAME_PHASE, OTHER_PHASE = "✓", "✗"
HEADING_INCHES = 0.17
RATIO_INCHES = 0.35  # for the names of rows at the left
WORST_INCHES = 1.05
PLOT_INCHES = 1.9  # the similarity below the frames of the failures, with its labels


def draw_retrieval(content: Content, frames: FrameGrid, strips: Sequence[Strip]) -> Figure | None:
    """A row for each query (blue) with the nearest frames of the other view (red)."""
    rows = [_retrieval_row(content, frames, strip) for strip in strips]
    if all(cell.picture is None for row in rows for cell in row):
        return None
    grid = Grid(rows, above=HEADING_INCHES)
    grid.text(grid.column_left(0), MARGIN_INCHES, "query", color=QUERY, va="top")
    heading = "retrieved, nearest first" + (f" ({SAME_PHASE} of the query's phase)" if content.phases else "")
    left, width = grid.column_left(1), float(grid.figure.get_size_inches()[0])
    grid.text(left, MARGIN_INCHES, fitted(heading, width - left), color=RETRIEVED, va="top")
    return grid.figure


def _retrieval_row(content: Content, frames: FrameGrid, strip: Strip) -> list[GridCell]:
    """Below each its video and time, and where there are phases, a sign whether it is of the query's."""
    cells, query_phase = [], phase_of(content.videos[strip.query.video], strip.query.frame)
    for rank, ref in enumerate((strip.query, *strip.retrieved)):
        video, time = content.videos[ref.video], frames.time(ref)
        phase = phase_of(video, ref.frame) if rank else None
        if query_phase is not None and phase is not None:
            time += f" {SAME_PHASE if phase == query_phase else OTHER_PHASE}"
        cells.append(GridCell(frames.picture(ref), (video.name, time), RETRIEVED if rank else QUERY))
    return cells


def draw_tokens(frames: FrameGrid, clip: TokenClip) -> Figure | None:
    """A row for each ratio, a column for each frame."""
    if not clip.pictures.size:
        return None
    times = [(frames.time(FrameRef(clip.video, frame)),) for frame in clip.frames]
    rows = [[GridCell(picture, ()) for picture in pictures] for pictures in clip.pictures]
    rows[-1] = [GridCell(picture, time) for picture, time in zip(clip.pictures[-1], times, strict=True)]
    grid = Grid(rows, left=RATIO_INCHES, above=HEADING_INCHES)
    grid.text(MARGIN_INCHES, MARGIN_INCHES, "share of tokens kept", color=FAINT, va="top")
    for row, ratio in enumerate(clip.ratios):
        grid.text(MARGIN_INCHES, grid.row_middle(row), f"{ratio:g}", va="center")
    return grid.figure


def draw_failures(content: Content, frames: FrameGrid, failures: Failures) -> Figure | None:
    """FrameGrid of the worst videos; below them, how alike the reference frame is to the others of its video."""
    rows = [_worst_row(frames, failures, worst) for worst in failures.worst]
    if not any(rows):
        return None
    grid = Grid(rows, left=WORST_INCHES, below=PLOT_INCHES)
    for row, worst in enumerate(failures.worst):
        name = fitted(content.videos[worst.video].name, WORST_INCHES - GAP_INCHES)
        grid.text(MARGIN_INCHES, grid.row_middle(row), f"{name}\nτ = {decimals(worst.tau)}", va="center")
    _similarity_plot(grid, content, failures)
    return grid.figure


def _worst_row(frames: FrameGrid, failures: Failures, worst: WorstVideo) -> list[GridCell]:
    """The reference frame has an edge."""
    return [
        GridCell(frames.picture(ref), (frames.time(ref),), RETRIEVED if ref == failures.reference else None)
        for ref in failures.frames_of(worst)
    ]


def _similarity_plot(grid: Grid, content: Content, failures: Failures) -> None:
    width = float(grid.figure.get_size_inches()[0])
    axes = grid.axes(0.8, grid.bottom + 0.12, width - 0.85, PLOT_INCHES - 0.75)
    count, frame = len(failures.similarity), failures.reference.frame
    axes.plot(range(count), failures.similarity, color=phase_colour(0))
    uniform = axes.axhline(1 / count, color=FAINT, linestyle="--", linewidth=0.8)
    (reference,) = axes.plot([frame], [failures.similarity[frame]], "o", color=RETRIEVED, markersize=4)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(0, 1.1 * float(failures.similarity.max()))  # from 0, so that nearly uniform looks uniform
    axes.set_ylabel("softmax similarity\nto the reference")
    axes.set_xlabel(f"frame of {fitted(content.videos[failures.reference.video].name, width / 2, TEXT_POINTS)}")
    axes.xaxis.set_major_locator(whole_numbers())
    axes.spines[["top", "right"]].set_visible(False)
    entries = [(reference, "reference frame"), (uniform, f"uniform (1/{count})")]
    legend(axes, entries, inches=1.1, loc="upper center", bbox_to_anchor=(0.5, -0.32), ncols=2, frameon=False)
