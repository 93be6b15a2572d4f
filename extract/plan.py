"""What there is to do: each video of a dataset against what the cache holds of it. Loads no model, decodes nothing."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from byov.cache.features import Header, Provenance, read_header
from byov.cache.layout import encoder_dir, ratio_key, video_path
from byov.data.dataset import Dataset, Video
from byov.data.fingerprint import fingerprint, sha256
from byov.device import Device
from byov.errors import CacheError
from byov.extract.encoder_name import EncoderName, Resize, compute_dtype

OnMismatch = Literal["error", "trim"]
State = Literal["cached", "missing", "stale", "conflict"]


@dataclass(frozen=True)
class Job:
    """One video and the state of its cache file."""

    video: Video
    path: Path
    state: State
    reason: str  # why it is stale or in conflict
    header: Header | None  # of the file that is there, if it can be read
    ratios: tuple[float, ...]  # what the finished file is to hold

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
) -> Plan:
    """Compare every video of a shard (i of n, from 1) with its cache file.

    device: what "auto" will be is known once the encoder is loaded; run_plan compares then.
    """
    folder = encoder_dir(features_dir, dataset.name, encoder.id)
    index, shards = shard
    jobs = []
    for video in dataset.videos[index - 1 :: shards]:
        path = video_path(folder, video.view, video.id)
        state, reason, header = _examine(video, path, encoder, resize, device, ratios, on_mismatch)
        if overwrite and state != "missing":
            state, reason = "stale", "--overwrite"
        kept = () if header is None or overwrite else (float(ratio) for ratio in header.ratios)
        jobs.append(Job(video, path, state, reason, header, tuple(sorted({*map(float, ratios), *kept}))))
    return Plan(dataset, encoder, folder, tuple(jobs))


def _examine(
    video: Video,
    path: Path,
    encoder: EncoderName,
    resize: Resize,
    device: Device,
    ratios: Sequence[float],
    on_mismatch: OnMismatch,
) -> tuple[State, str, Header | None]:
    if not path.is_file():
        return "missing", "", None
    try:
        header = read_header(path)
    except CacheError as error:
        return "stale", str(error), None
    conflict = _conflict(header.provenance, encoder, resize, device) or _source_conflict(header, video)
    if conflict:
        return "conflict", f"{path}: {conflict}", header
    lacking = [ratio_key(ratio) for ratio in ratios if ratio_key(ratio) not in header.ratios]
    if lacking:
        return "stale", f"lacks ratio {' '.join(lacking)}", header
    if video.labels is not None and _miscounted(len(video.labels), header.frames, on_mismatch):
        return "stale", f"{header.frames} frames, {len(video.labels)} labels", header
    return "cached", "", header


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


def _source_conflict(header: Header, video: Video) -> str:
    """Has the source changed? A sample of it tells, unless it was written to since: then all of it is read."""
    found, source = header.provenance, video.path.stat()
    if found.source_bytes != source.st_size:
        return f"made from {found.source_name} of {found.source_bytes} bytes, {video.path} has {source.st_size} now"
    touched_since = source.st_mtime_ns > header.path.stat().st_mtime_ns
    expected = found.source_sha256 if touched_since else found.source_fingerprint
    now = sha256(video.path) if touched_since else fingerprint(video.path)
    if now != expected:
        return f"made from {found.source_name} with digest {expected[:12]}, {video.path} has changed to {now[:12]}"
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
