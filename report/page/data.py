"""What page.js needs: frames, times and phases of the sheets, the matches, the points of the projection."""

import json
from typing import Any

from byov.report.content import Content, PlayerMatch, Projection, ShownVideo, Unavailable
from byov.report.frame_text import known_seconds, phase_name, phase_of, seconds_text, tile_index
from byov.report.page.draw_projection import fitted
from byov.report.page.phases import COLOURS, phase_runs
from byov.text import printable


def page_data(content: Content) -> str:
    """JSON that can stand inside a script element."""
    matches = () if isinstance(content.matches, Unavailable) else content.matches
    data = {
        "colours": COLOURS,
        "videos": [_video(content.phases, video) for video in content.videos],
        "matches": [_match(content, match) for match in matches],
        "projection": None if isinstance(content.projection, Unavailable) else _projection(content, content.projection),
    }
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _video(phases: tuple[str, ...], video: ShownVideo) -> dict[str, Any]:
    frames = () if isinstance(video.sheet, Unavailable) else video.sheet.frames
    return {
        "name": printable(video.name),
        "view": printable(video.view),
        "count": video.frames,
        "columns": 0 if isinstance(video.sheet, Unavailable) else video.sheet.columns,
        "frames": frames,
        "seconds": [known_seconds(video, frame) for frame in frames],
        "times": [seconds_text(video, frame) for frame in frames],
        "phases": [printable(phase_name(phases, phase_of(video, frame))) for frame in frames],
        "runs": phase_runs(video),
    }


def _match(content: Content, match: PlayerMatch) -> dict[str, Any]:
    """Tiles instead of frames, in the order of the query's tiles."""
    sheet = content.videos[match.candidate].sheet
    tiles = [tile_index(sheet, frame) for frame in match.frames]
    return {"query": match.query, "candidate": match.candidate, "tiles": tiles}


def _projection(content: Content, projection: Projection) -> dict[str, Any]:
    return {
        "points": [
            _point(content.phases, reference.video, content.videos[reference.video], reference.frame)
            for reference in projection.frames
        ],
        "before": fitted(projection.before).round(2).tolist(),
        "after": fitted(projection.after).round(2).tolist(),
    }


def _point(phases: tuple[str, ...], index: int, video: ShownVideo, frame: int) -> list[Any]:
    phase = printable(phase_name(phases, phase_of(video, frame)))
    return [index, tile_index(video.sheet, frame), frame, seconds_text(video, frame), phase]
