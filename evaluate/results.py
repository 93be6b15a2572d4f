"""What an evaluation leaves: one JSON document, and its tables as Markdown and LaTeX."""

import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import groupby
from pathlib import Path
from typing import Any

from byov import __version__
from byov.cache.atomic import write_text
from byov.cache.sub_clips import CLIPS_PER_VIDEO, LONGEST, SEED, SHORTEST
from byov.evaluate.comparison import Comparison
from byov.evaluate.table import Cell, Table
from byov.evaluate.task import EvaluationOptions
from byov.text import printable

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
