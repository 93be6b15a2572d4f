"""Figures of a report, as SVG for the page and as PNG and PDF for a paper; score curves of a sweep."""

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator
from numpy.typing import NDArray
from PIL import Image

from byov.cache.atomic import make_folder, replacing_file
from byov.errors import ApplyError
from byov.progress import NO_PROGRESS, Progress, track
from byov.report import style
from byov.report.content import (
    Content,
    Curve,
    Curves,
    Failures,
    FrameRef,
    Projection,
    ScorePanel,
    Sheet,
    ShownVideo,
    Similarity,
    Strip,
    TokenSelection,
    Unavailable,
)
from byov.report.style import COLUMN_INCHES, FAINT, INK, LEGEND_ROW_INCHES, PAGE_INCHES, fit_text, legend, phase_color

Entries = list[tuple[Artist, str]]  # of a legend
Picture = NDArray[np.uint8]  # (height, width, 3)

NAMES = (
    *("curves", "tsne", "retrieval_ego2exo", "retrieval_exo2ego", "tokens_ego", "tokens_exo"),
    *("similarity", "failures"),
)
VIEW_MARKERS = {"ego": "o", "exo": "s"}  # as in the paper
TIME_COLORS = "viridis"

MARGIN_INCHES, GAP_INCHES = 0.03, 0.06
CAPTION_LINE_INCHES = 0.13
HEADING_INCHES = 0.17
MAX_CELL_INCHES = 1.25
RATIO_INCHES = 0.35  # row labels of the token selection
WORST_INCHES = 1.05  # row labels of the failures
SOFTMAX_INCHES = 1.9  # the plot below the failures, with its labels

CSS_PX_PER_INCH = 125  # scales 8 pt to 14 px, the page's font size
# --ink, --muted and --hair of the dark style in page.css
DARK_COLORS = {INK: "#e3e6e9", FAINT: "#a1a9b2", style.RULE: "#343a41"}


# Files


def figure_files(folder: Path) -> list[Path]:
    """Return the paths of all figures that `write_figures` may write."""
    return [folder / f"{name}{suffix}" for name in NAMES for suffix in (".png", ".pdf")]


def write_figures(content: Content, folder: Path, progress: Progress = NO_PROGRESS) -> list[Path]:
    """Write <name>.png and <name>.pdf for each part that can be shown, in the sizes of the CVPR template.

    Output is deterministic. Other figures of an earlier report are removed.

    Returns:
        The written files.

    Raises:
        ApplyError: If `folder` is not a folder.
    """
    try:
        make_folder(folder)
    except (FileExistsError, NotADirectoryError) as error:
        raise ApplyError(f"{folder} is not a folder. Choose a folder for the figures.") from error
    written = []
    with style.paper_style():
        for name, figure in track(_figures(content), progress, "figures", unit="figure", total=len(NAMES), brief=True):
            written += _save(figure, folder, name)
    for path in figure_files(folder):
        if path not in written:
            path.unlink(missing_ok=True)
    return written


def write_score_curves(panels: Sequence[ScorePanel], setting: str, folder: Path, name: str) -> list[Path]:
    """Write <name>.png and <name>.pdf with scores as a function of a setting."""
    with style.paper_style():
        return _save(draw_score_curves(panels, setting), folder, name)


def svg_charts(figure: Figure) -> tuple[str, str]:
    """Return a figure as SVG for light and dark pages. Text is drawn as outlines, so no font is needed."""
    written = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "byov", "svg.fonttype": "path"}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    light = dark = written.getvalue()
    for ink, replacement in DARK_COLORS.items():
        dark = dark.replace(ink, replacement)
    return light, dark


