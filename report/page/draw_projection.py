"""t-SNE before and after training, side by side; page.js shows the frame of a point."""

import numpy as np
from numpy.typing import NDArray

from byov.report.content import Content, Projection
from byov.report.page.html import Html, element, joined, number
from byov.report.page.phases import COLOURS, frame_class, legend, phase_legend, swatch
from byov.report.page.svg import drawing

SIZE_PX = 400
MARGIN_PX = 14
RADIUS_PX = 3.6


def projection_html(content: Content, projection: Projection) -> Html:
    before = _plot(content, projection, projection.before, "before")
    after = _plot(content, projection, projection.after, "after")
    return joined(
        legend(phase_legend(content), swatch("ring", "ego"), swatch("ring square", "exo")),
        element(
            "div",
            element("figure", element("h3", f"Before: {projection.before_name}"), before),
            element("figure", element("h3", "After: embeddings of this run"), after),
            class_="pair",
        ),
        element("p", *_caption(content), class_="caption"),
        _card(),
    )


def fitted(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 2) in pixels of the plot, both axes by the same scale, y upwards; what is not finite counts as 0."""
    finite = np.where(np.isfinite(points), points, 0.0)
    low, high = finite.min(axis=0), finite.max(axis=0)
    scale = (SIZE_PX - 2 * MARGIN_PX) / max(float((high - low).max()), 1e-12)
    placed: NDArray[np.float64] = SIZE_PX / 2 + (finite - (low + high) / 2) * scale * np.array([1.0, -1.0])
    return placed


def _plot(content: Content, projection: Projection, points: NDArray[np.float64], when: str) -> Html:
    marks = [
        _mark(content, reference.video, reference.frame, float(x), float(y))
        for reference, (x, y) in zip(projection.frames, fitted(points), strict=True)
    ]
    found = element("g", class_="found", aria_hidden="true")
    label = f"t-SNE of {len(marks)} frames {when} training"
    return drawing(SIZE_PX, SIZE_PX, element("g", *marks, class_="points"), found, label=label, class_=f"cloud {when}")


def _mark(content: Content, video: int, frame: int, x: float, y: float) -> Html:
    shown = content.videos[video]
    colour = frame_class(content.phases, shown, frame)
    if shown.view == "ego":
        return element("circle", cx=x, cy=y, r=RADIUS_PX, class_=colour)
    side = 2 * RADIUS_PX * 0.9  # of about the same area as the circle
    return Html(
        f'<rect x="{number(x - side / 2)}" y="{number(y - side / 2)}" width="{number(side)}" '
        f'height="{number(side)}" class="{colour}"/>'
    )


def _caption(content: Content) -> list[str]:
    by = "phase of the action" if content.phases else "time within the video"
    texts = [
        f"Each point is a frame of the {content.split} split; its colour is the {by}. Look for two things: whether "
        "colours come apart, and whether circles (ego) and squares (exo) of one colour lie together. Point at a "
        "frame, tap it, or move over the plot with Tab and the arrow keys to see it; the same frame is marked in "
        "both plots. t-SNE keeps neighbours together; distances between far groups mean little. A trail along time "
        "need not be learned: most models see each frame's place in its video, and the row Time only says what that "
        "gives."
    ]
    if len(content.phases) > COLOURS:
        texts.append(f" There are more phases than colours: after {COLOURS} phases the colours begin again.")
    return texts


def _card() -> Html:
    """Of the frame pointed at; placed and filled by page.js."""
    return element(
        "div",
        element("span", class_="tile", id="card-tile", role="img"),
        element("p", id="card-text"),
        id="card",
        hidden=True,
        role="status",
    )
