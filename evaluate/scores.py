"""A row of figures: what was scored, by flat names, with the spread and the reasons of what could not be given.

Names of figures: classification/<setting>, retrieval/map@<K>/<setting>, progression/val, progression/train,
kendalls_tau/<pairs>, few_shot/<share>/<setting>, actions/<setting>.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, stdev
from typing import Any, Literal

from byov.evaluate.frames import Missing, Score

Kind = Literal["random", "frozen", "time", "untrained", "run", "mean", "npz", "published"]


@dataclass(frozen=True)
class Figure:
    """One figure; None with the reason where there is none."""

    value: float | None
    missing: str | None = None
    deviation: float | None = None  # standard deviation over draws or runs
    draws: int | None = None  # of a mean over draws
    interval: tuple[float, float] | None = None  # 95%, by resampling videos
    remark: str | None = None  # what a reader must know of this figure


@dataclass(frozen=True)
class Row:
    """One row of a table, with where its embeddings come from."""

    name: str
    kind: Kind
    figures: dict[str, Figure]
    origin: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    time_column: bool = False  # progression saw AE2's time column

    def value(self, figure: str) -> float | None:
        return self.figures[figure].value if figure in self.figures else None

    def with_intervals(self, intervals: Mapping[str, tuple[float, float]]) -> "Row":
        figures = {
            name: figure if figure.value is None else replace(figure, interval=intervals.get(name))
            for name, figure in self.figures.items()
        }
        return replace(self, figures=figures)

    def scores(self) -> dict[str, Any]:
        """The figures in the shape of the golden files; None where there is none."""
        scores = nested_scores(self.figures)
        if "progression" in scores:
            scores["progression"]["time_column"] = self.time_column
        return scores

    def details(self) -> dict[str, dict[str, Any]]:
        """What is known of a figure beside its value: spread, interval, why it is missing."""
        known = {
            name: {key: value for key, value in asdict(figure).items() if value is not None and key != "value"}
            for name, figure in self.figures.items()
        }
        return {name: detail for name, detail in known.items() if detail}

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "scores": self.scores(),
            "details": self.details(),
            "origin": self.origin,
            "notes": list(self.notes),
        }


def figure_of(score: Score) -> Figure:
    return Figure(None, missing=score.reason) if isinstance(score, Missing) else Figure(float(score))


def nested_scores(figures: Mapping[str, Figure]) -> dict[str, Any]:
    """{"retrieval/map@5/regular": ...} → {"retrieval": {"map@5": {"regular": ...}}}; a missing figure is None.

    Kendall's tau over all pairs is a plain number, as AE2 gives it; by views it stands apart.
    """
    nested: dict[str, Any] = {}
    for name, figure in figures.items():
        *groups, last = name.split("/")
        if groups == ["kendalls_tau"]:
            groups, last = ([], "kendalls_tau") if last == "all" else (["kendalls_tau_by_views"], last)
        inner = nested
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = figure.value
    return nested


def mean_row(rows: Sequence[Row], name: str) -> Row:
    """Mean and sample standard deviation over rows; a figure that one of them lacks is missing."""
    figures = {figure: _mean([row.figures[figure] for row in rows]) for figure in rows[0].figures}
    return Row(name, "mean", figures, {"runs": [row.origin for row in rows]}, time_column=rows[0].time_column)


def _mean(figures: Sequence[Figure]) -> Figure:
    values = [figure.value for figure in figures if figure.value is not None]
    if len(values) < len(figures):
        return next(figure for figure in figures if figure.value is None)
    return Figure(fmean(values), deviation=stdev(values) if len(values) > 1 else None)
