"""What the cache holds: a summary of each encoder's folder, and a full check of its files."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from byov.cache.features import Header, check_same_identity, read_header
from byov.cache.layout import cached_files
from byov.cache.manifest import VideoEntry, load_manifest
from byov.cache.row_reader import open_file, read_attributes, read_columns
from byov.cache.row_writer import BLOCK_ROWS
from byov.errors import CacheError


@dataclass(frozen=True)
class EncoderSummary:
    """One encoder's folder of one dataset."""

    dataset: str
    encoder: str
    folder: Path
    cached_videos: int
    dataset_videos: int
    frames: int
    ratios: tuple[str, ...]  # those that every file has
    disk_bytes: int
    unreadable: int
    failures: int


def summarise(folder: Path) -> EncoderSummary:
    headers, unreadable, disk_bytes = [], 0, 0
    for path in cached_files(folder):
        try:
            disk_bytes += path.stat().st_size
            headers.append(read_header(path))
        except (CacheError, OSError):
            unreadable += 1
    manifest = load_manifest(folder.parent / "manifest.json")
    return EncoderSummary(
        dataset=folder.parent.name,
        encoder=headers[0].provenance.encoder if headers else folder.name,
        folder=folder,
        cached_videos=len(headers),
        dataset_videos=len(manifest.videos),
        frames=sum(header.frames for header in headers),
        ratios=_common_ratios(headers),
        disk_bytes=disk_bytes,
        unreadable=unreadable,
        failures=len(read_failures(folder)),
    )


def _common_ratios(headers: list[Header]) -> tuple[str, ...]:
    common = set.intersection(*(set(header.ratios) for header in headers)) if headers else set()
    return tuple(sorted(common, key=float))


def failures_path(folder: Path) -> Path:
    return folder / "failures.json"


def read_failures(folder: Path) -> dict[str, str]:
    """Video id → reason, of the videos that the last run over them could not extract."""
    try:
        raw = json.loads(failures_path(folder).read_text(encoding="utf-8"))
        return {str(video): str(reason) for video, reason in raw.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise CacheError(f"{failures_path(folder)}: not readable ({error}); delete it") from error


def verify_folder(folder: Path) -> Iterator[tuple[Path, str | None]]:
    """Read every file of an encoder's folder from end to end: (path, None if sound, else what is wrong)."""
    manifest = load_manifest(folder.parent / "manifest.json")
    entries: dict[tuple[str, str], VideoEntry] = {(video.view, video.id): video for video in manifest.videos}
    first: Header | None = None
    for path in cached_files(folder):
        try:
            header = read_header(path)
            _check_digests(path)
            _check_against_manifest(header, entries.get((path.parent.name, path.stem)))
            if first is None:
                first = header
            check_same_identity(header, first)
        except CacheError as error:
            yield path, str(error).removeprefix(f"{path}: ")
        else:
            yield path, None


def _check_digests(path: Path) -> None:
    with open_file(path) as file:
        for name in read_columns(path):
            digest = hashlib.sha256()
            for first in range(0, file[name].shape[0], BLOCK_ROWS):
                digest.update(file[name][first : first + BLOCK_ROWS].tobytes())
            if digest.hexdigest() != read_attributes(file[name]).get("sha256"):
                raise CacheError(f"{path}: {name} does not match its digest; delete the file and extract again")


def _check_against_manifest(header: Header, entry: VideoEntry | None) -> None:
    if entry is None:
        raise CacheError(f"{header.path}: not in the manifest")
    if entry.frames != header.frames:
        raise CacheError(f"{header.path}: {header.frames} frames, {entry.frames} in the manifest")