def _save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a PNG and a PDF without timestamps."""
    png, pdf = folder / f"{name}.png", folder / f"{name}.pdf"
    options = {"compress_level": 4}  # half the time of level 6, and hardly larger
    with replacing_file(png) as file:
        figure.savefig(file, format="png", dpi=style.DOTS_PER_INCH, metadata={"Software": None}, pil_kwargs=options)
    for image in figure.findobj(AxesImage):
        image.set_interpolation("none")  # embed the original pixels
    metadata = {"Creator": None, "Producer": None, "CreationDate": None}
    with replacing_file(pdf) as file:
        figure.savefig(file, format="pdf", dpi=style.DOTS_PER_INCH, metadata=metadata)
    return [png, pdf]


def _figures(content: Content) -> Iterator[tuple[str, Figure]]:
    """Yield the figures one at a time to save memory."""
    thumbnails = Thumbnails(content)
    figure: Figure | None
    if not isinstance(content.curves, Unavailable) and (figure := draw_curves(content.curves)):
        yield "curves", figure
    if not isinstance(content.projection, Unavailable):
        yield "tsne", draw_projection(content, content.projection)
    if not isinstance(content.strips, Unavailable):
        for query, candidate in (("ego", "exo"), ("exo", "ego")):
            strips = [strip for strip in content.strips if content.videos[strip.query.video].view == query]
            if figure := draw_retrieval(content, thumbnails, strips):
                yield f"retrieval_{query}2{candidate}", figure
    if not isinstance(content.tokens, Unavailable):
        for selection in content.tokens:
            video = content.videos[selection.video]
            yield f"tokens_{video.view}", draw_tokens(video, selection)
    if not isinstance(content.similarity, Unavailable):
        yield "similarity", draw_similarity(content, content.similarity)
    if not isinstance(content.failures, Unavailable):
        yield "failures", draw_failures(content, thumbnails, content.failures)


# Plots


def draw_curves(curves: Curves) -> Figure | None:
    """Draw losses and validation scores side by side; return None if no value is finite."""
    panels = {"loss": curves.losses, "validation": curves.validation}
    panels = {name: part for name, part in panels.items() if _has_finite_value(part)}
    if not panels:
        return None
    height = 1.9 + LEGEND_ROW_INCHES * math.ceil(max(len(part) + 1 for part in panels.values()) / 2)
    figure = Figure(figsize=(PAGE_INCHES if len(panels) == 2 else COLUMN_INCHES, height), layout="constrained")
    for index, (name, part) in enumerate(panels.items(), start=1):
        axes = figure.add_subplot(1, len(panels), index)
        entries = _plot_curves(axes, part, marker="o" if name == "validation" else "")
        if name == "loss" and curves.log_scale:
            _use_log_scale(axes)
        if name == "validation" and curves.kept_epoch is not None:
            line = axes.axvline(curves.kept_epoch, color=FAINT, linestyle="--", linewidth=0.8, zorder=1)
            entries.append((line, f"saved model: epoch {curves.kept_epoch}"))
        axes.set(xlabel="epoch", ylabel=name)
        axes.xaxis.set_major_locator(style.integer_ticks())
        style.tidy(axes)
        legend(axes, entries, inches=1.4, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)
    return figure


def _has_finite_value(curves: Sequence[Curve]) -> bool:
    return any(math.isfinite(value) for curve in curves for value in curve.values)


def _plot_curves(axes: Axes, curves: Sequence[Curve], marker: str) -> Entries:
    entries: Entries = []
    for index, curve in enumerate(curves):
        values = np.asarray(curve.values, np.float64)
        (line,) = axes.plot(
            curve.epochs,
            np.where(np.isfinite(values), values, np.nan),
            color=phase_color(index),
            linestyle=("-", "--", ":", "-.")[index // len(style.PHASES) % 4],
            marker=marker or ("o" if len(values) == 1 else ""),
            markersize=2.5,
        )
        entries.append((line, curve.name))
    return entries


def _use_log_scale(axes: Axes) -> None:
    low, high = axes.dataLim.intervaly
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 3) if high < 1e5 * low else (1,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(FuncFormatter(lambda *_: ""))


def draw_projection(content: Content, projection: Projection) -> Figure:
    """Draw one panel per map. Markers show the view, colors the phase, or the time without labels."""
    videos = [content.videos[ref.video] for ref in projection.frames]
    views = np.array([video.view for video in videos])
    entries: Entries = [
        (Line2D([], [], color=INK, marker=marker, markersize=4, linestyle=""), view)
        for view, marker in VIEW_MARKERS.items()
        if view in views
    ]
    frames = [ref.frame for ref in projection.frames]
    colors: NDArray[np.object_] | NDArray[np.float64]
    if content.phases:
        phases = [video.phase(frame) for video, frame in zip(videos, frames, strict=True)]
        colors = np.array([style.NO_PHASE if phase is None else phase_color(phase) for phase in phases], object)
        present = sorted({phase for phase in phases if phase is not None})
        entries += [(Patch(color=phase_color(phase)), content.phase_name(phase)) for phase in present]
        entries += [(Patch(color=style.NO_PHASE), "no label")] if None in phases else []
    else:
        colors = np.array([frame / max(video.frames - 1, 1) for video, frame in zip(videos, frames, strict=True)])
    columns = style.legend_columns([name for _, name in entries])
    across = min(len(projection.maps), 3)
    down = math.ceil(len(projection.maps) / across)
    height = down * PAGE_INCHES / across + LEGEND_ROW_INCHES * math.ceil(len(entries) / columns)
    figure = Figure(figsize=(PAGE_INCHES, height), layout="constrained")
    for index, one in enumerate(projection.maps, start=1):
        axes = figure.add_subplot(down, across, index)
        _scatter(axes, one.points, views, colors)
        axes.set_title(fit_text(one.title, 0.9 * PAGE_INCHES / across, style.TEXT_POINTS))
    if not content.phases:
        bar = figure.colorbar(ScalarMappable(cmap=TIME_COLORS), ax=figure.axes, aspect=30, pad=0.02)
        bar.set_ticks([0, 1], labels=["start", "end"])
        bar.set_label("time in the video", labelpad=-12)
    legend(figure, entries, inches=3.0, loc="outside lower center", ncols=columns)
    return figure


def _scatter(
    axes: Axes,
    points: NDArray[np.float64],
    views: NDArray[np.str_],
    colors: NDArray[np.object_] | NDArray[np.float64],
) -> None:
    """Plot (n, 2) points; colors are hex strings, or numbers from 0 to 1."""
    scale = {"cmap": TIME_COLORS, "vmin": 0, "vmax": 1} if colors.dtype == np.float64 else {}
    for view, marker in VIEW_MARKERS.items():
        of_view = views == view
        axes.scatter(
            points[of_view, 0],
            points[of_view, 1],
            s=9,
            c=colors[of_view].tolist(),
            marker=marker,
            linewidths=0.25,
            edgecolors="white",
            alpha=0.85,
            **scale,  # type: ignore[arg-type]
        )
    axes.set(xticks=[], yticks=[])


def draw_similarity(content: Content, similarity: Similarity) -> Figure:
    """Draw the distances of all pairs of frames, the warp path and the nearest frame of each row."""
    rows, columns = content.videos[similarity.rows], content.videos[similarity.columns]
    figure = Figure(figsize=(COLUMN_INCHES, 3.1), layout="constrained")
    axes = figure.add_subplot()
    distances = np.ma.masked_invalid(similarity.distances)
    extent = (*_extent(similarity.column_frames), *_extent(similarity.row_frames)[::-1])
    image = axes.imshow(distances, cmap="Greys_r", aspect="auto", extent=extent)  # gray below colored lines
    for draw, video in ((axes.axhline, rows), (axes.axvline, columns)):
        for boundary in _phase_boundaries(video):
            draw(boundary, color=style.PHASES[4], linestyle="--", linewidth=0.6)
    down, across = np.array(similarity.row_frames), np.array(similarity.column_frames)
    (nearest,) = axes.plot(across[similarity.nearest], down, ".", color=style.PHASES[1], markersize=2.2, clip_on=False)
    path_rows, path_columns = similarity.path.T
    marker = "o" if len(similarity.path) == 1 else ""
    (path,) = axes.plot(across[path_columns], down[path_rows], color=style.WRONG, marker=marker)
    entries: Entries = [(path, "warp path"), (nearest, "nearest frame")]
    if rows.labels is not None or columns.labels is not None:
        entries.append((Line2D([], [], color=style.PHASES[4], linestyle="--", linewidth=0.8), "phase boundary"))
    axes.set_xlabel(f"{fit_text(columns.name, 1.8, style.TEXT_POINTS)}, frame")
    axes.set_ylabel(f"{fit_text(rows.name, 1.6, style.TEXT_POINTS)}, frame")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(style.integer_ticks())
    figure.colorbar(image, ax=axes, label="distance", aspect=30, pad=0.02).ax.locator_params(nbins=5)
    if similarity.tau is not None:
        axes.set_title(f"Kendall's τ = {style.two_decimals(similarity.tau)}")
    legend(figure, entries, inches=0.9, loc="outside lower center", ncols=len(entries), columnspacing=1)
    return figure


def _phase_boundaries(video: ShownVideo) -> list[float]:
    """Return the positions between consecutive labeled frames of different phases."""
    pairs = pairwise(video.phase(frame) for frame in range(video.frames))
    return [frame + 0.5 for frame, pair in enumerate(pairs) if None not in pair and pair[0] != pair[1]]


def _extent(frames: Sequence[int]) -> tuple[float, float]:
    """Return the outer edges of the first and last pixel on an axis of frame numbers."""
    step = (frames[-1] - frames[0]) / max(len(frames) - 1, 1) or 1.0
    return frames[0] - step / 2, frames[-1] + step / 2


def draw_softmax(content: Content, failures: Failures) -> Figure:
    """Draw the similarity of the reference frame to all frames of its video."""
    width, height = PAGE_INCHES, SOFTMAX_INCHES
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.8 / width, 0.63 / height, 1 - 0.85 / width, 1 - 0.75 / height))
    _plot_softmax(axes, content, failures, width)
    return figure


def _plot_softmax(axes: Axes, content: Content, failures: Failures, width: float) -> None:
    count, frame = len(failures.similarity), failures.reference.frame
    values = np.nan_to_num(failures.similarity)
    axes.plot(range(count), values, color=phase_color(0))
    uniform = axes.axhline(1 / count, color=FAINT, linestyle="--", linewidth=0.8)
    (reference,) = axes.plot([frame], [values[frame]], "o", color=style.WRONG, markersize=4)
    axes.set_xlim(-0.5, count - 0.5)
    axes.set_ylim(0, 1.1 * max(float(values.max()), 1 / count))  # from 0, so that small differences look small
    axes.set_ylabel("softmax similarity\nto the reference")
    name = content.videos[failures.reference.video].name
    axes.set_xlabel(f"frame of {fit_text(name, width / 2, style.TEXT_POINTS)}")
    axes.xaxis.set_major_locator(style.integer_ticks())
    axes.spines[["top", "right"]].set_visible(False)
    entries: Entries = [(reference, "reference frame"), (uniform, f"uniform (1/{count})")]
    legend(axes, entries, inches=1.1, loc="upper center", bbox_to_anchor=(0.5, -0.32), ncols=2)


def draw_score_curves(panels: Sequence[ScorePanel], setting: str) -> Figure:
    """Draw scores with their deviations, and published scores as dotted lines."""
    names = dict.fromkeys(
        f"{curve.name} (published)" if curve.published else curve.name for panel in panels for curve in panel.curves
    )
    columns = style.legend_columns(list(names))
    height = 2.1 + LEGEND_ROW_INCHES * math.ceil(len(names) / columns)
    figure = Figure(figsize=(PAGE_INCHES, height), layout="constrained")
    entries: dict[str, Artist] = {}
    for index, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), index)
        order = list(dict.fromkeys(curve.name for curve in panel.curves))
        for curve in panel.curves:
            color = phase_color(order.index(curve.name))
            drawn = axes.errorbar(
                curve.settings,
                curve.scores,
                yerr=curve.deviations if any(curve.deviations) else None,
                color=color,
                linestyle=":" if curve.published else "-",
                marker="o",
                markerfacecolor="white" if curve.published else color,
                markersize=3,
                capsize=2,
                elinewidth=0.6,
            )
            entries.setdefault(f"{curve.name} (published)" if curve.published else curve.name, drawn.lines[0])
        axes.set(xlabel=setting, ylabel=panel.heading)
        style.tidy(axes)
    shown = [(artist, name) for name, artist in entries.items()]
    legend(figure, shown, inches=2.0, loc="outside lower center", ncols=columns)
    return figure


# Grids of video frames


@dataclass(frozen=True)
class GridCell:
    """A picture in a grid, with caption lines below it."""

    picture: Picture | None
    caption: tuple[str, ...] = ()
    border: str | None = None  # color

    @property
    def height(self) -> float:
        """Height relative to the width; 1 without a picture."""
        return 1 if self.picture is None else self.picture.shape[0] / self.picture.shape[1]


class Thumbnails:
    """Tiles of the videos' sheets. Each row of tiles is decoded once."""

    def __init__(self, content: Content) -> None:
        self._videos = content.videos
        self._decoded: dict[tuple[int, int], Picture] = {}  # by video and row

    def picture(self, ref: FrameRef) -> Picture | None:
        """Return the tile of a frame, or None if there is none."""
        sheet = self._videos[ref.video].sheet
        position = sheet.position(ref.frame) if isinstance(sheet, Sheet) else None
        if position is None or isinstance(sheet, Unavailable):
            return None
        row, column = position
        if (ref.video, row) not in self._decoded:
            with Image.open(io.BytesIO(sheet.rows[row]), formats=["JPEG"]) as image:
                self._decoded[ref.video, row] = np.asarray(image.convert("RGB"))
        left = column * sheet.tile_width
        return self._decoded[ref.video, row][:, left : left + sheet.tile_width]


