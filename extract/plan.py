"""What an extraction has to do: compare every video of a dataset with its file in the cache.

Loads no model and decodes nothing.
"""

import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from byov.cache.digests import file_sha256, fingerprint
from byov.cache.features import Provenance, read_header
from byov.cache.hdf5 import read_array, stored_rows
from byov.cache.layout import check_name, encoder_dir, ratio_key, video_path
from byov.cache.manifest import IndexedFile, VideoEntry, load_index, load_manifest
from byov.data.dataset import Dataset, Video
from byov.data.video import Probe, probe
from byov.device import Device
from byov.errors import CacheError, VideoError
from byov.extract.encoder_names import EncoderName, Resize, compute_dtype
from byov.progress import NO_PROGRESS, Progress, track
from byov.text import pluralize

OnMismatch = Literal["error", "trim"]
State = Literal["cached", "missing", "stale", "conflict"]
FILE_BYTES = 28_000  # size of a feature file without its rows, measured


@dataclass(frozen=True, slots=True)
class CachedFile:
    """A readable feature file."""

    entry: VideoEntry  # of the manifest, with the frames and labels of this file
    identity: Mapping[str, str]
    indexed: IndexedFile
    source_change: str = ""  # how the video differs from the one that the features were computed from


@dataclass(frozen=True, slots=True)
class Job:
    """One video and the state of its feature file."""

    video: Video
    folder: Path  # of the encoder in the cache
    state: State
    reason: str  # why it is stale or in conflict
    entry: VideoEntry | None  # of the present file, if it is readable
    identity: Mapping[str, str] | None  # of the present file, if it is readable
    indexed: IndexedFile | None  # the present file, if it is readable and agrees with the video
    ratios: tuple[float, ...]  # of the finished file

    @property
    def path(self) -> Path:
        return video_path(self.folder, self.video.view, self.video.id)

    @property
    def frames(self) -> int | None:
        """Number of frames in the present file."""
        return None if self.entry is None else self.entry.frames

    @property
    def label_count(self) -> int | None:
        return None if self.video.labels is None else len(self.video.labels)


@dataclass(frozen=True)
class Plan:
    """All jobs of an extraction."""

    dataset: Dataset
    encoder: EncoderName
    folder: Path  # of the encoder in the cache
    jobs: tuple[Job, ...]

    def in_state(self, *states: State) -> list[Job]:
        return [job for job in self.jobs if job.state in states]

    def count(self) -> dict[str, int]:
        return dict(Counter(job.state for job in self.jobs))


