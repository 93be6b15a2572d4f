"""After a run: the dataset's manifest, where its videos are, and the list of failures, brought up to date."""

import json
import logging
from collections.abc import Mapping, Set
from pathlib import Path

from byov.cache.atomic import exclusive, write_text
from byov.cache.contents import failures_path, read_failures
from byov.cache.features import Facts
from byov.cache.header_index import HeaderIndex, settled_state
from byov.cache.layout import manifest_path, video_path
from byov.cache.manifest import Manifest, VideoEntry, load_manifest, write_sources
from byov.data.dataset import Video
from byov.errors import CacheError
from byov.extract.plan import Job, Plan, entry_of

LOGGER = logging.getLogger(__name__)


def update_manifest(plan: Plan, features_dir: Path, failures: Mapping[str, str]) -> None:
    """Write manifest, sources and failures. Runs on other shards do the same; the last one sees everybody's files."""
    path = manifest_path(features_dir, plan.dataset.name)
    with exclusive(path.with_name(".lock")):
        entries, cached = _entries(plan, path)
        Manifest(plan.dataset.name, plan.dataset.phase_names, plan.dataset.action_names, entries).save(path)
        write_sources(path.parent, {video.id: video.path for video in plan.dataset.videos})
        _record_failures(plan, cached, failures)


def _entries(plan: Plan, path: Path) -> tuple[tuple[VideoEntry, ...], Set[str]]:
    """The lines of the manifest, and the videos that the encoder's folder has.

    A video's line is from its file, else as another encoder's run has left it, else without frames.
    """
    videos = plan.dataset.videos
    cached = {job.video.id: job.entry for job in plan.jobs if job.entry and _is_as_planned(job)}
    with HeaderIndex(plan.folder) as index:
        for video in videos:
            if video.id not in cached:
                facts = _facts_or_none(index, video_path(plan.folder, video.view, video.id))
                if facts is None:
                    continue
                cached[video.id] = entry_of(video, facts)
            _warn_of_late_event(video, cached[video.id], index, plan.folder)
    earlier = _earlier_entries(path) if len(cached) < len(videos) else {}
    return tuple(cached.get(video.id) or _earlier_entry(video, earlier) for video in videos), cached.keys()


def _is_as_planned(job: Job) -> bool:
    """Is its file still the one that the plan has looked at? That may be hours ago."""
    return job.file_state is not None and job.file_state == settled_state(job.path)


def _earlier_entries(path: Path) -> dict[str, VideoEntry]:
    try:
        return {entry.id: entry for entry in load_manifest(path).videos}
    except CacheError:
        return {}


def _facts_or_none(index: HeaderIndex, path: Path) -> Facts | None:
    try:
        return index.read(path) if path.is_file() else None
    except CacheError:
        return None


def _warn_of_late_event(video: Video, entry: VideoEntry, index: HeaderIndex, folder: Path) -> None:
    """An event that no frame comes after: a phase is missing that all other videos have."""
    if not video.event_seconds or not entry.labels or max(entry.labels) == len(video.event_seconds):
        return
    facts = _facts_or_none(index, video_path(folder, video.view, video.id))
    if facts is not None:
        LOGGER.info(
            f"{video.id}: its event at {video.event_seconds[-1]:g} s is after its last frame, which is at "
            f"{facts.pts_seconds.max():.3f} s; correct the CSV and run again (nothing is extracted anew)"
        )


def _earlier_entry(video: Video, earlier: Mapping[str, VideoEntry]) -> VideoEntry:
    found = earlier.get(video.id)
    frames, fps, labels = (found.frames, found.fps, found.labels) if found else (None, None, video.labels)
    return VideoEntry(video.id, video.view, video.split, frames, fps, labels, video.actions, video.pair)


def _record_failures(plan: Plan, cached: Set[str], failures: Mapping[str, str]) -> None:
    ids = {video.id for video in plan.dataset.videos}
    mine = {job.video.id for job in plan.jobs}
    try:
        others = {video: reason for video, reason in read_failures(plan.folder).items() if video in ids - mine}
    except CacheError:
        others = {}
    # What another shard could not do may have been done since.
    now = {video: reason for video, reason in others.items() if video not in cached} | dict(failures)
    path = failures_path(plan.folder)
    if now:
        write_text(path, json.dumps(dict(sorted(now.items())), indent=1, ensure_ascii=False) + "\n")
    elif path.exists():  # to remove what is not there is an error, too, on a read-only disk
        path.unlink(missing_ok=True)
