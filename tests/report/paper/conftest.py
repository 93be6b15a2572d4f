import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from byov.report.content import (
    Content,
    Curve,
    Curves,
    Failures,
    FrameRef,
    PointMap,
    Projection,
    Sheet,
    ShownVideo,
    Similarity,
    Strip,
    TokenClip,
    Unavailable,
    WorstVideo,
)

PHASES = ("reach", "pour", "put back")


def tile_color(video, frame):
    """No two tiles alike, none like another thing in a figure."""
    return (40 + 50 * video, 90 + 20 * (frame % 8), 60 + 40 * (frame // 8 % 4))


def shown_video(index, view, frames, *, tile=(48, 36), name=None, labels=True):
    """Every second frame is on the sheet, in rows of three."""
    on_sheet, columns, (width, height) = tuple(range(0, frames, 2)), 3, tile
    rows = []
    for first in range(0, len(on_sheet), columns):
        picture = Image.new("RGB", (columns * width, height))
        for column, frame in enumerate(on_sheet[first : first + columns]):
            picture.paste(tile_color(index, frame), (column * width, 0, (column + 1) * width, height))
        jpeg = io.BytesIO()
        picture.save(jpeg, "JPEG", quality=95, subsampling=0)
        rows.append(jpeg.getvalue())
    return ShownVideo(
        name or f"{view}/{index:03}",
        view,
        frames,
        np.arange(frames) / 10,
        tuple(frame * len(PHASES) // frames for frame in range(frames)) if labels else None,
        on_sheet,
        None,
        Sheet(on_sheet, width, height, columns, tuple(rows)),
    )


def similarity(rows, columns, videos):
    a, b = (np.linspace(0, 1, videos[index].frames) for index in (rows, columns))
    distances = np.abs(a[:, None] - b).astype(np.float32)
    steps = np.linspace(0, 1, len(a) + len(b))
    path = np.unique(np.stack([steps * (len(a) - 1), steps * (len(b) - 1)], 1).round().astype(np.int64), axis=0)
    frames = [tuple(range(videos[index].frames)) for index in (rows, columns)]
    return Similarity(rows, frames[0], columns, frames[1], distances, path, distances.argmin(1), 0.97)


def token_clip(video, frames, random):
    pictures = random.integers(0, 255, (3, len(frames), 32, 32, 3), np.uint8)
    return TokenClip(video, frames, (0.1, 0.3, 1.0), pictures)


def strips(videos, views):
    """Two with queries of ego videos and one with a query of an exo video, if there are both."""

    def ref(video, frame):
        return FrameRef(video, min(frame, videos[video].frames - 1))

    queries = [("ego", "exo", 0), ("ego", "exo", 4), ("exo", "ego", 8)] if all(views.values()) else []
    return tuple(
        Strip(ref(views[query][0], frame), tuple(ref(video, frame // 2) for video in views[candidate]))
        for query, candidate, frame in queries
    )


def made_up_content(videos):
    """Every part, of these videos: ego ones and exo ones."""
    random = np.random.default_rng(0)
    views = {view: [index for index, video in enumerate(videos) if video.view == view] for view in ("ego", "exo")}
    refs = tuple(FrameRef(index, frame) for index, video in enumerate(videos) for frame in range(video.frames))
    epochs = tuple(range(1, 31))
    worst = videos[0]
    softmax = np.exp(np.cos(np.arange(worst.frames) / 5))
    return Content(
        run="made-up",
        dataset="made-up",
        facts=(),
        split="test",
        phases=() if videos[0].labels is None else PHASES,
        videos=videos,
        tables=Unavailable("none"),
        own_rows=(),
        curves=Curves(
            tuple(
                Curve(name, epochs, tuple(scale / epoch for epoch in epochs))
                for name, scale in [("loss", 6), ("cycle", 0.1)]
            ),
            (Curve("map@10", epochs[::10], (0.4, 0.6, 0.5)), Curve("tau", epochs[::10], (0.1, 0.5, 0.7))),
            11,
        ),
        projection=Projection(
            refs,
            tuple(PointMap(title, random.normal(size=(len(refs), 2))) for title in ("Frozen: CLIP", "Trained")),
            len(refs),
        ),
        strips=strips(videos, views),
        tokens=tuple(
            token_clip(found[0], tuple(range(0, videos[found[0]].frames, 6)), random)
            for found in views.values()
            if found
        ),
        similarity=similarity(0, views["exo"][0], videos) if views["exo"] else Unavailable("one view only"),
        failures=Failures(
            tuple(
                WorstVideo(
                    index,
                    -0.1 + index / 10,
                    tuple(range(0, video.frames, 4)),
                    len(videos) - 1,
                    -0.2,
                    (min(1, videos[-1].frames - 1),) * len(range(0, video.frames, 4)),  # odd frames are on no sheet
                )
                for index, video in enumerate(videos[:3])
            ),
            FrameRef(0, worst.frames // 2),
            softmax / softmax.sum(),
        ),
        vectors=Unavailable("none"),
        listing=(),
        provenance=(),
    )


@pytest.fixture(scope="session")
def made_up():
    """`made_up(names=..., labels=..., frames=...)`: two ego and two exo videos, and every part of a report on them."""

    def make(names=(None,) * 4, labels=True, frames=(16, 12, 20, 14)):
        shown = [
            shown_video(index, view, count, name=name, labels=labels, tile=(48, 36) if view == "ego" else (36, 48))
            for index, (view, name, count) in enumerate(zip(("ego", "ego", "exo", "exo"), names, frames, strict=False))
        ]
        return made_up_content(tuple(shown))

    return make


@pytest.fixture(scope="session")
def nothing(made_up):
    """Of `made_up()` no part at all."""
    parts = ("curves", "projection", "strips", "tokens", "similarity", "failures")
    return replace(made_up(), **{part: Unavailable("not there") for part in parts})


@pytest.fixture(scope="session")
def color_of():
    return tile_color