class CacheReader:
    """Reader of one encoder's folder that opens only the files that changed since the index was written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = load_index(folder.parent)
        self._identity: Mapping[str, str] | None = self.index.identities.get(folder.name)
        self._files = dict(self.index.files.get(folder.name, {}))
        try:
            self.entries = {entry.id: entry for entry in load_manifest(folder.parent / "manifest.json").videos}
        except CacheError:
            self.entries = {}

    def add(self, jobs: Iterable[Job]) -> None:
        """Add what a plan has read already."""
        for job in jobs:
            if job.entry is not None and job.indexed is not None:
                self._identity = self._identity or job.identity
                self._files[job.video.id], self.entries[job.video.id] = job.indexed, job.entry

    def read(self, video: Video, *, verify_source: bool = False) -> CachedFile | None:
        """Describe a video's feature file; None if there is none.

        Args:
            video: The video.
            verify_source: Read the whole video instead of trusting its size and modification time.

        Raises:
            CacheError: If the file cannot be read.
        """
        path = video_path(self.folder, video.view, video.id)
        try:
            file = path.stat()
        except FileNotFoundError:
            return None
        source = video.path.stat()
        source_state = (source.st_size, source.st_mtime_ns, source.st_ctime_ns)
        annotation = _annotation_sha256(video)
        known = self._files.get(video.id)
        if known is not None and not known.is_current(file):
            known = None
        if known and self._identity and known.source_state == source_state and not verify_source:
            identity, change = self._identity, ""
            indexed = known if known.annotation_sha256 == annotation else replace(known, annotation_sha256=annotation)
        else:
            header = read_header(path)
            identity = header.provenance.identity()
            change = _source_change(header.provenance, video.path, source, file, verify=verify_source)
            facts = (file.st_size, file.st_mtime_ns, header.frames, header.fps, header.ratios)
            indexed = IndexedFile(*facts, source_state, annotation)
        entry = self.entries.get(video.id)
        if known and known.annotation_sha256 == annotation and entry and entry.frames == indexed.frames:
            labels = entry.labels
        else:
            labels = video.phases(read_array(path, "pts_seconds"))
        return CachedFile(manifest_entry(video, indexed.frames, indexed.fps, labels), identity, indexed, change)


def manifest_entry(video: Video, frames: int | None, fps: float | None, labels: tuple[int, ...] | None) -> VideoEntry:
    return VideoEntry(video.id, video.view, video.split, frames, fps, labels, video.actions, video.pair)


def make_plan(
    dataset: Dataset,
    features_dir: Path,
    encoder: EncoderName,
    *,
    resize: Resize,
    ratios: Sequence[float],
    device: Device = "auto",
    on_mismatch: OnMismatch = "error",
    shard: tuple[int, int] = (1, 1),
    overwrite: bool = False,
    verify_sources: bool = False,
) -> Plan:
    """Compare every video of a shard with its feature file.

    Args:
        dataset: Videos.
        features_dir: Root of the cache.
        encoder: Encoder of the extraction.
        resize: Preprocessing of the extraction.
        ratios: STM ratios to extract.
        device: "auto" is resolved when the encoder is loaded; run_plan compares the compute type then.
        on_mismatch: Whether a file may have fewer frames than labels.
        shard: (i, n): take every n-th video, starting with the i-th (from 1).
        overwrite: Extract everything again.
        verify_sources: Read every video completely, instead of a sample of those that may have changed.
    """
    folder = encoder_dir(features_dir, dataset.name, encoder.id)
    reader = CacheReader(folder)
    jobs = []
    for video in dataset.videos[shard[0] - 1 :: shard[1]]:
        check_name(video.id, "video id")  # before the try: no extraction can mend it
        try:
            found = reader.read(video, verify_source=verify_sources)
            state, reason = _compare(video, found, folder, encoder, resize, device, ratios, on_mismatch)
        except CacheError as error:
            found, state, reason = None, "stale", str(error)
        if overwrite and state != "missing":
            state, reason = "stale", "--overwrite"
        kept = () if found is None or overwrite else found.indexed.ratios
        jobs.append(
            Job(
                video,
                folder,
                state,
                reason,
                entry=found.entry if found else None,
                identity=found.identity if found else None,
                indexed=found.indexed if found and not found.source_change else None,
                ratios=tuple(sorted({*map(float, ratios), *map(float, kept)})),
            )
        )
    return Plan(dataset, encoder, folder, tuple(jobs))


def _compare(
    video: Video,
    found: CachedFile | None,
    folder: Path,
    encoder: EncoderName,
    resize: Resize,
    device: Device,
    ratios: Sequence[float],
    on_mismatch: OnMismatch,
) -> tuple[State, str]:
    """Return the state of a video's feature file, and the reason if it is stale or in conflict."""
    if found is None:
        return "missing", ""
    conflict = _identity_conflict(found.identity, encoder, resize, device) or found.source_change
    if conflict:
        return "conflict", f"{video_path(folder, video.view, video.id)}: {conflict}"
    lacking = [ratio_key(ratio) for ratio in ratios if ratio_key(ratio) not in found.indexed.ratios]
    if lacking:
        return "stale", f"lacks ratio {' '.join(lacking)}"
    frames = found.indexed.frames
    labels = frames if video.labels is None else len(video.labels)
    if labels < frames or (labels > frames and on_mismatch == "error"):
        return "stale", f"{pluralize(frames, 'frame')}, {pluralize(labels, 'label')}"
    return "cached", ""


def _identity_conflict(found: Mapping[str, str], encoder: EncoderName, resize: Resize, device: Device) -> str:
    """Return how a file's identity differs from the requested one; "" if it does not."""
    if found["encoder"] != encoder.id:
        return f"made with encoder {found['encoder']}, this is {encoder.id}"
    if encoder.revision is not None and found["revision"] != encoder.revision:
        return f"made with revision {found['revision']} of {encoder.id}, this is {encoder.revision}"
    if found["preprocessing"].split()[0] != resize:
        return f"made with --resize {found['preprocessing'].split()[0]}, this is {resize}"
    if device != "auto" and found["compute type"] != compute_dtype(device):
        return f"computed in {found['compute type']}, --device {device} computes in {compute_dtype(device)}"
    return ""


