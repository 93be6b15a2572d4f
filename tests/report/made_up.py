"""Made-up report in which every part is present."""

from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from byov.evaluate.table import Column, Row, Score, Table
from byov.report import content as parts
from byov.report.pictures import encode_video, jpeg_bytes

PHASES = ("reach for the bottle", "pour", "put it back")
VIEWS = ("ego", "ego", "exo", "exo")
TILE = {"ego": (64, 48), "exo": (48, 64)}
EVERY = 3  # distance between samples
PARTS = tuple(parts.SECTIONS)
# Fields with a fixed set of values.
KEPT = ("view", "split", "kind", "score", "unit", "events", "metric", "protocol", "setting")
HOSTILE = (
    "</script></style><script>alert(1)</script>\"'><img src=x "
    "onerror=alert(2)>&amp;&#60;b\x1b[31m\x00\u2028"
)
HOSTILE_ESCAPED = (
    HOSTILE.replace("\x1b", "\\x1b").replace("\x00", "\\x00").replace("\u2028", "\\u2028")
)


def tile_color(video: int, frame: int) -> tuple[int, int, int]:
    """Return a different color for each frame."""
    return 40 + 50 * video, 40 + 15 * (frame % 12), 60 + 30 * (frame // 12)


def make_video(index: int, view: str, frames: int) -> parts.ShownVideo:
    samples = tuple(range(0, frames, EVERY))
    (width, height) = TILE[view]
    colors = [np.full((height, width, 3), tile_color(index, at), np.uint8) for at in range(frames)]
    clip, stills = encode_video(enumerate(colors), 1, {*samples, frames // 2}, 10**5)
    return parts.ShownVideo(
        name=f"{view}/00{index % 2}",
        view=view,
        frames=frames,
        pts_seconds=np.arange(frames) / 10,
        labels=tuple(len(PHASES) * frame // frames for frame in range(frames)),
        samples=samples,
        clip=clip,
        pictures={at: jpeg_bytes(Image.fromarray(pixels)) for at, pixels in stills.items()},
    )


def make_vectors(
    videos: tuple[parts.ShownVideo, ...], name: str = "made-up-0", bend: float = 0.4
) -> parts.RunVectors:
    """Make embeddings along a curve, at a different pace in each video, so that relative time is
    misleading.
    """
    rows = []
    for index, video in enumerate(videos):
        progress = (np.array(video.samples) / max(video.frames - 1, 1)) ** (1 + bend * index)
        rows.append(
            np.stack([np.cos(2 * progress), np.sin(2 * progress), progress], axis=1).astype(
                np.float32
            )
        )
    taus = np.arange(len(videos) ** 2, dtype=np.float64).reshape(len(videos), -1) / 100
    np.fill_diagonal(taus, np.nan)
    return parts.RunVectors(name, tuple(rows), taus)


def make_prediction(frames: int) -> parts.PredictedProgress:
    reference = np.linspace(0, 1, frames)
    return parts.PredictedProgress(reference, reference**2, (np.sqrt(reference),))


def make_tables() -> tuple[Table, ...]:
    names = ("Regular", "Ego2Exo", "Exo2Ego")
    f1 = tuple(
        Column(f"classification/{name}", "Classification (F1)", name, "F1") for name in names
    )
    retrieval = tuple(
        Column(f"retrieval/map@10/{name}", "Retrieval (map@10)", name, "map@10") for name in names
    )

    def table(title: str, columns: tuple[Column, ...]) -> Table:
        own = {column.score: Score(0.6025, interval=(0.5, 0.7)) for column in columns}
        untrained = {column.score: Score(None, missing="no untrained model") for column in columns}
        published = {column.score: Score(0.7516) for column in columns}
        rows = (
            Row("this run", "run", own),
            Row("untrained", "untrained", untrained),
            Row("BYOV", "published", published),
        )
        return Table(title, columns, rows, ("a note",), is_main=columns[0] in f1)

    return table("made-up: Phase tasks", (*f1, *retrieval)), table(
        "made-up: Frame retrieval", retrieval
    )


def make_content(frames: tuple[int, ...] = (60, 45, 51, 66)) -> parts.Content:
    """Make a report on two ego and two exo videos, or fewer if `frames` has fewer lengths."""
    random = np.random.default_rng(0)
    videos = tuple(
        make_video(index, view, count)
        for index, (view, count) in enumerate(zip(VIEWS, frames, strict=False))
    )
    ego, exo = (
        [index for index, video in enumerate(videos) if video.view == view]
        for view in ("ego", "exo")
    )

    def ref(video: int, frame: int) -> parts.FrameRef:
        return parts.FrameRef(video, min(videos[video].samples, key=lambda each: abs(each - frame)))

    def refs(videos: list[int], frames: tuple[int, ...]) -> tuple[parts.FrameRef, ...]:
        return tuple(ref(video, frame) for video, frame in zip(videos, frames, strict=False))

    def worst(place: int) -> parts.WorstVideo:
        video = order[place]
        partner = order[(place + 1) % len(order)]
        tau = (0.21, 0.4, 0.55)[place]
        shown = tuple(dict.fromkeys(ref(video, frame).frame for frame in (0, 12, 24, 36)))
        pairs = zip(
            (ref(video, frame) for frame in shown),
            (ref(partner, at) for at in (3, 9, 30, 33)),
            strict=False,
        )
        return parts.WorstVideo(video, tau, partner, tau - 0.1, tuple(pairs))

    strips: tuple[parts.Strip, ...] = ()
    if ego and exo:
        strips = ((ref(0, 30), *refs(exo, (27, 6))), (ref(exo[-1], 60), *refs(ego, (57, 39))))
    order = (1, 2, 0) if len(videos) > 2 else tuple(range(len(videos)))
    reference = ref(order[0], 24)
    softmax = np.exp(-0.1 * np.abs(np.arange(videos[order[0]].frames) - reference.frame))
    points = tuple(
        parts.FrameRef(index, frame)
        for index, video in enumerate(videos)
        for frame in video.samples
    )
    epochs = tuple(range(1, 31))
    tokens = tuple(
        parts.TokenSelection(
            video,
            frames,
            (0.1, 0.3, 1.0),
            random.integers(0, 255, (3, len(frames), 32, 32, 3), np.uint8),
        )
        for video in (*ego[:1], *exo[:1])
        for frames in (videos[video].samples[:4],)
    )
    rows = [
        ('a, "b"/one.mp4', "ego", "train", "one", "10f;20f", "p"),
        ("two.mp4", "exo", "train", "two", "", "p"),
    ]
    rows += [
        (f"{video.name}.mp4", video.view, "test", video.name.partition("/")[2], "", "")
        for video in videos
    ]
    manifest_rows = tuple(
        dict(
            zip(("path", "view", "split", "id", "events", "pair"), row, strict=True),
            start="",
            end="",
        )
        for row in rows
    )
    labels = np.linspace(0, 1, 30) ** 2
    progress = parts.ProgressLabels(
        "ego/one", labels, (3, 15, 27), random.integers(0, 255, (3, 24, 32, 3), np.uint8)
    )
    return parts.Content(
        run="made-up-0",
        dataset="made-up",
        facts=(("Recipe", "paper"), ("Encoder", "random/tiny")),
        split="test",
        phases=PHASES,
        videos=videos,
        summary=parts.Summary(
            "made-up-0 finds the same moment within 0.41 s",
            "mean over 2 searches",
            ("other-run is off by 2 s",),
            ("Online, it is behind a clock",),
        ),
        opening=parts.Opening(0, 30, exo[0] if exo else 0, 0.2, 1.5),
        verdict="this run is ahead of Time only in 3 of 6 columns of F1 and mAP.",
        predictions=tuple(make_prediction(video.frames) for video in videos),
        chart=parts.ScoreChart(
            ("made-up-0", "clock", "frozen features"),
            tuple(
                parts.ScoreBars(metric, "standard", setting, (0.9, 0.7, None))
                for metric in ("F1", "map@10")
                for setting in ("regular", "cross-view")
            ),
        ),
        tables=make_tables(),
        own_row="this run",
        curves=parts.Curves(
            losses=tuple(
                parts.Curve(name, epochs, tuple(scale / epoch for epoch in epochs))
                for name, scale in (("loss", 6), ("cycle", 0.1))
            ),
            validation=(
                parts.Curve(
                    "retrieval", epochs[::5], tuple(0.4 + 0.01 * epoch for epoch in epochs[::5])
                ),
            ),
            kept_epoch=21,
            diagnostics=tuple(
                parts.Curve(
                    name, epochs[::5], tuple(scale / (scale + epoch) for epoch in epochs[::5])
                )
                for name, scale in (
                    ("cross-view", 20),
                    ("cross-view, reversed", 30),
                    ("mean frame of the clip", 99),
                )
            ),
        ),
        projection=parts.Projection(
            points,
            tuple(
                (title, random.normal(size=(len(points), 2)))
                for title in ("Frozen: CLIP", "Trained")
            ),
        ),
        strips=strips,
        tokens=tokens,
        failures=parts.Failures(
            tuple(map(worst, range(len(order)))), reference, softmax / softmax.sum()
        ),
        progress=(progress, replace(progress, name="exo/two", pictures=None)),
        vectors=(make_vectors(videos),),
        manifest_rows=manifest_rows,
        provenance=(("Run", "made-up-0"), ("Digest", "0123456789abcdef" * 4)),
    )


def without_parts(content: parts.Content, *kept: str) -> parts.Content:
    """Make all parts unavailable except those in `kept`."""
    gone = {
        part: parts.Unavailable(f"no {part} because of <{part}>")
        for part in PARTS
        if part not in kept
    }
    return replace(content, chart=None, **gone)


def unlabeled(content: parts.Content) -> parts.Content:
    return replace(
        content, phases=(), videos=tuple(replace(video, labels=None) for video in content.videos)
    )


def make_hostile(value: Any) -> Any:
    """Append HOSTILE to every non-empty string, except in fields with a fixed set of values."""
    if isinstance(value, str):
        return f"{value}{HOSTILE}" if value else value
    if isinstance(value, tuple):
        if not hasattr(value, "_fields"):
            return tuple(map(make_hostile, value))
        changed = {
            name: make_hostile(item) for name, item in value._asdict().items() if name not in KEPT
        }
        return value._replace(**changed)
    if isinstance(value, dict):
        return {key: value if key in KEPT else make_hostile(value) for key, value in value.items()}
    if not is_dataclass(value) or isinstance(value, type):
        return value
    names = [field.name for field in fields(value) if field.name not in KEPT]
    return replace(value, **{name: make_hostile(getattr(value, name)) for name in names})
