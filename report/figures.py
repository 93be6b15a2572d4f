"""Figures of a report: SVG for the page, PNG and PDF for a paper."""

import io
import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.colors import to_hex, to_rgba
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray
from PIL import Image
from scipy.spatial.distance import cdist

from byov.apply import align
from byov.cache.atomic import make_folder
from byov.progress import NO_PROGRESS, Progress, track
from byov.report import content as parts
from byov.report import style
from byov.report.content import FIGURES, Content, FrameRef, figure_files
from byov.report.style import (
    COLUMN_INCHES,
    FAINT,
    INK,
    LEGEND_ROW_INCHES,
    PAGE_INCHES,
    fit_text,
    legend,
    phase_color,
)

Entries = list[tuple[Artist, str]]  # legend handles and names

VIEW_MARKERS = {"ego": "o", "exo": "s"}  # the same markers as in the paper

CAPTION_LINE_INCHES = 0.14
MAX_CELL_INCHES = 1.25
LABEL_INCHES = 1.05  # width of the labels on the left of a grid
# keys: whether a frame has the query's phase.
BORDERS = {None: FAINT, True: style.RIGHT, False: style.WRONG}


def write_figures(content: Content, folder: Path, progress: Progress = NO_PROGRESS) -> list[Path]:
    """Write <name>.png and <name>.pdf for each part that can be shown, in the sizes of the CVPR
    template.

    The files are deterministic. Outdated figures from an earlier report are removed.
    """
    make_folder(folder)
    written = []
    with style.paper_style():
        for name, figure in track(
            _figures(content), progress, "figures", unit="figure", total=len(FIGURES), brief=True
        ):
            written += style.save_figure(figure, folder, name)
    for path in figure_files(folder):
        if path not in written:
            path.unlink(missing_ok=True)
    return written


def _figures(content: Content) -> Iterator[tuple[str, Figure]]:
    """Yield the figures one at a time to save memory."""
    if content.projection:
        yield "tsne", draw_projection(content, content.projection)
    for query, candidate in (("ego", "exo"), ("exo", "ego")):
        strips = [
            strip for strip in content.strips or () if content.videos[strip[0].video].view == query
        ]
        if strips:
            yield f"retrieval_{query}2{candidate}", draw_retrieval(content, strips)
    for selection in content.tokens or ():
        video = content.videos[selection.video]
        yield f"tokens_{video.view}", draw_tokens(video, selection)
    views = [video.view for video in content.videos]
    if content.vectors and set(views) == VIEW_MARKERS.keys():
        yield (
            "alignment",
            draw_alignment(content, content.vectors[0], views.index("ego"), views.index("exo")),
        )
    if content.failures:
        yield "failures", draw_failures(content, content.failures)
    yield from draw_charts(content)


def draw_charts(content: Content) -> Iterator[tuple[str, Figure]]:
    """Yield the figures that are also shown on the page."""
    if content.chart:
        yield "scores", draw_scores(content.chart)
    if content.curves:
        yield "curves", draw_curves(content.curves)
        if content.curves.diagnostics:
            yield "diagnostics", draw_diagnostics(content.curves.diagnostics)
    if content.failures and content.failures.similarity is not None:
        video, frame = content.failures.reference
        name = content.videos[video].name
        yield "softmax", draw_softmax(name, frame, content.failures.similarity)
    if content.progress:
        yield "progress", draw_progress(content.progress)


