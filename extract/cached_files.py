"""Cached feature files of an encoder, and the files that describe them: manifest.json, index.json
and failures.json.
"""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Self

from byov.cache import manifest as manifests
from byov.cache.atomic import exclusive, write_text
from byov.cache.digests import file_sha256, fingerprint, segment_digest
from byov.cache.features import Provenance, cached_header
from byov.cache.hdf5 import read_array
from byov.cache.layout import video_path
from byov.cache.manifest import FileIndex, IndexedFile, Manifest, VideoEntry
from byov.cache.verify import FAILURES_NAME, read_failures
from byov.data.dataset import Dataset, Video, parse_source
from byov.errors import CacheError, DatasetError
from byov.records import UNLABELED
from byov.text import pluralize

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CachedFile:
    """Description of a readable feature file."""

    entry: VideoEntry  # manifest entry with the number of frames and labels of this file
    identity: Mapping[str, str]
    indexed: IndexedFile
    fragment: str = ""  # segment of the video file that the features were computed from
    source_change: str = ""  # how the video file has changed since then, if it has


class CacheReader:
    """Reader of an encoder folder that opens only files that have changed since the index was
    written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = manifests.load_index(folder.parent)
        self._sha256 = lru_cache(maxsize=64)(file_sha256)  # a file may contain many videos
        self._identity: Mapping[str, str] | None = self.index.identities.get(folder.name)
        self._files = dict(self.index.files.get(folder.name, {}))
        self.manifest: Manifest | None = None
        with suppress(CacheError):
            self.manifest = manifests.load_manifest(folder.parent / "manifest.json")
        videos = self.manifest.videos if self.manifest else ()
        self.entries = {entry.id: entry for entry in videos}

    def of_other_encoders(self) -> Iterator[Self]:
        """Yield readers of the dataset's other encoder folders."""
        for folder in sorted(self.folder.parent.iterdir()):
            if folder.is_dir() and not folder.name.startswith(".") and folder != self.folder:
                other = copy(self)
                other.folder = folder
                other._identity = self.index.identities.get(folder.name)
                other._files = dict(self.index.files.get(folder.name, {}))
                yield other

    def has_current_labels(self, video: Video) -> bool:
        """Return whether the labels in the manifest come from the video's current annotation."""
        return self.index.annotations.get(video.id) == annotation_sha256(video)

    def read(self, video: Video, *, verify_source: bool = False) -> CachedFile | None:
        """Return a description of a video's feature file, or None if there is none.

        With `verify_source`, the whole video is read instead of trusting its size and modification
        time.
        """
        path = video_path(self.folder, video.view, video.id)
        try:
            file = path.stat()
        except FileNotFoundError:
            return None
        source = video.path.stat()
        source_state = (source.st_size, source.st_mtime_ns, source.st_ctime_ns)
        known = self._files.get(video.id)
        listed = self.entries.get(video.id)
        # The index has no digest, so its values must agree with those in the manifest.
        if known is not None and (
            listed is None
            or (known.frames, known.fps, known.source_sha256)
            != (listed.frames, listed.fps, listed.source_sha256)
            or (known.size, known.mtime_ns) != (file.st_size, file.st_mtime_ns)
            or not self.has_current_labels(video)
        ):
            known = None
        is_same_source = known and known.source_state == source_state and not verify_source
        if known and listed and is_same_source and self._identity:
            entry = _manifest_entry(video, listed)
            return CachedFile(entry, self._identity, known, video.segment.fragment)
        header = cached_header(self.folder, video.view, video.id)
        provenance = header.provenance
        change = self._source_change(provenance, video.path, source, file, verify=verify_source)
        facts = (file.st_size, file.st_mtime_ns, header.frames, header.fps, header.ratios)
        labels = (
            listed.labels if known and listed else video.phases(read_array(path, "pts_seconds"))
        )
        entry = replace(
            _manifest_entry(video),
            frames=header.frames,
            fps=header.fps,
            labels=labels,
            source_sha256=provenance.source_sha256,
        )
        return CachedFile(
            entry,
            provenance.identity(),
            IndexedFile(*facts, source_state, provenance.source_sha256),
            parse_source(provenance.source_name)[1].fragment,
            change,
        )

    def _source_change(
        self,
        provenance: Provenance,
        path: Path,
        source: os.stat_result,
        file: os.stat_result,
        *,
        verify: bool,
    ) -> str:
        """Describe how a video differs from the one the features were computed from; return "" if
        it does not.

        Compares the size and a sample of the bytes, or all bytes if the video was modified after
        the features.
        """
        if provenance.source_bytes != source.st_size:
            return (
                f"from {provenance.source_name} of {provenance.source_bytes} bytes, but {path} has "
                f"{source.st_size}"
            )
        whole = verify or source.st_mtime_ns > file.st_mtime_ns
        expected = provenance.source_sha256 if whole else provenance.source_fingerprint
        digest = self._sha256(path) if whole else fingerprint(path)
        now = segment_digest(digest, parse_source(provenance.source_name)[1].fragment)
        if now != expected:
            return (
                f"from {provenance.source_name} with digest {expected[:12]}, but {path} has "
                f"changed to {now[:12]}"
            )
        return ""


def annotation_sha256(video: Video) -> str:
    """Return a digest of everything that determines the labels, except the frame times."""
    labeling = (
        video.labels,
        video.intervals,
        video.interval_unit,
        video.segment.fragment,
    )
    return hashlib.sha256(repr(labeling).encode()).hexdigest()


