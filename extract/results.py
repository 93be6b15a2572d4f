"""Results of an extraction, and the files that record them: manifest.json, index.json and
failures.json.
"""

import json
import logging
from collections.abc import Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from byov.cache import manifest as manifests
from byov.cache.atomic import exclusive, write_text
from byov.cache.digests import file_sha256
from byov.cache.hdf5 import read_array
from byov.cache.layout import video_path
from byov.cache.manifest import FileIndex, Manifest, VideoEntry
from byov.cache.verify import FAILURES_NAME, read_failures
from byov.data.dataset import Dataset, Video
from byov.errors import CacheError
from byov.extract.cached_files import CachedFile, CacheReader, manifest_entry
from byov.extract.plan import Plan

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class VideoOutcome:
    """Result of extracting one video: a file or a failure."""

    video_id: str
    frames: int = 0
    written_bytes: int = 0
    failure: str | None = None


@dataclass(frozen=True)
class ExtractedFeatures:
    """Result of an extraction. Failed videos are retried by the next extraction."""

    dataset: str
    encoder: str
    folder: Path  # features/<dataset>/<encoder>
    videos: int  # number of videos extracted by this call
    frames: int
    cached: int  # number of videos that were already cached
    failures: dict[str, str]  # video id -> reason
    written_bytes: int = 0
    seconds: float = 0.0  # without the time for loading the encoder or starting workers


def record_results(
    plan: Plan, outcomes: Sequence[VideoOutcome], seconds: float
) -> ExtractedFeatures:
    """Write manifest.json, index.json and failures.json, and return the totals."""
    failures = {
        outcome.video_id: outcome.failure for outcome in outcomes if outcome.failure is not None
    }
    update_manifest(plan.folder, plan.dataset, {job.video.id for job in plan.jobs}, failures)
    return ExtractedFeatures(
        plan.dataset.name,
        plan.encoder.id,
        plan.folder,
        videos=sum(outcome.failure is None for outcome in outcomes),
        frames=sum(outcome.frames for outcome in outcomes),
        cached=len(plan.in_state("cached")),
        failures=failures,
        written_bytes=sum(outcome.written_bytes for outcome in outcomes),
        seconds=seconds,
    )


def update_manifest(
    folder: Path, dataset: Dataset, tried: Set[str], failures: dict[str, str]
) -> None:
    """Write manifest.json, index.json and failures.json after an extraction; add videos with late
    events to failures.

    Other shards may be extracted at the same time; a lock ensures that the last one includes all
    files.

    Args:
        folder: Encoder folder.
        dataset: Dataset with all videos, including those of other shards.
        tried: Ids of the videos in this extraction.
        failures: Dict mapping video ids to reasons.
    """
    path = folder.with_name("manifest.json")
    with exclusive(path.with_name(".lock")):
        reader = CacheReader(folder)
        cached = dict[str, CachedFile]()
        entries = list[VideoEntry]()
        for video in dataset.videos:
            try:
                file = reader.read(video)
            except CacheError:
                file = None
            earlier = reader.entries.get(video.id)
            if file is not None and file.fragment == video.segment.fragment:
                cached[video.id] = file
                entries.append(file.entry)
                if late := _late_events(
                    video, file.entry, video_path(reader.folder, video.view, video.id)
                ):
                    LOGGER.warning(late)
                    failures[video.id] = late
            elif earlier is not None:  # extracted with another encoder
                entries.append(manifest_entry(video, earlier.frames, earlier.fps, earlier.labels))
            else:
                entries.append(manifest_entry(video, None, None, video.labels))
        Manifest(dataset.name, dataset.phase_names, dataset.action_names, tuple(entries)).save(path)
        _save_index(dataset, path, reader, cached)
        others = {video.id for video in dataset.videos} - tried - cached.keys()
        _record_failures(folder, others, failures)


def _late_events(video: Video, entry: VideoEntry, path: Path) -> str:
    """Describe events after the last frame of a video; return "" if there are none."""
    if not video.events or max(entry.labels or (0,)) == len(video.events):
        return ""
    pts_seconds = read_array(path, "pts_seconds")
    late = video.late_events(len(pts_seconds), float(pts_seconds.max()))
    return late and f"{late}. Correct the CSV and run byov-extract again."


def _save_index(
    dataset: Dataset, manifest: Path, reader: CacheReader, cached: Mapping[str, CachedFile]
) -> None:
    identity = next((dict(file.identity) for file in cached.values()), {})
    files = {
        video: file.indexed
        for video, file in cached.items()
        if not file.source_change and file.identity == identity
    }
    index = FileIndex(
        manifest_sha256=file_sha256(manifest),
        sources=manifests.relative_sources(
            manifest.parent, {video.id: video.path for video in dataset.videos}
        ),
        segments={
            video.id: video.segment.fragment for video in dataset.videos if video.segment.fragment
        },
        identities=reader.index.identities | {reader.folder.name: identity},
        files=reader.index.files | {reader.folder.name: files},
    )
    if index != reader.index:
        with suppress(OSError):  # read-only or full disk; the next extraction opens the files again
            index.save(manifest.parent)


def _record_failures(folder: Path, others: Set[str], failures: Mapping[str, str]) -> None:
    """Write failures.json with the new failures and the earlier failures of other videos."""
    try:
        recorded = read_failures(folder)
    except CacheError:
        recorded = {}
    now = {video: reason for video, reason in recorded.items() if video in others} | dict(failures)
    path = folder / FAILURES_NAME
    if now:
        write_text(path, json.dumps(dict(sorted(now.items())), indent=1) + "\n")
    elif path.exists():  # on a read-only disk, unlink fails even if there is no such file
        path.unlink(missing_ok=True)
