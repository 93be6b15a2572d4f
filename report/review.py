"""Review page: check and correct annotations in a browser.

The page is one HTML file that works offline, with a clip of each video. It saves labels in the
format of annotations.csv, with events as frame indices.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from byov.apply.annotate import Annotation
from byov.apply.annotated_videos import AnnotatedVideo, AnnotatedVideos
from byov.apply.annotation_files import EVENT_COLUMNS, event_rows
from byov.cache.atomic import write_text
from byov.errors import ApplyError, CacheError
from byov.progress import NO_PROGRESS, Progress, track
from byov.report.content import VideoClip
from byov.report.page.template import base64_text, render_template
from byov.report.pictures import encode_video, read_frames

CLIP_PIXELS = 256 * 192
FRAME_BYTES = 3000  # maximum mean size of an encoded frame
MAX_FRAMES = 3000  # longer clips have every second frame, or fewer
CURVE_POINTS = 200


def write_review(
    videos: AnnotatedVideos,
    summary: Mapping[str, Any],
    page: Path,
    *,
    root: Path | None = None,
    max_videos: int = 100,
    max_mb: float = 30.0,
    progress: Progress = NO_PROGRESS,
) -> int:
    """Write a page on which a person checks and corrects annotations, least confident videos first.

    Args:
        videos: Annotated videos, whose phases have a fixed order.
        summary: Return value of `write_annotations`.
        page: Path of the HTML file.
        root: Folder that the paths in saved labels are relative to. Default: that of the page.
        max_videos: Maximum number of videos on the page.
        max_mb: Maximum size of all clips on the page in MB.
        progress: Receives progress updates.

    Returns:
        Number of videos on the page.

    >>> videos = byov.list_videos([Path("datasets/demo/test")])
    >>> annotated = byov.AnnotatedVideos(byov.load_run("demo-byov"), videos, Path("cache"))
    >>> summary = byov.write_annotations(annotated, Path("annotations/frames.csv"))
    >>> write_review(annotated, summary, Path("annotations/review.html")) == len(videos)
    True
    """
    if videos.annotator.phase_names and not videos.annotator.is_ordered:
        raise ApplyError(f"{page}: pages for phases in any order are not supported.")
    described = list(zip(summary["videos"], videos.videos, strict=True))
    shown = [each for each in described if each[0]["occurrences"]]
    # Before there are labels, typical videos come first, since their labels help most.
    sign = 1 if summary["phases"] else -1
    shown.sort(key=lambda each: sign * each[0]["confidence"])
    # The recommended video is on the page even if others are not.
    shown.sort(key=lambda each: each[0]["video"] != summary["label_next"])
    entries: list[dict[str, Any]] = []
    count = 0
    size = 0
    for _, video in track(shown[:max_videos], progress, "review page", unit="video"):
        added = list(video_entries(videos.annotate(video), root or page.parent))
        size += sum(len(entry["mp4"]) for entry in added)
        if entries and size > max_mb * 1e6:
            break
        entries += added
        count += 1
    entries.sort(key=lambda entry: sign * entry["confidence"])
    write_text(page, render_review(entries, summary, count))
    return count


def video_entries(video: AnnotatedVideo, root: Path) -> Iterator[dict[str, Any]]:
    """Yield the data of each occurrence in a video for review.js. Frames are counted from the start
    of the occurrence.
    """
    for each, row in zip(video.annotations, event_rows(video, root), strict=True):
        cells = dict(zip(EVENT_COLUMNS, row, strict=True))
        problems = list(each.problems)
        try:
            clip = _clip(video, each)
        except CacheError as error:
            clip = VideoClip(b"", 4, 3, 1)
            problems.append(f"no pictures: {error}")
        sampled = np.unique(np.linspace(0, len(each.seconds) - 1, CURVE_POINTS, dtype=int))
        yield {
            "video": video.video.id,
            "name": cells["id"],
            "view": cells["view"],
            "cells": [cells[name] for name in EVENT_COLUMNS[:-2]],
            "count": len(each.seconds),
            "seconds": (each.seconds - each.seconds[0]).round(3).tolist(),
            "curve": np.stack([sampled, each.progress[sampled].round(3)], axis=1).tolist(),
            "events": [event.frame - each.start for event in each.events],
            "confidences": [round(event.confidence, 2) for event in each.events],
            "confidence": round(each.total_confidence, 4),
            "problems": problems,
            "labeled": video.is_labeled,
            "mp4": base64_text(clip.mp4),
            "width": clip.width,
            "height": clip.height,
            "stride": clip.stride,
        }


def _clip(video: AnnotatedVideo, occurrence: Annotation) -> VideoClip:
    count = len(occurrence.seconds)
    stride = -(-count // MAX_FRAMES)
    frames = range(0, count, stride)
    decoded = read_frames(
        video.video.path,
        [occurrence.start + frame for frame in frames],
        CLIP_PIXELS,
        truncated=True,  # truncated videos were accepted when their features were extracted
        segment=video.video.segment,
    )
    clip, _ = encode_video(zip(frames, decoded, strict=True), stride, (), FRAME_BYTES)
    return clip


def render_review(
    entries: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], count: int
) -> str:
    """Render the page.

    Args:
        entries: Data of each occurrence, in the order of the page.
        summary: Return value of `write_annotations`.
        count: Number of videos on the page.
    """
    known = [{name: entry[name] for name in entry.keys() - {"mp4"}} for entry in entries]
    state = json.dumps([summary["model_sha256"], known], sort_keys=True)
    data = {
        "run": summary["run"],
        "phases": summary["phases"],
        "columns": EVENT_COLUMNS,
        "videos": entries,
        # The browser stores unsaved changes under this key, so that other annotations have others.
        "key": hashlib.sha256(state.encode()).hexdigest()[:16],
    }
    videos = summary["videos"]
    names = list(map(itemgetter("video"), entries))
    advised = summary["label_next"]
    return render_template(
        "review.html.j2",
        ("base.css", "review.css"),
        ("clips.js", "review.js"),
        data=data,
        run=summary["run"],
        has_labels=bool(summary["phases"]),
        shown=count,
        total=len(videos),
        without=[video["video"] for video in videos if not video["occurrences"]],
        label_next=names.index(advised) if advised in names else None,
    )
