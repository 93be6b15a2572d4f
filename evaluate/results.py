"""What an evaluation leaves: one JSON document, and its tables as Markdown and LaTeX."""

import json
import logging
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from byov.cache.atomic import write_text
from byov.cache.manifest import Manifest
from byov.cache.sub_clips import CLIPS_PER_VIDEO, LONGEST, SEED, SHORTEST
from byov.evaluate.comparison import Scope
from byov.evaluate.frames import Frames
from byov.evaluate.layout import layouts
from byov.evaluate.protocols import Protocol, stretches, unread_videos
from byov.evaluate.published import published_rows
from byov.evaluate.render import latex, markdown
from byov.evaluate.scores import Row
from byov.evaluate.table import Table, build_table
from byov.evaluate.tasks import Settings

LOGGER = logging.getLogger(__name__)

SCHEMA_VERSION = 1
TRIMMED = (
    "trimmed: each video is replaced by two sub-clips of 30 to 60% of its length, each embedded as if it were a video; "
    "progression and Time only's clock run over the sub-clip; sub-clips of one video do not search each other"
)


@dataclass(frozen=True)
class Scored:
    """What was scored: a dataset, or somebody's file."""

    title: str
    counts: dict[Protocol, dict[str, int]]  # videos, ego, exo, frames
    left_out: tuple[str, ...] = ()  # videos that no encoder could read


def scored_of_dataset(manifest: Manifest, scope: Scope) -> Scored:
    counts = {}
    for protocol in scope.protocols:
        scored = stretches(manifest, scope.split, protocol)
        ego = sum(stretch.video.view == "ego" for stretch in scored)
        counts[protocol] = _counts(len(scored), ego, sum(map(len, scored)))
    return Scored(manifest.dataset, counts, tuple(unread_videos(manifest, ("train", scope.split))))


def say_left_out(scored: Scored) -> None:
    if scored.left_out:
        LOGGER.info(
            f"{len(scored.left_out)} videos were never extracted and are left out: {', '.join(scored.left_out[:3])}"
        )


def scored_of_frames(title: str, test: Frames) -> Scored:
    return Scored(title, {"standard": _counts(len(test.lengths), int(test.is_ego.sum()), len(test.embeddings))})


def document(scored: Scored, scope: Scope, rows: Mapping[Protocol, Sequence[Row]]) -> dict[str, Any]:
    """All that is known, for machines."""
    return {
        "schema_version": SCHEMA_VERSION,
        "dataset": scored.title,
        "split": scope.split,
        "tasks": list(scope.tasks),
        **how(scope.settings),
        "left_out": scored.left_out,
        "protocols": {
            protocol: {**scored.counts[protocol], "rows": [row.as_dict() for row in of_protocol]}
            for protocol, of_protocol in rows.items()
        },
        "published": [row.as_dict() for row in _published(scored, scope, "standard")],
    }


def how(settings: Settings) -> dict[str, Any]:
    """What a figure depends on beside the embeddings."""
    packages = {name: version(name) for name in ("byov", "numpy", "scipy", "scikit-learn")}
    clips = {"seed": SEED, "per_video": CLIPS_PER_VIDEO, "shortest": SHORTEST, "longest": LONGEST}
    return {
        "settings": asdict(settings),
        "trimmed_clips": clips,
        "versions": {"python": platform.python_version(), **packages},
    }


def tables(scored: Scored, scope: Scope, rows: Mapping[Protocol, Sequence[Row]]) -> list[Table]:
    """The paper's tables, each under every protocol."""
    return [
        build_table(
            layout,
            f"{scored.title}, {scope.split} split, {protocol} protocol: {layout.subject} "
            f"({_counts_text(scored.counts[protocol], protocol)})",
            of_protocol,
            _published(scored, scope, protocol),
            time_column=any(row.time_column for row in of_protocol),
            remarks=_remarks(scope, protocol, of_protocol),
        )
        for layout in layouts(scope.tasks, scope.settings)
        for protocol, of_protocol in rows.items()
    ]


def write_report(folder: Path, stem: str, report: Mapping[str, Any], drawn: Sequence[Table]) -> list[Path]:
    """<stem>.json, .md and .tex; each whole or not at all."""
    texts = {
        ".json": json.dumps(report, indent=1, ensure_ascii=False) + "\n",
        ".md": "\n".join(map(markdown, drawn)),
        ".tex": "% \\usepackage{booktabs}\n" + "\n".join(map(latex, drawn)),
    }
    for suffix, text in texts.items():
        write_text(folder / f"{stem}{suffix}", text)
    return [folder / f"{stem}{suffix}" for suffix in texts]


def _published(scored: Scored, scope: Scope, protocol: Protocol) -> list[Row]:
    """The paper's figures are of the test split and of whole videos: they stand beside no others."""
    return published_rows(scored.title) if scope.split == "test" and protocol == "standard" else []


def _counts(videos: int, ego: int, frames: int) -> dict[str, int]:
    return {"videos": videos, "ego": ego, "exo": videos - ego, "frames": frames}


def _counts_text(counts: Mapping[str, int], protocol: Protocol) -> str:
    what = "videos" if protocol == "standard" else "sub-clips"
    return f"{counts['videos']} {what}, {counts['ego']} ego and {counts['exo']} exo, {counts['frames']:,} frames"


def _remarks(scope: Scope, protocol: Protocol, rows: Sequence[Row]) -> list[str]:
    remarks = list(dict.fromkeys(note for row in rows for note in row.notes))
    if any(row.kind == "mean" for row in rows):
        remarks.append("mean ± sample standard deviation over runs")
    if scope.settings.bootstrap:
        remarks.append(f"[ , ]: 95% interval over {scope.settings.bootstrap} resamplings of the scored videos")
    if scope.split == "val":
        remarks.append("the val split is for choosing; figures to report are those of the test split")
    return [*remarks, *([TRIMMED] if protocol == "trimmed" else [])]
