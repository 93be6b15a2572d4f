"""Figure of a table in the paper: scores as a function of a setting."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from byov.report import style
from byov.report.style import LEGEND_ROW_INCHES, PAGE_INCHES, legend, phase_color
from byov.sweeps.paper_tables import ScorePanel

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure


def write_score_curves(
    panels: Sequence[ScorePanel], setting: str, folder: Path, name: str
) -> list[Path]:
    """Write <name>.png and <name>.pdf with scores as a function of a setting."""
    with style.paper_style():
        return style.save_figure(draw_score_curves(panels, setting), folder, name)


def draw_score_curves(panels: Sequence[ScorePanel], setting: str) -> "Figure":
    """Draw scores with error bars, and published scores as dotted lines."""
    from matplotlib.figure import Figure  # takes a second

    figure = Figure(layout="constrained")
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
            entries.setdefault(
                f"{curve.name} (published)" if curve.published else curve.name, drawn.lines[0]
            )
        axes.set(xlabel=setting, ylabel=panel.heading)
        style.tidy(axes)
    columns = style.legend_columns(list(entries))
    figure.set_size_inches(PAGE_INCHES, 2.1 + LEGEND_ROW_INCHES * math.ceil(len(entries) / columns))
    shown = [(artist, name) for name, artist in entries.items()]
    legend(figure, shown, inches=2.0, loc="outside lower center", ncols=columns)
    return figure