def _source_change(found: Provenance, path: Path, source: os.stat_result, file: os.stat_result, *, verify: bool) -> str:
    """Return how a video differs from the one that the features were computed from; "" if it does not.

    Compares the size and a sample, or the whole file if it was written to after the features.
    """
    if found.source_bytes != source.st_size:
        return f"made from {found.source_name} of {found.source_bytes} bytes, {path} has {source.st_size} now"
    whole = verify or source.st_mtime_ns > file.st_mtime_ns
    expected = found.source_sha256 if whole else found.source_fingerprint
    now = file_sha256(path) if whole else fingerprint(path)
    if now != expected:
        return f"made from {found.source_name} with digest {expected[:12]}, {path} has changed to {now[:12]}"
    return ""


def _annotation_sha256(video: Video) -> str:
    """Return a digest of all that a video's labels depend on, apart from the times of its frames."""
    return hashlib.sha256(repr((video.labels, video.event_seconds, video.unlabeled_seconds)).encode()).hexdigest()


def refuse_conflicts(plan: Plan) -> None:
    """Raise CacheError if any video is in conflict: features of different origin are never mixed."""
    conflicts = plan.in_state("conflict")
    if conflicts:
        more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        raise CacheError(
            f"{conflicts[0].reason}{more}; delete what is out of date, use --overwrite to extract everything again, "
            "or another --features-dir"
        )


def pinned_revision(dataset: Dataset, features_dir: Path, encoder: EncoderName) -> EncoderName:
    """Return the encoder with the revision that the cache was started with, unless it has one."""
    if encoder.revision is not None:
        return encoder
    folder = encoder_dir(features_dir, dataset.name, encoder.id)
    for video in dataset.videos:
        path = video_path(folder, video.view, video.id)
        if path.is_file():
            try:
                found = read_header(path).provenance
            except CacheError:
                continue
            if found.encoder == encoder.id:
                return EncoderName(encoder.id, encoder.source, found.encoder_revision)
    return encoder


@dataclass(frozen=True)
class VideoCheck:
    """One video of `byov-extract --check`: its state in the cache and what its container says."""

    job: Job
    probe: Probe | None
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        return {
            "id": self.job.video.id,
            "view": self.job.video.view,
            "split": self.job.video.split,
            "state": self.job.state,
            "reason": self.job.reason,
            "decoded_frames": self.job.frames,
            "labels": self.job.label_count,
            "problem": self.problem,
            **(asdict(self.probe) if self.probe else {}),
        }


def check_videos(plan: Plan, progress: Progress = NO_PROGRESS) -> list[VideoCheck]:
    """Probe every video of the plan."""
    with ThreadPoolExecutor() as pool:
        checks = pool.map(_check_video, plan.jobs)
        return list(track(checks, progress, "looking at videos", unit="video", total=len(plan.jobs)))


def _check_video(job: Job) -> VideoCheck:
    try:
        found = probe(job.video.path)
    except VideoError as error:
        return VideoCheck(job, None, str(error))
    problem = None
    if found.truncation:
        problem = f"{job.video.path}: {found.truncation}"
    elif job.label_count not in (None, found.packets) and job.frames is None:
        labels = pluralize(job.label_count or 0, "label")
        problem = f"{job.video.path}: {pluralize(found.packets, 'frame')} in the file, {labels}"
    return VideoCheck(job, found, problem)


def bytes_needed(checks: Sequence[VideoCheck], bytes_per_frame: int) -> int:
    """Return the disk space that the videos still to be extracted will take."""
    return sum(
        stored_rows(check.probe.packets) * bytes_per_frame + FILE_BYTES
        for check in checks
        if check.probe and check.job.state != "cached"
    )


def bytes_per_frame(ratios: int, tokens: int, width: int, *, has_cls: bool) -> int:
    """Return the size of one frame's rows in a feature file."""
    return 2 * width * (ratios + has_cls) + 2 * tokens + 8


def free_bytes(folder: Path) -> int:
    """Return the free disk space where `folder` is or will be."""
    existing = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(existing).free