def draw_scores(chart: parts.ScoreChart) -> Figure:
    """Draw one panel per metric, with a group of bars for each protocol and setting."""
    metrics = list(dict.fromkeys(group.metric for group in chart.groups))
    columns = style.legend_columns(chart.rows)
    height = 2.0 + LEGEND_ROW_INCHES * math.ceil(len(chart.rows) / columns)
    figure = Figure(figsize=(PAGE_INCHES, height), layout="constrained")
    width = 0.8 / len(chart.rows)
    entries: Entries = []
    for index, metric in enumerate(metrics, start=1):
        axes = figure.add_subplot(1, len(metrics), index)
        groups = [group for group in chart.groups if group.metric == metric]
        places = np.arange(len(groups)) + 0.5 * (np.arange(len(groups)) // 2)  # pairs of groups
        for number, name in enumerate(chart.rows):
            heights = [100 * (group.scores[number] or 0.0) for group in groups]
            offset = (number - (len(chart.rows) - 1) / 2) * width
            color = style.ROWS[name] if name in style.ROWS else phase_color(3 * number)
            bars = axes.bar(places + offset, heights, width, color=color)
            if index == 1:
                entries.append((bars.patches[0], name))
        axes.set(ylabel=f"{metric} (%)", ylim=(0, 100))
        axes.set_xticks(
            places, [group.setting for group in groups], rotation=25, ha="right", fontsize=6
        )
        for pair, group in zip(places[::2] + 0.5, groups[::2], strict=True):
            axes.text(pair, 101, group.protocol, ha="center", va="bottom", fontsize=6, color=FAINT)
        style.tidy(axes)
    legend(figure, entries, inches=3.0, loc="outside lower center", ncols=columns)
    return figure


def draw_curves(curves: parts.Curves) -> Figure:
    """Draw losses and validation scores side by side."""
    both = (("loss", curves.losses), ("validation", curves.validation))
    panels = {name: part for name, part in both if part}
    height = 1.9 + LEGEND_ROW_INCHES * math.ceil(max(len(part) + 1 for part in panels.values()) / 2)
    figure = Figure(
        figsize=(PAGE_INCHES if len(panels) == 2 else COLUMN_INCHES, height), layout="constrained"
    )
    for index, (name, part) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), index)
        entries: Entries = []
        for number, curve in enumerate(part):
            marker = "o" if name == "validation" or len(curve.values) == 1 else ""
            (line,) = axes.plot(
                curve.epochs, curve.values, color=phase_color(number), marker=marker, markersize=2.5
            )
            entries.append((line, curve.name))
        if name == "validation" and curves.kept_epoch is not None:
            line = axes.axvline(
                curves.kept_epoch, color=FAINT, linestyle="--", linewidth=0.8, zorder=1
            )
            entries.append((line, f"saved model: epoch {curves.kept_epoch}"))
        axes.set(xlabel="epoch", ylabel=name)
        style.tidy(axes, integer_x=True)
        legend(axes, entries, inches=1.4, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    return figure


def draw_diagnostics(curves: Sequence[parts.Curve]) -> Figure:
    """Draw the losses of a model on fixed clips: solid lines; with changed contexts: dashed;
    trivial: dotted.
    """
    figure = Figure(
        figsize=(PAGE_INCHES, 2.0 + LEGEND_ROW_INCHES * math.ceil(len(curves) / 2)),
        layout="constrained",
    )
    axes = figure.add_subplot()
    entries: Entries = []
    for number, curve in enumerate(curves):
        if curve.name.startswith("mean frame"):
            (line,) = axes.plot(curve.epochs, curve.values, ":", color=FAINT)
            axes.annotate(
                curve.name.removeprefix("mean frame of "),
                (curve.epochs[-1], curve.values[-1]),
                color=FAINT,
                ha="right",
                va="bottom",
                fontsize=6,
            )
        else:
            pattern = "--" if "," in curve.name else "-"
            (line,) = axes.plot(curve.epochs, curve.values, pattern, color=phase_color(number))
        entries.append((line, curve.name))
    axes.set(xlabel="epoch", ylabel="reconstruction loss")
    style.tidy(axes, integer_x=True)
    legend(figure, entries, inches=2.4, loc="outside lower center", ncols=2)
    return figure


def draw_projection(content: Content, projection: parts.Projection) -> Figure:
    """Draw one panel per map.

    Markers show the view; colors show the phase or, without labels, the time.
    """
    frames = [(content.videos[ref.video], ref.frame) for ref in projection.frames]
    views = np.array([video.view for video, _ in frames])
    phases = [video.phase(frame) for video, frame in frames]
    if content.phases:
        colors = [
            to_rgba(style.NO_PHASE if phase is None else phase_color(phase)) for phase in phases
        ]
        keys = [
            (phase_color(phase), name)
            for phase, name in enumerate(content.phases)
            if phase in phases
        ]
        keys += [(style.NO_PHASE, "no label")] if None in phases else []
    else:
        colors = [style.time_colors()(frame / max(video.frames - 1, 1)) for video, frame in frames]
        keys = [
            (to_hex(style.time_colors()(0.0)), "start of the video"),
            (to_hex(style.time_colors()(1.0)), "end"),
        ]
    entries: Entries = [
        (Line2D([], [], color=INK, marker=marker, markersize=4, linestyle=""), view)
        for view, marker in VIEW_MARKERS.items()
        if view in views
    ]
    entries += [(Patch(color=color), name) for color, name in keys]
    columns = style.legend_columns([name for _, name in entries])
    across = min(len(projection.maps), 3)
    down = math.ceil(len(projection.maps) / across)
    height = down * PAGE_INCHES / across + LEGEND_ROW_INCHES * math.ceil(len(entries) / columns)
    figure = Figure(figsize=(PAGE_INCHES, height), layout="constrained")
    for index, (title, points) in enumerate(projection.maps, start=1):
        axes = figure.add_subplot(down, across, index, xticks=[], yticks=[])
        for view, marker in VIEW_MARKERS.items():
            own = views == view
            axes.scatter(
                points[own, 0],
                points[own, 1],
                c=np.array(colors)[own],
                s=9,
                marker=marker,
                linewidths=0.25,
                edgecolors="white",
                alpha=0.85,
            )
        axes.set_title(fit_text(title, 0.9 * PAGE_INCHES / across, style.TEXT_POINTS))
    legend(figure, entries, inches=3.0, loc="outside lower center", ncols=columns)
    return figure


def draw_alignment(content: Content, run: parts.RunVectors, rows: int, columns: int) -> Figure:
    """Draw the distances between the sampled frames of two videos, the warp path and the nearest
    frame of each row.
    """
    down = content.videos[rows]
    across = content.videos[columns]
    row_frames = np.array(down.samples)
    column_frames = np.array(across.samples)
    a = run.embeddings[rows]
    b = run.embeddings[columns]
    figure = Figure(figsize=(COLUMN_INCHES, 3.1), layout="constrained")
    axes = figure.add_subplot()
    # Use gray to keep the colored lines visible, and rasterize: so many cells would be slow as
    # vector graphics.
    mesh = axes.pcolormesh(
        column_frames, row_frames, cdist(a, b), cmap="Greys_r", shading="nearest", rasterized=True
    )
    axes.invert_yaxis()
    for draw, video in ((axes.axhline, down), (axes.axvline, across)):
        for (_, end, _), (start, _, _) in pairwise(video.phase_runs()):
            if end == start:
                draw(start - 0.5, color=style.PHASES[4], linestyle="--", linewidth=0.6)
    matched = column_frames[align.nearest(a, b)]
    (nearest,) = axes.plot(
        matched, row_frames, ".", color=style.PHASES[1], markersize=2.2, clip_on=False
    )
    path_rows, path_columns = align.dtw_path(a, b).T
    (path,) = axes.plot(column_frames[path_columns], row_frames[path_rows], color=style.WRONG)
    entries: Entries = [(path, "warp path"), (nearest, "nearest frame")]
    if content.phases:
        entries.append(
            (Line2D([], [], color=style.PHASES[4], linestyle="--", linewidth=0.8), "phase boundary")
        )
    axes.set(
        xlabel=f"{fit_text(across.name, 1.8, style.TEXT_POINTS)}, frame",
        ylabel=f"{fit_text(down.name, 1.6, style.TEXT_POINTS)}, frame",
    )
    figure.colorbar(mesh, ax=axes, label="distance", aspect=30, pad=0.02)
    if not np.isnan(run.taus[rows, columns]):
        axes.set_title(f"Kendall's τ = {run.taus[rows, columns]:.2f}")
    legend(
        figure, entries, inches=0.9, loc="outside lower center", ncols=len(entries), columnspacing=1
    )
    return figure


def draw_softmax(video: str, reference: int, similarity: NDArray[np.float64]) -> Figure:
    """Draw the similarity of a reference frame to all frames of its video."""
    figure = Figure(figsize=(PAGE_INCHES, 1.9), layout="constrained")
    axes = figure.add_subplot()
    count = len(similarity)
    axes.plot(range(count), similarity, color=phase_color(0))
    uniform = axes.axhline(1 / count, color=FAINT, linestyle="--", linewidth=0.8)
    (marker,) = axes.plot(
        [reference], [similarity[reference]], "o", color=style.WRONG, markersize=4
    )
    axes.set(
        xlim=(-0.5, count - 0.5),
        # Starts at 0, so that small differences look small.
        ylim=(0, 1.1 * max(float(similarity.max()), 1 / count)),
        xlabel=f"frame of {fit_text(video, COLUMN_INCHES, style.TEXT_POINTS)}",
        ylabel="softmax similarity\nto the reference",
    )
    style.tidy(axes, integer_x=True)
    entries: Entries = [(marker, "reference frame"), (uniform, f"uniform (1/{count})")]
    legend(axes, entries, inches=1.1, loc="upper center", bbox_to_anchor=(0.5, -0.32), ncols=2)
    return figure


def draw_progress(videos: Sequence[parts.ProgressLabels]) -> Figure:
    """Draw the labels of each video against time, below a strip of its frames."""
    figure = Figure(figsize=(PAGE_INCHES, 2.7 * len(videos)), layout="constrained")
    for row, (part, video) in enumerate(
        zip(figure.subfigures(len(videos), 1, squeeze=False)[:, 0], videos, strict=True)
    ):
        grid = part.add_gridspec(2, len(video.frames), height_ratios=[1, 2.2])
        for column, frame in enumerate(video.frames):
            axes = part.add_subplot(grid[0, column], xticks=[], yticks=[], title=f"{frame}")
            if video.pictures is not None:
                axes.imshow(video.pictures[column])
        axes = part.add_subplot(grid[1, :], xlim=(0, len(video.labels) - 1), ylim=(0, 1))
        (labels,) = axes.plot(video.labels, color=phase_color(0), linewidth=1.6)
        (linear,) = axes.plot(
            [0, len(video.labels) - 1], [0, 1], color=FAINT, linestyle="--", linewidth=0.8
        )
        axes.vlines(
            video.frames,
            0,
            video.labels[list(video.frames)],
            color=style.RULE,
            linewidth=0.8,
            zorder=1,
        )
        axes.set(
            xlabel=f"frame of {fit_text(video.name, COLUMN_INCHES, style.TEXT_POINTS)}",
            ylabel="progress label",
        )
        style.tidy(axes)
        entries: Entries = [(labels, "aligned with the other videos"), (linear, "linear in time")]
        legend(axes, entries if not row else entries[:0], inches=2.5, loc="upper left")
    return figure


# Grids of video frames


class GridCell(NamedTuple):
    """Picture in a grid, with caption lines below it and the color of its border."""

    picture: NDArray[np.uint8] | None  # (height, width, 3)
    caption: tuple[str, ...] = ()
    border: str | None = None


def _draw_grid(
    rows: Sequence[Sequence[GridCell]], heading: str, labels: Sequence[str] = ()
) -> Figure:
    """Draw rows of pictures of equal width, scaled to fit a page."""
    columns = max(len(row) for row in rows)
    shapes = [
        [(1, 1) if cell.picture is None else cell.picture.shape[:2] for cell in row] for row in rows
    ]
    heights = [max(height / width for height, width in row) for row in shapes]
    text_inches = CAPTION_LINE_INCHES * (
        1 + sum(1 + max(len(cell.caption) for cell in row) for row in rows)
    )
    label_inches = LABEL_INCHES if labels else 0
    fitting = (style.PAGE_HEIGHT_INCHES - text_inches) / sum(heights)
    width = min((PAGE_INCHES - label_inches) / columns, MAX_CELL_INCHES, fitting)
    figure = Figure(
        figsize=(
            max(label_inches + columns * width, COLUMN_INCHES),
            sum(heights) * width + text_inches,
        ),
        layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03, wspace=0, hspace=0),
    )
    figure.suptitle(heading, fontsize=style.SMALL_POINTS)
    grid = figure.add_gridspec(len(rows), columns, height_ratios=heights)
    for row, cells in enumerate(rows):
        for column, cell in enumerate(cells):
            axes = figure.add_subplot(grid[row, column], xticks=[], yticks=[], anchor="S")
            if cell.picture is not None:
                axes.imshow(cell.picture)
            else:
                axes.set(facecolor="#eeeeee", aspect="equal")
                axes.text(0.5, 0.5, "no picture", ha="center", va="center", color=FAINT)
            for spine in axes.spines.values():
                spine.set(visible=cell.border is not None, color=cell.border, linewidth=2.0)
            caption = "\n".join(fit_text(line, width) for line in cell.caption)
            axes.set_xlabel(caption, fontsize=style.SMALL_POINTS, labelpad=2)
            if labels and column == 0:
                axes.set_ylabel(
                    labels[row], fontsize=style.SMALL_POINTS, rotation=0, ha="right", va="center"
                )
    return figure


