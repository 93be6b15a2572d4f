"""Cached feature files of an encoder, and the manifest and index that describe them."""

import hashlib
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from byov.cache import manifest as manifests
from byov.cache.digests import file_sha256, fingerprint, segment_digest
from byov.cache.features import Provenance, video_header
from byov.cache.hdf5 import read_array
from byov.cache.layout import video_path
from byov.cache.manifest import IndexedFile, VideoEntry
from byov.data.dataset import Video, parse_source
from byov.errors import CacheError

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
        try:
            listed = manifests.load_manifest(folder.parent / "manifest.json").videos
            self.entries = {entry.id: entry for entry in listed}
        except CacheError:
            self.entries = {}

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
        # Everything that determines the labels, except the frame times.
        labeling = (
            video.labels,
            video.events,
            video.unlabeled,
            video.event_unit,
            video.segment.fragment,
        )
        annotation = hashlib.sha256(repr(labeling).encode()).hexdigest()
        known = self._files.get(video.id)
        listed = self.entries.get(video.id)
        # The index has no digest, so its numbers must agree with those in the manifest.
        if known is not None and (
            listed is None
            or (known.frames, known.fps) != (listed.frames, listed.fps)
            or (known.size, known.mtime_ns, known.annotation_sha256)
            != (file.st_size, file.st_mtime_ns, annotation)
        ):
            known = None
        if known and self._identity and known.source_state == source_state and not verify_source:
            identity = self._identity
            fragment = video.segment.fragment
            change = ""
            indexed = known
        else:
            header = video_header(self.folder, video.view, video.id)
            identity = header.provenance.identity()
            fragment = parse_source(header.provenance.source_name)[1].fragment
            change = self._source_change(
                header.provenance, video.path, source, file, verify=verify_source
            )
            facts = (file.st_size, file.st_mtime_ns, header.frames, header.fps, header.ratios)
            indexed = IndexedFile(*facts, source_state, annotation)
        if known and listed:
            labels = listed.labels
        else:
            labels = video.phases(read_array(path, "pts_seconds"))
        entry = manifest_entry(video, indexed.frames, indexed.fps, labels)
        return CachedFile(entry, identity, indexed, fragment, change)

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


def manifest_entry(
    video: Video, frames: int | None, fps: float | None, labels: tuple[int, ...] | None
) -> VideoEntry:
    return VideoEntry(
        video.id, video.view, video.split, frames, fps, labels, video.actions, video.pair
    )
