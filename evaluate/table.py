"""Rows of scores → tables of texts with their footnotes; byov.evaluate.table draws them."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from string import ascii_lowercase
from typing import Any

from byov import __version__
from byov.cache.atomic import write_text
from byov.evaluate.evaluation import Comparison
from byov.evaluate.protocols import CLIPS_PER_VIDEO, LONGEST, SEED, SHORTEST, Protocol
from byov.evaluate.scores import Row
from byov.evaluate.task import Column, EvaluationOptions
from byov.evaluate.tasks import TASKS, task_of
from byov.text import pluralize, printable

SATURATED = 0.9  # from here on, time alone leaves an embedding nothing to show
TIME_COLUMN = "with AE2's time column: the frame index / 1000 is part of what the regressor sees"
TRIMMED = (
    "trimmed: each video is replaced by two sub-clips of 30 to 60% of its length, each embedded as if it were a video; "
    "progression and Time only's clock run over the sub-clip; sub-clips of one video do not search each other"
)
STANDARDIZED = "standardized: each dimension with zero mean and unit deviation over the video, or over the sub-clip"
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
    videos = pluralize(counts["videos"], "video" if protocol == "standard" else "sub-clip")
    return f"{videos}, {counts['ego']} ego and {counts['exo']} exo, {pluralize(counts['frames'], 'frame')}"


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
    return f"in brackets, Time only's score: normalized time alone {how} here"


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


SCHEMA_VERSION = 1
PUBLISHED = "published in the paper, not measured here"
_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "±": r"$\pm$",
    "²": r"$^2$",
}


def document(comparison: Comparison) -> dict[str, Any]:
    """All that is known, for machines."""
    scope = comparison.scope
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": comparison.title,
        "split": scope.split,
        "tasks": list(scope.tasks),
        **_how(scope.options),
        "left_out": comparison.left_out,
        "protocols": {
            protocol: {**comparison.counts[protocol], "rows": [row.as_dict() for row in rows]}
            for protocol, rows in comparison.rows.items()
        },
        "published": [row.as_dict() for row in comparison.published("standard")],
    }


def npz_document(comparison: Comparison) -> dict[str, Any]:
    """The document of somebody's file: its scores at the top, in the shape of the golden files."""
    row, *others = comparison.rows["standard"]
    return {
        **row.nested_scores(),
        **({"time_only": others[0].nested_scores()} if others else {}),
        "details": row.details(),
        "notes": list(row.notes),
        "origin": row.origin,
        "split": comparison.scope.split,
        **comparison.counts["standard"],
        **_how(comparison.scope.options),
    }


def _how(options: EvaluationOptions) -> dict[str, Any]:
    """What a score depends on beside the embeddings."""
    clips = {"seed": SEED, "per_video": CLIPS_PER_VIDEO, "shortest": SHORTEST, "longest": LONGEST}
    return {
        "settings": asdict(options),
        "trimmed_clips": clips,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of what may decide the last digit of a score."""
    packages = {name: version(name) for name in ("numpy", "scipy", "scikit-learn")}
    return {"python": platform.python_version(), "byov": __version__} | packages


def write_results(folder: Path, stem: str, results: Mapping[str, Any], drawn: Sequence[Table]) -> list[Path]:
    """<stem>.json, .md and .tex; each whole or not at all."""
    texts = {
        ".json": json.dumps(results, indent=1, ensure_ascii=False) + "\n",
        ".md": "\n".join(map(markdown, drawn)),
        ".tex": "% \\usepackage{booktabs}\n" + "\n".join(map(latex, drawn)),
    }
    for suffix, text in texts.items():
        write_text(folder / f"{stem}{suffix}", text)
    return [folder / f"{stem}{suffix}" for suffix in texts]


def markdown(table: Table) -> str:
    headings = [
        f"{column.group} {column.heading}{_markdown_marks(marks)}"
        for column, marks in zip(table.columns, table.column_marks, strict=True)
    ]
    lines = [f"**{_markdown_text(table.title)}**", "", _markdown_line(["", *headings])]
    lines.append("|---|" + "---:|" * len(table.columns))
    lines += [_markdown_row(name, cells) for name, cells in table.measured]
    if table.published:
        lines.append(_markdown_line([f"*{PUBLISHED}:*", *("" for _ in table.columns)]))
        lines += [_markdown_row(f"{name} (published)", cells) for name, cells in table.published]
    lines += ["", *(f"<sup>{mark}</sup> {_markdown_text(text)}  " for mark, text in table.footnotes)]
    lines += [f"{_markdown_text(remark)}  " for remark in table.remarks]
    return "\n".join(lines).rstrip() + "\n"


def latex(table: Table) -> str:
    """A table environment; needs the package booktabs."""
    spans = list(_groups(table))
    rules, first = [], 2
    for _, width in spans:
        rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
        first += width
    headings = [
        f"{_latex_text(column.heading)}{_latex_marks(marks)}"
        for column, marks in zip(table.columns, table.column_marks, strict=True)
    ]
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_latex_text(table.title)}}}",
        rf"\begin{{tabular}}{{l{'c' * len(table.columns)}}}",
        r"\toprule",
        " & " + " & ".join(rf"\multicolumn{{{width}}}{{c}}{{{_latex_text(group)}}}" for group, width in spans) + r" \\",
        " ".join(rules),
        "Method & " + " & ".join(headings) + r" \\",
        r"\midrule",
        *(_latex_row(name, cells) for name, cells in table.measured),
    ]
    if table.published:
        lines += [r"\midrule", rf"\multicolumn{{{1 + len(table.columns)}}}{{l}}{{\textit{{{PUBLISHED}}}}} \\"]
        lines += [_latex_row(f"{name} (published)", cells) for name, cells in table.published]
    lines += [r"\bottomrule", r"\end{tabular}"]
    below = [f"$^{{{mark}}}$ {_latex_text(text)}" for mark, text in table.footnotes]
    below += [_latex_text(remark) for remark in table.remarks]
    lines += [rf"\par\footnotesize {line}" for line in below]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _line(cell: Cell) -> str:
    return " ".join((cell.text, *cell.below))


def _groups(table: Table) -> Iterator[tuple[str, int]]:
    for group, columns in groupby(table.columns, key=lambda column: column.group):
        yield group, len(list(columns))


def _markdown_row(name: str, cells: Sequence[Cell]) -> str:
    return _markdown_line([_markdown_text(name), *(_line(cell) + _markdown_marks(cell.marks) for cell in cells)])


def _markdown_line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _markdown_text(text: str) -> str:
    """Names may hold anything: neither columns, nor markup, nor links may come of them."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{character}" if character in "\\`*_[]|#!" else character for character in escaped)


def _markdown_marks(marks: str) -> str:
    return f"<sup>{marks}</sup>" if marks else ""


def _latex_row(name: str, cells: Sequence[Cell]) -> str:
    texts = [_latex_text(_line(cell)) + _latex_marks(cell.marks) for cell in cells]
    return " & ".join([_latex_text(name), *texts]) + r" \\"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text))


def _latex_marks(marks: str) -> str:
    return f"$^{{{marks}}}$" if marks else ""
