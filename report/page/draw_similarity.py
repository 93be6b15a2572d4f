"""The distances between all frames of an ego and an exo video, with the alignment drawn over them."""

import io
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from byov.report.content import Content, ShownVideo, Similarity
from byov.report.frame_text import known_seconds
from byov.report.page.html import Html, data_uri, element, joined
from byov.report.page.phases import legend, phase_class, phase_legend, phase_runs, swatch
from byov.report.page.svg import Scale, drawing, line, polyline, rectangle, text, tick_text

WIDTH_PX, HEIGHT_PX = 420, 396
LEFT_PX, TOP_PX, SIDE_PX = 58, 40, 350  # of the matrix
BAND_PX = 7  # of the phases along the axes
MOST_PIXELS = 512  # of the picture's side
DOT_PX = 1.7


def similarity_html(content: Content, similarity: Similarity) -> Html:
    rows = _sampled(content.videos[similarity.rows], similarity.row_frames)
    columns = _sampled(content.videos[similarity.columns], similarity.column_frames)
    down, across = _frame_scale(rows, TOP_PX), _frame_scale(columns, LEFT_PX)
    picture = element(
        "image",
        x=LEFT_PX,
        y=TOP_PX,
        width=SIDE_PX,
        height=SIDE_PX,
        href=data_uri("image/png", _png(similarity.distances)),
        preserveAspectRatio="none",
    )
    label = f"Distances between the frames of {rows.name} (down) and {columns.name} (across)"
    matrix = drawing(
        WIDTH_PX,
        HEIGHT_PX,
        picture,
        *_boundaries(rows, columns, down, across),
        *_times(rows, columns, down, across),
        _path(similarity, down, across),
        _nearest(similarity, down, across),
        label=label,
        class_="matrix",
    )
    return joined(
        element("figure", matrix, class_="single"),
        _legend(content, similarity),
        element("p", _caption(rows, columns, similarity), class_="caption"),
    )


def _sampled(video: ShownVideo, frames: Sequence[int]) -> ShownVideo:
    """The video as if it had only the frames that the matrix has rows or columns of."""
    labels = None if video.labels is None else tuple(video.labels[frame] for frame in frames)
    return replace(video, frames=len(frames), pts_seconds=video.pts_seconds[list(frames)], labels=labels)


def _frame_scale(video: ShownVideo, start: int) -> Scale:
    """Frame edges onto pixels; the middle of frame i is at i + 0.5."""
    return Scale(0, video.frames, start, start + SIDE_PX)


def _finite(distances: NDArray[np.float32]) -> NDArray[np.float64]:
    return np.where(np.isfinite(distances), distances, 0).astype(np.float64)


def _png(distances: NDArray[np.float32]) -> bytes:
    """Near is bright, far is dark."""
    import matplotlib
    from PIL import Image

    finite = _finite(distances)
    low, high = float(finite.min()), float(finite.max())
    nearness = (high - finite) / max(high - low, 1e-12)
    colours = matplotlib.colormaps["viridis"](nearness)[..., :3]
    image = Image.fromarray(np.round(255 * colours).astype(np.uint8))
    size = min(image.width, MOST_PIXELS), min(image.height, MOST_PIXELS)
    buffer = io.BytesIO()
    image.resize(size, Image.Resampling.BOX).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def _boundaries(rows: ShownVideo, columns: ShownVideo, down: Scale, across: Scale) -> list[Html]:
    """Bands of the phases along both axes, and lines where one begins."""
    parts = []
    for first, after, phase in phase_runs(rows):
        colour = f"band {phase_class(phase)}"
        parts.append(rectangle(LEFT_PX - BAND_PX - 2, down(first), BAND_PX, down(after) - down(first), class_=colour))
        if first:
            parts.append(line(LEFT_PX, down(first), LEFT_PX + SIDE_PX, down(first), class_="boundary"))
    for first, after, phase in phase_runs(columns):
        colour = f"band {phase_class(phase)}"
        parts.append(
            rectangle(across(first), TOP_PX - BAND_PX - 2, across(after) - across(first), BAND_PX, class_=colour)
        )
        if first:
            parts.append(line(across(first), TOP_PX, across(first), TOP_PX + SIDE_PX, class_="boundary"))
    return parts


def _times(rows: ShownVideo, columns: ShownVideo, down: Scale, across: Scale) -> list[Html]:
    """Seconds at round values, and the names of the videos."""
    parts = [
        text(LEFT_PX - BAND_PX - 7, y, tick_text(tick), class_="tick to-left") for tick, y in _second_ticks(rows, down)
    ]
    parts += [
        text(x, TOP_PX - BAND_PX - 10, tick_text(tick), class_="tick centred")
        for tick, x in _second_ticks(columns, across)
    ]
    parts.append(text(LEFT_PX + SIDE_PX / 2, 10, f"{columns.name} (seconds)", class_="label centred"))
    x, y = 10, TOP_PX + SIDE_PX / 2
    name = f"{rows.name} (seconds)"
    parts.append(element("text", name, x=x, y=y, class_="label centred", transform=f"rotate(-90 {x} {y})"))
    return parts


def _second_ticks(video: ShownVideo, scale: Scale) -> list[tuple[float, float]]:
    """(seconds, pixel): at the middle of the first frame that is not earlier."""
    if any(known_seconds(video, frame) is None for frame in range(video.frames)):
        return []
    ticks = Scale(float(video.pts_seconds[0]), float(video.pts_seconds[-1]), 0, 1).ticks()
    frames = np.searchsorted(video.pts_seconds, np.array(ticks) - 1e-9)
    return [(tick, scale(min(int(frame), video.frames - 1) + 0.5)) for tick, frame in zip(ticks, frames, strict=True)]


def _path(similarity: Similarity, down: Scale, across: Scale) -> Html:
    points = [(across(column + 0.5), down(row + 0.5)) for row, column in similarity.path.tolist()]
    return joined(polyline(points, class_="path casing"), polyline(points, class_="path"))


def _nearest(similarity: Similarity, down: Scale, across: Scale) -> Html:
    dots = [
        element("circle", cx=across(column + 0.5), cy=down(row + 0.5), r=DOT_PX)
        for row, column in enumerate(similarity.nearest.tolist())
    ]
    return element("g", *dots, class_="nearest")


def _legend(content: Content, similarity: Similarity) -> Html:
    finite = _finite(similarity.distances)
    low, high = float(finite.min()), float(finite.max())
    ramp = element("i", class_="viridis", aria_hidden="true")
    near = element("span", f"near ({low:.3g})", ramp, f"far ({high:.3g})", class_="key")
    keys = [swatch("line path", "warp path"), swatch("dot", "nearest frame"), near]
    if content.phases:
        keys += [swatch("line boundary", "a phase begins"), phase_legend(content)]
    return legend(*keys)


def _caption(rows: ShownVideo, columns: ShownVideo, similarity: Similarity) -> str:
    value = "not defined here" if similarity.tau is None else f"{similarity.tau:.4f} here"
    return (
        f"Each pixel is the distance between a frame of {rows.name} and one of {columns.name}. If both videos follow "
        "the same steps, a bright valley runs from the top left to the bottom right. The line is the cheapest way "
        "through without running backwards (dynamic time warping); the dots are the nearest frames, free to jump. "
        f"Kendall's tau of them is {value}; it is 1 if the dots always move forwards, 0 if their order is random."
    )
