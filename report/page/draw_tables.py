"""Tables of figures: the main one of each protocol open, the others folded."""

from itertools import groupby

from byov.evaluate.table import PUBLISHED, Cell, Lines, Table
from byov.report.page.html import Html, element, joined

READING = (
    "Higher is better in every column. Compare with the rows that did not learn from these videos: features of the "
    "frozen frame encoder, the untrained model, and Time only, which knows nothing of a frame but its place in the "
    "video. The best value measured here stands bold, this run on a shaded row."
)


def tables_html(tables: tuple[Table, ...], own_rows: tuple[str, ...]) -> Html:
    """own_rows: names of the rows of this run."""
    main = [table for table in tables if _is_main(table)] or list(tables[:1])
    further = [table for table in tables if table not in main]
    parts = [joined(element("h3", table.title), _table(table, own_rows)) for table in main]
    parts += [element("details", element("summary", table.title), _table(table, own_rows)) for table in further]
    return joined(element("p", READING, class_="caption"), *parts)


def _is_main(table: Table) -> bool:
    """The paper's main table is the one that shows several tasks."""
    return len({column.score.partition("/")[0] for column in table.columns}) > 1


def _table(table: Table, own_rows: tuple[str, ...]) -> Html:
    drawn = element(
        "table",
        element("thead", _groups(table), _headings(table)),
        element("tbody", *_rows(table.measured, _best(table), own_rows)),
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


def _rows(lines: Lines, best: tuple[float | None, ...] = (), own_rows: tuple[str, ...] = ()) -> list[Html]:
    return [
        element(
            "tr",
            element(
                "th", name, element("span", " (this run)", class_="unseen") if name in own_rows else None, scope="row"
            ),
            *(_cell(cell, best[index] if best else None) for index, cell in enumerate(cells)),
            class_="own" if name in own_rows else None,
        )
        for name, cells in lines
    ]


def _best(table: Table) -> tuple[float | None, ...]:
    """The highest measured value of each column; None in a table of one row, where it would say nothing."""
    if len(table.measured) == 1:
        return (None,) * len(table.columns)
    columns = zip(*(cells for _, cells in table.measured), strict=True)
    return tuple(
        max((value for cell in cells if (value := _value(cell)) is not None), default=None) for cells in columns
    )


def _value(cell: Cell) -> float | None:
    """What is printed; None for what is no number."""
    try:
        return float(cell.text.partition(" ")[0])
    except ValueError:
        return None


def _cell(cell: Cell, best: float | None) -> Html:
    is_best = best is not None and _value(cell) == best
    text = element("b", cell.text) if is_best else cell.text
    return element("td", text, _marks(cell.marks), *(element("small", line) for line in cell.below))


def _marks(marks: str) -> Html | None:
    return element("sup", marks) if marks else None
