"""Your own videos: listed in a CSV file, or found in a folder, with view and split inferred from
their paths.

docs/your-own-videos.md documents the CSV columns.
"""

import csv
import io
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal
from fnmatch import fnmatch
from itertools import count, pairwise
from pathlib import Path
from typing import NamedTuple, TypeVar

from byov.data.dataset import Dataset, FileSegment, Unit, Video, read_csv, require_views
from byov.errors import DatasetError
from byov.records import SPLITS, VIEWS, Split, View

T = TypeVar("T")
LOGGER = logging.getLogger(__name__)

REQUIRED = ("path", "view", "split")
OPTIONAL = ("id", "start", "end", "events", "phases", "pair")
FIRST_PHASE = "start"  # name of the phase before the first event if only events are named
UNLABELED_MARK = "-"
RESUME_MARK = "+"

CSV_NAME = "videos.csv"  # written into the folder by `byov-extract --folder`
DEFAULT_SPLIT_FRACTIONS = (0.6, 0.2, 0.2)  # train, val, test
# Videos are recognized by suffix, so that a broken file is listed and reported instead of silently
# skipped.
VIDEO_SUFFIXES = {
    *(
        ".3gp",
        ".asf",
        ".avi",
        ".flv",
        ".m2ts",
        ".m4v",
        ".mkv",
        ".mov",
        ".mp4",
        ".mpeg",
        ".mpg",
        ".mts",
        ".mxf",
    ),
    *(".ogv", ".ts", ".vob", ".webm", ".wmv"),
}
# Words in a path that identify the view or the split.
_VIEW_WORDS: dict[str, View] = {
    "ego": "ego",
    "egocentric": "ego",
    "exo": "exo",
    "exocentric": "exo",
}
_SPLIT_WORDS: dict[str, Split] = {
    **{"train": "train", "training": "train", "test": "test", "testing": "test"},
    **{"val": "val", "valid": "val", "validation": "val"},
}
_NOT_IN_FILE_NAMES = re.compile(r"[^\w .,+=()\[\]#&@'-]")


# --- CSV


class _Events(NamedTuple):
    times: tuple[float, ...] | None
    unlabeled: tuple[tuple[float, float], ...] = ()
    unit: Unit = "s"
    names: tuple[str, ...] = ()  # empty if the events are not named


class _Row(NamedTuple):
    path: Path  # as written in the CSV
    video: Video  # its id is "" if the row has none
    event_names: tuple[str, ...]
    phases: tuple[str, ...]


def read_own_videos(name: str, manifest: Path, *, folder: Path | None = None) -> Dataset:
    """Read the dataset listed in a CSV file.

    Paths are relative to `folder` (default: the CSV's folder).
    """
    root = folder or manifest.parent
    rows = [_read_row(root, fields, source) for source, fields in read_csv(manifest, REQUIRED)]
    unnamed = [row for row in rows if not row.video.id]
    ids = iter(unique_ids([row.path for row in unnamed], {row.video.id for row in rows}))
    rows = [
        row if row.video.id else row._replace(video=replace(row.video, id=next(ids)))
        for row in rows
    ]
    names = _phase_names(manifest, rows)
    dataset = Dataset(name, root, tuple(row.video for row in rows), phase_names=names)
    require_views(dataset, ("train",))
    return dataset


def _read_row(root: Path, fields: dict[str, str], source: str) -> _Row:
    unknown = fields.keys() - {*REQUIRED, *OPTIONAL}
    if None in unknown:
        raise DatasetError(
            f"{source}: more fields than columns. Quote fields that contain the separator."
        )
    if unknown:
        raise DatasetError(
            f"{source}: unknown column {unknown.pop()!r}. Optional columns are "
            f"{', '.join(OPTIONAL)}."
        )
    values = {column: (fields.get(column) or "").strip() for column in REQUIRED + OPTIONAL}
    for column, choices in (("view", VIEWS), ("split", SPLITS)):
        if values[column] not in choices:
            raise DatasetError(
                f"{source}: {column} is {values[column]!r}. Expected {', '.join(choices)}."
            )
    events = _parse_events(values["events"], source) if values["events"] else _Events(None)
    phases = tuple(part.strip() for part in values["phases"].split(";")) if values["phases"] else ()
    if not all(phases):
        raise DatasetError(
            f"{source}: phases {values['phases']!r}. Expected names like 'reach;pour;put down'."
        )
    video = Video(
        id=values["id"],
        view=VIEWS[VIEWS.index(values["view"])],
        split=SPLITS[SPLITS.index(values["split"])],
        path=path_inside(root, values["path"], source),
        events=events.times,
        unlabeled=events.unlabeled,
        event_unit=events.unit,
        pair=values["pair"] or None,
        segment=_parse_segment(values["start"], values["end"], source),
    )
    return _Row(Path(values["path"]), video, events.names, phases)


