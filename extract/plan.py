"""What there is to do: each video of a dataset against what the cache holds of it. Loads no model, decodes nothing."""

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from byov.cache.digests import file_sha256, fingerprint
from byov.cache.features import Facts, Provenance, read_header
from byov.cache.hdf5 import stored_rows
from byov.cache.header_index import HeaderIndex, IndexedFacts, settled_state
from byov.cache.layout import encoder_dir, ratio_key, video_path
from byov.cache.manifest import VideoEntry
from byov.data.dataset import Dataset, Video
from byov.data.video import Probe, probe
from byov.device import Device
from byov.errors import CacheError, VideoError
from byov.extract.encoder_names import EncoderName, Resize, compute_dtype
from byov.progress import NO_PROGRESS, Progress, track
from byov.text import pluralize

OnMismatch = Literal["error", "trim"]
State = Literal["cached", "missing", "stale", "conflict"]


@dataclass(frozen=True, slots=True)
class Job:
    """One video and the state of its cache file."""

    video: Video
    folder: Path  # of the encoder in the cache
    state: State
    reason: str  # why it is stale or in conflict
    entry: VideoEntry | None  # its line of the manifest, from the file that is there, if it can be read
    file_state: str | None  # of that file; see settled_state
    identity: Mapping[str, str] | None  # of its features
    ratios: tuple[float, ...]  # what the finished file is to hold

    @property
    def path(self) -> Path:
        """Made when it is asked for: as a part of each job it would take a third of their memory."""
        return video_path(self.folder, self.video.view, self.video.id)

    @property
    def frames(self) -> int | None:
        """Of the file that is there."""
        return None if self.entry is None else self.entry.frames

    @property
    def label_count(self) -> int | None:
        return None if self.video.labels is None else len(self.video.labels)


@dataclass(frozen=True)
class Plan:
    """All jobs of a run; `folder` is the encoder's folder in the cache."""

    dataset: Dataset
    encoder: EncoderName
    folder: Path
    jobs: tuple[Job, ...]

    def in_state(self, *states: State) -> list[Job]:
        return [job for job in self.jobs if job.state in states]

    def count(self) -> dict[str, int]:
        return dict(Counter(job.state for job in self.jobs))


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
    """Compare every video of a shard (i of n, from 1) with its cache file.

    device: what "auto" will be is known once the encoder is loaded; run_plan compares then.
    verify_sources: read all of every source, in the place of a sample, and of nothing where it is in the state in which
    it was compared before.
    """
    folder = encoder_dir(features_dir, dataset.name, encoder.id)
    index, shards = shard
    jobs = []
    with HeaderIndex(folder) as headers:
        for video in dataset.videos[index - 1 :: shards]:
            path = video_path(folder, video.view, video.id)
            state, reason, facts = _examine(
                video, path, headers, encoder, resize, device, ratios, on_mismatch, verify_sources
            )
            if overwrite and state != "missing":
                state, reason = "stale", "--overwrite"
            kept = () if facts is None or overwrite else facts.header.ratios
            jobs.append(
                Job(
                    video,
                    folder,
                    state,
                    reason,
                    entry=entry_of(video, facts) if facts else None,
                    file_state=facts.state if facts else None,
                    identity=facts.header.provenance.identity() if facts else None,
                    ratios=_joined(tuple(ratios), kept),
                )
            )
    return Plan(dataset, encoder, folder, tuple(jobs))


def entry_of(video: Video, facts: Facts) -> VideoEntry:
    """A video's line of the manifest, from its file."""
    labels, header = video.phases(facts.pts_seconds), facts.header
    return VideoEntry(video.id, video.view, video.split, header.frames, header.fps, labels, video.actions, video.pair)


@lru_cache
def _joined(ratios: tuple[float, ...], kept: tuple[str, ...]) -> tuple[float, ...]:
    """Those that are wanted and those that are there; one copy in memory for all videos alike."""
    return tuple(sorted({*map(float, ratios), *map(float, kept)}))


