"""Training curves: losses, and the validation with the epoch that was kept."""

import math
from collections.abc import Sequence
from itertools import groupby

from byov.report.content import Curve, Curves
from byov.report.page.html import Html, element, joined
from byov.report.page.phases import COLOURS, legend, swatch
from byov.report.page.svg import Axes, Scale, drawing, line, polyline, spread, text

WIDTH_PX, HEIGHT_PX = 400, 270
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 46, 388, 28, 226
HIGHEST = 1e100  # beyond it nothing is drawn

MEANINGS = {
    "loss": "the weighted sum that is minimised",
    "self": "masked self-view modelling: hidden frames are rebuilt from the rest of their own video",
    "cross": "masked cross-view modelling: hidden frames are rebuilt with the help of a video of the other view",
    "cycle": "beyond the paper: the way to a video of the other view and back should end at the same frame",
    "retrieval": "map@10 across views on whole videos, the mean of both directions",
    "trimmed": "the same on sub-clips",
    "both": "the mean of retrieval and trimmed",
    "tau": "Kendall's tau over all pairs of videos",
}


def curves_html(curves: Curves) -> Html:
    panels = []
    if _points(curves.losses):
        unit = "loss (logarithmic scale)" if curves.wide_losses else "loss"
        panels.append(_panel("Losses", unit, curves.losses, None, log=curves.wide_losses))
    if _points(curves.validation):
        panels.append(_panel("Validation", "score", curves.validation, curves.kept_epoch, log=False))
    if not panels:
        return element("p", "Not shown: the run has recorded no finite values.", class_="unavailable")
    named = dict.fromkeys(curve.name for curve in (*curves.losses, *curves.validation))
    notes = [element("p", element("b", name), f": {MEANINGS[name]}") for name in named if name in MEANINGS]
    return joined(
        element("div", *panels, class_="pair"),
        element("p", _caption(curves), class_="caption"),
        element("div", *notes, class_="notes"),
    )


def _panel(title: str, unit: str, curves: Sequence[Curve], kept_epoch: int | None, *, log: bool) -> Html:
    axes = _axes(_points(curves), unit, log=log)
    lines = [_line(axes, curve, index) for index, curve in enumerate(curves)]
    kept = _kept(axes, kept_epoch) if kept_epoch is not None else None
    keys = [swatch(f"line p{index % COLOURS}", curve.name) for index, curve in enumerate(curves)]
    picture = drawing(WIDTH_PX, HEIGHT_PX, axes.draw(), kept, *lines, label=f"{title} by epoch")
    return element("figure", element("h3", title), picture, legend(*keys))


def _axes(points: list[tuple[int, float]], unit: str, *, log: bool) -> Axes:
    epochs, values = [epoch for epoch, _ in points], [value for _, value in points]
    low, high = (min(values) / 1.2, max(values) * 1.2) if log else spread(values)
    return Axes(
        Scale(min(epochs), max(epochs), LEFT_PX, RIGHT_PX),
        Scale(low, high, BOTTOM_PX, TOP_PX, log),
        "epoch",
        unit,
    )


def _line(axes: Axes, curve: Curve, index: int) -> Html:
    """Broken where a value cannot be drawn; a single point is a dot."""
    parts = []
    pairs = zip(curve.epochs, curve.values, strict=True)
    for shown, stretch in groupby(pairs, key=lambda pair: _drawable(*pair)):
        if shown:
            placed = [(axes.x(epoch), axes.y(value)) for epoch, value in stretch]
            parts.append(polyline(placed if len(placed) > 1 else placed * 2, class_=f"curve p{index % COLOURS}"))
    return joined(*parts)


def _kept(axes: Axes, epoch: int) -> Html:
    x = axes.x(epoch)
    side = "tick to-left" if x > (LEFT_PX + RIGHT_PX) / 2 else "tick"
    return joined(
        line(x, TOP_PX, x, BOTTOM_PX, class_="kept"),
        text(x - 5 if "to-left" in side else x + 5, BOTTOM_PX - 8, f"kept: epoch {epoch}", class_=side),
    )


def _points(curves: Sequence[Curve]) -> list[tuple[int, float]]:
    return [
        (epoch, value)
        for curve in curves
        for epoch, value in zip(curve.epochs, curve.values, strict=True)
        if _drawable(epoch, value)
    ]


def _drawable(epoch: int, value: float) -> bool:
    return math.isfinite(value) and abs(value) < HIGHEST and abs(epoch) < HIGHEST


def _caption(curves: Curves) -> str:
    start = "Losses of the training, by epoch; they should fall and level off."
    if not curves.validation:
        return f"{start} There was no validation split: the last model was kept."
    if curves.kept_epoch is None:
        return f"{start} The validation scores did not choose the model."
    return (
        f"{start} The line marks the epoch whose model was kept. Look whether the validation scores still rise or have "
        "begun to fall there; with few validation videos they are noisy."
    )
