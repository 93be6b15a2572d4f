"""What the cache holds: a summary of each encoder's folder."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from byov.cache.header_index import HeaderIndex
from byov.cache.layout import cached_files
from byov.cache.manifest import load_manifest
from byov.cache.row_reader import open_file, read_columns, stored_digest
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
    dataset_pairs: int
    frames: int
    ratios: tuple[str, ...]  # those that every file has
    disk_bytes: int
    unreadable: int
    failures: int


def summarise(folder: Path) -> EncoderSummary:
    videos, frames, unreadable, disk_bytes = 0, 0, 0, 0
    encoder, ratios = folder.name, frozenset[str]()
    with HeaderIndex(folder) as index:
        for path in cached_files(folder):
            try:
                disk_bytes += path.stat().st_size
                header = index.read(path).header
            except (CacheError, OSError):
                unreadable += 1
                continue
            encoder = encoder if videos else header.provenance.encoder
            ratios = ratios.intersection(header.ratios) if videos else frozenset(header.ratios)
            videos += 1
            frames += header.frames
    manifest = load_manifest(folder.parent / "manifest.json")
    return EncoderSummary(
        dataset=folder.parent.name,
        encoder=encoder,
        folder=folder,
        cached_videos=videos,
        dataset_videos=len(manifest.videos),
        dataset_pairs=len({video.pair for video in manifest.videos} - {None}),
        frames=frames,
        ratios=tuple(sorted(ratios, key=float)),
        disk_bytes=disk_bytes,
        unreadable=unreadable,
        failures=len(read_failures(folder)),
    )


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


def check_digests(path: Path) -> None:
    """Raise unless all arrays of a file are as they were written; block by block, whatever their size."""
    with open_file(path) as file:
        for name in read_columns(path):
            digest = hashlib.sha256()
            for first in range(0, file[name].shape[0], BLOCK_ROWS):
                digest.update(file[name][first : first + BLOCK_ROWS].tobytes())
            if digest.hexdigest() != stored_digest(file, name):
                raise CacheError(f"{path}: {name} does not match its digest; delete the file and extract again")