class Grid:
    """A figure of pictures of equal width, scaled to fit a page. Lengths are in inches, from the top left.

    Args:
        rows: The cells.
        left, above, below: Space for row labels, a heading and a plot.
    """

    def __init__(
        self, rows: Sequence[Sequence[GridCell]], *, left: float = 0, above: float = 0, below: float = 0
    ) -> None:
        self._left = left + MARGIN_INCHES
        columns = max(len(row) for row in rows)
        relative_heights = [max((cell.height for cell in row), default=0) for row in rows]
        captions = [
            CAPTION_LINE_INCHES * max((len(cell.caption) for cell in row), default=0) + GAP_INCHES for row in rows
        ]
        width = PAGE_INCHES - self._left - MARGIN_INCHES + GAP_INCHES
        height = style.PAGE_HEIGHT_INCHES - above - MARGIN_INCHES - below - sum(captions)
        self._cell_width = min(width / columns - GAP_INCHES, MAX_CELL_INCHES, height / sum(relative_heights))
        self._heights = [self._cell_width * relative for relative in relative_heights]
        ends = above + MARGIN_INCHES + np.cumsum([sum(row) for row in zip(self._heights, captions, strict=True)])
        self._baselines = [float(end - caption) for end, caption in zip(ends, captions, strict=True)]
        self.bottom = float(ends[-1])
        self.width = max(self.column_left(columns) - GAP_INCHES + MARGIN_INCHES, COLUMN_INCHES)
        self._height = self.bottom + below
        self.figure = Figure(figsize=(self.width, self._height))
        for row, cells in enumerate(rows):
            for column, cell in enumerate(cells):
                self._draw(row, column, cell)

    def column_left(self, column: int) -> float:
        return self._left + column * (self._cell_width + GAP_INCHES)

    def row_middle(self, row: int) -> float:
        """Return the vertical center of a row's pictures, without captions."""
        return self._baselines[row] - self._heights[row] / 2

    def text(self, left: float, top: float, text: str, **options: object) -> None:
        position = (left / self.width, 1 - top / self._height)
        self.figure.text(*position, text, fontsize=style.SMALL_POINTS, **options)  # type: ignore[arg-type]

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        bottom = 1 - (top + height) / self._height
        return self.figure.add_axes((left / self.width, bottom, width / self.width, height / self._height))

    def _draw(self, row: int, column: int, cell: GridCell) -> None:
        left, height = self.column_left(column), self._cell_width * cell.height
        axes = self.axes(left, self._baselines[row] - height, self._cell_width, height)
        axes.set(xticks=[], yticks=[])
        if cell.picture is not None:
            axes.imshow(cell.picture, aspect="auto")
        else:
            axes.set_facecolor("#eeeeee")
            axes.text(0.5, 0.5, "no picture", transform=axes.transAxes, ha="center", va="center", color=FAINT)
        for spine in axes.spines.values():
            spine.set(visible=cell.border is not None, color=cell.border, linewidth=2.0)
        for line, text in enumerate(cell.caption):
            top = self._baselines[row] + 0.035 + line * CAPTION_LINE_INCHES
            self.text(left + self._cell_width / 2, top, fit_text(text, self._cell_width), ha="center", va="top")