def _parse_segment(start: str, end: str, source: str) -> FileSegment:
    """Parse start and end cells such as "2.5" and "7", or "75f" and "210f"; either may be empty."""
    in_frames = [cell.endswith("f") for cell in (start, end) if cell]
    unit: Unit = "f" if any(in_frames) else "s"
    try:
        segment = FileSegment(
            float(start.removesuffix("f") or 0), float(end.removesuffix("f") or math.inf), unit
        )
    except ValueError:
        segment = FileSegment(math.nan)
    whole_frames = segment.unit == "s" or (
        all(in_frames) and f"{start}{end}".replace("f", "").isdecimal()
    )
    if not 0 <= segment.start < segment.end or not whole_frames:
        raise DatasetError(
            f"{source}: start {start!r}, end {end!r}. Expected seconds like 2.5 and 7, or frames "
            "like 75f and 210f, "
            "with start before end."
        )
    return segment


def read_events(text: str, source: str) -> tuple[float, ...]:
    """Parse event times such as "2.5;7.1" or "2.5 pour;7.1 put down"; error messages start with
    `source`.
    """
    events = _parse_events(text, source)
    if events.unlabeled or events.unit == "f":
        raise DatasetError(
            f"{source}: events {text!r}. Frame indices and {UNLABELED_MARK!r} only work in a CSV "
            "file."
        )
    return events.times or ()


def format_events(event_seconds: Sequence[float]) -> str:
    """Format times for the events column of a video CSV: (2.5, 7.1) -> "2.500;7.100".

    Times are rounded down, since a time after that of the frame would start the phase one frame
    late.
    """
    return ";".join(
        str(Decimal(event).quantize(Decimal("0.001"), ROUND_FLOOR)) for event in event_seconds
    )


def path_inside(root: Path, name: str, source: str) -> Path:
    """Return `root / name`; raise DatasetError if it is outside of `root`.

    Symbolic links may point anywhere.
    """
    path = Path(os.path.normpath(root / name))
    folder, target = (Path(os.path.normpath(each.absolute())) for each in (root, path))
    # May reach root through a symbolic link, so resolve links.
    if Path(name).is_absolute() and "\0" not in name:
        folder = folder.resolve()
        target = target.parent.resolve() / target.name
    if "\0" in name or not target.is_relative_to(folder):
        raise DatasetError(
            f"{source}: the path {name!r} is outside of {root}. All videos must be below it."
        )
    return path


def _parse_events(text: str, source: str) -> _Events:
    """Parse a cell such as "2.5 pour;7.1 put down;9 -"; "-" starts an unlabeled interval and "+"
    ends it.
    """
    parts = [part.strip().partition(" ") for part in text.split(";")]
    marks = [mark.strip() for _, _, mark in parts]
    in_frames = [time.endswith("f") and time[:-1].isdecimal() for time, _, _ in parts]
    if any(in_frames) and not all(in_frames):
        raise DatasetError(
            f"{source}: events {text!r} mix seconds and frame indices. Use one of them."
        )
    try:
        times: list[float] = [
            int(time[:-1]) if all(in_frames) else float(time) for time, _, _ in parts
        ]
    except ValueError:
        times = [math.nan] * len(parts)
    events = [
        item
        for item in zip(times, marks, strict=True)
        if item[1] not in (UNLABELED_MARK, RESUME_MARK)
    ]
    names = tuple(name for _, name in events)
    named = all(any(map(str.isalpha, name)) for name in names)
    increasing = times == sorted(times) and all(0 <= time < math.inf for time in times)
    if not increasing or (any(names) and not named):
        raise DatasetError(
            f"{source}: events {text!r}. Expected increasing seconds like '2.5;7.1' or '2.5 "
            "pour;7.1 put down', or "
            "frame indices like '31f;52f'."
        )
    if any(
        mark == RESUME_MARK and previous != UNLABELED_MARK
        for previous, mark in pairwise(["", *marks])
    ):
        raise DatasetError(
            f"{source}: events {text!r}. {RESUME_MARK!r} must follow {UNLABELED_MARK!r}, as in '5 "
            "-;6 +'."
        )
    intervals = zip(marks, pairwise([*times, math.inf]), strict=True)
    unlabeled = tuple(interval for mark, interval in intervals if mark == UNLABELED_MARK)
    return _Events(
        tuple(time for time, _ in events),
        unlabeled,
        "f" if all(in_frames) else "s",
        names if named else (),
    )


