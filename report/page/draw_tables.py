"""Score tables: the main one of each protocol open, the others folded."""

from byov.evaluate.table import Table
from byov.report.page.html import Html, element, joined

READING = (
    "Higher is better in every column. Compare with the rows that did not learn from these videos: features of the "
    "frozen frame encoder, the untrained model, and Time only, which is the normalized time of a frame. The best value "
    "measured here is bold, this run is on a shaded row."
)


def tables_html(tables: tuple[Table, ...], own_rows: tuple[str, ...]) -> Html:
    """Return all tables; own_rows are the names of this run's rows."""
    main = [table for table in tables if _is_main(table)] or list(tables[:1])
    further = [table for table in tables if table not in main]
    parts = [joined(element("h3", table.title), Html(table.to_html(own_rows))) for table in main]
    parts += [element("details", element("summary", table.title), Html(table.to_html(own_rows))) for table in further]
    return joined(element("p", READING, class_="caption"), *parts)


def _is_main(table: Table) -> bool:
    """Return whether a table shows several tasks."""
    return len({column.score.partition("/")[0] for column in table.columns}) > 1
