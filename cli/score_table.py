"""Tables of scores in the terminal, and where they are left."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from byov.cli.command import note
from byov.cli.tables import wide_console
from byov.evaluate.table import PUBLISHED, Cell, Table, write_results
from byov.text import printable

NAME_WIDTH = 20  # of the rows' names at least; longer ones are folded where there is little room
_SUPERSCRIPTS = str.maketrans("abcdefghijklmnopqrstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖ𐞥ʳˢᵗᵘᵛʷˣʸᶻ")


def print_table(table: Table, console: Console) -> None:
    """Draw it. Numbers are never cut short: where there is little room, columns that do not fit follow below."""
    console.print(Text(printable(table.title), style="bold"))
    for columns in _blocks(table, console.width):
        drawn = _drawn(table, columns)
        console.print(drawn, width=max(_needed(table, columns), console.width), crop=False, soft_wrap=False)
    for text, mark in table.footnotes.items():
        console.print(Text(f"{mark.translate(_SUPERSCRIPTS)} {printable(text)}"))
    for line in table.all_notes:
        console.print(Text(printable(line)))


def _drawn(table: Table, columns: Sequence[int]) -> RichTable:
    drawn = RichTable(box=None, pad_edge=False)
    drawn.add_column("", overflow="fold", min_width=NAME_WIDTH)
    for column in columns:
        drawn.add_column(_heading(table, column), justify="right", no_wrap=True, min_width=_width(table, column))
    for row, cells in table.measured:
        drawn.add_row(Text(printable(row.name)), *(_terminal_cell(cells[column]) for column in columns))
    if table.published:
        drawn.add_row()
        drawn.add_row(Text(f"{PUBLISHED}:", style="italic"))
        for row, cells in table.published:
            drawn.add_row(
                Text(printable(row.name)), *(_terminal_cell(cells[column]) for column in columns), style="dim"
            )
    return drawn


def _blocks(table: Table, width: int) -> list[list[int]]:
    """The columns in parts that fit beside the rows' names, each of at least one."""
    blocks: list[list[int]] = [[]]
    for column in range(len(table.columns)):
        if blocks[-1] and _needed(table, [*blocks[-1], column]) > width:
            blocks.append([])
        blocks[-1].append(column)
    return blocks


def _needed(table: Table, columns: Sequence[int]) -> int:
    return NAME_WIDTH + sum(2 + _width(table, column) for column in columns)


def _width(table: Table, column: int) -> int:
    texts = [
        _heading(table, column),
        *(_terminal_cell(cells[column]) for _, cells in (*table.measured, *table.published)),
    ]
    return max(cell_len(line) for text in texts for line in str(text).splitlines() or [""])


def _heading(table: Table, column: int) -> Text:
    heading = table.headings[column]
    return Text(f"{table.columns[column].short}\n{heading.text}{heading.marks.translate(_SUPERSCRIPTS)}")


def _terminal_cell(cell: Cell) -> Text:
    return Text("\n".join((cell.text + cell.marks.translate(_SUPERSCRIPTS), *cell.extra)))


def deliver(
    results: Mapping[str, Any], drawn: Sequence[Table], folder: Path | None, stem: str, *, as_json: bool
) -> None:
    """Print the document or the tables, or, if there is a folder for all of it, those like the first."""
    if as_json:
        print(json.dumps(results, indent=1))
    else:
        console = wide_console()
        for table in drawn if folder is None else [table for table in drawn if table.columns == drawn[0].columns]:
            print_table(table, console)
            console.print()
    if folder is not None:
        written = write_results(folder, stem, results, drawn)
        note(f"written, with all tables: {', '.join(map(str, written))}")
