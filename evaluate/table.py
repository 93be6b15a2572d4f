"""Rows of scores, and tables that render them as Markdown and LaTeX.

Score names are paths: classification/<setting>, retrieval/map@<K>/<setting>,
progression/{train,val}, kendalls_tau/<pairs>, few_shot/<fraction>/<setting>, actions/<setting>,
event_error/{seconds,percent}/<labeled videos>/<direction>.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev
from string import ascii_lowercase
from textwrap import wrap
from typing import Any, Literal

from byov.cache.atomic import write_text
from byov.cache.layout import Protocol
from byov.evaluate.frames import Score
from byov.text import printable

Kind = Literal["random", "frozen", "time", "untrained", "run", "mean", "npz", "published"]
KIND_ORDER: tuple[Kind, ...] = ("npz", "random", "frozen", "time", "untrained", "run")
Unit = Literal["percent", "correlation", "seconds", "count"]
DECIMALS: dict[Unit, int] = {"percent": 2, "correlation": 4, "seconds": 2, "count": 0}
# Columns that `columns_ahead` counts.
COUNTED = ("classification/", "retrieval/map@10/", "actions/")
# Few methods are designed for the online protocol.
COUNTED_PROTOCOLS: tuple[Protocol, ...] = ("standard", "trimmed")
AHEAD_OF = {
    "frozen": "frozen",
    "standardized": "standardized",
    "time": "Time only",
    "untrained": "Untrained",
}
AHEAD = (
    "columns ahead: number of F1 and mAP columns, standard and trimmed, in which a row is higher "
    "than the best frozen features, the best standardized ones, Time only, and the same model at "
    "initialization"
)
PUBLISHED = "published in the paper, not measured here"
LATEX_TITLE_WIDTH = 34  # characters; longer row titles continue on the next line
_LATEX = {
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
    "±": r"$\pm$",
    "²": r"$^2$",
}


@dataclass(frozen=True)
class Row:
    """Scores of one set of embeddings."""

    name: str
    kind: Kind
    scores: dict[str, Score]
    origin: dict[str, Any] = field(default_factory=dict)  # run, model digest, encoder, ...
    notes: tuple[str, ...] = ()  # printed below tables
    time_column: bool = False  # whether progression was scored with AE2's time column

    def value(self, name: str) -> float | None:
        """Return the value of a score, or None if it is missing."""
        return self.scores[name].value if name in self.scores else None

    def nested_scores(self) -> dict[str, Any]:
        """Return the values as nested dicts: {"retrieval": {"map@5": {"regular": ...}}}.

        Kendall's tau over all pairs is a plain number, as in AE2's evaluator;
        "kendalls_tau_by_views" has the others.
        """
        nested: dict[str, Any] = {}
        for name, score in self.scores.items():
            *groups, last = name.split("/")
            if groups == ["kendalls_tau"]:
                groups, last = (
                    ([], "kendalls_tau") if last == "all" else (["kendalls_tau_by_views"], last)
                )
            inner = nested
            for group in groups:
                inner = inner.setdefault(group, {})
            inner[last] = score.value
        if "progression" in nested:
            nested["progression"]["time_column"] = self.time_column
        return nested

    def details(self) -> dict[str, dict[str, Any]]:
        """Return the details of each score, such as intervals and reasons for n/a."""
        return {
            name: details
            for name, score in self.scores.items()
            if (
                details := {
                    key: value
                    for key, value in asdict(score).items()
                    if value is not None and key != "value"
                }
            )
        }

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "scores": self.nested_scores(),
            "details": self.details(),
            "origin": self.origin,
            "notes": list(self.notes),
        }


Rows = dict[Protocol, Row]  # of one set of embeddings


def first_row(rows: Rows) -> Row:
    """Return the row of the first protocol; name, kind and origin are the same in all."""
    return next(iter(rows.values()))


def sort_rows(rows: Sequence[Rows]) -> list[Rows]:
    """Sort rows by kind, in table order."""
    return sorted(rows, key=lambda row: KIND_ORDER.index(first_row(row).kind))


def mean_rows(rows: Sequence[Rows], name: str) -> Rows:
    """Return the mean of rows for each protocol; a single row is only renamed."""
    if len(rows) == 1:
        return {protocol: replace(row, name=name) for protocol, row in rows[0].items()}
    return {protocol: mean_row([row[protocol] for row in rows], name) for protocol in rows[0]}


def mean_row(rows: Sequence[Row], name: str) -> Row:
    """Return the mean and sample standard deviation of the scores that all rows have."""
    scores = {
        score: _mean([row.scores[score] for row in rows])
        for score in rows[0].scores
        if all(score in row.scores for row in rows)
    }
    return Row(
        name,
        "mean",
        scores,
        {"runs": [row.origin for row in rows]},
        time_column=rows[0].time_column,
    )


def _mean(scores: Sequence[Score]) -> Score:
    values = [score.value for score in scores if score.value is not None]
    if len(values) < len(scores):
        return next(score for score in scores if score.value is None)
    remarks = dict.fromkeys(score.remark for score in scores if score.remark)
    return Score(
        fmean(values),
        deviation=stdev(values) if len(values) > 1 else None,
        remark="; ".join(remarks) or None,
    )


def columns_ahead(row: Row, *baselines: Row) -> tuple[int, int]:
    """Count the F1 and mAP columns in which `row` is ahead of all baselines, and those that can be
    compared.

    Progression and Kendall's tau are not counted because time alone can reach their maximum.
    """
    ahead = compared = 0
    for name in (name for name in row.scores if name.startswith(COUNTED)):
        own = row.value(name)
        values = [value for other in baselines if (value := other.value(name)) is not None]
        if own is not None and values:
            ahead += own > max(values)
            compared += 1
    return ahead, compared


def verdict(rows: Mapping[Any, Sequence[Row]], only: str | None = None) -> str:
    """Summarize in one sentence in how many columns of COUNTED_PROTOCOLS each trained row is ahead
    of Time only.

    Args:
        rows: Dict mapping protocols to rows, as in `Results.rows`.
        only: Name of the only row to mention. Default: all trained rows, with means instead of
            their runs.

    Returns:
        "first is ahead of Time only in 12 of 12 columns of F1 and mAP, second in 3."; "" if nothing
        can be compared.
    """
    ahead = Counter[str]()
    compared = Counter[str]()
    for shown in (rows[protocol] for protocol in COUNTED_PROTOCOLS if protocol in rows):
        clocks = [row for row in shown if row.kind == "time"]
        trained = [row for row in shown if _is_trained(row)]
        in_means = [run["run"] for row in trained for run in row.origin.get("runs", ())]
        for row in trained:
            if row.name == only if only else row.origin.get("run") not in in_means:
                columns = columns_ahead(row, *clocks)
                ahead[row.name] += columns[0]
                compared[row.name] += columns[1]
    names = [name for name in compared if compared[name]]
    if not names:
        return ""
    others = "".join(f", {name} in {ahead[name]}" for name in names[1:])
    return (
        f"{names[0]} is ahead of Time only in {ahead[names[0]]} of {compared[names[0]]} "
        f"columns of F1 and mAP{others}."
    )


def _is_trained(row: Row) -> bool:
    origins = row.origin.get("runs", [row.origin])
    return row.kind in ("run", "mean", "npz") and not any(
        origin.get("untrained") for origin in origins
    )


@dataclass(frozen=True)
class Column:
    """Table column with percentages, correlations, seconds or counts."""

    score: str  # name of the score in this column
    group: str  # heading shared by neighboring columns
    heading: str
    short: str  # shorter form of `group`, for terminals
    lower_is_better: bool = False
    unit: Unit = "percent"
    note: str = ""  # printed below tables with this column

    def format(self, value: float) -> str:
        if self.unit == "percent":
            value *= 100
        return f"{value:.{DECIMALS[self.unit]}f}"


def ahead_columns(rows: Mapping[Protocol, Sequence[Row]]) -> tuple[Column, ...]:
    """Return the columns with the scores "ahead/...", if the rows have any."""
    counted = [rows[protocol] for protocol in COUNTED_PROTOCOLS if protocol in rows]
    total = sum(max((columns_ahead(row, row)[1] for row in shown), default=0) for shown in counted)
    scores = {score for shown in rows.values() for row in shown for score in row.scores}
    return tuple(
        Column(
            f"ahead/{name}",
            f"Columns ahead, of {total}:",
            heading,
            "ahead of",
            note=AHEAD,
            unit="count",
        )
        for name, heading in AHEAD_OF.items()
        if total and f"ahead/{name}" in scores
    )


@dataclass(frozen=True)
class Cell:
    """Table cell with a footnote letter (`mark`) and `extra` lines for an interval or a difference
    from the paper.
    """

    text: str
    mark: str = ""
    extra: tuple[str, ...] = ()
    is_best: bool = False

    @property
    def line(self) -> str:
        return " ".join((self.text, *self.extra))


CellRows = list[tuple[Row, list[Cell]]]


@dataclass
class Table:
    """Table of scores. Rows that have none of the columns' scores are omitted."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()  # printed below the table, after the notes of the columns
    is_main: bool = False  # whether it is the first table of its protocol

    def __post_init__(self) -> None:
        notes = (*(column.note for column in self.columns), *self.notes)
        self.notes = tuple(dict.fromkeys(filter(None, notes)))
        shown = [
            row for row in self.rows if any(column.score in row.scores for column in self.columns)
        ]
        measured = [row for row in shown if row.kind != "published"]
        published = [row for row in shown if row.kind == "published"]
        best = [_best(column, measured) for column in self.columns]
        self.footnotes: dict[str, str] = {}  # footnote → letter, in order of first use
        self.measured: CellRows = [
            (
                row,
                [self._cell(row, *column) for column in zip(self.columns, best, strict=True)],
            )
            for row in measured
        ]
        # Rows quoted from the paper are shown separately, below the others.
        ours = {row.name: row for row in measured}
        self.published: CellRows = [
            (row, [self._cell(row, column, ours=ours.get(row.name)) for column in self.columns])
            for row in published
        ]

    def _mark(self, footnote: str | None) -> str:
        return self.footnotes.setdefault(footnote, _letter(len(self.footnotes))) if footnote else ""

    def _cell(
        self, row: Row, column: Column, best: str | None = None, ours: Row | None = None
    ) -> Cell:
        score = row.scores.get(column.score)
        if score is None:
            return Cell("-")
        if score.value is None:
            return Cell("n/a", self._mark(score.missing))
        text = column.format(score.value)
        is_best = text == best
        if score.deviation is not None:
            text += f" ± {column.format(score.deviation)}"
        extra = []
        if score.interval is not None:
            extra.append(f"[{', '.join(map(column.format, score.interval))}]")
        if ours is not None and (value := ours.value(column.score)) is not None:
            difference = value - score.value
            extra.append(f"(ours {'-' if difference < 0 else '+'}{column.format(abs(difference))})")
        return Cell(text, self._mark(score.remark), tuple(extra), is_best)

    @property
    def column_groups(self) -> list[tuple[str, int]]:
        """Runs of neighboring columns with the same group, as (group, number of columns)."""
        return [
            (group, len(list(columns)))
            for group, columns in groupby(self.columns, key=lambda column: column.group)
        ]

    def to_markdown(self) -> str:
        """Return a Markdown table with title, footnotes and notes."""

        def line(name: str, cells: Sequence[Cell]) -> str:
            texts = [
                (f"**{cell.line}**" if cell.is_best else cell.line) + _sup(cell.mark)
                for cell in cells
            ]
            return "| " + " | ".join([name, *texts]) + " |"

        lines = [
            f"**{_markdown_text(self.title)}**",
            "",
            line("", [Cell(f"{column.group} {column.heading}") for column in self.columns]),
            "|---|" + "---:|" * len(self.columns),
            *(line(_markdown_text(row.name), cells) for row, cells in self.measured),
        ]
        if self.published:
            lines.append(line(f"*{PUBLISHED}:*", [Cell("")] * len(self.columns)))
        lines += [
            *(line(f"{_markdown_text(row.name)} (published)", c) for row, c in self.published),
            "",
            *(f"{_sup(mark)} {_markdown_text(text)}  " for text, mark in self.footnotes.items()),
            *(f"{_markdown_text(note)}  " for note in self.notes),
        ]
        return "\n".join(lines).rstrip() + "\n"

    def to_latex(self) -> str:
        """Return a LaTeX table over the width of the page, with the best values in bold.

        It needs the packages booktabs and graphicx. The label is derived from the title, such as
        `tab:demo-test-split-standard-protocol-phase-tasks`.
        """

        def line(name: str, cells: Sequence[Cell]) -> str:
            texts = [_latex_text(cell.line) for cell in cells]
            shown = [
                (rf"\textbf{{{text}}}" if cell.is_best else text)
                + (f"$^{{{cell.mark}}}$" if cell.mark else "")
                for text, cell in zip(texts, cells, strict=True)
            ]
            return " & ".join([_latex_text(name), *shown]) + r" \\"

        def row_line(row: Row, cells: Sequence[Cell]) -> str:
            title, *lines = wrap(row.name, LATEX_TITLE_WIDTH) or [""]
            empty = [Cell("")] * len(cells)
            # Continuation lines of a long title are rows of their own, indented.
            more = [r"\quad " + line(rest, empty) for rest in lines]
            return "\n".join([line(title, cells), *more])

        groups = []
        rules = []
        first = 2
        for group, width in self.column_groups:
            groups.append(rf"\multicolumn{{{width}}}{{c}}{{{_latex_text(group)}}}")
            rules.append(rf"\cmidrule(lr){{{first}-{first + width - 1}}}")
            first += width
        lines = [
            r"\begin{table*}",
            r"\centering",
            rf"\caption{{{_latex_text(self.title)}}}",
            rf"\label{{tab:{self._label}}}",
            # Shrink the table if it is wider than the page.
            r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
            rf"\begin{{tabular}}{{l{'c' * len(self.columns)}}}",
            r"\toprule",
            " & ".join(["", *groups]) + r" \\",
            " ".join(rules),
            line("Method", [Cell(column.heading) for column in self.columns]),
            r"\midrule",
            *(row_line(row, cells) for row, cells in self.measured),
        ]
        if self.published:
            lines += [
                r"\midrule",
                rf"\multicolumn{{{1 + len(self.columns)}}}{{l}}{{\textit{{{PUBLISHED}}}}} \\",
                *(row_line(row, cells) for row, cells in self.published),
            ]
        lines += [
            r"\bottomrule",
            r"\end{tabular}}",
            *(
                rf"\par\footnotesize $^{{{mark}}}$ {_latex_text(text)}"
                for text, mark in self.footnotes.items()
            ),
            *(rf"\par\footnotesize {_latex_text(note)}" for note in self.notes),
            r"\end{table*}",
        ]
        return "\n".join(lines) + "\n"

    @property
    def _label(self) -> str:
        """Name of the table in lower case with hyphens, without the numbers of videos."""
        name = re.sub(r"\([^()]*\)$", "", self.title)
        return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def write_results(
    folder: Path, stem: str, results: Mapping[str, Any], tables: Sequence[Table]
) -> list[Path]:
    """Write <stem>.json, .md and .tex, each atomically, and return their paths."""
    texts = {
        folder / f"{stem}.json": json.dumps(results, indent=1, ensure_ascii=False) + "\n",
        folder / f"{stem}.md": "\n".join(table.to_markdown() for table in tables),
        folder / f"{stem}.tex": "% \\usepackage{booktabs,graphicx}\n"
        + "\n".join(table.to_latex() for table in tables),
    }
    for path, text in texts.items():
        write_text(path, text)
    return list(texts)


def _best(column: Column, rows: Sequence[Row]) -> str | None:
    """Return the best value as printed, or None if there is only one row to choose from."""
    values = [value for row in rows if (value := row.value(column.score)) is not None]
    best = min if column.lower_is_better else max
    return column.format(best(values)) if values and len(rows) > 1 else None


def _letter(index: int) -> str:
    """Convert an index to letters: 0 → a, 25 → z, 26 → aa."""
    more, rest = divmod(index, len(ascii_lowercase))
    return (_letter(more - 1) if more else "") + ascii_lowercase[rest]


def _sup(mark: str) -> str:
    return f"<sup>{mark}</sup>" if mark else ""


def _markdown_text(text: str) -> str:
    """Escape text so that names cannot add columns, markup or links."""
    escaped = printable(text).replace("&", "&amp;").replace("<", "&lt;")
    return "".join(
        f"\\{character}" if character in "\\`*_[]|#!" else character for character in escaped
    )


def _latex_text(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in printable(text))