def _grid_cell(
    content: Content, ref: FrameRef, caption: tuple[str, ...], border: str | None
) -> GridCell:
    video = content.videos[ref.video]
    if ref.frame not in video.pictures:
        return GridCell(None, caption, border)
    jpeg = io.BytesIO(video.pictures[ref.frame])
    return GridCell(np.asarray(Image.open(jpeg, formats=["JPEG"]).convert("RGB")), caption, border)


def draw_retrieval(content: Content, strips: Sequence[parts.Strip]) -> Figure:
    """Draw one row per query, with its nearest frames in the other view."""
    rows = []
    for query, *retrieved in strips:
        row = []
        for ref in (query, *retrieved):
            video = content.videos[ref.video]
            same = None if ref is query else content.same_phase(query, ref)
            time = video.time(ref.frame) + {None: "", True: " ✓", False: " ✗"}[same]
            border = style.QUERY if ref is query else BORDERS[same]
            row.append(_grid_cell(content, ref, (video.name, time), border))
        rows.append(row)
    return _draw_grid(
        rows, "query and its nearest frames" + (" (✓ same phase)" if content.phases else "")
    )


def draw_tokens(video: parts.ShownVideo, selection: parts.TokenSelection) -> Figure:
    """Draw one row per ratio and one column per frame."""
    captions = [(video.time(frame),) for frame in selection.frames]
    rows = [[GridCell(picture) for picture in pictures] for pictures in selection.pictures[:-1]]
    rows.append([GridCell(*cell) for cell in zip(selection.pictures[-1], captions, strict=True)])
    return _draw_grid(
        rows, "tokens kept at each ratio", [f"{ratio:g}" for ratio in selection.ratios]
    )


def draw_failures(content: Content, failures: parts.Failures) -> Figure:
    """Draw frames of the worst videos, each above its nearest frame."""
    rows = []
    labels = []
    for worst in failures.worst:
        queries = []
        matches = []
        video = content.videos[worst.video]
        partner = content.videos[worst.partner]
        for query, match in worst.pairs:
            border = style.QUERY if query == failures.reference else None
            queries.append(_grid_cell(content, query, (video.time(query.frame),), border))
            border = BORDERS[content.same_phase(query, match)]
            matches.append(_grid_cell(content, match, (partner.time(match.frame),), border))
        rows += [queries, matches]
        labels.append(f"{fit_text(video.name, LABEL_INCHES)}\nτ = {worst.tau:.2f}")
        labels.append(
            f"nearest in\n{fit_text(partner.name, LABEL_INCHES)}\nτ = {worst.partner_tau:.2f}"
        )
    return _draw_grid(rows, "videos with the lowest Kendall's τ", labels)
