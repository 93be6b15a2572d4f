"""Extraction plans: compare every video in a dataset with its file in the cache, and sum up the
results.

This module does not load a model or decode videos.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from byov.cache.atomic import remove_abandoned
from byov.cache.digests import fingerprint
from byov.cache.features import identity_difference, read_header
from byov.cache.layout import cached_files, encoder_slug, manifest_path, ratio_key, video_path
from byov.data.dataset import Dataset, Video, check_overlaps
from byov.data.video import STRICT, DecodingPolicy, probe
from byov.device import Device
from byov.errors import CacheError, DatasetError, EncoderError, VideoError
from byov.extract.cached_files import CachedFile, CacheReader, kept_phases, update_manifest
from byov.extract.encoder_names import WIDTHS, EncoderName, Resize, compute_dtype
from byov.progress import NO_PROGRESS, Progress, track
from byov.records import Split, check_choice
from byov.text import pluralize

OnMismatch = Literal["error", "trim"]
State = Literal["cached", "missing", "stale", "conflict"]
CPU_BATCH = 32
CUDA_BATCH = 256
# Values in the paper's ablation; 1.0 selects all tokens.
DEFAULT_RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)


@dataclass(frozen=True)
class ExtractionOptions:
    """Options of an extraction.

    Invalid ratios and shards raise on construction, before videos are read or rendered.
    """

    ratios: tuple[float, ...] = DEFAULT_RATIOS
    # (i, n) selects every n-th video, starting with the i-th (from 1).
    shard: tuple[int, int] = (1, 1)
    resize: Resize = "squash"
    device: Device = "auto"
    compile: bool = False
    batch_size: int | None = None  # default: CPU_BATCH or CUDA_BATCH
    decoders: int | None = None  # default: one per core
    policy: DecodingPolicy = STRICT
    on_mismatch: OnMismatch = "error"
    overwrite: bool = False
    # Remove labels in the manifest that the dataset does not have.
    drop_labels: bool = False
    # Read whole videos instead of trusting their sizes and modification times.
    verify_sources: bool = False
    cores: int | None = None  # default: all cores available to this process

    def __post_init__(self) -> None:
        if not self.ratios or not all(
            not isinstance(ratio, str) and 0 < ratio <= 1 for ratio in self.ratios
        ):
            raise EncoderError(
                f"ratios {self.ratios}: expected numbers in (0, 1], like {DEFAULT_RATIOS}"
            )
        for name, choices in (("resize", Resize), ("device", Device), ("on_mismatch", OnMismatch)):
            check_choice(name, getattr(self, name), choices)
        index, count = self.shard
        if not 1 <= index <= count:
            raise DatasetError(
                f"shard {index}/{count}: expected part i of n with i from 1 to n, like 2/4"
            )

    def frames_per_batch(self, device_type: str) -> int:
        return self.batch_size or (CUDA_BATCH if device_type == "cuda" else CPU_BATCH)


@dataclass(frozen=True, slots=True)
class Job:
    """Video with the state of its feature file."""

    video: Video
    path: Path  # feature file
    state: State
    reason: str  # why the feature file is stale or in conflict
    cached: CachedFile | None  # existing feature file, if it is readable
    ratios: tuple[float, ...]  # STM ratios in the finished file

    @property
    def frames(self) -> int | None:
        """Number of frames in the existing file."""
        return None if self.cached is None else self.cached.indexed.frames

    @property
    def label_count(self) -> int | None:
        return None if self.video.labels is None else len(self.video.labels)


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


@dataclass(frozen=True)
class Plan:
    """Plan of an extraction, with one job per video."""

    dataset: Dataset
    encoder: EncoderName
    folder: Path  # features/<dataset>/<encoder>
    options: ExtractionOptions
    jobs: tuple[Job, ...]

    def in_state(self, *states: State) -> list[Job]:
        return [job for job in self.jobs if job.state in states]

    def count(self) -> dict[str, int]:
        return dict(Counter(job.state for job in self.jobs))

    def jobs_to_extract(self) -> list[Job]:
        """Return the missing and outdated videos; raise CacheError if there are conflicts."""
        if conflicts := self.in_state("conflict"):  # features of different origins are never mixed
            more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
            raise CacheError(
                f"{conflicts[0].reason}{more}; delete outdated files, use --overwrite to extract "
                "everything again, or use another --features-dir"
            )
        return self.in_state("missing", "stale")

    def refuse_other_identity(self, identity: Mapping[str, str]) -> None:
        """Raise CacheError if a cached file was made with another encoder or other settings."""
        for job in self.in_state("cached"):
            if job.cached and (difference := identity_difference(job.cached.identity, identity)):
                raise CacheError(
                    f"{job.path}: made with {difference}. Use --overwrite to extract everything "
                    "again, or another --features-dir."
                )

    def finish(self, outcomes: Sequence[VideoOutcome], seconds: float = 0.0) -> ExtractedFeatures:
        """Write manifest.json, index.json and failures.json, and return the totals."""
        failures = {
            outcome.video_id: outcome.failure for outcome in outcomes if outcome.failure is not None
        }
        for folder in (self.folder.parent, self.folder):  # of a process killed while it wrote them
            remove_abandoned(folder, recursive=False)
        update_manifest(
            self.folder,
            self.dataset,
            {job.video.id for job in self.jobs},
            failures,
            drop_labels=self.options.drop_labels,
        )
        return ExtractedFeatures(
            self.dataset.name,
            self.encoder.id,
            self.folder,
            videos=sum(outcome.failure is None for outcome in outcomes),
            frames=sum(outcome.frames for outcome in outcomes),
            cached=len(self.in_state("cached")),
            failures=failures,
            written_bytes=sum(outcome.written_bytes for outcome in outcomes),
            seconds=seconds,
        )

    def reasons(self) -> list[str]:
        """Return messages that explain why cached videos are extracted again."""
        return [
            f"extracting {pluralize(count, 'cached video')} again: {reason}"
            for reason, count in Counter(job.reason for job in self.in_state("stale")).items()
        ]


def make_plan(
    dataset: Dataset, features_dir: Path, encoder: EncoderName, options: ExtractionOptions
) -> Plan:
    """Compare every video of the shard with its feature file.

    An encoder without a revision gets the revision used in the cache, unless everything is
    overwritten. If the device is "auto", the compute type is compared later, when the encoder is
    loaded.
    """
    folder = manifest_path(features_dir, dataset.name).with_name(encoder_slug(encoder.id))
    if encoder.revision is None and not options.overwrite:
        for path in cached_files(folder):
            with suppress(CacheError):
                provenance = read_header(path).provenance
                if provenance.encoder == encoder.id:
                    encoder = replace(encoder, revision=provenance.encoder_revision)
                    break
    _refuse_copies(dataset)
    reader = CacheReader(folder)
    kept_phases(dataset, reader, drop_labels=options.drop_labels)  # raises before any extraction
    jobs = []
    first, step = options.shard
    for video in dataset.videos[first - 1 :: step]:
        path = video_path(folder, video.view, video.id)
        cached = None
        try:
            cached = reader.read(video, verify_source=options.verify_sources)
            state, reason = _compare(cached, path, video, encoder, options)
        except CacheError as error:
            state = "stale"
            reason = str(error)
        kept = cached.indexed.ratios if cached and not options.overwrite else ()
        if options.overwrite and state != "missing":
            state = "stale"
            reason = "--overwrite"
        ratios = tuple(sorted({*map(float, options.ratios), *map(float, kept)}))
        jobs.append(Job(video, path, state, reason, cached, ratios))
    return Plan(dataset, encoder, folder, options, tuple(jobs))


def _refuse_copies(dataset: Dataset) -> None:
    """Raise DatasetError if two files with the same content are in different splits."""
    by_size: dict[int, list[Path]] = {}
    splits: dict[Path, set[Split]] = {}
    for video in dataset.videos:
        if video.path not in splits:
            by_size.setdefault(video.path.stat().st_size, []).append(video.path)
        splits.setdefault(video.path, set()).add(video.split)
    by_content: dict[str, list[Path]] = {}
    for paths in by_size.values():
        if len(paths) > 1 and len(set.union(*(splits[path] for path in paths))) > 1:
            for path in paths:
                by_content.setdefault(fingerprint(path), []).append(path)
    copies = {path: key for key, paths in by_content.items() if len(paths) > 1 for path in paths}
    same_content: dict[str, list[Video]] = {}
    for video in dataset.videos:
        if video.path in copies:
            same_content.setdefault(copies[video.path], []).append(video)
    for videos in same_content.values():
        check_overlaps(dataset.name, videos)


def _compare(
    cached: CachedFile | None,
    path: Path,
    video: Video,
    encoder: EncoderName,
    options: ExtractionOptions,
) -> tuple[State, str]:
    """Return the state of a feature file, and the reason if it is stale or in conflict."""
    if cached is None:
        return "missing", ""
    expected = {"encoder": encoder.id, "preprocessing": options.resize}
    if encoder.revision is not None:
        expected["revision"] = encoder.revision
    if options.device != "auto":
        expected["compute type"] = compute_dtype(options.device)
    resize = {"preprocessing": cached.identity["preprocessing"].partition(" ")[0]}
    if difference := identity_difference({**cached.identity, **resize}, expected):
        return "conflict", f"{path}: made with {difference}"
    if cached.source_change:
        return "conflict", f"{path}: made {cached.source_change}"
    if cached.fragment != video.segment.fragment:
        return "stale", "its start or end has changed"
    lacking = [key for key in map(ratio_key, options.ratios) if key not in cached.indexed.ratios]
    if lacking:
        return "stale", f"lacks ratio {' '.join(lacking)}"
    frames = cached.indexed.frames
    labels = frames if video.labels is None else len(video.labels)
    if labels < frames or (labels > frames and options.on_mismatch == "error"):
        return "stale", f"{pluralize(frames, 'frame')} but {pluralize(labels, 'label')}"
    return "cached", ""


def estimate_size(plan: Plan, checks: Sequence[Mapping[str, Any]]) -> tuple[int, int | None]:
    """Return the number of frames to encode and the size of their features in bytes (None if the
    width is unknown).
    """
    frames = [0 if check["state"] == "cached" else check["frames"] or 0 for check in checks]
    width = WIDTHS.get(plan.encoder.id.rpartition("/")[2])
    # float16, with one column per ratio and about one more for the class token and the token order
    values = sum(
        count * (len(job.ratios) + 1) for job, count in zip(plan.jobs, frames, strict=True)
    )
    return sum(frames), None if width is None else 2 * width * values


def hours_of_video(checks: Sequence[Mapping[str, Any]]) -> float:
    """Return the total duration of the checked videos in hours, as far as it is known."""
    known = [check for check in checks if check["frames"] and check["fps"]]
    return float(sum(check["frames"] / check["fps"] for check in known) / 3600)


def check_videos(plan: Plan, progress: Progress = NO_PROGRESS) -> list[dict[str, Any]]:
    """Probe every video of the plan and return its state, properties and problem, if any."""
    with ThreadPoolExecutor() as pool:
        checks = pool.map(_check_video, plan.jobs)
        return list(track(checks, progress, "checking videos", unit="video", total=len(plan.jobs)))


def _check_video(job: Job) -> dict[str, Any]:
    video = job.video
    labels = job.label_count
    check: dict[str, Any] = {
        "id": video.id,
        "view": video.view,
        "split": video.split,
        "state": job.state,
        "frames": job.frames,
        "labels": labels,
        "events": len(video.events),
        "size": None,
        "fps": None,
    }
    try:
        probed = probe(video.path, video.segment)
    except VideoError as error:
        return check | {"problem": str(error)}
    problem = video.late_events(probed.frames, probed.last_seconds)
    if job.state == "conflict":
        problem = job.reason
    elif probed.truncation:
        problem = f"{video.source}: {probed.truncation}"
    elif job.frames is None and labels not in (None, probed.frames):
        problem = (
            f"{video.path}: {pluralize(probed.frames, 'frame')} in the file but "
            f"{pluralize(labels or 0, 'label')}"
        )
    return check | {
        "frames": job.frames or probed.frames,
        "size": f"{probed.width}x{probed.height}",
        "fps": round(probed.fps, 2),
        "problem": problem,
    }
