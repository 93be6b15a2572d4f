"""Your own videos: listed in a CSV file, or found in a folder, with view and split inferred from their paths.

Columns of the CSV: path, view, split and optionally id, events, phases, pair.

- `path` is relative to the folder of the CSV, or absolute and below it.
- `events` are the times, in seconds from the first frame, at which a new phase begins: "2.5;7.1", or with the names of
  these phases "2.5 pour;7.1 put down". "-" in place of a name means unlabeled from here until the next event, or until
  a time marked "+", where the previous phase continues.
- `phases` names all phases including the one before the first event: "reach;pour;put down".
- `pair` is a name shared by an ego and an exo video that were recorded simultaneously.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path, PurePath
from typing import TypeVar

from byov.data.dataset import SPLITS, VIEWS, Dataset, Split, Video, View, path_inside, require_views
from byov.errors import DatasetError
from byov.text import pluralize

T = TypeVar("T")

REQUIRED = ("path", "view", "split")
OPTIONAL = ("id", "events", "phases", "pair")
MAX_VIDEOS = 200_000  # Ego-Exo4D has about 30,000
FIRST_PHASE = "start"  # name of the phase before the first event if only events are named
UNLABELED_MARK, RESUME_MARK = "-", "+"

CSV_NAME = "videos.csv"  # written into the folder by `byov-extract --folder`
CSV_COLUMNS = ("path", "view", "split", "id", "events", "pair")
DEFAULT_SPLIT_FRACTIONS = (0.6, 0.2, 0.2)  # train, val, test
# Videos are recognized by suffix, so that a broken file is listed and reported instead of silently skipped.
VIDEO_SUFFIXES = {
    *(".3gp", ".asf", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".mxf"),
    *(".ogv", ".ts", ".vob", ".webm", ".wmv"),
}
_VIEW_WORDS: dict[str, View] = {"ego": "ego", "egocentric": "ego", "exo": "exo", "exocentric": "exo"}
_SPLIT_WORDS: dict[str, Split] = {
    **{"train": "train", "training": "train", "test": "test", "testing": "test"},
    **{"val": "val", "valid": "val", "validation": "val"},
}
_NOT_IN_FILE_NAMES = re.compile(r"[^\w .,+=()\[\]#&@'-]")


# --- CSV


@dataclass(frozen=True)
class _Events:
    seconds: tuple[float, ...] = ()
    names: tuple[str, ...] = ()  # names of the phases that begin at these times; empty if unnamed
    unlabeled: tuple[tuple[float, float], ...] = ()  # intervals (start, end) in seconds


@dataclass(frozen=True)
class _Row:
    video: Video
    events: _Events | None
    phases: tuple[str, ...]


def read_own_videos(
    name: str, manifest: Path, phase_names: tuple[str, ...] = (), *, folder: Path | None = None
) -> Dataset:
    """Read the dataset listed in a CSV file.

    Args:
        name: Name of the dataset.
        manifest: CSV file; columns may be separated by commas, semicolons or tabs.
        phase_names: Default names, used if the CSV names no phases and has the same number of them.
        folder: Folder that paths are relative to. Defaults to the folder of the CSV.

    Raises:
        DatasetError: The file is malformed, or a video is missing.
    """
    root = folder or manifest.parent
    rows: list[_Row] = []
    try:
        with manifest.open(encoding="utf-8-sig", newline="") as file:
            separator = max((",", ";", "\t"), key=file.readline().count)
            file.seek(0)
            reader = csv.DictReader(file, delimiter=separator)
            _check_columns(manifest, list(reader.fieldnames or ()))
            for fields in reader:
                if len(rows) == MAX_VIDEOS:
                    raise DatasetError(f"{manifest}: more than {MAX_VIDEOS:,} videos. Split the file.")
                rows.append(_read_row(root, fields, f"{manifest}:{reader.line_num}"))
    except FileNotFoundError:
        raise DatasetError(f"{manifest}: no such file. Expected a CSV with the columns path,view,split.") from None
    except IsADirectoryError:
        raise DatasetError(f"{manifest}: a folder, not a CSV file. Use --folder for a folder of videos.") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{manifest}: not a readable CSV file ({error})") from None
    names = _phase_names(manifest, rows, phase_names)
    dataset = Dataset(name, root, tuple(row.video for row in rows), phase_names=names)
    require_views(dataset, ("train",))
    return dataset


def _check_columns(manifest: Path, columns: list[str]) -> None:
    problem = ""
    for column in REQUIRED:
        if column not in columns:
            problem = problem or f"column {column!r} is missing"
    for column in columns:
        if column not in REQUIRED + OPTIONAL:
            problem = problem or f"unknown column {column!r}"
        elif columns.count(column) > 1:
            problem = problem or f"column {column!r} appears {columns.count(column)} times"
    if problem:
        raise DatasetError(f"{manifest}: {problem}. Expected path,view,split and optionally {','.join(OPTIONAL)}.")


def _read_row(root: Path, fields: dict[str, str | None], source: str) -> _Row:
    if None in fields:
        raise DatasetError(f"{source}: more fields than columns. Quote fields that contain the separator.")
    values = {column: (fields.get(column) or "").strip() for column in REQUIRED + OPTIONAL}
    for column, choices in (("view", VIEWS), ("split", SPLITS)):
        if values[column] not in choices:
            raise DatasetError(f"{source}: {column} is {values[column]!r}. Expected {', '.join(choices)}.")
    path = path_inside(root, values["path"], source)
    events = _parse_events(values["events"], source) if values["events"] else None
    phases = tuple(part.strip() for part in values["phases"].split(";")) if values["phases"] else ()
    if not all(phases):
        raise DatasetError(f"{source}: phases {values['phases']!r}. Expected names like 'reach;pour;put down'.")
    video = Video(
        id=values["id"] or path.stem,
        view=VIEWS[VIEWS.index(values["view"])],
        split=SPLITS[SPLITS.index(values["split"])],
        path=path,
        event_seconds=events.seconds if events else None,
        unlabeled_seconds=events.unlabeled if events else (),
        pair=values["pair"] or None,
    )
    return _Row(video, events, phases)


def read_events(text: str, source: str) -> tuple[float, ...]:
    """Parse event times like "2.5;7.1" or "2.5 pour;7.1 put down"; `source` starts the error message."""
    events = _parse_events(text, source)
    if events.unlabeled:
        raise DatasetError(f"{source}: {UNLABELED_MARK!r} in events {text!r} is only supported in a CSV file")
    return events.seconds


def _parse_events(text: str, source: str) -> _Events:
    """Parse the cell "2.5 pour;7.1 put down;9 -" to (2.5, 7.1), ("pour", "put down"), ((9.0, inf),)."""
    parts = [part.strip().partition(" ") for part in text.split(";")]
    marks = [mark.strip() for _, _, mark in parts]
    try:
        times = [float(time) for time, _, _ in parts]
    except ValueError:
        times = [math.nan]
    names = [mark for mark in marks if mark not in (UNLABELED_MARK, RESUME_MARK)]
    names_valid = not any(names) or all(any(map(str.isalpha, name)) for name in names)
    if not all(math.isfinite(time) and time >= 0 for time in times) or times != sorted(times) or not names_valid:
        raise DatasetError(
            f"{source}: events {text!r}. Expected increasing seconds like '2.5;7.1' or '2.5 pour;7.1 put down'."
        )
    if any(mark == RESUME_MARK and previous != UNLABELED_MARK for previous, mark in pairwise(["", *marks])):
        raise DatasetError(
            f"{source}: events {text!r}. {RESUME_MARK!r} must follow {UNLABELED_MARK!r}, as in '5 -;6 +'."
        )
    return _Events(
        seconds=tuple(
            time for time, mark in zip(times, marks, strict=True) if mark not in (UNLABELED_MARK, RESUME_MARK)
        ),
        names=tuple(names) if all(names) else (),
        unlabeled=tuple(
            (start, end)
            for mark, start, end in zip(marks, times, [*times[1:], math.inf], strict=True)
            if mark == UNLABELED_MARK
        ),
    )


def _phase_names(manifest: Path, rows: Sequence[_Row], default: tuple[str, ...]) -> tuple[str, ...]:
    """Return the phase names after checking that events and phases agree across videos."""
    labeled = [(row.video.id, row.events) for row in rows if row.events is not None]
    if not labeled:
        return ()
    longest_id, longest = max(labeled, key=lambda item: len(item[1].seconds))
    events = len(longest.seconds)
    names = next((found.names for _, found in labeled if len(found.names) == events), ())
    for video_id, found in labeled:
        # Events may be missing at the end of a video if that end is unlabeled.
        complete = not found.unlabeled or found.unlabeled[-1][1] < math.inf
        if len(found.seconds) < events and complete:
            raise DatasetError(
                f"{manifest}: {longest_id!r} has {pluralize(events, 'event')} but {video_id!r} has "
                f"{len(found.seconds)}. Give every labeled video the same events."
            )
        if found.names != names[: len(found.names)]:
            raise DatasetError(
                f"{manifest}: {video_id!r} has events {found.names} but other videos have {names or 'unnamed events'}"
            )
    listed = list(dict.fromkeys(row.phases for row in rows if row.phases))
    if len(listed) > 1:
        raise DatasetError(f"{manifest}: different phases in different rows: {listed[0]} and {listed[1]}")
    if listed and len(listed[0]) != events + 1:
        raise DatasetError(
            f"{manifest}: {pluralize(len(listed[0]), 'phase')} named, but {pluralize(events, 'event')} in each video "
            f"means {events + 1} phases"
        )
    if listed:
        return listed[0]
    if names:
        return (FIRST_PHASE, *names)
    return default if len(default) == events + 1 else tuple(f"phase {index}" for index in range(events + 1))


# --- folder


@dataclass(frozen=True)
class FolderVideo:
    """A video found in a folder."""

    path: PurePath  # relative to the folder
    view: View
    split: Split
    id: str


@dataclass(frozen=True)
class FolderListing:
    """Videos found in a folder, and the files that were skipped."""

    videos: tuple[FolderVideo, ...]
    not_videos: tuple[PurePath, ...]
    without_view: tuple[PurePath, ...]

    def to_csv(self) -> str:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(CSV_COLUMNS)
        table.writerows([video.path.as_posix(), video.view, video.split, video.id, "", ""] for video in self.videos)
        return text.getvalue()


def list_folder(folder: Path, fractions: Sequence[float] | None = None) -> FolderListing:
    """Derive view, split and id of each video below a folder from its path.

    Args:
        folder: Folder to search. The view is the word "ego" or "exo" in the path, the split a folder called train, val
            or test.
        fractions: Fractions of train, val and test if no folder names a split. Defaults to DEFAULT_SPLIT_FRACTIONS.

    Raises:
        DatasetError: A view has no videos, or only some of the videos are in split folders.
    """
    videos, others = video_files(folder)
    views = {path: _nearest_word(reversed(path.parts), _VIEW_WORDS) for path in videos}
    by_view: dict[View, list[PurePath]] = {view: [path for path in videos if views[path] == view] for view in VIEWS}
    for view, paths in by_view.items():
        if not paths:
            raise DatasetError(
                f"{folder}: none of its {pluralize(len(videos), 'video')} has the word {view!r} in its path. Sort the "
                "videos into folders called ego and exo, or list them in a CSV file for --manifest."
            )
    splits = _splits_from_folders(folder, videos)
    if splits and fractions is not None:
        raise DatasetError(f"{folder}: its folders name the splits ({next(iter(splits))}). Omit --split.")
    if not splits:
        for paths in by_view.values():
            splits |= zip(paths, assign_splits(len(paths), fractions or DEFAULT_SPLIT_FRACTIONS), strict=True)
    ids = unique_ids(videos)
    return FolderListing(
        videos=tuple(FolderVideo(path, view, splits[path], ids[path]) for view in VIEWS for path in by_view[view]),
        not_videos=tuple(others),
        without_view=tuple(path for path in videos if views[path] is None),
    )


def video_files(folder: Path) -> tuple[list[PurePath], list[PurePath]]:
    """Return the videos and the other files below a folder, relative to it and sorted; hidden files are ignored."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: {'not a folder' if folder.exists() else 'no such folder'}")
    files: list[PurePath] = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    visible = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    videos = [path for path in visible if path.suffix.lower() in VIDEO_SUFFIXES]
    others = [path for path in visible if path.suffix.lower() not in VIDEO_SUFFIXES and path.name != CSV_NAME]
    return videos, others


