"""Frames of the videos' sheets: each sheet stands once in the page's style, every frame shown is a window on it."""

from byov.report.content import Sheet, ShownVideo, Unavailable
from byov.report.frame_text import tile_index
from byov.report.page.html import Html, data_uri, element


def tile_class(number_of_video: int, sheet: Sheet, index: int) -> str:
    """The classes that make an element a window on one tile; page.js puts the same together."""
    row, column = divmod(index, sheet.columns)
    return f"tile v{number_of_video} v{number_of_video}x{column} v{number_of_video}y{row}"


def tile(videos: tuple[ShownVideo, ...], video: int, frame: int, **attributes: str) -> Html:
    """One frame as a picture, or an empty frame that says that there is none."""
    sheet, label = videos[video].sheet, f"{videos[video].name}, frame {frame}"
    index = tile_index(sheet, frame)
    if index is None or isinstance(sheet, Unavailable):
        return element("span", "no picture", class_="tile missing", role="img", aria_label=f"{label}: no picture")
    return element("span", class_=tile_class(video, sheet, index), role="img", aria_label=label, **attributes)


def picture_row(stills: list[Html], label: str) -> Html:
    """Pictures in a row; it scrolls where there is little room."""
    return element("div", *stills, class_="strip", tabindex=0, role="group", aria_label=label)


def sheet_style(videos: tuple[ShownVideo, ...]) -> str:
    return "\n".join(
        _rules(f"v{index}", video.sheet) for index, video in enumerate(videos) if isinstance(video.sheet, Sheet)
    )


def _rules(name: str, sheet: Sheet) -> str:
    """The window is half a pixel narrower on every side than the tile: when scaled, neighbours would shine through."""
    rows = -(-len(sheet.frames) // sheet.columns)
    wide, high = _zoom(sheet.tile_width, sheet.columns), _zoom(sheet.tile_height, rows)
    lines = [
        f".{name}{{background-image:url({data_uri('image/jpeg', sheet.jpeg)});background-size:{wide} {high};"
        f"aspect-ratio:{sheet.tile_width}/{sheet.tile_height}}}"
    ]
    lines += _positions(f"{name}x", "background-position-x", sheet.tile_width, sheet.columns)
    lines += _positions(f"{name}y", "background-position-y", sheet.tile_height, rows)
    return "\n".join(lines)


def _positions(name: str, what: str, tile_px: int, tiles: int) -> list[str]:
    return [f".{name}{index}{{{what}:{_offset(tile_px, tiles, index)}}}" for index in range(tiles)]


def _zoom(tile_px: int, tiles: int) -> str:
    return f"{100 * tiles * tile_px / max(tile_px - 1, 1):.4f}%"


def _offset(tile_px: int, tiles: int, index: int) -> str:
    """CSS counts in shares of what the picture is larger than the window."""
    return f"{100 * (index * tile_px + 0.5) / ((tiles - 1) * tile_px + 1):.4f}%"
