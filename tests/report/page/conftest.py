"""A made-up report."""

import io
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from byov.evaluate.table import Cell, Table
from byov.evaluate.task import Column
from byov.report.content import (
    Content,
    Curve,
    Curves,
    Failures,
    FrameRef,
    PlayerMatch,
    Projection,
    Sheet,
    ShownVideo,
    Similarity,
    Strip,
    TokenClip,
    Unavailable,
    WorstVideo,
)
from byov.report.page.html_page import render

PHASES = ("reach for the bottle", "pour", "put it back")
FRAMES_PER_SECOND = 10
EVERY = 3  # of the frames on a sheet
TILE_PX = (64, 48)
COLUMNS = 4
HUES = {"ego/000": 40, "ego/001": 90, "exo/000": 150, "exo/001": 210}
PUBLISHED_NOTE = "as printed in the paper's Table 1"


def _tile_colour(hue: int, index: int, count: int) -> tuple[int, int, int]:
    return hue, 255 * index // count, 255 - hue


def _sheet(frames: int, hue: int) -> Sheet:
    """Tiles of one colour each, by which a test can tell them apart."""
    shown = tuple(range(0, frames, EVERY))
    width, height = TILE_PX
    rows = -(-len(shown) // COLUMNS)
    pixels = np.zeros((rows * height, COLUMNS * width, 3), np.uint8)
    for index in range(len(shown)):
        top, left = index // COLUMNS * height, index % COLUMNS * width
        pixels[top : top + height, left : left + width] = _tile_colour(hue, index, len(shown))
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "JPEG", quality=90)
    return Sheet(shown, width, height, COLUMNS, buffer.getvalue())


