"""Figures of video frames for papers: retrieval, token selection, failures."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from byov.report.content import Content, Failures, FrameRef, Strip, TokenClip, WorstVideo
from byov.report.frame_text import phase_of
from byov.report.paper.grid import GAP_INCHES, MARGIN_INCHES, FrameGrid, Grid, GridCell
from byov.report.paper.style import (
    FAINT,
    PAGE_INCHES,
    PLAIN,
    QUERY,
    RIGHT,
    TEXT_POINTS,
    WRONG,
    decimals,
    fitted,
    legend,
    phase_color,
    whole_numbers,
)

SAME_PHASE, OTHER_PHASE = "✓", "✗"
HEADING_INCHES = 0.17
RATIO_INCHES = 0.35  # for the names of rows at the left
WORST_INCHES = 1.05
PLOT_INCHES = 1.9  # the similarity below the frames of the failures, with its labels


def draw_retrieval(content: Content, frames: FrameGrid, strips: Sequence[Strip]) -> Figure | None:
    """A row for each query (blue) with the nearest frames of the other view (green if of its phase, else red)."""
    rows = [_retrieval_row(content, frames, strip) for strip in strips]
    if all(cell.picture is None for row in rows for cell in row):
        return None
    grid = Grid(rows, above=HEADING_INCHES)
    grid.text(grid.column_left(0), MARGIN_INCHES, "query", color=QUERY, va="top")
    heading = "retrieved, nearest first" + (f" ({SAME_PHASE} of the query's phase)" if content.phases else "")
    left, width = grid.column_left(1), float(grid.figure.get_size_inches()[0])
    grid.text(left, MARGIN_INCHES, fitted(heading, width - left), va="top")
    return grid.figure


def _retrieval_row(content: Content, frames: FrameGrid, strip: Strip) -> list[GridCell]:
    """Below each its video and time, and where there are phases, a sign whether it is of the query's."""
    cells, query_phase = [], phase_of(content.videos[strip.query.video], strip.query.frame)
    for rank, ref in enumerate((strip.query, *strip.retrieved)):
        video, time = content.videos[ref.video], frames.time(ref)
        phase = phase_of(video, ref.frame) if rank else None
        if query_phase is not None and phase is not None:
            time += f" {SAME_PHASE if phase == query_phase else OTHER_PHASE}"
        cells.append(
            GridCell(frames.picture(ref), (video.name, time), _edge(content, strip.query, ref) if rank else QUERY)
        )
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
    """Frames of the worst videos above those that they are matched to; below, how alike the reference frame is to the
    others of its video."""
    rows = [row for worst in failures.worst for row in _worst_rows(content, frames, failures, worst)]
    if not any(rows):
        return None
    grid = Grid(rows, left=WORST_INCHES, below=PLOT_INCHES)
    sides = [
        side
        for worst in failures.worst
        for side in ((worst.video, worst.tau, ""), (worst.partner, worst.partner_tau, "nearest in\n"))
    ]
    for row, (video, tau, said) in enumerate(sides):
        name = fitted(content.videos[video].name, WORST_INCHES - GAP_INCHES)
        grid.text(MARGIN_INCHES, grid.row_middle(row), f"{said}{name}\nτ = {decimals(tau)}", va="center")
    width = float(grid.figure.get_size_inches()[0])
    _softmax(grid.axes(0.8, grid.bottom + 0.12, width - 0.85, PLOT_INCHES - 0.75), content, failures, width)
    return grid.figure


def _worst_rows(
    content: Content, frames: FrameGrid, failures: Failures, worst: WorstVideo
) -> tuple[list[GridCell], list[GridCell]]:
    """The reference frame has an edge, and matches by whether the phase is right."""
    above = [FrameRef(worst.video, frame) for frame in worst.frames]
    below = [FrameRef(worst.partner, frame) for frame in worst.matched]
    return (
        [
            GridCell(frames.picture(ref), (frames.time(ref),), QUERY if ref == failures.reference else None)
            for ref in above
        ],
        [
            GridCell(frames.picture(ref), (frames.time(ref),), _edge(content, query, ref))
            for query, ref in zip(above, below, strict=True)
        ],
    )


def _edge(content: Content, query: FrameRef, found: FrameRef) -> str:
    """Green if both are of one phase, red if not, gray where that is not known."""
    phases = [phase_of(content.videos[ref.video], ref.frame) for ref in (query, found)]
    if None in phases:
        return PLAIN
    return RIGHT if phases[0] == phases[1] else WRONG


def draw_softmax(content: Content, failures: Failures) -> Figure:
    """How alike the reference frame is to the others of its video, on its own."""
    figure = Figure(figsize=(PAGE_INCHES, PLOT_INCHES))
    width, height = PAGE_INCHES, PLOT_INCHES
    axes = figure.add_axes((0.8 / width, 0.63 / height, 1 - 0.85 / width, 1 - 0.75 / height))
    _softmax(axes, content, failures, width)
    return figure


def _softmax(axes: Axes, content: Content, failures: Failures, width: float) -> None:
    count, frame = len(failures.similarity), failures.reference.frame
    values = np.nan_to_num(failures.similarity)
    axes.plot(range(count), values, color=phase_color(0))
    uniform = axes.axhline(1 / count, color=FAINT, linestyle="--", linewidth=0.8)
    (reference,) = axes.plot([frame], [values[frame]], "o", color=WRONG, markersize=4)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(0, 1.1 * max(float(values.max()), 1 / count))  # from 0, so that nearly uniform looks uniform
    axes.set_ylabel("softmax similarity\nto the reference")
    axes.set_xlabel(f"frame of {fitted(content.videos[failures.reference.video].name, width / 2, TEXT_POINTS)}")
    axes.xaxis.set_major_locator(whole_numbers())
    axes.spines[["top", "right"]].set_visible(False)
    entries = [(reference, "reference frame"), (uniform, f"uniform (1/{count})")]
    legend(axes, entries, inches=1.1, loc="upper center", bbox_to_anchor=(0.5, -0.32), ncols=2, frameon=False)
