"""Matplotlib style for the CVPR template, and functions that save figures.

matplotlib is imported where it is used, because importing it takes a second.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byov.cache.atomic import replacing_file
from byov.text import printable

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

COLUMN_INCHES = 3.25
PAGE_INCHES = 6.875
PAGE_HEIGHT_INCHES = 8.875  # sizes in the CVPR template
DOTS_PER_INCH = 300
TEXT_POINTS = 8
SMALL_POINTS = 7
LEGEND_ROW_INCHES = 0.15
CHARACTER_WIDTH = 0.62  # average width of a character relative to the font size
INK = "#222222"
FAINT = "#777777"
RULE = "#dddddd"
# Adapted from the Okabe-Ito palette; must match --phase-0 to --phase-7 in page.css.
PHASES = ("#0072b2", "#dd8a00", "#00966e", "#b9518f", "#4a9fd8", "#c04a00", "#8f8200", "#70757c")
NO_PHASE = "#c9ccd1"
# Baselines in the chart of scores.
ROWS = {"clock": "#dd8a00", "frozen features": "#9aa1a9"}
QUERY = "#1769c2"
RIGHT = "#1c7443"
WRONG = "#c8322b"
_STYLE: dict[Any, Any] = {
    "font.size": TEXT_POINTS,
    "axes.titlesize": TEXT_POINTS,
    "axes.labelsize": TEXT_POINTS,
    "xtick.labelsize": SMALL_POINTS,
    "ytick.labelsize": SMALL_POINTS,
    "legend.fontsize": SMALL_POINTS,
    "axes.linewidth": 0.6,
    "lines.linewidth": 1.0,
    "text.parse_math": False,  # names may contain $
    "pdf.fonttype": 42,  # TrueType; some publishers reject Type 3
}


@cache
def time_colors() -> "LinearSegmentedColormap":
    """Return the color map for the time in a video, as .ramp in page.css."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("time", ["#2a7fd0", "#e07b00"])


@contextmanager
def paper_style() -> Iterator[None]:
    """Apply matplotlib's defaults and the style above, ignoring the user's matplotlibrc."""
    import matplotlib.style

    with matplotlib.style.context(_STYLE, after_reset=True), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        yield


def phase_color(index: int) -> str:
    """Return the color of a phase; colors repeat after eight phases."""
    return PHASES[index % len(PHASES)]


def fit_text(text: str, inches: float, points: float = SMALL_POINTS) -> str:
    """Return `text`, truncated at the start if it is too wide, since video names differ at the
    end.
    """
    shown = printable(text)
    limit = max(int(inches * 72 / (CHARACTER_WIDTH * points)), 1)
    return shown if len(shown) <= limit else "…" + shown[len(shown) - limit + 1 :]


def tidy(axes: "Axes", *, integer_x: bool = False) -> None:
    """Remove the top and right spines and add a horizontal grid;

    `integer_x` puts the x-axis ticks at integers.
    """
    from matplotlib.ticker import MaxNLocator

    if integer_x:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, min_n_ticks=1))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=RULE, linewidth=0.4)
    axes.set_axisbelow(True)


def legend_columns(names: Sequence[str]) -> int:
    """Return the number of legend entries that fit side by side below a figure of full page
    width.
    """
    widest = min(max(map(len, names)) * CHARACTER_WIDTH * SMALL_POINTS / 72, 3.0)
    # 0.5 inches for the marker and the gap.
    return max(1, min(len(names), int(PAGE_INCHES / (widest + 0.5))))


def legend(
    owner: "Axes | Figure", entries: Sequence[tuple["Artist", str]], inches: float, **options: Any
) -> None:
    """Draw a legend.

    Names are set afterwards, since matplotlib omits entries that start with an underscore.
    """
    handles = [artist for artist, _ in entries]
    numbers = [str(index) for index in range(len(entries))]
    drawn = owner.legend(handles, numbers, frameon=False, **options)
    for text, (_, name) in zip(drawn.get_texts(), entries, strict=True):
        text.set_text(fit_text(name, inches))


def save_figure(figure: "Figure", folder: Path, name: str) -> list[Path]:
    """Write <name>.png and <name>.pdf without timestamps."""
    from matplotlib.image import AxesImage

    png = folder / f"{name}.png"
    pdf = folder / f"{name}.pdf"
    with replacing_file(png) as file:
        figure.savefig(
            file,
            format="png",
            dpi=DOTS_PER_INCH,
            metadata={"Software": None},
            # Takes half the time of level 6 and is hardly larger.
            pil_kwargs={"compress_level": 4},
        )
    for image in figure.findobj(AxesImage):
        image.set_interpolation("none")  # embed the original pixels
    with replacing_file(pdf) as file:
        figure.savefig(
            file,
            format="pdf",
            dpi=DOTS_PER_INCH,
            metadata={"Creator": None, "Producer": None, "CreationDate": None},
        )
    return [png, pdf]
