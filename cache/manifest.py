"""JSON files that describe a cached dataset.

manifest.json lists the videos with view, split, frame count and labels. It is all that later stages
need to know about the dataset, and is identical on every machine. index.json is local: it records
where the videos are, and the size and modification time of each file when last checked, so that
byov-extract can skip unchanged files. You may delete it.
"""

import json
import os
from collections.abc import Callable
from dataclasses import asdict, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from byov.cache import digests
from byov.cache.atomic import write_bytes
from byov.cache.layout import check_name
from byov.errors import CacheError
from byov.files import MAX_MANIFEST_BYTES, parse_json, read_bytes
from byov.records import READ_FROM_FILE, Split, View, problem

T = TypeVar("T")
INDEX_NAME = "index.json"


@dataclass(frozen=True, config=READ_FROM_FILE)
class VideoEntry:
    """A video in the manifest."""

    id: Annotated[str, AfterValidator(partial(check_name, what="video id"))]
    view: View
    split: Split
    frames: Annotated[int, Field(ge=0)] | None  # None until the video has been decoded
    fps: float | None
    # Phase index of each frame (or UNLABELED), if the dataset has phases.
    labels: tuple[int, ...] | None
    actions: tuple[int, ...] | None  # video-level action classes, if the dataset has them
    pair: str | None = None  # id shared by the synchronized ego and exo videos of a performance
    # Digest of the video (or segment) that `frames`, `fps` and `labels` describe; None until then.
    source_sha256: str | None = None
    group: str | None = None  # id shared by videos that must be in the same split, as of one take


@dataclass(frozen=True, config=READ_FROM_FILE)
class Manifest:
    """Description of a dataset, saved as manifest.json."""

    dataset: Annotated[str, AfterValidator(partial(check_name, what="dataset"))]
    phases: tuple[str, ...]
    actions: tuple[str, ...]
    videos: tuple[VideoEntry, ...]
    schema_version: int = digests.SCHEMA_VERSION
    ordered: bool = True  # whether every video shows the phases in this order

    def save(self, path: Path) -> None:
        write_bytes(path, self.to_json().encode())

    def to_json(self) -> str:
        """Return sealed JSON with one video per line, so that diffs stay small."""
        head = {
            "schema_version": self.schema_version,
            **digests.BLANK_SEAL,
            "dataset": self.dataset,
            "phases": self.phases,
            "ordered": self.ordered,
            "actions": self.actions,
        }
        start = json.dumps(head, indent=1, ensure_ascii=False).removesuffix("\n}")
        lines = ",\n".join(
            "  " + json.dumps(vars(video), ensure_ascii=False) for video in self.videos
        )
        return digests.seal(f'{start},\n "videos": [\n{lines}\n ]\n}}\n'.encode()).decode()


@dataclass(frozen=True, slots=True, config=READ_FROM_FILE)
class IndexedFile:
    """State of a feature file and its video when last checked."""

    size: int
    mtime_ns: int
    frames: int
    fps: float
    ratios: tuple[str, ...]
    source_state: tuple[int, int, int]  # size, mtime_ns and ctime_ns of the video
    source_sha256: str


@dataclass(config=READ_FROM_FILE)
class FileIndex:
    """Index of a dataset's files, saved as index.json; ignored if it cannot be read or does not
    match manifest.json.
    """

    manifest_sha256: str = ""
    # Video id → path relative to the cache folder.
    sources: dict[str, str] = field(default_factory=dict)
    # Encoder folder → Provenance.identity().
    identities: dict[str, dict[str, str]] = field(default_factory=dict)
    # Encoder folder → video id → file.
    files: dict[str, dict[str, IndexedFile]] = field(default_factory=dict)
    # Video id → part of the file, like "#t=2.5,7".
    segments: dict[str, str] = field(default_factory=dict)
    # Video id → digest of the annotation that the labels in the manifest come from.
    annotations: dict[str, str] = field(default_factory=dict)
    schema_version: int = digests.SCHEMA_VERSION

    def save(self, folder: Path) -> None:
        write_bytes(folder / INDEX_NAME, (json.dumps(asdict(self), indent=1) + "\n").encode())


def load_manifest(path: Path) -> Manifest:
    """Read a manifest and verify its digest; raise CacheError if it is missing, damaged or
    edited.
    """
    return _read(path, Manifest, digests.read_sealed_json)


def load_index(folder: Path) -> FileIndex:
    """Read the index of a cached dataset; return an empty index if it is missing, damaged or
    outdated.
    """
    try:
        index = _read_index(folder)
        manifest_sha256 = digests.file_sha256(folder / "manifest.json")
    except (CacheError, OSError):
        return FileIndex()
    return (
        index
        if index.manifest_sha256 == manifest_sha256
        else FileIndex(sources=index.sources, segments=index.segments)
    )


def read_sources(folder: Path) -> dict[str, Path]:
    """Return a dict that maps video ids to the paths they were extracted from; empty if there is no
    index.
    """
    start = Path(os.path.realpath(folder))
    return {
        video: Path(os.path.normpath(start / path))
        for video, path in _read_index(folder).sources.items()
    }


def relative_sources(folder: Path, videos: dict[str, Path]) -> dict[str, str]:
    """Return a dict that maps video ids to paths relative to `folder`, so that a project can be
    moved.
    """
    start = os.path.realpath(folder)
    # JSON cannot represent file names that are not UTF-8, so their invalid bytes are replaced.
    return {
        video: os.fsencode(os.path.relpath(os.path.realpath(path), start)).decode(errors="replace")
        for video, path in sorted(videos.items())
    }


def _read_index(folder: Path) -> FileIndex:
    path = folder / INDEX_NAME
    return _read(path, FileIndex, parse_json) if path.exists() else FileIndex()


def _read(path: Path, kind: type[T], parse: Callable[[bytes], dict[str, Any]]) -> T:
    try:
        content = read_bytes(path, MAX_MANIFEST_BYTES)
        digests.check_schema(parse(content)["schema_version"], path)
        return TypeAdapter(kind).validate_json(content)
    except digests.NewerSchemaError:
        raise
    except FileNotFoundError:
        raise CacheError(f"{path}: no such file; run byov-extract or set --features-dir") from None
    except digests.SealError as error:
        raise CacheError(
            f"{path} {error}. Run byov-extract to restore it, or {digests.ACCEPT_EDIT}"
        ) from None
    except (CacheError, OSError, ValueError, LookupError, TypeError) as error:
        reason = problem(error) if isinstance(error, ValidationError) else error
        raise CacheError(f"{path}: not readable ({reason}); run byov-extract again") from error
