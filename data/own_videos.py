"""One's own videos from a CSV file: path,view,split and, if wanted, id, events, phases and pair.

path: relative to the CSV's folder, or absolute and below it. events: key-event times in seconds from the first frame,
separated by ";"; a name after the time is that of the phase that begins there. "-" after a time: no event, but from
there on no phase is known, up to the next event or to a time with "+", from which the phase before goes on. phases: the
names of all phases, separated by ";", in one row or in every one. pair: the same name for an ego and an exo video that
were filmed at once.
"""

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, islice, pairwise
from pathlib import Path, PurePath
from typing import TypeVar, cast

from byov.data.dataset import SPLITS, VIEWS, Dataset, Split, Video, View, inside, require_views
from byov.errors import DatasetError
from byov.text import pluralize

T = TypeVar("T")

REQUIRED = ("path", "view", "split")
OPTIONAL = ("id", "events", "phases", "pair")
MOST_VIDEOS = 200_000  # of one file; Ego-Exo4D has some 30,000
SEPARATORS = (",", ";", "\t")  # of columns; programs for tables choose by country
FIRST_PHASE = "start"  # what comes before the first event, where only events have names
UNLABELED_MARK, RESUME_MARK = (
    "-",
    "+",
)  # in the place of a name: no phase is known from here on; the phase before goes on


@dataclass(frozen=True)
class _Row:
    """One line: the video, and the names that it gives to phases."""

    video: Video
    event_names: tuple[str, ...]  # of the phases after each event; () if there are none
    phases: tuple[str, ...]  # of all

    @property
    def events(self) -> int:
        return len(self.video.event_seconds or ())

    @property
    def breaks_off(self) -> bool:
        """Is the end of the video without labels? Events may be there that nobody has looked for."""
        return bool(self.video.unlabeled_seconds) and self.video.unlabeled_seconds[-1][1] == math.inf


@dataclass(frozen=True)
class _Events:
    """What a cell of events says."""

    seconds: tuple[float, ...]  # at which phases begin
    names: tuple[str, ...]  # of these phases; () if they have none
    unlabeled: tuple[tuple[float, float], ...]  # stretches without labels: from, up to


