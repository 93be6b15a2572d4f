"""Figures of points and lines for papers: curves, t-SNE, similarity."""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator
from numpy.typing import NDArray

from byov.report.content import Content, Curve, Curves, FrameRef, Projection, ShownVideo, Similarity
from byov.report.frame_text import phase_name, phase_of
from byov.report.paper.style import (
    COLUMN_INCHES,
    FAINT,
    INK,
    LEGEND_ROW_INCHES,
    PAGE_INCHES,
    PHASES,
    RULE,
    TEXT_POINTS,
    UNLABELED,
    WRONG,
    decimals,
    fitted,
    legend,
    legend_columns,
    phase_color,
    whole_numbers,
)

MARKERS = {"ego": "o", "exo": "s"}  # as in the paper
TIME_COLOURS = "viridis"
MOST_VECTOR_POINTS = 4000  # of a scatter plot in a PDF; more are drawn as a picture


def draw_curves(curves: Curves) -> Figure | None:
    """Losses, and beside them the validation."""
    panels = [
        (name, part) for name, part in (("loss", curves.losses), ("validation", curves.validation)) if _drawable(part)
    ]
    if not panels:
        return None
    height = 1.9 + LEGEND_ROW_INCHES * math.ceil(max(len(part) + 1 for _, part in panels) / 2)
    figure = Figure(figsize=(PAGE_INCHES if len(panels) == 2 else COLUMN_INCHES, height), layout="constrained")
    for index, (name, part) in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), index)
        entries = _lines(axes, part, marker="o" if name == "validation" else "")
        if name == "loss" and curves.wide_losses:
            _logarithmic(axes)
        if name == "validation" and curves.kept_epoch is not None:
            line = axes.axvline(curves.kept_epoch, color=FAINT, linestyle="--", linewidth=0.8, zorder=1)
            entries.append((line, f"model kept: epoch {curves.kept_epoch}"))
        axes.set_xlabel("epoch")
        axes.set_ylabel(name)
        axes.xaxis.set_major_locator(whole_numbers())
        tidy(axes)
        legend(axes, entries, inches=1.4, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2, frameon=False)
    return figure


def _drawable(curves: Sequence[Curve]) -> bool:
    return any(math.isfinite(value) for curve in curves for value in curve.values)


def _lines(axes: Axes, curves: Sequence[Curve], marker: str) -> list[tuple[Artist, str]]:
    entries: list[tuple[Artist, str]] = []
    for index, curve in enumerate(curves):
        values = np.asarray(curve.values, np.float64)
        (line,) = axes.plot(
            curve.epochs,
            np.where(np.isfinite(values), values, np.nan),
            color=phase_color(index),
            linestyle=("-", "--", ":", "-.")[index // len(PHASES) % 4],
            marker=marker or ("o" if len(values) == 1 else ""),
            markersize=2.5,
        )
        entries.append((line, curve.name))
    return entries


def _logarithmic(axes: Axes) -> None:
    low, high = axes.dataLim.intervaly
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3) if high < 1e5 * low else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=RULE, linewidth=0.4)
    axes.set_axisbelow(True)


