"""The extraction as one call: a dataset's videos, through an encoder, into the cache; what byov-extract does, without
its terminal."""

import json
import logging
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from byov.cache.atomic import exclusive, remove_abandoned, write_text
from byov.cache.features import Facts
from byov.cache.header_index import HeaderIndex, settled_state
from byov.cache.layout import manifest_path, video_path
from byov.cache.manifest import Manifest, VideoEntry, load_manifest, write_sources
from byov.cache.verify import failures_path, read_failures
from byov.data.dataset import Dataset, Video
from byov.data.demo import DEFAULT_VIDEOS, write_demo
from byov.data.own_videos import read_own_videos
from byov.data.registry import READERS, open_dataset
from byov.data.video import MAX_PIXELS, DecodingPolicy, OnCorrupt, OnTruncated
from byov.device import Device
from byov.errors import CacheError, DatasetError, EncoderError
from byov.extract.encoder_names import DEFAULT_ENCODER, Resize, parse_encoder
from byov.extract.plan import Job, OnMismatch, Plan, entry_of, make_plan, pinned_revision, refuse_conflicts
from byov.folders import Folder, datasets_folder, features_folder
from byov.progress import NO_PROGRESS, Progress, Stop, Stoppable, never

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


DEMO_ENCODER = "imagenet/efficientnet-lite0"  # trained, and without a hub
DEFAULT_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)  # of the paper's ablation; 1.0 = no selection


@dataclass(frozen=True)
class ExtractedFeatures:
    """What an extraction has done. Videos that failed are tried again by the next one."""

    dataset: str
    encoder: str
    folder: Path  # features/<dataset>/<encoder>
    videos: int  # extracted now
    frames: int
    cached: int  # videos that were there before
    failures: dict[str, str]  # video id → reason


def extract_features(
    dataset: str | None = None,
    *,
    manifest: str | os.PathLike[str] | None = None,
    name: str | None = None,
    encoder: str | None = None,
    revision: str | None = None,
    ratios: Sequence[float] = DEFAULT_RATIOS,
    resize: Resize = "squash",
    device: Device = "auto",
    compile_model: bool = False,
    batch_size: int | None = None,
    decoders: int | None = None,
    shard: tuple[int, int] = (1, 1),
    on_truncated: OnTruncated = "error",
    on_corrupt: OnCorrupt = "error",
    max_pixels: int = MAX_PIXELS,
    on_mismatch: OnMismatch = "error",
    verify_sources: bool = False,
    overwrite: bool = False,
    datasets_dir: Folder = None,
    features_dir: Folder = None,
    progress: Progress = NO_PROGRESS,
    stop: Stop = never,
) -> ExtractedFeatures:
    """Run a frozen vision model over every frame of a dataset, once; what is cached already is left as it is.

    A known dataset by its name ("demo" is rendered if it is not there), or one's own videos by their CSV, `manifest`,
    and `name`. All else is as the options of byov-extract; folders that are left out are those of the environment
    (BYOV_DATASETS, BYOV_FEATURES), else datasets/ and features/.

    A video that cannot be read does not stop the others: it is among the `failures`. `stop` is asked between batches;
    then Interrupted is raised, finished videos are kept, and the same call goes on with the rest.

    >>> done = extract_features("demo", encoder="random/tiny")  # untrained and small: to try things with
    >>> done.folder.as_posix(), done.videos + done.cached, done.failures
    ('features/demo/random--tiny', 8, {})
    """
    features = features_folder(features_dir)
    _refuse(ratios, shard)
    progress = Stoppable(progress, stop)
    videos = open_videos(dataset, manifest, name, datasets_folder(datasets_dir), progress)
    chosen = parse_encoder(encoder or (DEMO_ENCODER if dataset == "demo" else DEFAULT_ENCODER), revision)
    plan = make_plan(
        videos,
        features,
        chosen if overwrite else pinned_revision(videos, features, chosen),
        resize=resize,
        ratios=sorted(set(ratios)),
        device=device,
        on_mismatch=on_mismatch,
        shard=shard,
        overwrite=overwrite,
        verify_sources=verify_sources,
    )
    refuse_conflicts(plan)
    remove_abandoned(plan.folder.parent)
    jobs, extracted, frames, failures = plan.in_state("missing", "stale"), 0, 0, dict[str, str]()
    if jobs:
        from byov.extract.extraction import ExtractionOptions, run_plan  # torch takes seconds to import

        for job in [] if overwrite else plan.in_state("stale"):
            LOGGER.info(f"{job.video.id}: to be extracted again ({job.reason})")
        policy = DecodingPolicy(on_truncated, on_corrupt, max_pixels)
        options = ExtractionOptions(resize, device, compile_model, batch_size, decoders, policy, on_mismatch)
        outcome = run_plan(plan, jobs, options, progress)
        extracted, frames, failures = outcome.videos, outcome.frames, outcome.failures
    update_manifest(plan, features, failures)
    cached = len(plan.in_state("cached"))
    return ExtractedFeatures(videos.name, plan.encoder.id, plan.folder, extracted, frames, cached, failures)


def _refuse(ratios: Sequence[float], shard: tuple[int, int]) -> None:
    if not ratios or not all(0 < ratio <= 1 for ratio in ratios):
        raise EncoderError(f"ratios {tuple(ratios)}: expected numbers above 0 and at most 1, like {DEFAULT_RATIOS}")
    if not 1 <= shard[0] <= shard[1]:
        raise DatasetError(f"shard {shard}: expected (i, n) with i from 1 to n, like (2, 4)")


def open_videos(
    dataset: str | None,
    manifest: str | os.PathLike[str] | None,
    name: str | None,
    datasets_dir: Path,
    progress: Progress = NO_PROGRESS,
) -> Dataset:
    """A known dataset, the demo rendered if it is not there, or one's own videos by their CSV."""
    if manifest is not None:
        if dataset is not None:
            raise DatasetError("give a dataset or a manifest, not both")
        return read_own_videos(own_name(name or Path(manifest).stem), Path(manifest))
    if dataset is None:
        raise DatasetError(f"which dataset? One of {', '.join(READERS)}, or your own videos by their manifest")
    if name is not None:
        raise DatasetError("a name goes with a manifest or a folder; a dataset has one")
    if dataset == "demo" and not (datasets_dir / "demo").exists():
        _render_demo(datasets_dir / "demo", progress)
    return open_dataset(dataset, datasets_dir)


def own_name(name: str) -> str:
    """The name of one's own videos, unless it is that of a known dataset."""
    if name in READERS:
        raise DatasetError(f"{name!r} is the name of a known dataset; give the videos another name (--name)")
    return name


def _render_demo(root: Path, progress: Progress) -> None:
    LOGGER.info(f"rendering the demo videos into {root}")
    videos = sum(ego + exo for ego, exo in DEFAULT_VIDEOS.values())
    with progress.bar("rendering", unit="video", total=videos) as bar:
        write_demo(root, videos=DEFAULT_VIDEOS, progress=lambda _done, _total: bar.advance())