def _video(name: str, frames: int) -> ShownVideo:
    labels = tuple(len(PHASES) * frame // frames for frame in range(frames))
    pts_seconds = np.arange(frames) / FRAMES_PER_SECOND
    return ShownVideo(name, name.partition("/")[0], frames, pts_seconds, labels, _sheet(frames, HUES[name]))


def _table(title: str, columns: tuple[Column, ...]) -> Table:
    measured = (
        ("this run", tuple(Cell(f"{60 + index}.25", "", ("[50.00, 70.00]",)) for index in range(len(columns)))),
        ("untrained", tuple(Cell("n/a", "a") for _ in columns)),
    )
    published = (("BYOV", tuple(Cell("75.16") for _ in columns)),)
    marks = ("b", *("" for _ in columns[1:]))
    footnotes = (("a", "this run has no untrained model"), ("b", PUBLISHED_NOTE))
    return Table(title, columns, marks, measured, published, footnotes, ("intervals: 95% over videos",))


def _tables() -> tuple[Table, ...]:
    names = ("Regular", "Ego2Exo", "Exo2Ego")
    f1 = tuple(Column(f"classification/{name}", "Classification (F1)", name, "F1") for name in names)
    retrieval = tuple(Column(f"retrieval/map@10/{name}", "Retrieval (map@10)", name, "map@10") for name in names)
    tau = Column("kendalls_tau/all", "Kendall's tau", "all pairs", "tau", percent=False)
    return (
        _table("made-up, test split, standard protocol: Phase tasks", (*f1, *retrieval, tau)),
        _table("made-up, test split, standard protocol: Frame retrieval", retrieval),
    )


def _match(videos: tuple[ShownVideo, ...], query: int, candidate: int) -> PlayerMatch:
    """The frame at the same share of the video."""
    queries, candidates = videos[query].sheet.frames, videos[candidate].sheet.frames
    return PlayerMatch(
        query, candidate, tuple(candidates[index * len(candidates) // len(queries)] for index in range(len(queries)))
    )


def _projection(videos: tuple[ShownVideo, ...], rng: np.random.Generator) -> Projection:
    frames = tuple(FrameRef(index, frame) for index, video in enumerate(videos) for frame in video.sheet.frames)
    turns = np.array([6 * reference.frame / videos[reference.video].frames for reference in frames])
    spiral = np.stack([turns * np.cos(turns), turns * np.sin(turns)], axis=1)
    return Projection(
        frames, rng.normal(size=(len(frames), 2)), spiral + rng.normal(0, 0.2, spiral.shape), "merged/0.3"
    )


def _similarity(videos: tuple[ShownVideo, ...]) -> Similarity:
    down, across = (np.arange(videos[index].frames) / videos[index].frames for index in (0, 2))
    distances = np.abs(down[:, None] - across[None, :]).astype(np.float32)
    nearest = distances.argmin(axis=1)
    return Similarity(
        rows=0,
        row_frames=tuple(range(videos[0].frames)),
        columns=2,
        column_frames=tuple(range(videos[2].frames)),
        distances=distances,
        path=np.stack([np.arange(len(down)), nearest], axis=1),
        nearest=nearest,
        tau=0.875,
    )


@pytest.fixture(scope="session")
def content() -> Content:
    """Two ego and two exo videos; every part is there."""
    rng = np.random.default_rng(0)
    videos = tuple(map(_video, HUES, (60, 45, 51, 66)))
    epochs = tuple(range(1, 31))
    pictures = rng.integers(0, 255, (3, 4, 32, 32, 3), dtype=np.uint8)
    softmax = np.exp(-0.1 * np.abs(np.arange(45) - 20))
    pairs = ((0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (3, 0), (3, 1))
    return Content(
        run="made-up-0",
        dataset="made-up",
        facts=(("recipe", "paper"), ("frame encoder", "random/tiny"), ("ratio", "0.3"), ("parameters", "1.2 million")),
        split="test",
        phases=PHASES,
        videos=videos,
        tables=_tables(),
        curves=Curves(
            losses=(
                Curve("loss", epochs, tuple(6 / epoch for epoch in epochs)),
                Curve("cycle", epochs, tuple(0.1 / epoch for epoch in epochs)),
            ),
            validation=(Curve("retrieval", epochs[::5], tuple(0.4 + 0.01 * epoch for epoch in epochs[::5])),),
            kept_epoch=21,
        ),
        projection=_projection(videos, rng),
        strips=(
            Strip(FrameRef(0, 30), (FrameRef(2, 27), FrameRef(3, 6))),
            Strip(FrameRef(3, 60), (FrameRef(0, 57), FrameRef(1, 39))),
        ),
        tokens=(
            TokenClip(0, (0, 15, 30, 45), (0.1, 0.3, 1.0), pictures),
            TokenClip(2, (0, 12, 24, 36), (0.1, 0.3, 1.0), pictures[:, ::-1]),
        ),
        similarity=_similarity(videos),
        failures=Failures(
            worst=tuple(WorstVideo(video, tau, (0, 12, 24, 36)) for video, tau in ((1, 0.21), (2, 0.4), (0, 0.55))),
            reference=FrameRef(1, 20),
            similarity=softmax / softmax.sum(),
        ),
        matches=tuple(_match(videos, *pair) for pair in pairs),
        provenance=(("byov", "0.1.0"), ("model digest", "0123456789abcdef" * 4)),
    )


@pytest.fixture(scope="session")
def without(content: Content) -> Content:
    """The same with nothing to show: every part says why."""
    parts = ("tables", "curves", "projection", "strips", "tokens", "similarity", "failures", "matches")
    reasons = {part: Unavailable(f"there is no {part} because of reason <{part}>") for part in parts}
    videos = tuple(replace(video, labels=None, sheet=Unavailable("the video is gone")) for video in content.videos)
    return replace(content, phases=(), videos=videos, **reasons)


HOSTILE = "</script></style><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;&#60;b\x1b[31m\x00\u2028"


def _hostile(value: Any) -> Any:
    """Every text in a report made hostile, but those that name a view or a figure."""
    if isinstance(value, str):
        return f"{value}{HOSTILE}"
    if isinstance(value, tuple):
        return tuple(map(_hostile, value))
    if not is_dataclass(value):
        return value
    kept = ("view", "figure", "marks", "column_marks", "jpeg")
    names = [each.name for each in fields(value) if each.name not in kept]
    return replace(value, **{name: _hostile(getattr(value, name)) for name in names})


@pytest.fixture(scope="session")
def hostile_text() -> str:
    return HOSTILE


@pytest.fixture(scope="session")
def hostile(content: Content) -> Content:
    return _hostile(content)


@pytest.fixture(scope="session")
def tile_colour() -> Callable[[ShownVideo, int], tuple[int, int, int]]:
    """Of a frame on a made-up sheet."""
    return lambda video, frame: _tile_colour(HUES[video.name], video.sheet.frames.index(frame), len(video.sheet.frames))


@pytest.fixture
def open_page(open_file: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Render a report and open it."""

    def opened(content: Content, **how: Any) -> Any:
        path = tmp_path / "report.html"
        path.write_text(render(content), encoding="utf-8")
        return open_file(path, **how)

    return opened