def read_own_videos(
    name: str, manifest: Path, phase_names: tuple[str, ...] = (), *, folder: Path | None = None
) -> Dataset:
    """The dataset that a CSV file lists. Key events, where given, cut every video into the same number of phases.

    folder: that of the videos, if it is not the CSV's own.
    """
    root = folder or manifest.parent
    try:
        with manifest.open("rb") as lines:  # before each of them is looked at
            if sum(1 for _ in islice(lines, MOST_VIDEOS + 2)) > MOST_VIDEOS + 1:
                raise DatasetError(f"{manifest}: more than {MOST_VIDEOS:,} videos; list them in several files")
        with manifest.open(encoding="utf-8-sig", newline="") as file:
            separator = _separator(file.readline())
            file.seek(0)
            reader = csv.DictReader(file, delimiter=separator)
            _check_columns(manifest, list(reader.fieldnames or ()))
            rows = [_read_row(root, row, f"{manifest}:{reader.line_num}", separator) for row in reader]
    except FileNotFoundError:
        raise DatasetError(f"{manifest}: no such file; it should list your videos as path,view,split") from None
    except IsADirectoryError:
        raise DatasetError(
            f"{manifest}: a folder, expected a CSV file that lists videos as path,view,split; of a folder: --folder"
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{manifest}: not a readable CSV file ({error})") from None
    phases = _phases(manifest, rows, phase_names)
    dataset = Dataset(name, root, tuple(row.video for row in rows), phase_names=phases)
    require_views(dataset, ("train",))
    return dataset


def _separator(header: str) -> str:
    """What stands between the columns: whatever the header has most of."""
    return max(SEPARATORS, key=header.count)


def _check_columns(manifest: Path, columns: list[str]) -> None:
    missing = [column for column in REQUIRED if column not in columns]
    unknown = [column for column in columns if column not in REQUIRED + OPTIONAL]
    if missing or unknown:
        wrong = f"no column {missing[0]!r}" if missing else f"unknown column {unknown[0]!r}"
        raise DatasetError(f"{manifest}: {wrong}; the header is path,view,split and optionally {','.join(OPTIONAL)}")
    repeated = [column for column, count in Counter(columns).items() if count > 1]
    if repeated:
        raise DatasetError(
            f"{manifest}: the column {repeated[0]!r} is there {columns.count(repeated[0])} times; keep one"
        )


def _read_row(root: Path, row: dict[str, str | None], where: str, separator: str) -> _Row:
    values = {column: (row.get(column) or "").strip() for column in REQUIRED + OPTIONAL}
    if None in row:
        kind = {",": "commas", ";": "semicolons"}.get(separator, "tabs")
        raise DatasetError(f"{where}: more fields than columns; put what has {kind} in it in quotes")
    path = inside(root, values["path"], where)
    events = _read_cell(values["events"], where) if values["events"] else None
    video = Video(
        id=values["id"] or path.stem,
        view=cast(View, _one_of(values["view"], VIEWS, "view", where)),
        split=cast(Split, _one_of(values["split"], SPLITS, "split", where)),
        path=path,
        event_seconds=events.seconds if events else None,
        unlabeled_seconds=events.unlabeled if events else (),
        pair=values["pair"] or None,
    )
    phases = tuple(part.strip() for part in values["phases"].split(";")) if values["phases"] else ()
    if not all(phases):
        raise DatasetError(f"{where}: phases {values['phases']!r}, expected names like 'reach;pour;put down'")
    return _Row(video, events.names if events else (), phases)


def _one_of(value: str, choices: tuple[str, ...], what: str, where: str) -> str:
    if value not in choices:
        raise DatasetError(f"{where}: {what} is {value!r}, expected {' or '.join(choices)}")
    return choices[choices.index(value)]  # one copy in memory for all videos


def read_events(text: str, where: str) -> tuple[float, ...]:
    """ "2.5;7.1" → (2.5, 7.1), with names or without; `where` begins the message of a mistake."""
    events = _read_cell(text, where)
    if events.unlabeled:
        raise DatasetError(f"{where}: events {text!r}; {UNLABELED_MARK!r} is for the labels of a CSV, not for this")
    return events.seconds


def _read_cell(text: str, where: str) -> _Events:
    """ "2.5 pour;7.1 put down;9 -" → (2.5, 7.1), ("pour", "put down"), ((9.0, inf),)."""
    times, _, notes = zip(*(part.strip().partition(" ") for part in text.split(";")), strict=True)
    marks = [note.strip() for note in notes]
    try:
        seconds = [float(time) for time in times]
    except ValueError:
        seconds = [math.nan]
    named = tuple(mark for mark in marks if mark not in (UNLABELED_MARK, RESUME_MARK))
    if (
        not all(math.isfinite(time) and time >= 0 for time in seconds)
        or seconds != sorted(seconds)
        or (any(named) and not all(any(map(str.isalpha, name)) for name in named))
    ):
        raise DatasetError(
            f"{where}: events {text!r}, expected rising times in seconds like '2.5;7.1' or '2.5 pour;7.1 put down'"
        )
    if any(mark == RESUME_MARK and before != UNLABELED_MARK for before, mark in pairwise(["", *marks])):
        raise DatasetError(
            f"{where}: events {text!r}; {RESUME_MARK!r} ends a stretch that {UNLABELED_MARK!r} begins: '5 -;6 +'"
        )
    stretches = zip(marks, seconds, [*seconds[1:], math.inf], strict=True)
    return _Events(
        seconds=tuple(
            time for time, mark in zip(seconds, marks, strict=True) if mark not in (UNLABELED_MARK, RESUME_MARK)
        ),
        names=named if all(named) else (),
        unlabeled=tuple((first, end) for mark, first, end in stretches if mark == UNLABELED_MARK),
    )


def _phases(manifest: Path, rows: Sequence[_Row], phase_names: tuple[str, ...]) -> tuple[str, ...]:
    """The phases' names: of the column, else of the events, else those that are given, else numbers."""
    names = _same(manifest, {row.video.id: row.phases for row in rows if row.phases}, "phases {}".format)
    labeled = [row for row in rows if row.video.event_seconds is not None]
    most = max((row.events for row in labeled), default=0)
    whole = [row for row in labeled if row.events == most or not row.breaks_off]
    of_events = _same(manifest, {row.video.id: row.event_names for row in whole if row.event_names}, "events {}".format)
    count = _same(manifest, {row.video.id: row.events for row in whole}, lambda count: pluralize(count, "event"))
    if count is None:
        return ()
    for row in labeled:
        if row.event_names != (of_events or ())[: len(row.event_names)]:
            raise DatasetError(
                f"{manifest}: {row.video.id!r} has events {row.event_names} and others {of_events or 'without names'}; "
                "give all the same"
            )
    if names and len(names) != count + 1:
        raise DatasetError(
            f"{manifest}: {pluralize(len(names), 'phase')} named, but {pluralize(count, 'event')} in each video make "
            f"{count + 1}; name each phase"
        )
    if names or of_events:
        return names or (FIRST_PHASE, *(of_events or ()))
    return phase_names if len(phase_names) == count + 1 else tuple(f"phase {index}" for index in range(count + 1))


def _same(manifest: Path, values: Mapping[str, T], shown: Callable[[T], str]) -> T | None:
    """What all videos have in common; None without any."""
    different = list({value: video for video, value in reversed(list(values.items()))}.items())
    if len(different) > 1:
        (last, last_id), (first, first_id) = different[-2:]
        raise DatasetError(
            f"{manifest}: {first_id!r} has {shown(first)} and {last_id!r} has {shown(last)}; give all the same"
        )
    return different[0][0] if different else None


CSV_NAME = "videos.csv"
COLUMNS = ("path", "view", "split", "id", "events", "pair")
DEFAULT_SPLIT_FRACTIONS = (0.6, 0.2, 0.2)  # of train, val and test
# By the name alone: a video that is broken belongs to the list too, else nobody is told of it.
ENDINGS = {".3gp", ".asf", ".avi", ".flv", ".m2ts", ".m4v", ".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".mts", ".mxf"}
ENDINGS |= {".ogv", ".ts", ".vob", ".webm", ".wmv"}
_VIEW_WORDS = {"ego": "ego", "egocentric": "ego", "exo": "exo", "exocentric": "exo"}
_SPLIT_WORDS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLIT_WORDS |= dict.fromkeys(("val", "valid", "validation"), "val")
_NOT_IN_NAMES = re.compile(r"[^\w .,+=()\[\]#&@'-]")


@dataclass(frozen=True)
class FolderVideo:
    path: PurePath  # relative to the folder
    view: str
    split: str
    id: str


@dataclass(frozen=True)
class FolderListing:
    videos: tuple[FolderVideo, ...]
    not_videos: tuple[PurePath, ...]
    without_view: tuple[PurePath, ...]

    def to_csv(self) -> str:
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        table.writerow(COLUMNS)
        table.writerows([video.path.as_posix(), video.view, video.split, video.id, "", ""] for video in self.videos)
        return text.getvalue()


def video_files(folder: Path) -> tuple[list[PurePath], list[PurePath]]:
    """The videos below a folder and the other files, relative to it, by name; hidden ones are not looked at."""
    if not folder.is_dir():
        raise DatasetError(f"{folder}: {'a file, not a folder' if folder.exists() else 'no such folder'} of videos")
    files: list[PurePath] = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    seen = [path for path in files if not any(part.startswith(".") for part in path.parts)]
    videos = [path for path in seen if path.suffix.lower() in ENDINGS]
    return videos, [path for path in seen if path.suffix.lower() not in ENDINGS and path.name != CSV_NAME]


def list_folder(folder: Path, shares: Sequence[float] | None = None) -> FolderListing:
    """What the names in a folder say. shares: of train, val and test, where no folder says the split."""
    videos, others = video_files(folder)
    views = {path: _nearest(reversed(path.parts), _VIEW_WORDS) for path in videos}
    of_view = {view: [path for path in videos if views[path] == view] for view in VIEWS}
    for view, paths in of_view.items():
        if not paths:
            raise DatasetError(
                f"{folder}: {pluralize(len(videos), 'video')} in it, none with {view!r} as a word of its path; "
                "put them into the folders ego and exo, or list them in a CSV for --manifest"
            )
    splits = _splits_of_folders(folder, videos, given=shares is not None)
    if not splits:
        for paths in of_view.values():
            splits |= zip(paths, share_out(len(paths), shares or DEFAULT_SPLIT_FRACTIONS), strict=True)
    ids = unique_ids(videos)
    listed = [FolderVideo(path, view, splits[path], ids[path]) for view in VIEWS for path in of_view[view]]
    return FolderListing(tuple(listed), tuple(others), tuple(path for path in videos if views[path] is None))


def _splits_of_folders(folder: Path, videos: Sequence[PurePath], *, given: bool) -> dict[PurePath, str]:
    """Video → split, if the folders say it; they say it of all videos or of none."""
    splits = {path: _nearest(reversed(path.parts[:-1]), _SPLIT_WORDS) for path in videos}
    said = {path: split for path, split in splits.items() if split is not None}
    if said and given:
        first = next(iter(said))
        raise DatasetError(f"{folder}: its folders say the splits, as of {first}; leave --split out")
    if said and len(said) < len(splits):
        other = next(path for path, split in splits.items() if split is None)
        raise DatasetError(
            f"{folder}: {next(iter(said))} is in a folder of a split and {other} is not; put all or none into "
            f"{', '.join(SPLITS)}"
        )
    return said


def _nearest(parts: Iterable[str], words: dict[str, str]) -> str | None:
    """What the first part says that has just one of the words."""
    for part in parts:
        found = {words[word] for word in re.findall(r"[^\W\d_]+", part.lower()) if word in words}
        if len(found) == 1:
            return found.pop()
    return None


def share_out(videos: int, shares: Sequence[float]) -> list[str]:
    """The split of each of so many videos in a row: always that which is furthest behind its share, train first.

    >>> share_out(5, (0.6, 0.2, 0.2))
    ['train', 'val', 'train', 'test', 'train']
    """
    given: list[str] = []
    for index in range(videos):
        behind = [round(share * (index + 1) - given.count(SPLITS[i]), 9) for i, share in enumerate(shares)]
        given.append("train" if index == 0 else SPLITS[behind.index(max(behind))])
    return given


def unique_ids(paths: Sequence[PurePath]) -> dict[PurePath, str]:
    """Path → its name without ending; where two share one, with the folders before it (ego-001)."""
    stems = Counter(_as_name(path.stem) for path in paths)
    ids: dict[PurePath, str] = {}
    taken: set[str] = set()
    for path in paths:
        stem = _as_name(path.stem)
        name = stem if stems[stem] == 1 else _as_name("-".join(path.with_suffix("").parts))
        numbered = (f"{name}-{number}" for number in count(2))
        ids[path] = name if name not in taken else next(other for other in numbered if other not in taken)
        taken.add(ids[path])
    return ids


def _as_name(text: str) -> str:
    """`text` as a name that a file may have (see cache/layout.py)."""
    return re.sub(r"^[\W_]+|[ .]+$", "", _NOT_IN_NAMES.sub("", text)) or "video"
