"""Figures of scores along a setting, for papers: ours with their deviation, and published ones beside them."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.artist import Artist
from matplotlib.figure import Figure

from byov.report.paper.figures import save_figure
from byov.report.paper.plots import tidy
from byov.report.paper.style import LEGEND_ROW_INCHES, PAGE_INCHES, legend, legend_columns, paper_style, phase_color
from byov.report.score_panels import ScoreCurve, ScorePanel


def write_score_curves(panels: Sequence[ScorePanel], along: str, folder: Path, name: str) -> list[Path]:
    """<name>.png and <name>.pdf. along: what the setting is called."""
    with paper_style():
        return save_figure(draw_score_curves(panels, along), folder, name)


def draw_score_curves(panels: Sequence[ScorePanel], along: str) -> Figure:
    names = list(dict.fromkeys(_entry_name(curve) for panel in panels for curve in panel.curves))
    columns = legend_columns(names)
    height = 2.1 + LEGEND_ROW_INCHES * -(-len(names) // columns)
    figure = Figure(figsize=(PAGE_INCHES, height), layout="constrained")
    entries: dict[str, Artist] = {}
    for index, panel in enumerate(panels, start=1):
        axes = figure.add_subplot(1, len(panels), index)
        colors = {name: phase_color(place) for place, name in enumerate(dict.fromkeys(c.name for c in panel.curves))}
        for curve in panel.curves:
            drawn = axes.errorbar(
                curve.places,
                curve.values,
                yerr=curve.deviations if any(curve.deviations) else None,
                color=colors[curve.name],
                linestyle=":" if curve.published else "-",
                marker="o",
                markerfacecolor="white" if curve.published else colors[curve.name],
                markersize=3,
                capsize=2,
                elinewidth=0.6,
            )
            entries.setdefault(_entry_name(curve), drawn.lines[0])
        axes.set_xlabel(along)
        axes.set_ylabel(panel.heading)
        tidy(axes)
    shown = [(artist, name) for name, artist in entries.items()]
    legend(figure, shown, inches=2.0, loc="outside lower center", ncols=columns, frameon=False)
    return figure


def _entry_name(curve: ScoreCurve) -> str:
    return f"{curve.name} (published)" if curve.published else curve.name
