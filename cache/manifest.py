"""The manifest of a dataset in the cache: its videos, views, splits, labels. All that later stages know of it.

Beside it sources.json, where the videos were when they were extracted. No stage needs them again; pictures do. Paths
are relative to the dataset's folder in the cache, so that a project that is moved as a whole still finds them. What is
found there is the video only if its fingerprint says so.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from byov.cache.atomic import write_bytes, write_text
from byov.cache.digests import UNSEAL, SealError, blank_seal, check_seal, sealed
from byov.cache.layout import check_name
from byov.errors import CacheError
from byov.records import problem

SCHEMA_VERSION = 1
SOURCES_NAME = "sources.json"
# What a newer version adds is none of this one's business: it is ignored.
_CHECKED = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)


@dataclass(frozen=True, slots=True, config=_CHECKED)
class VideoEntry:
    id: Annotated[str, AfterValidator(partial(check_name, what="video id"))]
    view: Literal["ego", "exo"]
    split: Literal["train", "val", "test"]
    frames: Annotated[int, Field(ge=0)] | None  # None until the video has been decoded
    fps: float | None
    labels: tuple[int, ...] | None  # phase index of each frame or UNLABELED, if the dataset has phases
    actions: tuple[int, ...] | None  # classes of the whole video, if the dataset has them
    pair: str | None = None  # what an ego and an exo video of the same performance share; manifests up to 0.2 lack it


@dataclass(frozen=True, config=_CHECKED)
class Manifest:
    dataset: Annotated[str, AfterValidator(partial(check_name, what="dataset"))]
    phases: tuple[str, ...]
    actions: tuple[str, ...]
    videos: tuple[VideoEntry, ...]

    def save(self, path: Path) -> None:
        write_bytes(path, self._content())

    def to_json(self) -> str:
        """JSON with one video on a line, so that people can read it and diffs stay small; sealed."""
        return self._content().decode()

    def _content(self) -> bytes:
        head = {
            "schema_version": SCHEMA_VERSION,
            **blank_seal(),
            "dataset": self.dataset,
            "phases": self.phases,
            "actions": self.actions,
        }
        start = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
        content = bytearray(f'{start},\n "videos": [\n'.encode())  # which grows without a second copy of it
        for number, video in enumerate(self.videos):
            content += b",\n  " if number else b"  "
            content += json.dumps(_values(video), ensure_ascii=False).encode()
        content += b"\n ]\n}\n"
        return sealed(content)


_NAMES = tuple(field.name for field in fields(VideoEntry))


def _values(video: VideoEntry) -> dict[str, Any]:
    """As asdict, which copies every label for itself."""
    return {name: getattr(video, name) for name in _NAMES}


def load_manifest(path: Path) -> Manifest:
    try:
        content = path.read_bytes()
        _check_schema(content)
        check_seal(content)
        return _MANIFEST.validate_json(content)
    except FileNotFoundError:
        remedy = "run byov-extract, or say where the cache is with --features-dir"
        raise CacheError(f"{path}: no such file; {remedy}") from None
    except SealError as error:
        raise CacheError(f"{path}: {error}; run byov-extract again, or, if you have edited it, {UNSEAL}") from None
    except (CacheError, OSError, ValueError) as error:  # ValidationError is a ValueError
        reason = problem(error) if isinstance(error, ValidationError) else error
        raise CacheError(f"{path}: not a readable manifest ({reason}); run byov-extract again") from error


def _check_schema(content: bytes) -> None:
    """First of all: of another schema, all else may be different."""
    found = _SCHEMA.validate_json(content).schema_version
    if found != SCHEMA_VERSION:
        raise ValueError(f"schema {found!r}, this byov reads {SCHEMA_VERSION}")


@dataclass(frozen=True, config=_CHECKED)
class _Schema:
    schema_version: object


_SCHEMA, _MANIFEST = TypeAdapter(_Schema), TypeAdapter(Manifest)


def write_sources(folder: Path, videos: Mapping[str, Path]) -> None:
    """Video id → its file; folder: of the dataset in the cache."""
    start = os.path.realpath(folder)
    relative = cache(lambda place: os.path.relpath(os.path.realpath(place), start))  # most videos share a folder

    def from_start(path: Path) -> str:
        parent, name = os.path.split(path)
        return relative(path) if path.is_symlink() else os.path.normpath(f"{relative(parent)}/{name}")

    paths = {video: from_start(path) for video, path in sorted(videos.items())}
    write_text(folder / SOURCES_NAME, json.dumps(paths, indent=1) + "\n")


def read_sources(folder: Path) -> dict[str, Path]:
    """Video id → where its file was; {} for a cache that came without its videos."""
    path = folder / SOURCES_NAME
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(raw, dict) or not all(isinstance(place, str) and "\0" not in place for place in raw.values()):
            raise ValueError("expected video ids with their paths")
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise CacheError(f"{path}: not readable ({error}); delete it and run byov-extract again") from error
    start = Path(os.path.realpath(folder))
    return {video: Path(os.path.normpath(start / place)) for video, place in raw.items()}
