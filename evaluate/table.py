"""Rows of scores, and one table type that renders them as Markdown, LaTeX and HTML.

The names of scores are paths: classification/<setting>, retrieval/map@<K>/<setting>, progression/{train,val},
kendalls_tau/<pairs>, few_shot/<fraction>/<setting>, actions/<setting>.
"""

import html
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from string import ascii_lowercase
from typing import Any, Literal, Self

from byov.cache.atomic import write_text
from byov.evaluate.frames import Missing
from byov.text import printable

Kind = Literal["random", "frozen", "time", "untrained", "run", "mean", "npz", "published"]
SATURATED = 0.9  # a Time only score from which a column says little about embeddings
ABSENT = "-"
PUBLISHED = "published in the paper, not measured here"
_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "±": r"$\pm$",
    "²": r"$^2$",
}


@dataclass(frozen=True)
class Score:
    """One score, or None with the reason why it is missing.

    Attributes:
        value: Fraction or correlation, not percent.
        missing: Why there is no value.
        deviation: Sample standard deviation over draws or runs.
        draws: Number of draws the mean is over.
        interval: 95% interval from resampling videos.
        pairs: Number of video pairs (Kendall's tau).
        pairs_with_tau: Number of pairs that have a tau.
        remark: Footnote for this score.
    """

    value: float | None
    missing: str | None = None
    deviation: float | None = None
    draws: int | None = None
    interval: tuple[float, float] | None = None
    pairs: int | None = None
    pairs_with_tau: int | None = None
    remark: str | None = None

    @classmethod
    def of(cls, value: float | Missing, **details: Any) -> Self:
        if isinstance(value, Missing):
            return cls(None, missing=value.reason, **details)
        return cls(float(value), **details)


@dataclass(frozen=True)
class Row:
    """Scores of one set of embeddings.

    Attributes:
        name: First column of tables.
        kind: Where the embeddings come from.
        scores: Score by name.
        origin: Run, model digest, encoder and so on; written to JSON.
        notes: Lines printed below the table.
        time_column: Progression was scored with AE2's time column.
    """

    name: str
    kind: Kind
    scores: dict[str, Score]
    origin: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    time_column: bool = False

    def value(self, name: str) -> float | None:
        """Return a score's value; None if it is missing."""
        return self.scores[name].value if name in self.scores else None

    def nested_scores(self) -> dict[str, Any]:
        """Return the values as nested dicts: {"retrieval": {"map@5": {"regular": ...}}}.

        Kendall's tau over all pairs is a plain number, as in AE2's evaluator; tau by views has its own key.
        """
        nested: dict[str, Any] = {}
        for name, score in self.scores.items():
            *groups, last = name.split("/")
            if groups == ["kendalls_tau"]:
                groups, last = ([], "kendalls_tau") if last == "all" else (["kendalls_tau_by_views"], last)
            inner = nested
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[last] = score.value
        if "progression" in nested:
            nested["progression"]["time_column"] = self.time_column
        return nested

    def details(self) -> dict[str, dict[str, Any]]:
        """Return what is known about each score besides its value."""
        known = {
            name: {key: value for key, value in asdict(score).items() if value is not None and key != "value"}
            for name, score in self.scores.items()
        }
        return {name: detail for name, detail in known.items() if detail}

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "scores": self.nested_scores(),
            "details": self.details(),
            "origin": self.origin,
            "notes": list(self.notes),
        }


def mean_row(rows: Sequence[Row], name: str) -> Row:
    """Return the mean and sample standard deviation over rows; a score that one of them lacks is missing."""
    scores = {score: _mean([row.scores[score] for row in rows]) for score in rows[0].scores}
    return Row(name, "mean", scores, {"runs": [row.origin for row in rows]}, time_column=rows[0].time_column)