def _phase_names(manifest: Path, rows: Sequence[_Row]) -> tuple[str, ...]:
    """Return the phase names after checking that events and phases agree across videos."""
    labeled = [(len(row.video.events), row) for row in rows if row.video.events is not None]
    if not labeled:
        return ()
    events, longest = max(labeled, key=lambda item: item[0])
    names = next(
        (row.event_names for found, row in labeled if found == events and row.event_names), ()
    )
    for found, row in labeled:
        # A video may lack the last events if its end is unlabeled.
        if found < events and all(end < math.inf for _, end in row.video.unlabeled):
            raise DatasetError(
                f"{manifest}: {longest.video.id!r} has {events} events but {row.video.id!r} has "
                f"{found}. Give every "
                "labeled video the same events."
            )
        if row.event_names != names[: len(row.event_names)]:
            others = names or "unnamed events"
            raise DatasetError(
                f"{manifest}: {row.video.id!r} has events {row.event_names}, others have {others}"
            )
    listed = {row.phases for row in rows if row.phases} or {(FIRST_PHASE, *names) if names else ()}
    if len(listed) > 1:
        raise DatasetError(f"{manifest}: different phases in different rows: {sorted(listed)}")
    phases = listed.pop() or tuple(f"phase {index}" for index in range(events + 1))
    if len(phases) != events + 1:
        raise DatasetError(
            f"{manifest}: phases {phases}, but {events} events separate {events + 1} phases"
        )
    return phases


# --- folder


def list_folder(
    folder: Path,
    fractions: Sequence[float] | None = None,
    patterns: Mapping[View, str] | None = None,
) -> list[Video]:
    """List the videos in a folder with relative paths; derive view, split and id from the path.

    The view is the one whose pattern, such as "*wrist*", matches the path (default: the word "ego"
    or "exo" in the path). The split is the name of a parent folder: train, val or test. If there
    are no such folders, videos are assigned according to `fractions` (default:
    DEFAULT_SPLIT_FRACTIONS). Skipped files are logged.
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
    for view in VIEWS:
        if not by_view[view]:
            problem = (
                f"has the word {view!r} in its path"
                if patterns is None
                else f"matches --{view} {patterns[view]!r}"
            )
            raise DatasetError(
                f"{folder}: none of its {len(paths)} videos {problem}. Sort the videos into "
                "folders called ego and "
                "exo, pass patterns like --ego '*wrist*' --exo '*front*', or list the videos in a "
                "CSV for --manifest."
            )
    splits = {path: _nearest_word(reversed(path.parts[:-1]), _SPLIT_WORDS) for path in paths}
    if not any(splits.values()):
        for of_view in by_view.values():
            splits |= zip(
                of_view,
                assign_splits(len(of_view), fractions or DEFAULT_SPLIT_FRACTIONS),
                strict=True,
            )
    elif fractions is not None:
        raise DatasetError(f"{folder}: its folders already define the splits. Omit --split.")
    ids = dict(zip(paths, unique_ids(paths), strict=True))
    videos = []
    for view in VIEWS:
        for path in by_view[view]:
            split = splits[path]
            if split is None:
                raise DatasetError(
                    f"{folder}: {path} is not in a split folder, but other videos are. Put all or "
                    "none of the videos "
                    f"into folders called {', '.join(SPLITS)}."
                )
            videos.append(Video(ids[path], view, split, path))
    return videos


def _view_of(path: Path, patterns: Mapping[View, str] | None) -> View | None:
    if patterns is None:
        return _nearest_word(reversed(path.parts), _VIEW_WORDS)
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
    table.writerow(["path", "view", "split", "id", "events", "pair"])
    table.writerows(
        [video.path.as_posix(), video.view, video.split, video.id, "", ""] for video in videos
    )
    return text.getvalue()


def log_skipped(reason: str, paths: Sequence[Path]) -> None:
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
        found = {words[word] for word in re.findall(r"[^\W\d_]+", part.lower()) if word in words}
        if len(found) == 1:
            return found.pop()
    return None


def assign_splits(videos: int, fractions: Sequence[float]) -> list[Split]:
    """Assign each video to the split that is furthest below its target fraction; the first video
    goes to train.

    >>> assign_splits(5, (0.6, 0.2, 0.2))
    ['train', 'val', 'train', 'test', 'train']
    """
    target = dict(zip(SPLITS, fractions, strict=True))
    assigned: list[Split] = []
    for number in range(1, videos + 1):
        missing = {
            split: round(target[split] * number - assigned.count(split), 9) for split in SPLITS
        }
        assigned.append("train" if number == 1 else max(SPLITS, key=missing.__getitem__))
    return assigned


def unique_ids(paths: Sequence[Path], taken: Iterable[str] = ()) -> list[str]:
    """Derive unique ids from file stems; duplicate stems are prefixed with their folders, as in
    "ego-001".
    """
    stems = Counter(_valid_id(path.stem).casefold() for path in paths)
    ids: list[str] = []
    used = {name.casefold() for name in taken}
    for path in paths:
        stem = _valid_id(path.stem)
        name = (
            stem if stems[stem.casefold()] == 1 else _valid_id("-".join(path.with_suffix("").parts))
        )
        candidates = (name if number == 1 else f"{name}-{number}" for number in count(1))
        ids.append(next(candidate for candidate in candidates if candidate.casefold() not in used))
        used.add(ids[-1].casefold())
    return ids


def _valid_id(text: str) -> str:
    """Remove characters that are not allowed in ids, which become file names."""
    return re.sub(r"^[\W_]+|[ .]+$", "", _NOT_IN_FILE_NAMES.sub("", text)) or "video"
