"""After a run: the dataset's manifest, where its videos are, and the list of failures, brought up to date."""

import json
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from byov.cache.atomic import exclusive, write_text
from byov.cache.contents import failures_path, read_failures
from byov.cache.features import Header, read_header
from byov.cache.layout import manifest_path, video_path
from byov.cache.manifest import Manifest, VideoEntry, load_manifest, write_sources
from byov.data.dataset import Dataset, Video
from byov.errors import CacheError
from byov.extract.plan import Plan

LOGGER = logging.getLogger(__name__)


def update_manifest(plan: Plan, features_dir: Path, failures: Mapping[str, str]) -> None:
    """Write manifest, sources and failures. Runs on other shards do the same; the last one sees everybody's files."""
    path = manifest_path(features_dir, plan.dataset.name)
    known = {job.video.id: job.header for job in plan.jobs if job.state == "cached" and job.header is not None}
    with exclusive(path.with_name(".lock")):
        headers = {
            video.id: header
            for video in plan.dataset.videos
            if (header := known.get(video.id) or _header_or_none(plan.folder, video)) is not None
        }
        _warn_of_late_events(plan.dataset, headers)
        _manifest(plan.dataset, headers, path).save(path)
        write_sources(path.parent, {video.id: video.path for video in plan.dataset.videos})
        _record_failures(plan, headers, failures)


def _warn_of_late_events(dataset: Dataset, headers: Mapping[str, Header]) -> None:
    """Events that no frame comes after: a phase would be missing that all other videos have."""
    for video in dataset.videos:
        header = headers.get(video.id)
        if header is None or not header.frames or not video.event_seconds:
            continue
        event, last = video.event_seconds[-1], float(header.pts_seconds.max())
        if event > last:
            LOGGER.info(
                f"{video.id}: its event at {event:g} s is after its last frame, which is at {last:.3f} s; "
                "correct the CSV and run again (nothing is extracted anew)"
            )


def _header_or_none(folder: Path, video: Video) -> Header | None:
    path = video_path(folder, video.view, video.id)
    try:
        return read_header(path) if path.is_file() else None
    except CacheError:
        return None


def _manifest(dataset: Dataset, headers: Mapping[str, Header], path: Path) -> Manifest:
    try:
        earlier = {entry.id: entry for entry in load_manifest(path).videos}
    except CacheError:
        earlier = {}
    entries = tuple(_entry(video, headers.get(video.id), earlier.get(video.id)) for video in dataset.videos)
    return Manifest(dataset.name, dataset.phase_names, dataset.action_names, entries)


def _entry(video: Video, header: Header | None, earlier: VideoEntry | None) -> VideoEntry:
    """A video's line: from its file, else as another encoder's run has left it, else without frames."""
    entry = partial(VideoEntry, video.id, video.view, video.split, actions=video.actions)
    if header is not None:
        return entry(header.frames, header.fps, video.phases(header.pts_seconds))
    if earlier is not None:
        return entry(earlier.frames, earlier.fps, earlier.labels)
    return entry(None, None, video.labels)


def _record_failures(plan: Plan, headers: Mapping[str, Header], failures: Mapping[str, str]) -> None:
    ids = {video.id for video in plan.dataset.videos}
    mine = {job.video.id for job in plan.jobs}
    try:
        others = {video: reason for video, reason in read_failures(plan.folder).items() if video in ids - mine}
    except CacheError:
        others = {}
    # What another shard could not do may have been done since.
    now = {video: reason for video, reason in others.items() if video not in headers} | dict(failures)
    path = failures_path(plan.folder)
    if now:
        write_text(path, json.dumps(dict(sorted(now.items())), indent=1, ensure_ascii=False) + "\n")
    else:
        path.unlink(missing_ok=True)
