"""A made-up report."""

import io
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from byov.evaluate.table import Column, Row, Score, Table
from byov.report.content import (
    Content,
    Curve,
    Curves,
    Failures,
    FrameRef,
    ListedVideo,
    PointMap,
    Projection,
    RunVectors,
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


def _tile_color(hue: int, index: int, count: int) -> tuple[int, int, int]:
    return hue, 255 * index // count, 255 - hue


def _sheet(frames: int, hue: int) -> Sheet:
    """Tiles of one color each, by which a test can tell them apart."""
    shown = tuple(range(0, frames, EVERY))
    width, height = TILE_PX
    rows = []
    for first in range(0, len(shown), COLUMNS):
        row = Image.new("RGB", (COLUMNS * width, height))
        for index in range(first, min(first + COLUMNS, len(shown))):
            row.paste(
                _tile_color(hue, index, len(shown)), ((index - first) * width, 0, (index - first + 1) * width, height)
            )
        buffer = io.BytesIO()
        row.save(buffer, "JPEG", quality=90)
        rows.append(buffer.getvalue())
    return Sheet(shown, width, height, COLUMNS, tuple(rows))


def _video(name: str, frames: int) -> ShownVideo:
    labels = tuple(len(PHASES) * frame // frames for frame in range(frames))
    pts_seconds = np.arange(frames) / FRAMES_PER_SECOND
    sheet, tau = _sheet(frames, HUES[name]), frames / 100
    return ShownVideo(name, name.partition("/")[0], frames, pts_seconds, labels, sheet.frames, tau, sheet)


def _table(title: str, columns: tuple[Column, ...]) -> Table:
    own = {column.score: Score(0.6025 + 0.01 * index, interval=(0.5, 0.7)) for index, column in enumerate(columns)}
    untrained = {column.score: Score(None, missing="this run has no untrained model") for column in columns}
    published = {column.score: Score(0.7516) for column in columns}
    return Table(
        title,
        (replace(columns[0], footnote=PUBLISHED_NOTE), *columns[1:]),
        (
            Row("this run", "run", own),
            Row("untrained", "untrained", untrained),
            Row("BYOV", "published", published),
        ),
        ("intervals: 95% over videos",),
    )


def _tables() -> tuple[Table, ...]:
    names = ("Regular", "Ego2Exo", "Exo2Ego")
    f1 = tuple(Column(f"classification/{name}", "Classification (F1)", name, "F1") for name in names)
    retrieval = tuple(Column(f"retrieval/map@10/{name}", "Retrieval (map@10)", name, "map@10") for name in names)
    tau = Column("kendalls_tau/all", "Kendall's tau", "all pairs", "tau", percent=False)
    return (
        _table("made-up, test split, standard protocol: Phase tasks", (*f1, *retrieval, tau)),
        _table("made-up, test split, standard protocol: Frame retrieval", retrieval),
    )


def _vectors(videos: tuple[ShownVideo, ...], name: str, bend: float) -> RunVectors:
    """Moments along a curve, each video bent in its own way: the nearest is not at the same share of the video."""

    def rows(index: int, video: ShownVideo) -> NDArray[np.float32]:
        progress = (np.array(video.moments) / (video.frames - 1)) ** (1 + bend * index)
        return np.stack([np.cos(2 * progress), np.sin(2 * progress), progress], axis=1).astype(np.float32)

    return RunVectors(name, tuple(rows(index, video) for index, video in enumerate(videos)))


def _listing(videos: tuple[ShownVideo, ...]) -> tuple[ListedVideo, ...]:
    """The shown videos of the test split, and what they were trained on; with commas and quotes."""
    train = (
        ListedVideo('a, "b"/one.mp4', "ego", "train", "one", "1.000;2.000", "p"),
        ListedVideo("two.mp4", "exo", "train", "two", "", "p"),
    )
    names = [video.name.split("/") for video in videos]
    return (*train, *(ListedVideo(f"{view}/{one}.mp4", view, "test", one, "", "") for view, one in names))


def _projection(videos: tuple[ShownVideo, ...], rng: np.random.Generator) -> Projection:
    frames = tuple(FrameRef(index, frame) for index, video in enumerate(videos) for frame in video.sheet.frames)
    turns = np.array([6 * reference.frame / videos[reference.video].frames for reference in frames])
    spiral = np.stack([turns * np.cos(turns), turns * np.sin(turns)], axis=1)
    noise, after = rng.normal(size=(len(frames), 2)), spiral + rng.normal(0, 0.2, spiral.shape)
    return Projection(frames, (PointMap("Frozen: merged/0.3", noise), PointMap("Trained: made-up-0", after)), 222)


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
    return Content(
        run="made-up-0",
        dataset="made-up",
        facts=(("recipe", "paper"), ("frame encoder", "random/tiny"), ("ratio", "0.3"), ("parameters", "1.2 million")),
        split="test",
        phases=PHASES,
        videos=videos,
        tables=_tables(),
        own_rows=("this run",),
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
            worst=tuple(
                WorstVideo(video, tau, (0, 12, 24, 36), partner, tau - 0.1, (3, 9, 30, 33))
                for video, tau, partner in ((1, 0.21, 2), (2, 0.4, 0), (0, 0.55, 1))
            ),
            reference=FrameRef(1, 24),
            similarity=softmax / softmax.sum(),
        ),
        vectors=(_vectors(videos, "made-up-0", 0.4),),
        listing=_listing(videos),
        provenance=(("byov", "0.1.0"), ("model digest", "0123456789abcdef" * 4)),
    )


@pytest.fixture(scope="session")
def without(content: Content) -> Content:
    """The same with nothing to show: every part says why."""
    parts = ("tables", "curves", "projection", "strips", "tokens", "similarity", "failures", "vectors")
    reasons = {part: Unavailable(f"there is no {part} because of reason <{part}>") for part in parts}
    videos = tuple(replace(video, labels=None, sheet=Unavailable("the video is gone")) for video in content.videos)
    return replace(content, phases=(), videos=videos, **reasons)


HOSTILE = "</script></style><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&amp;&#60;b\x1b[31m\x00\u2028"


def _hostile(value: Any) -> Any:
    """Every text in a report made hostile, but those that name a view or a figure."""
    if isinstance(value, str):
        return f"{value}{HOSTILE}" if value else value
    if isinstance(value, tuple):
        return tuple(map(_hostile, value))
    if not is_dataclass(value):
        return value
    kept = ("view", "split", "figure", "kind", "score")
    names = [each.name for each in fields(value) if each.name not in kept]
    return replace(value, **{name: _hostile(getattr(value, name)) for name in names})


@pytest.fixture(scope="session")
def hostile_text() -> str:
    return HOSTILE


@pytest.fixture(scope="session")
def hostile(content: Content) -> Content:
    return _hostile(content)


@pytest.fixture(scope="session")
def tile_color() -> Callable[[ShownVideo, int], tuple[int, int, int]]:
    """Of a frame on a made-up sheet."""
    return lambda video, frame: _tile_color(HUES[video.name], video.moments.index(frame), len(video.moments))


@pytest.fixture(scope="session")
def compared(content: Content) -> Content:
    """The same beside a second run."""
    return replace(content, vectors=(*content.vectors, _vectors(content.videos, "other-run", -0.2)))


@pytest.fixture(scope="session")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Content], Path]:
    """The file of a report, rendered once for all tests that open it."""
    made: list[tuple[Content, Path]] = []

    def page(content: Content) -> Path:
        for known, path in made:
            if known is content:
                return path
        path = tmp_path_factory.mktemp("page") / "report.html"
        path.write_text(render(content), encoding="utf-8")
        made.append((content, path))
        return path

    return page


@pytest.fixture
def open_page(open_file: Callable[..., Any], page_of: Callable[[Content], Path]) -> Callable[..., Any]:
    """Open a report."""

    def opened(content: Content, **how: Any) -> Any:
        return open_file(page_of(content), **how)

    return opened
