"""Your own videos, found in a folder, with view, split and id inferred from their paths."""

import csv
import io
import logging
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from itertools import count
from pathlib import Path
from typing import Self, TypeVar

from pydantic import Field, model_validator

from byov.data.dataset import Video
from byov.data.reader import Fractions
from byov.errors import DatasetError
from byov.records import SPLITS, VIEWS, Record, Split, View

T = TypeVar("T")
LOGGER = logging.getLogger(__name__)

CSV_NAME = "videos.csv"  # written into the folder by `byov-extract --folder`
DEFAULT_SPLIT_FRACTIONS = (0.6, 0.2, 0.2)  # train, val, test
# Videos are recognized by suffix, so that a broken file is listed and reported instead of silently
# skipped.
VIDEO_SUFFIXES = (
    *(".3gp", ".asf", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg"),
    *(".mts", ".mxf", ".ogv", ".ts", ".vob", ".webm", ".wmv"),
)
# Words in a path that identify the view or the split.
_VIEW_WORDS: dict[str, View] = {
    "ego": "ego",
    "egocentric": "ego",
    "exo": "exo",
    "exocentric": "exo",
}
_SPLIT_WORDS: dict[str, Split] = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


class FolderOptions(Record):
    """Options for listing the videos in a folder."""

    ego: str | None = Field(
        default=None, description="Path pattern of the ego videos, such as `*wrist*`."
    )
    exo: str | None = Field(default=None, description="Path pattern of the exo videos.")
    split: Fractions | None = Field(
        default=None, description="Fractions of train, val and test videos."
    )

    @model_validator(mode="after")
    def _check_patterns(self) -> Self:
        if (self.ego is None) != (self.exo is None):
            raise ValueError(
                "--ego and --exo must be used together, such as --ego '*wrist*' --exo '*front*'"
            )
        return self

    @property
    def patterns(self) -> dict[View, str] | None:
        """Path pattern of each view, or None."""
        return {"ego": self.ego, "exo": self.exo} if self.ego and self.exo else None


def list_folder(
    folder: Path,
    fractions: Sequence[float] | None = None,
    patterns: Mapping[View, str] | None = None,
) -> list[Video]:
    """List the videos in a folder with relative paths; derive view, split and id from the path.

    The view is the one whose pattern, such as "*wrist*", matches the path (default: the word "ego"
    or "exo" in the path). The videos in a folder with both views are a group. The split is the name
    of a parent folder: train, val or test. If there are no such folders, groups and other videos
    are assigned according to `fractions` (default: DEFAULT_SPLIT_FRACTIONS). Skipped files are
    logged.
    """
    paths, others = video_files(folder)
    if not paths:
        raise DatasetError(f"{folder}: no videos. Expected files like ego/1.mp4 and exo/1.mp4.")
    for path in paths:
        if str(path).encode(errors="ignore") != os.fsencode(path):
            raise DatasetError(
                f"{folder / path}: the file name is not UTF-8, which a CSV requires. Rename the "
                "file."
            )
    views = {path: _view_of(path, patterns) for path in paths}
    log_skipped("not a video", others)
    log_skipped("neither ego nor exo", [path for path in paths if views[path] is None])
    by_view: dict[View, list[Path]] = {
        view: [path for path in paths if views[path] == view] for view in VIEWS
    }
    for view, chosen in by_view.items():
        if not chosen:
            problem = (
                f"has the word {view!r} in its path"
                if patterns is None
                else f"matches --{view} {patterns[view]!r}"
            )
            raise DatasetError(
                f"{folder}: none of its {len(paths)} videos {problem}. Sort the videos into "
                "folders called ego and exo, pass patterns like --ego '*wrist*' --exo '*front*', "
                "or list the videos in a CSV for --manifest."
            )
    named = {path: _nearest_word(reversed(path.parts[:-1]), _SPLIT_WORDS) for path in paths}
    groups = _groups(views)
    if not any(named.values()):
        named = _assigned_splits(by_view, groups, fractions or DEFAULT_SPLIT_FRACTIONS)
    elif fractions is not None:
        raise DatasetError(f"{folder}: its folders already define the splits. Omit --split.")
    ids = dict(zip(paths, unique_ids(paths), strict=True))
    return [
        Video(
            ids[path],
            view,
            _required_split(folder, path, named[path]),
            path,
            group=groups.get(path),
        )
        for view in VIEWS
        for path in by_view[view]
    ]


def _groups(views: Mapping[Path, View | None]) -> dict[Path, str]:
    """Map the videos of each take to the name of its folder, which directly contains videos of
    both views, and may have subfolders.
    """
    views_in: dict[Path, set[View | None]] = {}
    for path, view in views.items():
        views_in.setdefault(path.parent, set()).add(view)
    takes = {parent for parent, present in views_in.items() if {*VIEWS} <= present} - {Path()}
    outermost = {
        path: next((parent for parent in reversed(path.parents) if parent in takes), None)
        for path in views
    }
    return {path: take.as_posix() for path, take in outermost.items() if take is not None}


def _assigned_splits(
    by_view: Mapping[View, Sequence[Path]], groups: Mapping[Path, str], fractions: Sequence[float]
) -> dict[Path, Split | None]:
    """Assign the groups, and the videos of each view without a group, to the splits."""
    names = sorted(set(groups.values()))
    split_of_group = dict(zip(names, assign_splits(len(names), fractions), strict=True))
    splits: dict[Path, Split | None] = {path: split_of_group[groups[path]] for path in groups}
    for paths in by_view.values():
        alone = [path for path in paths if path not in groups]
        splits |= zip(alone, assign_splits(len(alone), fractions), strict=True)
    return splits


def _required_split(folder: Path, path: Path, split: Split | None) -> Split:
    if split is None:
        raise DatasetError(
            f"{folder}: {path} is not in a split folder, but other videos are. Put all or none of "
            f"the videos into folders called {', '.join(SPLITS)}."
        )
    return split


def view_in_path(path: Path) -> View | None:
    """Return the view whose name is a word in the path; None if there is none."""
    return _nearest_word(reversed(path.parts), _VIEW_WORDS)


def _view_of(path: Path, patterns: Mapping[View, str] | None) -> View | None:
    if patterns is None:
        return view_in_path(path)
    matching = [
        view
        for view, pattern in patterns.items()
        if fnmatch(path.as_posix().lower(), pattern.lower())
    ]
    if len(matching) > 1:
        raise DatasetError(
            f"{path}: matches both --ego {patterns['ego']!r} and --exo {patterns['exo']!r}"
        )
    return matching[0] if matching else None


def to_csv(videos: Iterable[Video]) -> str:
    """Format videos as CSV text with empty annotation columns."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["path", "view", "split", "id", "events", "group", "pair"])
    table.writerows(
        [video.path.as_posix(), video.view, video.split, video.id, "", video.group or "", ""]
        for video in videos
    )
    return text.getvalue()


def log_skipped(reason: str, paths: Sequence[Path | str]) -> None:
    if paths:
        more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
        LOGGER.info(f"skipped ({reason}): {', '.join(map(str, paths[:3]))}{more}")


def video_files(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return all videos and all other files in a folder tree as sorted relative paths; ignore
    hidden files.
    """
    if not folder.is_dir():
        raise DatasetError(f"{folder}: no such folder. Pass the folder that contains the videos.")
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    visible = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    videos = [path for path in visible if path.suffix.lower() in VIDEO_SUFFIXES]
    others = [
        path
        for path in visible
        if path.suffix.lower() not in VIDEO_SUFFIXES and path.name != CSV_NAME
    ]
    return videos, others


def _nearest_word(parts: Iterable[str], words: dict[str, T]) -> T | None:
    """Return the value of the first part whose words map to exactly one value;

    None if there is no such part.
    """
    for part in parts:
        values = {words[word] for word in re.findall(r"[^\W\d_]+", part.lower()) if word in words}
        if len(values) == 1:
            return values.pop()
    return None


def assign_splits(videos: int, fractions: Sequence[float]) -> list[Split]:
    """Assign each video to the split that is furthest below its target fraction; the first video
    goes to train.

    >>> assign_splits(5, (0.6, 0.2, 0.2))
    ['train', 'val', 'train', 'test', 'train']
    """
    target = dict(zip(SPLITS, fractions, strict=True))
    counts = dict.fromkeys(SPLITS, 0)
    assigned: list[Split] = []
    for number in range(1, videos + 1):
        missing = {split: round(target[split] * number - counts[split], 9) for split in SPLITS}
        split: Split = "train" if number == 1 else max(SPLITS, key=missing.__getitem__)
        assigned.append(split)
        counts[split] += 1
    return assigned


def unique_ids(paths: Sequence[Path], taken: Iterable[str] = ()) -> list[str]:
    """Derive unique ids from file stems; duplicate stems are prefixed with their folders, as in
    "ego-001".
    """
    stems = Counter(valid_id(path.stem).casefold() for path in paths)
    ids: list[str] = []
    used = {name.casefold() for name in taken}
    numbers: dict[str, Iterator[int]] = {}  # numbers of a name that have not been tried
    for path in paths:
        stem = valid_id(path.stem)
        name = (
            stem if stems[stem.casefold()] == 1 else valid_id("-".join(path.with_suffix("").parts))
        )
        untried = numbers.setdefault(name.casefold(), count(1))
        candidates = (name if number == 1 else f"{name}-{number}" for number in untried)
        ids.append(next(candidate for candidate in candidates if candidate.casefold() not in used))
        used.add(ids[-1].casefold())
    return ids


def valid_id(text: str) -> str:
    """Remove characters that are not allowed in ids, which become file names."""
    return re.sub(r"^[\W_]+|[ .]+$", "", re.sub(r"[^\w .,+=()\[\]#&@'-]", "", text)) or "video"