def draw_projection(content: Content, projection: Projection) -> Figure | None:
    """A panel for each map; the shape of a point is its view, the color its phase or its time."""
    if not projection.frames:
        return None
    views = np.array([content.videos[ref.video].view for ref in projection.frames])
    entries = _view_entries(views)
    if content.phases:
        entries += _phase_entries(content, projection.frames)
    columns = legend_columns([name for _, name in entries])
    across = min(len(projection.maps), 3)
    down = math.ceil(len(projection.maps) / across)
    height = down * PAGE_INCHES / across + LEGEND_ROW_INCHES * math.ceil(len(entries) / columns)
    figure = Figure(figsize=(PAGE_INCHES, height), layout="constrained")
    colors = _point_colors(content, projection.frames)
    drawn = []
    for index, one in enumerate(projection.maps, start=1):
        axes = figure.add_subplot(down, across, index)
        _scatter(axes, one.points, views, colors)
        axes.set_title(fitted(one.title, 0.9 * PAGE_INCHES / across, TEXT_POINTS))
        drawn.append(axes)
    if not content.phases:
        bar = figure.colorbar(ScalarMappable(cmap=TIME_COLOURS), ax=drawn, aspect=30, pad=0.02)
        bar.set_ticks([0, 1], labels=["start", "end"])
        bar.set_label("time in the video", labelpad=-12)
    legend(figure, entries, inches=3.0, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _point_colors(content: Content, frames: Sequence[FrameRef]) -> NDArray[np.object_] | NDArray[np.float64]:
    """(n,) hex colors by phase, or (n,) positions from 0 to 1 by time."""
    videos = [content.videos[ref.video] for ref in frames]
    if content.phases:
        phases = [phase_of(video, ref.frame) for video, ref in zip(videos, frames, strict=True)]
        return np.array([UNLABELED if phase is None else phase_color(phase) for phase in phases], object)
    return np.array([ref.frame / max(video.frames - 1, 1) for video, ref in zip(videos, frames, strict=True)])


def _scatter(
    axes: Axes,
    points: NDArray[np.float64],
    views: NDArray[np.str_],
    colors: NDArray[np.object_] | NDArray[np.float64],
) -> None:
    for view, marker in MARKERS.items():
        of_view = views == view
        axes.scatter(
            points[of_view, 0],
            points[of_view, 1],
            s=9,
            c=colors[of_view].tolist(),
            cmap=TIME_COLOURS if colors.dtype == np.float64 else None,
            vmin=0 if colors.dtype == np.float64 else None,
            vmax=1 if colors.dtype == np.float64 else None,
            marker=marker,
            linewidths=0.25,
            edgecolors="white",
            alpha=0.85,
            rasterized=len(points) > MOST_VECTOR_POINTS,
        )
    axes.set(xticks=[], yticks=[])


def _view_entries(views: NDArray[np.str_]) -> list[tuple[Artist, str]]:
    return [
        (Line2D([], [], color=INK, marker=marker, markersize=4, linestyle=""), view)
        for view, marker in MARKERS.items()
        if view in views
    ]


def _phase_entries(content: Content, frames: Sequence[FrameRef]) -> list[tuple[Artist, str]]:
    """Of the phases that occur, in their order."""
    phases = {phase_of(content.videos[ref.video], ref.frame) for ref in frames}
    entries: list[tuple[Artist, str]] = [
        (Patch(color=phase_color(phase)), phase_name(content.phases, phase))
        for phase in sorted(phase for phase in phases if phase is not None)
    ]
    if None in phases:
        entries.append((Patch(color=UNLABELED), "no label"))
    return entries


def draw_similarity(content: Content, similarity: Similarity) -> Figure:
    """Distances of all pairs of frames, the way by dynamic time warping, each row's nearest frame."""
    rows, columns = content.videos[similarity.rows], content.videos[similarity.columns]
    figure = Figure(figsize=(COLUMN_INCHES, 3.1), layout="constrained")
    axes = figure.add_subplot()
    distances = np.ma.masked_invalid(similarity.distances)
    extent = (*_edges(similarity.column_frames), *_edges(similarity.row_frames)[::-1])
    # Grey: what is drawn over it has the colors.
    image = axes.imshow(distances, cmap="Greys_r", aspect="auto", extent=extent)
    for draw, video in ((axes.axhline, rows), (axes.axvline, columns)):
        for frame in _boundaries(video):
            draw(frame, color=PHASES[4], linestyle="--", linewidth=0.6)
    entries = _alignment(axes, similarity)
    if rows.labels is not None or columns.labels is not None:
        entries.append((Line2D([], [], color=PHASES[4], linestyle="--", linewidth=0.8), "phase boundary"))
    axes.set_xlabel(f"{fitted(columns.name, 1.8, TEXT_POINTS)}, frame")
    axes.set_ylabel(f"{fitted(rows.name, 1.6, TEXT_POINTS)}, frame")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(whole_numbers())
    figure.colorbar(image, ax=axes, label="distance", aspect=30, pad=0.02).ax.locator_params(nbins=5)
    if similarity.tau is not None:
        axes.set_title(f"Kendall's τ = {decimals(similarity.tau)}")
    legend(figure, entries, inches=0.9, loc="outside lower center", ncols=len(entries), frameon=False, columnspacing=1)
    return figure


def _boundaries(video: ShownVideo) -> list[float]:
    """Between which frames the phase changes, where it is known before and after."""
    phases = pairwise(phase_of(video, frame) for frame in range(video.frames))
    return [frame + 0.5 for frame, both in enumerate(phases) if None not in both and both[0] != both[1]]


def _edges(frames: Sequence[int]) -> tuple[float, float]:
    """Where the first pixel begins and the last one ends on an axis of frames, each with its frame in its middle."""
    step = (frames[-1] - frames[0]) / max(len(frames) - 1, 1) or 1.0
    return frames[0] - step / 2, frames[-1] + step / 2


def _alignment(axes: Axes, similarity: Similarity) -> list[tuple[Artist, str]]:
    rows, columns = np.array(similarity.row_frames), np.array(similarity.column_frames)
    (nearest,) = axes.plot(columns[similarity.nearest], rows, ".", color=PHASES[1], markersize=2.2, clip_on=False)
    across, down = columns[similarity.path[:, 1]], rows[similarity.path[:, 0]]
    (path,) = axes.plot(across, down, color=WRONG, marker="o" if len(across) == 1 else "")
    return [(path, "warp path"), (nearest, "nearest frame")]
