"""Scales, axes and lines of the drawings; colours and fonts are the style sheet's."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from byov.report.page.html import Html, element, joined, number

TICK_PX = 4
MOST_TICKS = 6


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high` onto pixels from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high = self._bent(self.low), self._bent(self.high)
        share = (self._bent(value) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        return _decades(self.low, self.high) if self.log else _round_steps(self.low, self.high)

    def _bent(self, value: float) -> float:
        return math.log10(value) if self.log else value


@dataclass(frozen=True)
class Axes:
    x: Scale
    y: Scale
    x_label: str
    y_label: str

    def draw(self) -> Html:
        """Lines across at the ticks of y, ticks below at those of x, a label at each."""
        left, right, bottom = self.x.start, self.x.end, self.y.start
        rows = [
            joined(
                line(left, self.y(tick), right, self.y(tick), class_="rule"),
                text(left - 6, self.y(tick), tick_text(tick), class_="tick to-left"),
            )
            for tick in self.y.ticks()
        ]
        columns = [
            joined(
                line(self.x(tick), bottom, self.x(tick), bottom + TICK_PX, class_="axis"),
                text(self.x(tick), bottom + 16, tick_text(tick), class_="tick centred"),
            )
            for tick in self.x.ticks()
        ]
        names = [
            text((left + right) / 2, bottom + 33, self.x_label, class_="label centred"),
            text(left, self.y.end - 10, self.y_label, class_="label"),
        ]
        return joined(*rows, line(left, bottom, right, bottom, class_="axis"), *columns, *names)


def drawing(width: float, height: float, *children: Html | None, label: str, **attributes: str | int) -> Html:
    return element(
        "svg",
        *children,
        viewBox=f"0 0 {number(width)} {number(height)}",
        role="img",
        aria_label=label,
        **attributes,
    )


def line(x1: float, y1: float, x2: float, y2: float, *, class_: str) -> Html:
    return element("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def text(x: float, y: float, content: str, *, class_: str) -> Html:
    return element("text", content, x=float(x), y=float(y), class_=class_)


def rectangle(x: float, y: float, width: float, height: float, *, class_: str) -> Html:
    return element("rect", x=float(x), y=float(y), width=float(width), height=float(height), class_=class_)


def polyline(points: Iterable[tuple[float, float]], *, class_: str) -> Html:
    return element("polyline", points=" ".join(f"{number(x)},{number(y)}" for x, y in points), class_=class_)


def spread(values: Sequence[float], margin: float = 0.04) -> tuple[float, float]:
    """Lowest and highest with a margin; a range of its own around values that are all alike."""
    low, high = min(values), max(values)
    room = (high - low) * margin or max(abs(high), 1.0) * margin
    return low - room, high + room


def tick_text(value: float) -> str:
    return f"{value:.4g}"


def _round_steps(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / MOST_TICKS))
    steps = (factor * power for factor in (1, 2, 5, 10))
    step = next(step for step in steps if (high - low) / step <= MOST_TICKS)
    return [index * step for index in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _decades(low: float, high: float) -> list[float]:
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    within = [tick for power in powers for tick in (10.0**power, 3 * 10.0**power) if low <= tick <= high]
    return within or [low, high]
