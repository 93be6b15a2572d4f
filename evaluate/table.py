"""Rows of figures → a table of texts with its footnotes; how it is drawn is the business of byov.evaluate.render."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase

from byov.evaluate.layout import Column, Layout
from byov.evaluate.scores import Row

SATURATED = 0.9  # from here on, time alone leaves an embedding nothing to show
TIMED = ("progression/", "kendalls_tau/")  # the figures that normalised time can saturate
FEW_SHOT = "few-shot: mean ± sample standard deviation over disjoint draws of the training videos"
TIME_COLUMN = "with AE2's time column: the frame index / 1000 is part of what the regressor sees"
ABSENT = "-"


@dataclass(frozen=True)
class Cell:
    text: str
    marks: str = ""  # letters of footnotes
    below: tuple[str, ...] = ()  # interval, Time only's figure; on lines of their own where there is little room


Lines = tuple[tuple[str, tuple[Cell, ...]], ...]  # (name of the row, its cells)


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    column_marks: tuple[str, ...]
    measured: Lines
    published: Lines
    footnotes: tuple[tuple[str, str], ...]  # (letter, text)
    remarks: tuple[str, ...]  # below the table, of the table as a whole


@dataclass
class _Footnotes:
    """Letters for texts, each text once."""

    texts: list[str] = field(default_factory=list)

    def mark(self, text: str | None) -> str:
        if text is None:
            return ""
        if text not in self.texts:
            self.texts.append(text)
        return letter(self.texts.index(text))


def letter(index: int) -> str:
    """0 → a, 25 → z, 26 → aa."""
    more, rest = divmod(index, len(ascii_lowercase))
    return (letter(more - 1) if more else "") + ascii_lowercase[rest]


def build_table(
    layout: Layout,
    title: str,
    measured: Sequence[Row],
    published: Sequence[Row] = (),
    *,
    time_column: bool = False,
    remarks: Sequence[str] = (),
) -> Table:
    """The rows in their order, without those that have none of the figures."""
    footnotes = _Footnotes()
    figures = [column.figure for column in layout.columns]
    beside = {figure: _time_beside(figure, measured) for figure in figures}

    def lines(rows: Sequence[Row]) -> Lines:
        return tuple(
            (row.name, tuple(_cell(row, column, beside[column.figure], footnotes) for column in layout.columns))
            for row in rows
            if any(figure in row.figures for figure in figures)
        )

    few_shot = [FEW_SHOT] if any(figure.startswith("few_shot/") for figure in figures) else []
    return Table(
        title=title,
        columns=layout.columns,
        column_marks=tuple(_column_marks(figure, beside[figure], time_column, footnotes) for figure in figures),
        measured=lines(measured),
        published=lines(published),
        footnotes=tuple((letter(index), text) for index, text in enumerate(footnotes.texts)),
        remarks=(*few_shot, *remarks),
    )


def number(value: float, *, percent: bool) -> str:
    """As the paper prints: percent with two digits, correlations with four."""
    return f"{100 * value:.2f}" if percent else f"{value:.4f}"


def _time_beside(figure: str, rows: Sequence[Row]) -> float | None:
    """Time only's figure, where time alone gives nearly all that there is, or as much as any embedding of the table."""
    if not figure.startswith(TIMED):
        return None
    time = next((row.value(figure) for row in rows if row.kind == "time"), None)
    others = [value for row in rows if row.kind != "time" and (value := row.value(figure)) is not None]
    return time if time is not None and others and (time >= SATURATED or time >= max(others)) else None


def _saturation(figure: str, beside: float | None) -> str | None:
    if beside is None:
        return None
    what = "phase progression" if figure.startswith("progression") else "Kendall's tau"
    how = f"saturates {what}" if beside >= SATURATED else f"gives as much {what} as any embedding"
    return f"in brackets, Time only's figure: normalised time alone {how} here"


def _column_marks(figure: str, beside: float | None, time_column: bool, footnotes: _Footnotes) -> str:
    has_time_column = time_column and figure == "progression/val"
    marks = footnotes.mark(_saturation(figure, beside)), footnotes.mark(TIME_COLUMN if has_time_column else None)
    return ",".join(filter(None, marks))


def _cell(row: Row, column: Column, beside: float | None, footnotes: _Footnotes) -> Cell:
    figure = row.figures.get(column.figure)
    if figure is None:
        return Cell(ABSENT)
    if figure.value is None:
        return Cell("n/a", footnotes.mark(figure.missing))
    text = number(figure.value, percent=column.percent)
    if figure.deviation is not None:
        text += f" ± {number(figure.deviation, percent=column.percent)}"
    below = []
    if figure.interval is not None:
        low, high = (number(end, percent=column.percent) for end in figure.interval)
        below.append(f"[{low}, {high}]")
    if beside is not None and row.kind not in ("time", "published"):
        below.append(f"({number(beside, percent=column.percent)})")
    return Cell(text, footnotes.mark(figure.remark), tuple(below))