def _mean(scores: Sequence[Score]) -> Score:
    values = [score.value for score in scores if score.value is not None]
    if len(values) < len(scores):
        return next(score for score in scores if score.value is None)
    remarks = dict.fromkeys(score.remark for score in scores if score.remark)
    return Score(fmean(values), deviation=stdev(values) if len(values) > 1 else None, remark="; ".join(remarks) or None)


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        score: Name of the score it shows.
        group: Heading shared by neighboring columns.
        heading: Heading of this column.
        short: Shorter form of `group`, for terminals.
        percent: Print as percent with two digits; otherwise with four digits.
        saturated_by_time: Normalized time alone can reach the maximum; show Time only's score when it does.
        footnote: Footnote of the heading.
        note: Line below tables with this column.
    """

    score: str
    group: str
    heading: str
    short: str
    percent: bool = True
    saturated_by_time: bool = False
    footnote: str = ""
    note: str = ""

    def format(self, value: float) -> str:
        return f"{100 * value:.2f}" if self.percent else f"{value:.4f}"


@dataclass(frozen=True)
class Cell:
    """Text of a cell: `marks` are footnote letters, `extra` lines (interval, Time only's score) go below."""

    text: str
    marks: str = ""
    extra: tuple[str, ...] = ()
    is_best: bool = False


@dataclass(frozen=True)
class Table:
    """Scores of several rows under common columns.

    Attributes:
        title: Caption.
        columns: Columns in order.
        rows: Rows in order; those of kind "published" are set apart below the others. Rows without any of the columns'
            scores are not shown.
        notes: Lines below the table, after those of the columns.
    """

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @cached_property
    def headings(self) -> tuple[Cell, ...]:
        """The heading of each column."""
        return tuple(map(self._heading, self.columns, self._time_scores))

    @cached_property
    def measured(self) -> tuple[tuple[Row, tuple[Cell, ...]], ...]:
        """(row, cells) of the measured rows."""
        shown = [row for row in self._shown if row.kind != "published"]
        best = [_best(column, shown) for column in self.columns]
        details = list(zip(self.columns, self._time_scores, best, strict=True))
        return tuple((row, tuple(self._cell(row, *detail) for detail in details)) for row in shown)

    @cached_property
    def published(self) -> tuple[tuple[Row, tuple[Cell, ...]], ...]:
        """(row, cells) of the rows quoted from the paper."""
        shown = [row for row in self._shown if row.kind == "published"]
        return tuple((row, tuple(self._cell(row, column) for column in self.columns)) for row in shown)

    @cached_property
    def footnotes(self) -> dict[str, str]:
        """Letter of each distinct footnote, in order of first use."""
        texts = [
            text
            for column, time in zip(self.columns, self._time_scores, strict=True)
            for text in _heading_notes(column, time)
        ]
        for row in self._shown:
            scores = [row.scores[column.score] for column in self.columns if column.score in row.scores]
            texts += [score.missing or "" if score.value is None else score.remark or "" for score in scores]
        return {text: _letter(index) for index, text in enumerate(dict.fromkeys(filter(None, texts)))}

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Notes of the columns, then of the table, each once."""
        return tuple(dict.fromkeys([*(column.note for column in self.columns if column.note), *self.notes]))

    @cached_property
    def _shown(self) -> list[Row]:
        return [row for row in self.rows if any(column.score in row.scores for column in self.columns)]

    @cached_property
    def _time_scores(self) -> list[float | None]:
        return [_saturating_time(column, self.rows) for column in self.columns]

    @property
    def column_groups(self) -> list[tuple[str, int]]:
        """(group, number of columns) of neighboring columns with the same group."""
        return [(group, len(list(columns))) for group, columns in groupby(self.columns, key=lambda one: one.group)]

    def to_markdown(self) -> str:
        """Return a pipe table with its title, footnotes and notes."""
        headings = [
            f"{column.group} {cell.text}{_sup(cell.marks)}"
            for column, cell in zip(self.columns, self.headings, strict=True)
        ]
        lines = [f"**{_markdown_text(self.title)}**", "", _markdown_line(["", *headings])]
        lines.append("|---|" + "---:|" * len(self.columns))
        lines += [_markdown_row(row.name, cells) for row, cells in self.measured]
        if self.published:
            lines.append(_markdown_line([f"*{PUBLISHED}:*", *("" for _ in self.columns)]))
            lines += [_markdown_row(f"{row.name} (published)", cells) for row, cells in self.published]
        lines += ["", *(f"{_sup(mark)} {_markdown_text(text)}  " for text, mark in self.footnotes.items())]
        lines += [f"{_markdown_text(note)}  " for note in self.all_notes]
        return "\n".join(lines).rstrip() + "\n"

    def to_latex(self) -> str:
        """Return a table environment; needs the package booktabs."""
        groups, rules, first = [], [], 2
        for group, width in self.column_groups:
            groups.append(rf"\multicolumn{{{width}}}{{c}}{{{_latex_text(group)}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
            first += width
        lines = [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{_latex_text(self.title)}}}",
            rf"\begin{{tabular}}{{l{'c' * len(self.columns)}}}",
            r"\toprule",
            " & ".join(["", *groups]) + r" \\",
            " ".join(rules),
            _latex_row("Method", self.headings),
            r"\midrule",
            *(_latex_row(row.name, cells) for row, cells in self.measured),
        ]
        if self.published:
            lines += [r"\midrule", rf"\multicolumn{{{1 + len(self.columns)}}}{{l}}{{\textit{{{PUBLISHED}}}}} \\"]
            lines += [_latex_row(f"{row.name} (published)", cells) for row, cells in self.published]
        lines += [r"\bottomrule", r"\end{tabular}"]
        below = [f"$^{{{mark}}}$ {_latex_text(text)}" for text, mark in self.footnotes.items()]
        lines += [rf"\par\footnotesize {line}" for line in [*below, *map(_latex_text, self.all_notes)]]
        return "\n".join([*lines, r"\end{table}"]) + "\n"

    def to_html(self, highlight: Collection[str] = ()) -> str:
        """Return a scrollable table and its notes; the best measured value of each column is bold.

        Args:
            highlight: Names of rows to emphasize (CSS class "own").
        """
        label = _html_text(self.title)
        groups = "".join(
            f'<th colspan="{width}" scope="colgroup"><span>{_html_text(group)}</span></th>'
            for group, width in self.column_groups
        )
        headings = "".join(f'<th scope="col">{_html_text(cell.text)}{_sup(cell.marks)}</th>' for cell in self.headings)
        body = "".join(_html_row(row.name, cells, own=row.name in highlight) for row, cells in self.measured)
        if self.published:
            heading = (
                f'<th scope="rowgroup" colspan="{1 + len(self.columns)}" class="apart"><span>{PUBLISHED}</span></th>'
            )
            rows = "".join(_html_row(row.name, cells) for row, cells in self.published)
            body += f'</tbody><tbody class="published"><tr>{heading}</tr>{rows}'
        notes = [f"<p>{_sup(mark)} {_html_text(text)}</p>" for text, mark in self.footnotes.items()]
        notes += [f"<p>{_html_text(note)}</p>" for note in self.all_notes]
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{label}"><table aria-label="{label}">'
            f'<thead><tr class="groups"><td></td>{groups}</tr>'
            f'<tr><th scope="col">Method</th>{headings}</tr></thead><tbody>{body}</tbody></table></div>'
            + (f'<div class="notes">{"".join(notes)}</div>' if notes else "")
        )

    def _heading(self, column: Column, time_score: float | None) -> Cell:
        return Cell(column.heading, ",".join(self.footnotes[text] for text in _heading_notes(column, time_score)))

    def _cell(self, row: Row, column: Column, time_score: float | None = None, best: str | None = None) -> Cell:
        score = row.scores.get(column.score)
        if score is None:
            return Cell(ABSENT)
        if score.value is None:
            return Cell("n/a", self._mark(score.missing))
        text = column.format(score.value)
        is_best = text == best
        if score.deviation is not None:
            text += f" ± {column.format(score.deviation)}"
        extra = []
        if score.interval is not None:
            low, high = map(column.format, score.interval)
            extra.append(f"[{low}, {high}]")
        if time_score is not None and row.kind != "time":
            extra.append(f"({column.format(time_score)})")
        return Cell(text, self._mark(score.remark), tuple(extra), is_best)

    def _mark(self, footnote: str | None) -> str:
        return self.footnotes[footnote] if footnote else ""


def write_results(folder: Path, stem: str, results: Mapping[str, Any], tables: Sequence[Table]) -> list[Path]:
    """Write <stem>.json, .md and .tex, each atomically, and return their paths."""
    texts = {
        ".json": json.dumps(results, indent=1, ensure_ascii=False) + "\n",
        ".md": "\n".join(table.to_markdown() for table in tables),
        ".tex": "% \\usepackage{booktabs}\n" + "\n".join(table.to_latex() for table in tables),
    }
    for suffix, text in texts.items():
        write_text(folder / f"{stem}{suffix}", text)
    return [folder / f"{stem}{suffix}" for suffix in texts]


def _heading_notes(column: Column, time_score: float | None) -> list[str]:
    notes = [column.footnote] if column.footnote else []
    if time_score is not None:
        how = "saturates this metric" if time_score >= SATURATED else "scores as high as any embedding"
        notes.insert(0, f"in parentheses, the score of Time only: normalized time alone {how} here")
    return notes


def _saturating_time(column: Column, rows: Sequence[Row]) -> float | None:
    """Return Time only's score if it is near the maximum or at least as high as every other row's."""
    if not column.saturated_by_time:
        return None
    time = next((row.value(column.score) for row in rows if row.kind == "time"), None)
    others = [
        value
        for row in rows
        if row.kind not in ("time", "published") and (value := row.value(column.score)) is not None
    ]
    return time if time is not None and others and (time >= SATURATED or time >= max(others)) else None


def _best(column: Column, rows: Sequence[Row]) -> str | None:
    """Return the highest value as printed; None for a single row, where it means nothing."""
    values = [value for row in rows if (value := row.value(column.score)) is not None]
    return column.format(max(values)) if values and len(rows) > 1 else None


def _letter(index: int) -> str:
    """0 → a, 25 → z, 26 → aa."""
    more, rest = divmod(index, len(ascii_lowercase))
    return (_letter(more - 1) if more else "") + ascii_lowercase[rest]


def _one_line(cell: Cell) -> str:
    return " ".join((cell.text, *cell.extra))


def _sup(marks: str) -> str:
    return f"<sup>{marks}</sup>" if marks else ""


def _markdown_row(name: str, cells: Sequence[Cell]) -> str:
    return _markdown_line([_markdown_text(name), *(_one_line(cell) + _sup(cell.marks) for cell in cells)])


def _markdown_line(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"


def _markdown_text(text: str) -> str:
    """Escape names so that they cannot add columns, markup or links."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(f"\\{character}" if character in "\\`*_[]|#!" else character for character in escaped)


def _latex_row(name: str, cells: Sequence[Cell]) -> str:
    texts = [_latex_text(_one_line(cell)) + (f"$^{{{cell.marks}}}$" if cell.marks else "") for cell in cells]
    return " & ".join([_latex_text(name), *texts]) + r" \\"


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text))


def _html_row(name: str, cells: Sequence[Cell], *, own: bool = False) -> str:
    heading = _html_text(name) + ('<span class="unseen"> (this run)</span>' if own else "")
    row = '<tr class="own">' if own else "<tr>"
    return f'{row}<th scope="row">{heading}</th>{"".join(map(_html_cell, cells))}</tr>'


def _html_cell(cell: Cell) -> str:
    text = f"<b>{_html_text(cell.text)}</b>" if cell.is_best else _html_text(cell.text)
    return f"<td>{text}{_sup(cell.marks)}{''.join(f'<small>{_html_text(line)}</small>' for line in cell.extra)}</td>"


def _html_text(text: str) -> str:
    return html.escape(printable(text), quote=True)