def draw_retrieval(content: Content, thumbnails: Thumbnails, strips: Sequence[Strip]) -> Figure | None:
    """Draw a row per query with its nearest frames of the other view; return None if no frame has a picture."""
    rows = []
    for strip in strips:
        rows.append([_cell(content, thumbnails, strip.query, style.QUERY, named=True)])
        for ref in strip.retrieved:
            same = content.same_phase(strip.query, ref)
            mark = "" if same is None else " ✓" if same else " ✗"
            rows[-1].append(_cell(content, thumbnails, ref, _border(same), named=True, mark=mark))
    if all(cell.picture is None for row in rows for cell in row):
        return None
    grid = Grid(rows, above=HEADING_INCHES)
    grid.text(grid.column_left(0), MARGIN_INCHES, "query", color=style.QUERY, va="top")
    heading = "retrieved, nearest first" + (" (✓ same phase as the query)" if content.phases else "")
    left = grid.column_left(1)
    grid.text(left, MARGIN_INCHES, fit_text(heading, grid.width - left), va="top")
    return grid.figure


def _cell(
    content: Content,
    thumbnails: Thumbnails,
    ref: FrameRef,
    border: str | None,
    *,
    named: bool = False,
    mark: str = "",
) -> GridCell:
    """Return a frame with its time as caption, preceded by the video's name if `named`."""
    video = content.videos[ref.video]
    time = f"{video.time(ref.frame)}{mark}"
    return GridCell(thumbnails.picture(ref), (video.name, time) if named else (time,), border)


