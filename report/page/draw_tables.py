"""Tables of figures: the main one of each protocol open, the others folded."""

from itertools import groupby

from byov.evaluate.results import PUBLISHED
from byov.evaluate.table import Cell, Lines, Table
from byov.report.page.html import Html, element, joined

READING = (
    "Higher is better in every column. Compare with the rows that did not learn from these videos: features of the "
    "frozen frame encoder, the untrained model, and Time only, which knows nothing of a frame but its place in the "
    "video."
)


def tables_html(tables: tuple[Table, ...]) -> Html:
    main = [table for table in tables if _is_main(table)] or list(tables[:1])
    further = [table for table in tables if table not in main]
    parts = [joined(element("h3", table.title), _table(table)) for table in main]
    parts += [element("details", element("summary", table.title), _table(table)) for table in further]
    return joined(element("p", READING, class_="caption"), *parts)


def _is_main(table: Table) -> bool:
    """The paper's main table is the one that shows several tasks."""
    return len({column.score.partition("/")[0] for column in table.columns}) > 1


def _table(table: Table) -> Html:
    drawn = element(
        "table",
        element("thead", _groups(table), _headings(table)),
        element("tbody", *_rows(table.measured)),
        _published(table),
        aria_label=table.title,
    )
    notes = [element("p", element("sup", mark), f" {text}") for mark, text in table.footnotes]
    notes += [element("p", remark) for remark in table.remarks]
    below = element("div", *notes, class_="notes") if notes else None
    return joined(element("div", drawn, class_="scroll", tabindex=0, role="region", aria_label=table.title), below)


def _groups(table: Table) -> Html:
    spans = [(group, len(list(columns))) for group, columns in groupby(table.columns, key=lambda column: column.group)]
    cells = [element("th", element("span", group), colspan=width, scope="colgroup") for group, width in spans]
    return element("tr", element("td"), *cells, class_="groups")


def _headings(table: Table) -> Html:
    headings = [
        element("th", column.heading, _marks(marks), scope="col")
        for column, marks in zip(table.columns, table.column_marks, strict=True)
    ]
    return element("tr", element("th", "Method", scope="col"), *headings)


def _published(table: Table) -> Html | None:
    if not table.published:
        return None
    heading = element(
        "th", element("span", PUBLISHED), scope="rowgroup", colspan=1 + len(table.columns), class_="apart"
    )
    return element("tbody", element("tr", heading), *_rows(table.published), class_="published")


def _rows(lines: Lines) -> list[Html]:
    return [element("tr", element("th", name, scope="row"), *map(_cell, cells)) for name, cells in lines]


def _cell(cell: Cell) -> Html:
    return element("td", cell.text, _marks(cell.marks), *(element("small", line) for line in cell.below))


def _marks(marks: str) -> Html | None:
    return element("sup", marks) if marks else None