def _manifest_entry(video: Video, earlier: VideoEntry | None = None) -> VideoEntry:
    """Return the manifest entry of a video, with the frames and labels of an earlier entry."""
    entry = VideoEntry(
        id=video.id,
        view=video.view,
        split=video.split,
        frames=None,
        fps=None,
        labels=video.labels,
        actions=video.actions,
        pair=video.pair,
        group=video.group,
    )
    if earlier is None:
        return entry
    return replace(
        entry,
        frames=earlier.frames,
        fps=earlier.fps,
        labels=earlier.labels,
        source_sha256=earlier.source_sha256,
    )


def update_manifest(
    folder: Path,
    dataset: Dataset,
    tried: Set[str],
    failures: dict[str, str],
    *,
    drop_labels: bool = False,
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
        drop_labels: Remove labels in the manifest that the dataset does not have.
    """
    path = folder.with_name("manifest.json")
    with exclusive(path.with_name(".lock")):
        reader = CacheReader(folder)
        others = tuple(reader.of_other_encoders())
        phases, ordered = kept_phases(dataset, reader, drop_labels=drop_labels)
        cached = dict[str, CachedFile]()
        entries = list[VideoEntry]()
        for video in dataset.videos:
            file = _current_file(reader, video)
            if file is not None:
                cached[video.id] = file
                if late := _late_events(reader.folder, video, file.entry.labels):
                    failures[video.id] = f"{late}. Correct the CSV and run byov-extract again."
                    LOGGER.warning(failures[video.id])
            entries.append(_entry(video, file, reader, others, drop_labels=drop_labels))
        _log_label_changes(dataset, reader.entries, entries)
        Manifest(dataset.name, phases, dataset.action_names, tuple(entries), ordered=ordered).save(
            path
        )
        _save_index(dataset, path, reader, cached)
        untried = {video.id for video in dataset.videos} - tried - cached.keys()
        _record_failures(folder, untried, failures)


def kept_phases(
    dataset: Dataset, reader: CacheReader, *, drop_labels: bool
) -> tuple[tuple[str, ...], bool]:
    """Return the phases of the next manifest, and whether they are ordered.

    Labels in the manifest are kept for videos that the dataset has no labels for. Raises
    DatasetError if these labels are of other phases.
    """
    earlier = reader.manifest
    kept = [
        video.id
        for video in dataset.videos
        if not video.is_annotated
        and (entry := reader.entries.get(video.id)) is not None
        and entry.labels is not None
    ]
    if not kept or drop_labels or earlier is None:
        return dataset.phase_names, dataset.ordered
    if dataset.phase_names not in ((), earlier.phases):
        raise DatasetError(
            f"{dataset.name}: {pluralize(len(kept), 'video')} without labels, such as {kept[0]}, "
            f"have labels of other phases in {reader.folder.with_name('manifest.json')}. Label "
            "them, or remove their labels with --drop-labels."
        )
    return earlier.phases, earlier.ordered and dataset.ordered


def _log_label_changes(
    dataset: Dataset, earlier: Mapping[str, VideoEntry], entries: Sequence[VideoEntry]
) -> None:
    changes = Counter[str]()
    kept = 0
    for video, entry in zip(dataset.videos, entries, strict=True):
        before = earlier.get(entry.id)
        if before is None or before.source_sha256 is None:
            continue  # not extracted before
        if before.labels != entry.labels:
            kind = "removed" if entry.labels is None else "added" if before.labels is None else ""
            changes[kind] += 1
        kept += entry.labels is not None and not video.is_annotated
    if changes:
        details = ", ".join(f"{count} {kind}" for kind, count in changes.items() if kind)
        LOGGER.info(
            f"labels of {pluralize(changes.total(), 'video')} changed"
            + f" ({details})" * bool(details)
        )
    if kept:
        LOGGER.info(
            f"kept the labels of {pluralize(kept, 'video')} that are in the manifest but not in "
            "this source; remove them with --drop-labels"
        )


def _current_file(reader: CacheReader, video: Video) -> CachedFile | None:
    """Return a video's feature file if it was computed from the current version of the video."""
    with suppress(CacheError):
        file = reader.read(video)
        if file and not file.source_change and file.fragment == video.segment.fragment:
            return file
    return None


def _entry(
    video: Video,
    file: CachedFile | None,
    reader: CacheReader,
    others: Sequence[CacheReader],
    *,
    drop_labels: bool,
) -> VideoEntry:
    """Return the manifest entry of a video, with labels from its current annotation.

    The frame times come from the features of another encoder if there is no `file`.
    """
    file = file or next(filter(None, (_current_file(other, video) for other in others)), None)
    earlier = reader.entries.get(video.id)
    if file is not None:
        entry = file.entry
    else:
        # A damaged, deleted or outdated file keeps its entry, unless the labels have changed.
        is_current = reader.has_current_labels(video) or not video.is_annotated
        entry = _manifest_entry(video, earlier if is_current else None)
    if video.is_annotated:
        return entry
    keeps = not drop_labels and earlier and earlier.source_sha256 == entry.source_sha256
    return replace(entry, labels=earlier.labels if earlier and keeps else None)


def _late_events(folder: Path, video: Video, labels: tuple[int, ...] | None) -> str:
    """Describe events after the last frame; there are none if every phase has a frame."""
    if {phase for _, _, phase in video.intervals or ()} <= {UNLABELED, *(labels or ())}:
        return ""
    pts_seconds = read_array(video_path(folder, video.view, video.id), "pts_seconds")
    return video.late_events(len(pts_seconds), float(pts_seconds.max()))


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
        annotations={video.id: annotation_sha256(video) for video in dataset.videos},
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
