"""What goes wrong: the worst videos, and whether one frame of the worst is alike to all others."""

import numpy as np

from byov.report.content import Content, Failures, FrameRef, WorstVideo
from byov.report.frame_text import seconds_text
from byov.report.page.html import Html, element, joined, number
from byov.report.page.phases import legend, swatch
from byov.report.page.svg import Axes, Scale, drawing, line
from byov.report.page.tiles import picture_row, tile
from byov.report.spread import evenly

WIDTH_PX, HEIGHT_PX = 400, 250
MOST_DOTS = 400  # of a long video, evenly spread
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 46, 388, 28, 206


def failures_html(content: Content, failures: Failures) -> Html:
    worst = (
        "The videos with the lowest Kendall's tau, the mean over their pairs with all other videos; the worst first."
    )
    return joined(
        *(_worst(content, failures, video) for video in failures.worst),
        element("p", worst, class_="caption"),
        element("figure", element("h3", "Is one frame alike to all others?"), _softmax(failures), class_="single"),
        legend(
            swatch("dot reference", "reference frame"),
            swatch("dot others", "other frames"),
            swatch("line uniform", "uniform value 1/T"),
        ),
        element("p", _caption(content, failures), class_="caption"),
    )


def _worst(content: Content, failures: Failures, worst: WorstVideo) -> Html:
    video = content.videos[worst.video]
    stills = [_still(content, ref, failures.reference) for ref in failures.frames_of(worst)]
    heading = f"{video.name}: tau {worst.tau:.4f}"
    return joined(element("h3", heading), picture_row(stills, f"Frames of {video.name}"))


def _still(content: Content, shown: FrameRef, reference: FrameRef) -> Html:
    """A frame and its time; the reference frame is marked."""
    text = element("span", seconds_text(content.videos[shown.video], shown.frame))
    return element(
        "figure",
        tile(content.videos, shown.video, shown.frame),
        element("figcaption", *([element("b", "Reference")] if shown == reference else []), text),
        class_="still retrieved" if shown == reference else "still",
    )


def _softmax(failures: Failures) -> Html:
    values = np.nan_to_num(failures.similarity)
    uniform = 1 / len(values)
    axes = Axes(
        Scale(0, max(len(values) - 1, 1), LEFT_PX, RIGHT_PX),
        Scale(0, max(float(values.max()), uniform) * 1.08, BOTTOM_PX, TOP_PX),
        "frame",
        "softmax similarity",
    )
    others = [frame for frame in evenly(len(values), MOST_DOTS) if frame != failures.reference.frame]
    order = [*others, failures.reference.frame]
    dots = [
        Html(
            f'<circle cx="{number(axes.x(frame))}" cy="{number(axes.y(float(values[frame])))}" '
            f'r="{"4.5" if frame == failures.reference.frame else "2.6"}" '
            f'class="{"reference" if frame == failures.reference.frame else "others"}"/>'
        )
        for frame in order  # the reference last, so that it lies on top
    ]
    level = line(LEFT_PX, axes.y(uniform), RIGHT_PX, axes.y(uniform), class_="uniform")
    return drawing(WIDTH_PX, HEIGHT_PX, axes.draw(), level, *dots, label="Softmax similarity of the reference frame")


def _caption(content: Content, failures: Failures) -> str:
    video = content.videos[failures.reference.video]
    return (
        f"How alike frame {failures.reference.frame} of {video.name}, framed red above, is to every frame of its "
        "video: a softmax over the products of their embeddings. How to read it: a peak around the reference means "
        "that the embedding tells moments apart; a flat row of dots along the line 1/T means that it attends to "
        "everything alike, which the paper finds in its failures."
    )