def _border(same_phase: bool | None) -> str:
    return style.PLAIN if same_phase is None else style.RIGHT if same_phase else style.WRONG


def draw_tokens(video: ShownVideo, selection: TokenSelection) -> Figure:
    """Draw a row per ratio and a column per frame."""
    rows = [[GridCell(picture) for picture in pictures] for pictures in selection.pictures]
    times = [(video.time(frame),) for frame in selection.frames]
    rows[-1] = [GridCell(picture, time) for picture, time in zip(selection.pictures[-1], times, strict=True)]
    grid = Grid(rows, left=RATIO_INCHES, above=HEADING_INCHES)
    grid.text(MARGIN_INCHES, MARGIN_INCHES, "fraction of tokens kept", color=FAINT, va="top")
    for row, ratio in enumerate(selection.ratios):
        grid.text(MARGIN_INCHES, grid.row_middle(row), f"{ratio:g}", va="center")
    return grid.figure


def draw_failures(content: Content, thumbnails: Thumbnails, failures: Failures) -> Figure:
    """Draw the worst videos above the frames they are matched to, and the softmax similarity below."""
    rows, labels = [], []
    for worst in failures.worst:
        queries = [FrameRef(worst.video, frame) for frame in worst.frames]
        matches = [FrameRef(worst.partner, frame) for frame in worst.matched]
        borders = [style.QUERY if ref == failures.reference else None for ref in queries]
        rows.append([_cell(content, thumbnails, ref, border) for ref, border in zip(queries, borders, strict=True)])
        rows.append(
            [
                _cell(content, thumbnails, ref, _border(content.same_phase(query, ref)))
                for query, ref in zip(queries, matches, strict=True)
            ]
        )
        labels += [("", worst.video, worst.tau), ("nearest in\n", worst.partner, worst.partner_tau)]
    grid = Grid(rows, left=WORST_INCHES, below=SOFTMAX_INCHES)
    for row, (prefix, video, tau) in enumerate(labels):
        name = fit_text(content.videos[video].name, WORST_INCHES - GAP_INCHES)
        text = f"{prefix}{name}\nτ = {style.two_decimals(tau)}"
        grid.text(MARGIN_INCHES, grid.row_middle(row), text, va="center")
    axes = grid.axes(0.8, grid.bottom + 0.12, grid.width - 0.85, SOFTMAX_INCHES - 0.75)
    _plot_softmax(axes, content, failures, grid.width)
    return grid.figure