def _splits_from_folders(folder: Path, videos: Sequence[PurePath]) -> dict[PurePath, Split]:
    """Return the split of each video as named by its folders; empty if no folder names one."""
    found = {path: _nearest_word(reversed(path.parts[:-1]), _SPLIT_WORDS) for path in videos}
    splits = {path: split for path, split in found.items() if split is not None}
    if splits and len(splits) < len(found):
        other = next(path for path, split in found.items() if split is None)
        raise DatasetError(
            f"{folder}: {next(iter(splits))} is in a split folder but {other} is not. Put all or none of the "
            f"videos into folders called {', '.join(SPLITS)}."
        )
    return splits


def _nearest_word(parts: Iterable[str], words: dict[str, T]) -> T | None:
    """Look up the first part that contains exactly one of the words."""
    for part in parts:
        found = {words[word] for word in re.findall(r"[^\W\d_]+", part.lower()) if word in words}
        if len(found) == 1:
            return found.pop()
    return None


def assign_splits(videos: int, fractions: Sequence[float]) -> list[Split]:
    """Assign each video to the split that is furthest below its fraction; the first video goes to train.

    >>> assign_splits(5, (0.6, 0.2, 0.2))
    ['train', 'val', 'train', 'test', 'train']
    """
    assigned: list[Split] = []
    for index in range(videos):
        missing = [
            round(fraction * (index + 1) - assigned.count(split), 9)
            for split, fraction in zip(SPLITS, fractions, strict=True)
        ]
        assigned.append("train" if index == 0 else SPLITS[missing.index(max(missing))])
    return assigned


def unique_ids(paths: Sequence[PurePath]) -> dict[PurePath, str]:
    """Derive ids from file stems; stems that are not unique are prefixed with their folders ("ego-001")."""
    stems = Counter(_valid_id(path.stem) for path in paths)
    ids: dict[PurePath, str] = {}
    taken: set[str] = set()
    for path in paths:
        stem = _valid_id(path.stem)
        name = stem if stems[stem] == 1 else _valid_id("-".join(path.with_suffix("").parts))
        candidates = (name if number == 1 else f"{name}-{number}" for number in count(1))
        ids[path] = next(candidate for candidate in candidates if candidate not in taken)
        taken.add(ids[path])
    return ids


def _valid_id(text: str) -> str:
    """Remove characters that are not allowed in ids, since ids become file names."""
    return re.sub(r"^[\W_]+|[ .]+$", "", _NOT_IN_FILE_NAMES.sub("", text)) or "video"
