"""Frames of the videos' sheets: each sheet stands once in the page's style, every frame shown is a window on it."""

from bisect import bisect_left

from byov.pipeline.report.content import Sheet, ShownVideo, Unavailable
from byov.pipeline.report.html import Html, data_uri, element

MOST_SECONDS = 1e7


def known_seconds(video: ShownVideo, frame: int) -> float | None:
    """None where the file's time is no time of a video."""
    value = float(video.pts_seconds[frame])
    return value if abs(value) < MOST_SECONDS else None


def seconds_text(video: ShownVideo, frame: int) -> str:
    value = known_seconds(video, frame)
    return "time unknown" if value is None else f"{value:.2f} s"


def phase_of(video: ShownVideo, frame: int) -> int | None:
    return None if video.labels is None else video.labels[frame]


def tile_index(sheet: Sheet | Unavailable, frame: int) -> int | None:
    """Which tile shows the frame; None if there is none."""
    if isinstance(sheet, Unavailable):
        return None
    index = bisect_left(sheet.frames, frame)
    return index if index < len(sheet.frames) and sheet.frames[index] == frame else None


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
