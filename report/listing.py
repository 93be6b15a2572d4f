"""The dataset as the lines of a CSV that byov-extract reads, to which the page adds what its reader marks."""

import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from byov.cache.manifest import Manifest, VideoEntry, read_sources
from byov.data.own_videos import RESUME_MARK, UNLABELED_MARK
from byov.errors import CacheError
from byov.records import UNLABELED
from byov.report.content import ListedVideo


def list_videos(manifest: Manifest, dataset_folder: Path) -> tuple[ListedVideo, ...]:
    """All videos of the dataset; paths as seen from the folder that holds them all."""
    paths = _relative_paths(dataset_folder)
    return tuple(
        ListedVideo(
            path=paths.get(video.id, ""),
            view=video.view,
            split=video.split,
            id=video.id,
            events=events_text(video, len(manifest.phases)),
            pair=video.pair or "",
        )
        for video in manifest.videos
    )


def events_text(video: VideoEntry, phases: int) -> str:
    """When each phase begins, in seconds: half a frame before its first, so that it is read back as that frame.

    "" where the labels are not phases that follow each other.
    """
    known = [label for label in video.labels or () if label != UNLABELED]
    if not known or not video.fps or known != sorted(known) or known[0] < 0 or known[-1] >= phases:
        return ""
    return ";".join(
        f"{max(frame - 0.5, 0) / video.fps:.3f} {mark}".strip() for frame, mark in _marks(video.labels or (), phases)
    )


def _marks(labels: Sequence[int], phases: int) -> Iterator[tuple[int, str]]:
    """(frame, mark) where phases begin, with no mark, and where labels break off and go on.

    Phases that never come begin after the last frame, unless nothing is known of that.
    """
    phase = first = 0
    label = UNLABELED
    for label, stretch in groupby(labels):
        if label == UNLABELED:
            yield first, UNLABELED_MARK
        elif label == phase and first:
            yield first, RESUME_MARK
        yield from ((first, "") for _ in range(phase, label))
        phase, first = max(phase, label), first + len(list(stretch))
    if label != UNLABELED:
        yield from ((first, "") for _ in range(phase + 1, phases))


def _relative_paths(dataset_folder: Path) -> Mapping[str, str]:
    """Video id → path, without the folders that lead to all of them: a report is to be given away."""
    try:
        places = read_sources(dataset_folder)
    except CacheError:
        return {}
    if not places:
        return {}
    try:
        top = os.path.commonpath([place.parent for place in places.values()])
    except ValueError:  # on different drives
        return {}
    return {video: place.relative_to(top).as_posix() for video, place in places.items()}
