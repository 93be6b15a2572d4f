"""Rows of pictures for papers: where each cell stands, and the frames of the videos that fill them."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from PIL import Image

from byov.report.content import Content, FrameRef, Unavailable
from byov.report.frame_text import seconds_text, tile_index
from byov.report.paper.style import COLUMN_INCHES, FAINT, PAGE_HEIGHT_INCHES, PAGE_INCHES, SMALL_POINTS, fitted

Picture = NDArray[np.uint8]  # (height, width, 3)

WIDEST_CELL_INCHES = 1.25
MARGIN_INCHES = 0.03
GAP_INCHES = 0.06
LINE_INCHES = 0.13  # of a caption
EDGE_POINTS = 2.0


@dataclass(frozen=True)
class GridCell:
    picture: Picture | None
    caption: tuple[str, ...]  # lines
    edge: str | None = None  # color of the line around the picture


class FrameGrid:
    """The frames on the videos' sheets; each row of tiles is decoded once."""

    def __init__(self, content: Content) -> None:
        self._videos = content.videos
        self._decoded: dict[tuple[int, int], Picture] = {}  # by video and row of tiles

    def picture(self, ref: FrameRef) -> Picture | None:
        """None if there is no such tile."""
        sheet = self._videos[ref.video].sheet
        index = tile_index(sheet, ref.frame)
        if index is None or isinstance(sheet, Unavailable):
            return None
        row, column = divmod(index, sheet.columns)
        if (ref.video, row) not in self._decoded:
            with Image.open(io.BytesIO(sheet.rows[row]), formats=["JPEG"]) as image:
                self._decoded[ref.video, row] = np.asarray(image.convert("RGB"))
        left = column * sheet.tile_width
        return self._decoded[ref.video, row][:, left : left + sheet.tile_width]

    def time(self, ref: FrameRef) -> str:
        return seconds_text(self._videos[ref.video], ref.frame)


class Grid:
    """Cells of one width that leave room at the left for names, above for a heading and below for whatever follows."""

    def __init__(
        self, rows: Sequence[Sequence[GridCell]], *, left: float = 0, above: float = 0, below: float = 0
    ) -> None:
        self._left = left + MARGIN_INCHES
        columns = max(len(row) for row in rows)
        tallest = [max((_height(cell) for cell in row), default=0) for row in rows]  # for a cell of width 1
        captions = [LINE_INCHES * max((len(cell.caption) for cell in row), default=0) + GAP_INCHES for row in rows]
        room_across = PAGE_INCHES - self._left - MARGIN_INCHES + GAP_INCHES
        room_down = PAGE_HEIGHT_INCHES - above - MARGIN_INCHES - below - sum(captions)
        self._cell_width = min(room_across / columns - GAP_INCHES, WIDEST_CELL_INCHES, room_down / sum(tallest))
        self._heights = [self._cell_width * height for height in tallest]
        ends = above + MARGIN_INCHES + np.cumsum([sum(row) for row in zip(self._heights, captions, strict=True)])
        self._bases = [float(end - caption) for end, caption in zip(ends, captions, strict=True)]  # pictures stand here
        self.bottom = float(ends[-1])
        width = self.column_left(columns) - GAP_INCHES + MARGIN_INCHES
        self.figure = Figure(figsize=(max(width, COLUMN_INCHES), self.bottom + below))
        for row, cells in enumerate(rows):
            for column, cell in enumerate(cells):
                self._draw(row, column, cell)

    def column_left(self, column: int) -> float:
        return self._left + column * (self._cell_width + GAP_INCHES)

    def row_middle(self, row: int) -> float:
        """Of the pictures, without their captions."""
        return self._bases[row] - self._heights[row] / 2

    def text(self, left: float, top: float, text: str, **options: object) -> None:
        """In inches from the top left corner."""
        width, height = self.figure.get_size_inches()
        self.figure.text(left / width, 1 - top / height, text, fontsize=SMALL_POINTS, **options)  # type: ignore[arg-type]

    def axes(self, left: float, top: float, width: float, height: float) -> Axes:
        whole_width, whole_height = self.figure.get_size_inches()
        return self.figure.add_axes(
            (left / whole_width, 1 - (top + height) / whole_height, width / whole_width, height / whole_height)
        )

    def _draw(self, row: int, column: int, cell: GridCell) -> None:
        left, height = self.column_left(column), self._cell_width * _height(cell)
        axes = self.axes(left, self._bases[row] - height, self._cell_width, height)
        axes.set(xticks=[], yticks=[])
        if cell.picture is not None:
            axes.imshow(cell.picture, aspect="auto")
        else:
            axes.set_facecolor("#eeeeee")
            axes.text(0.5, 0.5, "no picture", transform=axes.transAxes, ha="center", va="center", color=FAINT)
        for spine in axes.spines.values():
            spine.set(visible=cell.edge is not None, color=cell.edge, linewidth=EDGE_POINTS)
        for line, text in enumerate(cell.caption):
            top = self._bases[row] + 0.035 + line * LINE_INCHES
            self.text(left + self._cell_width / 2, top, fitted(text, self._cell_width), ha="center", va="top")


def _height(cell: GridCell) -> float:
    """For a width of 1; without a picture, a square."""
    return cell.picture.shape[0] / cell.picture.shape[1] if cell.picture is not None else 1
