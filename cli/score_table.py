"""Print score tables in the terminal."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from byov.cli.terminal import note, table_console
from byov.evaluate.table import PUBLISHED, Table, write_results
from byov.text import printable

NAME_WIDTH = 20  # minimum width of row names; longer names wrap
_SUPERSCRIPTS = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖ𐞥ʳˢᵗᵘᵛʷˣʸᶻ")


def print_and_save(
    results: Mapping[str, Any],
    tables: Sequence[Table],
    folder: Path | None,
    stem: str,
    *,
    as_json: bool,
    summary: str = "",
) -> None:
    """Print the results as tables or JSON; with a folder, also write `stem`.json, .md and .tex.

    With a folder, only main tables and tables with the same columns as the first table are printed.
    """
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        print_tables(
            [t for t in tables if folder is None or t.is_main or t.columns == tables[0].columns],
            summary,
        )
    if folder is not None:
        paths = write_results(folder, stem, results, tables)
        note(f"all tables written to {', '.join(map(str, paths))}")


def print_tables(tables: Sequence[Table], summary: str = "") -> None:
    """Print tables, and the summary below them."""
    console = table_console()
    for table in tables:
        print_table(table, console)
        console.print()
    if summary:
        print(printable(summary))


def print_table(table: Table, console: Console) -> None:
    """Print a table.

    Columns that do not fit are printed in additional blocks, so that numbers are never truncated.
    """
    console.print(Text(printable(table.title), style="bold"))
    blocks: list[list[int]] = [[]]
    for column in range(len(table.columns)):
        if blocks[-1] and _min_width(table, [*blocks[-1], column], console) > console.width:
            blocks.append([])
        blocks[-1].append(column)
    for columns in blocks:
        width = max(_min_width(table, columns, console), console.width)
        console.print(_rich_table(table, columns), width=width, crop=False)
    for text, mark in table.footnotes.items():
        console.print(Text(f"{mark.translate(_SUPERSCRIPTS)} {printable(text)}"))
    for line in table.notes:
        console.print(Text(printable(line)))


def _min_width(table: Table, columns: Sequence[int], console: Console) -> int:
    unlimited = console.options.update(width=sys.maxsize)
    return console.measure(_rich_table(table, columns, NAME_WIDTH), options=unlimited).maximum


def _rich_table(table: Table, columns: Sequence[int], name_width: int | None = None) -> RichTable:
    rich_table = RichTable(box=None, pad_edge=False)
    rich_table.add_column("", overflow="fold", width=name_width, min_width=NAME_WIDTH)
    for column in columns:
        heading = Text(f"{table.columns[column].short}\n{table.columns[column].heading}")
        rich_table.add_column(heading, justify="right", no_wrap=True)
    for rows, style in ((table.measured, ""), (table.published, "dim")):
        if style and rows:
            rich_table.add_row()
            rich_table.add_row(Text(f"{PUBLISHED}:", style="italic"))
        for row, cells in rows:
            texts = [
                "\n".join((cell.text + cell.mark.translate(_SUPERSCRIPTS), *cell.extra))
                for cell in (cells[column] for column in columns)
            ]
            rich_table.add_row(Text(printable(row.name)), *map(Text, texts), style=style)
    return rich_table
