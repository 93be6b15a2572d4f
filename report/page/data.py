"""What the scripts need: the moments of each video, their embeddings, the points of the maps, the dataset's lines."""

import json
from base64 import b64encode
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byov.report.content import Content, PointMap, Projection, RunVectors, ShownVideo, Unavailable
from byov.report.frame_text import known_seconds
from byov.report.page.phases import COLOURS, phase_runs
from byov.text import printable

LEVELS = 127  # of an 8-bit integer, on either side of 0
MAP_PX, MARGIN_PX = 400, 14  # of a map: its side, and what stays free around the points


def page_data(content: Content) -> str:
    """JSON that can stand inside a script element."""
    projection = None if isinstance(content.projection, Unavailable) else content.projection
    data = {
        "dataset": printable(content.dataset),
        "colors": COLOURS,
        "phases": [printable(name) for name in content.phases],
        "videos": [_video(video) for video in content.videos],
        "runs": [] if isinstance(content.vectors, Unavailable) else [quantized(run) for run in content.vectors],
        "points": None if projection is None else _points(content, projection),
        "maps": [] if projection is None else [_map(one) for one in projection.maps],
        "lines": [[printable(text) for text in astuple(line)] for line in content.listing],
    }
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def quantized(run: RunVectors) -> dict[str, Any]:
    """Embeddings as 8-bit integers: distances are those of the integers times `step`.

    Around the mean of all frames, which changes no distance, so that the integers are made use of.
    """
    rows = np.nan_to_num(np.concatenate(run.of_video).astype(np.float64), posinf=0, neginf=0)
    centered = rows - rows.mean(axis=0)
    step = float(np.abs(centered).max()) / LEVELS or 1.0
    numbers = np.round(centered / step).astype(np.int8)
    return {
        "name": printable(run.name),
        "width": rows.shape[1],
        "step": step,
        "numbers": b64encode(numbers.tobytes()).decode("ascii"),
    }


def fitted(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, 2) in pixels of the map, both axes by the same scale, y upwards; what is not finite counts as 0."""
    finite = np.where(np.isfinite(points), points, 0.0)
    low, high = finite.min(axis=0), finite.max(axis=0)
    scale = (MAP_PX - 2 * MARGIN_PX) / max(float((high - low).max()), 1e-12)
    placed: NDArray[np.float64] = MAP_PX / 2 + (finite - (low + high) / 2) * scale * np.array([1.0, -1.0])
    return placed


def _video(video: ShownVideo) -> dict[str, Any]:
    seconds = [known_seconds(video, frame) for frame in video.moments]
    return {
        "name": printable(video.name),
        "view": printable(video.view),
        "count": video.frames,
        "columns": 0 if isinstance(video.sheet, Unavailable) else video.sheet.columns,
        "frames": video.moments,
        "seconds": [None if value is None else round(value, 4) for value in seconds],
        "runs": phase_runs(video),
    }


def _points(content: Content, projection: Projection) -> list[tuple[int, int]]:
    """(video, moment) of each point."""
    return [(ref.video, content.videos[ref.video].moments.index(ref.frame)) for ref in projection.frames]


def _map(one: PointMap) -> list[list[float]]:
    placed: list[list[float]] = fitted(one.points).round(1).tolist()
    return placed
