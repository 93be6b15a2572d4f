"""Where a dataset's videos were when they were extracted: features/<dataset>/sources.json.

No stage needs the videos again; pictures do. Paths are relative to the dataset's folder in the cache, so that a project
that is moved as a whole still finds them. What is found there is the video only if its fingerprint says so.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from byov.cache.atomic import write_text
from byov.errors import CacheError

SOURCES_NAME = "sources.json"


def write_sources(folder: Path, videos: Mapping[str, Path]) -> None:
    """Video id → its file; folder: of the dataset in the cache."""
    start = os.path.realpath(folder)
    paths = {video: os.path.relpath(os.path.realpath(path), start) for video, path in sorted(videos.items())}
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
