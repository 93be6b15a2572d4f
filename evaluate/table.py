"""Rows of scores → tables of texts with their footnotes; byov.evaluate.results draws them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_lowercase

from byov.evaluate.comparison import Comparison
from byov.evaluate.protocols import Protocol
from byov.evaluate.scores import Row
from byov.evaluate.task import Column, EvaluationOptions
from byov.evaluate.tasks import TASKS, task_of
from byov.text import counted

SATURATED = 0.9  # from here on, time alone leaves an embedding nothing to show
TIME_COLUMN = "with AE2's time column: the frame index / 1000 is part of what the regressor sees"
TRIMMED = (
    "trimmed: each video is replaced by two sub-clips of 30 to 60% of its length, each embedded as if it were a video; "
    "progression and Time only's clock run over the sub-clip; sub-clips of one video do not search each other"
)
STANDARDIZED = "standardised: each dimension with zero mean and unit deviation over the video, or over the sub-clip"
ABSENT = "-"


@dataclass(frozen=True)
class Layout:
    """One table: what it shows, and its columns."""

    subject: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Cell:
    text: str
    marks: str = ""  # letters of footnotes
    below: tuple[str, ...] = ()  # interval, Time only's score; on lines of their own where there is little room


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


def tables(comparison: Comparison) -> list[Table]:
    """The paper's tables, each under every protocol."""
    scope = comparison.scope
    return [
        build_table(
            layout,
            f"{comparison.title}, {scope.split} split, {protocol} protocol: {layout.subject} "
            f"({_counts_text(comparison.counts[protocol], protocol)})",
            rows,
            comparison.published(protocol),
            time_column=any(row.time_column for row in rows),
            remarks=_remarks(comparison, protocol),
        )
        for layout in layouts(scope.tasks, scope.options)
        for protocol, rows in comparison.rows.items()
    ]


def layouts(tasks: Sequence[str], options: EvaluationOptions) -> list[Layout]:
    """The paper's tables if all tasks of its main table were scored, else one table for each task."""
    single = [Layout(TASKS[task].subject, TASKS[task].columns(options)) for task in TASKS if task in tasks]
    main = [task for task in TASKS.values() if task.main_columns is not None]
    if not {task.name for task in main} <= set(tasks):
        return single
    wide = tuple(column for task in main if task.main_columns for column in task.main_columns(options))
    return [Layout("Phase tasks", wide), *(layout for layout in single if not set(layout.columns) <= set(wide))]


def _counts_text(counts: Mapping[str, int], protocol: Protocol) -> str:
    videos = counted(counts["videos"], "video" if protocol == "standard" else "sub-clip")
    return f"{videos}, {counts['ego']} ego and {counts['exo']} exo, {counted(counts['frames'], 'frame')}"


def _remarks(comparison: Comparison, protocol: Protocol) -> list[str]:
    scope, rows = comparison.scope, comparison.rows[protocol]
    remarks = list(dict.fromkeys(note for row in rows for note in row.notes))
    if any(row.origin.get("standardized") for row in rows):
        remarks.append(STANDARDIZED)
    if any(row.kind == "mean" for row in rows):
        remarks.append("mean ± sample standard deviation over runs")
    if scope.options.bootstrap:
        remarks.append(f"[ , ]: 95% interval over {scope.options.bootstrap} resamplings of the scored videos")
    if scope.split == "val":
        remarks.append("the val split is for choosing; scores to report are those of the test split")
    return [*remarks, *([TRIMMED] if protocol == "trimmed" else [])]


def build_table(
    layout: Layout,
    title: str,
    measured: Sequence[Row],
    published: Sequence[Row] = (),
    *,
    time_column: bool = False,
    remarks: Sequence[str] = (),
) -> Table:
    """The rows in their order, without those that have none of the scores."""
    footnotes = _Footnotes()
    shown = [column.score for column in layout.columns]
    beside = {score: _time_beside(score, measured) for score in shown}

    def lines(rows: Sequence[Row]) -> Lines:
        return tuple(
            (row.name, tuple(_cell(row, column, beside[column.score], footnotes) for column in layout.columns))
            for row in rows
            if any(score in row.scores for score in shown)
        )

    of_tasks = dict.fromkeys(remark for score in shown if (remark := task_of(score).remark))
    return Table(
        title=title,
        columns=layout.columns,
        column_marks=tuple(_column_marks(score, beside[score], time_column, footnotes) for score in shown),
        measured=lines(measured),
        published=lines(published),
        footnotes=tuple((letter(index), text) for index, text in enumerate(footnotes.texts)),
        remarks=(*of_tasks, *remarks),
    )


def number(value: float, *, percent: bool) -> str:
    """As the paper prints: percent with two digits, correlations with four."""
    return f"{100 * value:.2f}" if percent else f"{value:.4f}"


def _time_beside(score: str, rows: Sequence[Row]) -> float | None:
    """Time only's score, where time alone gives nearly all that there is, or as much as any embedding of the table."""
    if not task_of(score).saturated_by_time:
        return None
    time = next((row.value(score) for row in rows if row.kind == "time"), None)
    others = [value for row in rows if row.kind != "time" and (value := row.value(score)) is not None]
    return time if time is not None and others and (time >= SATURATED or time >= max(others)) else None


def _saturation(score: str, beside: float | None) -> str | None:
    if beside is None:
        return None
    what = task_of(score).measured
    how = f"saturates {what}" if beside >= SATURATED else f"gives as much {what} as any embedding"
    return f"in brackets, Time only's score: normalised time alone {how} here"


def _column_marks(score: str, beside: float | None, time_column: bool, footnotes: _Footnotes) -> str:
    has_time_column = time_column and score == "progression/val"
    marks = footnotes.mark(_saturation(score, beside)), footnotes.mark(TIME_COLUMN if has_time_column else None)
    return ",".join(filter(None, marks))


def _cell(row: Row, column: Column, beside: float | None, footnotes: _Footnotes) -> Cell:
    score = row.scores.get(column.score)
    if score is None:
        return Cell(ABSENT)
    if score.value is None:
        return Cell("n/a", footnotes.mark(score.missing))
    text = number(score.value, percent=column.percent)
    if score.deviation is not None:
        text += f" ± {number(score.deviation, percent=column.percent)}"
    below = []
    if score.interval is not None:
        low, high = (number(end, percent=column.percent) for end in score.interval)
        below.append(f"[{low}, {high}]")
    if beside is not None and row.kind not in ("time", "published"):
        below.append(f"({number(beside, percent=column.percent)})")
    return Cell(text, footnotes.mark(score.remark), tuple(below))
