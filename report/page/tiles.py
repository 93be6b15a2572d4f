"""Frames of the videos' sheets: each sheet stands once in the page's style, every frame shown is a window on it."""

from urllib.parse import quote

from byov.report.content import Sheet, ShownVideo, Unavailable
from byov.report.frame_text import tile_index
from byov.report.page.html import Html, data_uri, element
from byov.text import printable


def tile_class(video: int, sheet: Sheet, index: int) -> str:
    """The classes that make an element a window on one tile; frames.js puts the same together."""
    row, column = divmod(index, sheet.columns)
    return f"tile v{video} v{video}r{row} c{sheet.columns}x{column}"


def tile(videos: tuple[ShownVideo, ...], video: int, frame: int) -> Html:
    """One frame as a picture, or an empty frame that says that there is none."""
    sheet, label = videos[video].sheet, f"{videos[video].name}, frame {frame}"
    index = tile_index(sheet, frame)
    if index is None or isinstance(sheet, Unavailable):
        return element("span", "no picture", class_="tile missing", role="img", aria_label=f"{label}: no picture")
    return element("span", class_=tile_class(video, sheet, index), role="img", aria_label=label)


def linked_tile(videos: tuple[ShownVideo, ...], video: int, frame: int, address: str) -> Html:
    """The same, and a click on it moves the player to an address."""
    return element("a", tile(videos, video, frame), href=address, class_="window")


def frame_address(videos: tuple[ShownVideo, ...], video: int, frame: int, beside: int | None = None) -> str:
    """Of a frame, and of the video to compare with; state.js reads it."""
    names = {"video": videos[video].name, "frame": str(frame)}
    if beside is not None:
        names["with"] = videos[beside].name
    return "#" + "&".join(f"{key}={quote(printable(value), safe='/')}" for key, value in names.items())


def picture_row(stills: list[Html], label: str) -> Html:
    """Pictures in a row; it scrolls where there is little room."""
    return element("div", *stills, class_="strip", role="group", aria_label=label)


def sheet_styles(videos: tuple[ShownVideo, ...]) -> list[str]:
    """One style sheet for each video, to stand behind all text: the reader sees that before the pictures are read."""
    sheets = [(index, video.sheet) for index, video in enumerate(videos) if isinstance(video.sheet, Sheet)]
    columns = sorted({sheet.columns for _, sheet in sheets})
    return [*(_column_rules(count) for count in columns), *(_rules(f"v{index}", sheet) for index, sheet in sheets)]


def _rules(name: str, sheet: Sheet) -> str:
    """The ratio of the sides, and the picture of each row of tiles."""
    lines = [
        f".{name}{{--ratio:{sheet.tile_width / sheet.tile_height:.4f};--wide:{sheet.tile_width}px;"
        f"background-size:{_zoom(sheet.tile_width, sheet.columns)} {_zoom(sheet.tile_height, 1)}}}"
    ]
    lines += [
        f".{name}r{row}{{background-image:url({data_uri('image/jpeg', jpeg)})}}" for row, jpeg in enumerate(sheet.rows)
    ]
    return "\n".join(lines)


def _column_rules(columns: int) -> str:
    """Where a tile begins in a row. CSS counts in shares of what the picture is larger than the window."""
    places = [100 * column / (columns - 1) if columns > 1 else 50 for column in range(columns)]
    return "\n".join(
        f".c{columns}x{column}{{background-position-x:{place:.4f}%}}" for column, place in enumerate(places)
    )


def _zoom(tile_px: int, tiles: int) -> str:
    """The window is half a pixel narrower on every side than the tile: when scaled, neighbors would shine through."""
    return f"{100 * tiles * tile_px / max(tile_px - 1, 1):.4f}%"
