"""Where the videos are now, and whether they are still those that were extracted."""

import os
from pathlib import Path

from byov.cache.digests import fingerprint
from byov.cache.features import Provenance
from byov.cache.manifest import read_sources
from byov.errors import CacheError
from byov.report.content import Unavailable


class VideoFiles:
    """dataset_folder: of the dataset in the cache. searched: a folder that holds the videos, at any depth."""

    def __init__(self, dataset_folder: Path, searched: Path | None = None) -> None:
        self._by_name: dict[str, list[Path]] = _files_by_name(searched) if searched is not None else {}
        self._searched = searched is not None
        self._unreadable = ""
        try:
            self._recorded = read_sources(dataset_folder)
        except CacheError:
            self._recorded = {}
            self._unreadable = "index.json in the feature cache is not readable"

    def find(self, video_id: str, made_from: Provenance) -> Path | Unavailable:
        """The file that the features of a video were made from."""
        recorded = self._recorded.get(video_id)
        candidates = self._by_name.get(made_from.source_name, []) + ([recorded] if recorded is not None else [])
        there = [path for path in candidates if _is_file(path)]
        for path in there:
            if _is_the_source(path, made_from):
                return path
        return Unavailable(self._why_not(made_from.source_name, changed=bool(there), known=recorded is not None))

    def _why_not(self, name: str, *, changed: bool, known: bool) -> str:
        if changed:
            return f"{name} has changed since it was extracted; extract it again with byov-extract"
        if self._searched:
            return f"{name} is not in the folder that --videos names"
        remedy = "say where it is with --videos FOLDER"
        if known:
            return f"{name} is no longer where it was when it was extracted; {remedy}"
        return f"{self._unreadable or f'the feature cache does not say where {name} is'}; {remedy}"


def _files_by_name(folder: Path) -> dict[str, list[Path]]:
    """All files below a folder, in a fixed order; links to folders are not followed."""
    found: dict[str, list[Path]] = {}
    for place, folders, names in os.walk(folder):
        folders.sort()
        for name in sorted(names):
            found.setdefault(name, []).append(Path(place, name))
    return found


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # of a place that may not be looked at, or cannot be a name
        return False


def _is_the_source(path: Path, made_from: Provenance) -> bool:
    try:
        return path.stat().st_size == made_from.source_bytes and fingerprint(path) == made_from.source_fingerprint
    except OSError:
        return False