def _examine(
    video: Video,
    path: Path,
    headers: HeaderIndex,
    encoder: EncoderName,
    resize: Resize,
    device: Device,
    ratios: Sequence[float],
    on_mismatch: OnMismatch,
    verify_sources: bool,
) -> tuple[State, str, IndexedFacts | None]:
    if not path.is_file():
        return "missing", "", None
    try:
        facts = headers.read(path)
    except CacheError as error:
        return "stale", str(error), None
    header = facts.header
    conflict = _conflict(header.provenance, encoder, resize, device)
    conflict = conflict or _source_conflict(facts, video.path, headers, verify_sources)
    if conflict:
        return "conflict", f"{path}: {conflict}", facts
    lacking = [ratio_key(ratio) for ratio in ratios if ratio_key(ratio) not in header.ratios]
    if lacking:
        return "stale", f"lacks ratio {' '.join(lacking)}", facts
    if video.labels is not None and _miscounted(len(video.labels), header.frames, on_mismatch):
        return "stale", f"{pluralize(header.frames, 'frame')}, {pluralize(len(video.labels), 'label')}", facts
    return "cached", "", facts


def _miscounted(labels: int, frames: int, on_mismatch: OnMismatch) -> bool:
    """Trimmed videos have no more frames than labels; others have as many."""
    return labels < frames if on_mismatch == "trim" else labels != frames


def _conflict(found: Provenance, encoder: EncoderName, resize: Resize, device: Device) -> str:
    """How the file's identity differs from the requested one; "" if it does not."""
    if found.encoder != encoder.id:
        return f"made with encoder {found.encoder}, this is {encoder.id}"
    if encoder.revision is not None and found.encoder_revision != encoder.revision:
        return f"made with revision {found.encoder_revision} of {encoder.id}, this is {encoder.revision}"
    if found.preprocessing.split()[0] != resize:
        return f"made with --resize {found.preprocessing.split()[0]}, this is {resize}"
    if device != "auto" and found.compute_dtype != compute_dtype(device):
        return f"computed in {found.compute_dtype}, --device {device} computes in {compute_dtype(device)}"
    return ""


def _source_conflict(facts: IndexedFacts, path: Path, headers: HeaderIndex, verify: bool) -> str:
    """Has the source changed? Not if it is in the state in which it was compared before, unless `verify`.

    Else a sample of it tells; if it was written to since, or `verify`, all of it is read.
    """
    state = settled_state(path)
    if not verify and state is not None and state == facts.source_state:
        return ""
    found, source = facts.header.provenance, path.stat()
    if found.source_bytes != source.st_size:
        return f"made from {found.source_name} of {found.source_bytes} bytes, {path} has {source.st_size} now"
    whole = verify or source.st_mtime_ns > facts.header.path.stat().st_mtime_ns
    expected = found.source_sha256 if whole else found.source_fingerprint
    now = file_sha256(path) if whole else fingerprint(path)
    if now != expected:
        return f"made from {found.source_name} with digest {expected[:12]}, {path} has changed to {now[:12]}"
    headers.keep_source(facts, path, state)
    return ""


def refuse_conflicts(plan: Plan) -> None:
    """Features of different identities are never mixed: a conflict stops the run before it starts."""
    conflicts = plan.in_state("conflict")
    if conflicts:
        more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
        raise CacheError(
            f"{conflicts[0].reason}{more}; delete what is out of date, use --overwrite to extract everything again, "
            "or another --features-dir"
        )


def pinned_revision(dataset: Dataset, features_dir: Path, encoder: EncoderName) -> EncoderName:
    """Without --revision, the one that the cache was begun with."""
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


FILE_BYTES = 28_000  # of a feature file beside its rows: indices and attributes, as measured


@dataclass(frozen=True)
class VideoCheck:
    """One video: its state in the cache, what its file says, or why that cannot be read."""

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
        seen = probe(job.video.path)
    except VideoError as error:
        return VideoCheck(job, None, str(error))
    problem = None
    if seen.truncation:
        problem = f"{job.video.path}: {seen.truncation}"
    elif job.label_count not in (None, seen.packets) and job.frames is None:
        labels = pluralize(job.label_count or 0, "label")
        problem = f"{job.video.path}: {pluralize(seen.packets, 'frame')} in the file, {labels}"
    return VideoCheck(job, seen, problem)


def bytes_needed(checks: Sequence[VideoCheck], bytes_per_frame: int) -> int:
    """Disk that the videos still to be extracted will take."""
    return sum(
        stored_rows(check.probe.packets) * bytes_per_frame + FILE_BYTES
        for check in checks
        if check.probe and check.job.state != "cached"
    )


def bytes_per_frame(ratios: int, tokens: int, width: int, *, has_cls: bool) -> int:
    return 2 * width * (ratios + has_cls) + 2 * tokens + 8


def free_bytes(folder: Path) -> int:
    """Free space where `folder` is or will be."""
    there = next(parent for parent in (folder.absolute(), *folder.absolute().parents) if parent.exists())
    return shutil.disk_usage(there).free
