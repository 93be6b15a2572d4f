"""The manifest of a dataset in the cache: its videos, views, splits, labels. All that later stages know of it."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path

from byov.cache.atomic import write_text
from byov.cache.layout import SPLITS, VIEWS, check_name
from byov.errors import CacheError

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class VideoEntry:
    id: str
    view: str  # "ego" or "exo"
    split: str  # "train", "val" or "test"
    frames: int | None  # None until the video has been decoded
    fps: float | None
    labels: tuple[int, ...] | None  # phase index of each frame, if the dataset has phases
    actions: tuple[int, ...] | None  # classes of the whole video, if the dataset has them


@dataclass(frozen=True)
class Manifest:
    dataset: str
    phases: tuple[str, ...]
    actions: tuple[str, ...]
    videos: tuple[VideoEntry, ...]

    def save(self, path: Path) -> None:
        write_text(path, self.to_json())

    def to_json(self) -> str:
        """JSON with one video on a line, so that people can read it and diffs stay small."""
        head = {
            "schema_version": SCHEMA_VERSION,
            "dataset": self.dataset,
            "phases": self.phases,
            "actions": self.actions,
        }
        videos = ",\n".join("  " + json.dumps(asdict(video), ensure_ascii=False) for video in self.videos)
        return json.dumps(head, indent=1, ensure_ascii=False)[:-2] + f',\n "videos": [\n{videos}\n ]\n}}\n'


def load_manifest(path: Path) -> Manifest:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema {raw['schema_version']!r}, this byov reads {SCHEMA_VERSION}")
        return Manifest(
            dataset=check_name(_string(raw["dataset"]), "dataset"),
            phases=_strings(raw["phases"]),
            actions=_strings(raw["actions"]),
            videos=tuple(_video_entry(video) for video in raw["videos"]),
        )
    except FileNotFoundError:
        remedy = "run byov-extract, or say where the cache is with --features-dir"
        raise CacheError(f"{path}: no such file; {remedy}") from None
    except (CacheError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise CacheError(f"{path}: not a readable manifest ({reason}); run byov-extract again") from error


def _video_entry(raw: dict[str, object]) -> VideoEntry:
    return VideoEntry(
        id=check_name(_string(raw["id"]), "video id"),
        view=_one_of(raw["view"], VIEWS),
        split=_one_of(raw["split"], SPLITS),
        frames=_integer(raw["frames"]),
        fps=_number(raw["fps"]),
        labels=_integers(raw["labels"]),
        actions=_integers(raw["actions"]),
    )


def _string(value: object) -> str:
    if isinstance(value, str):
        return value
    raise ValueError(f"{value!r} is not a text")


def _strings(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list of texts")
    return tuple(_string(item) for item in value)


def _one_of(value: object, choices: Sequence[str]) -> str:
    if value not in choices:
        raise ValueError(f"{value!r} is none of {', '.join(choices)}")
    return str(value)


def _integer(value: object) -> int | None:
    if value is None or (type(value) is int and value >= 0):
        return value
    raise ValueError(f"{value!r} is not a number of frames")


def _number(value: object) -> float | None:
    if value is None or (type(value) is int or (type(value) is float and -inf < value < inf)):
        return value
    raise ValueError(f"{value!r} is not a number")


def _integers(value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise ValueError("labels are not a list of whole numbers")
    return tuple(value)
