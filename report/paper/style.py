"""How figures for papers look: sizes of the CVPR template, text that stands as it is, legends."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, fontManager, get_font
from matplotlib.textpath import TextToPath
from matplotlib.ticker import MaxNLocator

from byov.text import printable

COLUMN_INCHES, PAGE_INCHES, PAGE_HEIGHT_INCHES = 3.25, 6.875, 8.875
DOTS_PER_INCH = 300
TEXT_POINTS, SMALL_POINTS = 8, 7
LEGEND_ROW_INCHES = 0.15
FONT = "DejaVu Sans"  # comes with matplotlib
INK, FAINT, RULE = "#222222", "#777777", "#dddddd"
# Those of the page's light style (page.css), after Okabe and Ito's palette.
PHASES = ("#0072b2", "#dd8a00", "#00966e", "#b9518f", "#4a9fd8", "#c04a00", "#8f8200", "#70757c")
UNLABELED = "#c9ccd1"  # a frame without a phase
QUERY, RIGHT, WRONG, PLAIN = "#1769c2", "#1c7443", "#c8322b", "#777777"  # around frames
# With glyphs that DejaVu does not have, where one of them is installed.
FALLBACKS = (
    *("WenQuanYi Zen Hei", "WenQuanYi Micro Hei", "Droid Sans Fallback", "Noto Sans SC", "Noto Sans JP"),
    *("Noto Sans KR", "Microsoft YaHei", "Yu Gothic", "Malgun Gothic", "Arial Unicode MS", "Unifont", "STIXGeneral"),
)

_STYLE: dict[Any, Any] = {
    "font.size": TEXT_POINTS,
    "axes.titlesize": TEXT_POINTS,
    "axes.labelsize": TEXT_POINTS,
    "xtick.labelsize": SMALL_POINTS,
    "ytick.labelsize": SMALL_POINTS,
    "legend.fontsize": SMALL_POINTS,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.0,
    "axes.edgecolor": INK,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.parse_math": False,  # a $ in a name is a $
    "pdf.fonttype": 42,  # TrueType: some publishers refuse Type 3
}


@contextmanager
def paper_style() -> Iterator[None]:
    """matplotlib's own defaults and ours, whatever the user's matplotlibrc says; afterwards as before."""
    with matplotlib.rc_context():
        defaults: dict[Any, Any] = dict(matplotlib.rcParamsDefault)
        del defaults["backend"]  # which windows would need; not ours to choose
        matplotlib.rcParams.update({**defaults, **_STYLE, "font.family": fonts()})
        yield


def phase_color(index: int) -> str:
    """Of the phase of that index; from the ninth phase on they repeat."""
    return PHASES[index % len(PHASES)]


@cache
def fonts() -> list[str]:
    """The font, and those that are there for what it lacks."""
    installed = {font.name for font in fontManager.ttflist}
    return [FONT, *(name for name in FALLBACKS if name in installed)]


@cache
def _drawable() -> frozenset[int]:
    """Code points that one of the fonts has a glyph for."""
    return frozenset[int]().union(*(get_font(findfont(name)).get_charmap() for name in fonts()))


def literal(text: str) -> str:
    """`text` with everything that cannot be drawn spelt out: control characters, and what no font has."""
    return "".join(
        character if ord(character) in _drawable() else character.encode("unicode_escape").decode()
        for character in printable(text)
    )


def fitted(text: str, inches: float, points: float = SMALL_POINTS) -> str:
    """`literal(text)`, or as much of its end as is not wider: names of videos differ at the end."""
    whole = literal(text)
    if _width_inches(whole, points) <= inches:
        return whole
    low, high = 0, min(len(whole), 1000)  # the number of characters that fit lies in [low, high)
    while high - low > 1:
        middle = (low + high) // 2
        fits = _width_inches("…" + whole[-middle:], points) <= inches
        low, high = (middle, high) if fits else (low, middle)
    return "…" + whole[len(whole) - low :]


def _width_inches(text: str, points: float) -> float:
    if len(text) > 1000:  # wider than any page, and slow to measure
        return float("inf")
    properties = FontProperties(family=fonts(), size=points)
    width_points, _, _ = TextToPath().get_text_width_height_descent(text, properties, ismath=False)
    return float(width_points) / 72


def decimals(value: float) -> str:
    """Two of them, with the sign that axes have."""
    return f"{value:.2f}".replace("-", "\N{MINUS SIGN}")


def whole_numbers() -> MaxNLocator:
    """Ticks of frames and epochs: a few, and no halves even where there is only one."""
    return MaxNLocator(nbins=6, integer=True, min_n_ticks=1)


def legend_columns(names: Sequence[str]) -> int:
    """How many fit side by side below a figure as wide as the page."""
    widest = max(min(_width_inches(literal(name), SMALL_POINTS), 3.0) for name in names)
    return max(1, min(len(names), int(PAGE_INCHES / (widest + 0.5))))  # 0.5: the sign and the gap


def legend(owner: Axes | Figure, entries: Sequence[tuple[Artist, str]], inches: float, **options: Any) -> None:
    """A legend with each name as it is: matplotlib would leave out those that begin with an underscore."""
    drawn = owner.legend([artist for artist, _ in entries], [str(index) for index in range(len(entries))], **options)
    for text, (_, name) in zip(drawn.get_texts(), entries, strict=True):
        text.set_text(fitted(name, inches))
