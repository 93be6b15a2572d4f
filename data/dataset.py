"""Datasets of ego and exo videos in train, val and test splits, with their annotations."""

import csv
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from byov.errors import DatasetError
from byov.files import read_text
from byov.records import UNLABELED, VIEWS, Split, View

Unit = Literal["s", "f"]
K = TypeVar("K")


class FileSegment(NamedTuple):
    """Half-open interval [start, end) of a video file.

    Both ends are measured from the first frame of the file, in seconds ("s") or frames ("f").
    """

    start: float = 0.0
    end: float = math.inf
    unit: Unit = "s"

    @property
    def fragment(self) -> str:
        """File-name suffix that encodes the segment, such as "#t=2.5,7" or "#f=75,210"; "" for a
        whole file.
        """
        end = "" if self.end == math.inf else f"{self.end:.10g}"
        return (
            ""
            if self == WHOLE_FILE
            else f"#{'t' if self.unit == 's' else 'f'}={self.start:.10g},{end}"
        )

    @property
    def cells(self) -> tuple[str, str]:
        """CSV cells for start and end, such as ("2.5", "7") or ("75f", "210f"); "" at the start or
        end of the file.
        """
        suffix = "f" if self.unit == "f" else ""
        start = f"{self.start:.10g}{suffix}" if self.start else ""
        return start, f"{self.end:.10g}{suffix}" if self.end < math.inf else ""


WHOLE_FILE = FileSegment()


def parse_source(name: str) -> tuple[str, FileSegment]:
    """Split a name such as "long.mp4#t=2.5,7" into the file name and the segment."""
    match = re.fullmatch(r"(.*)#([tf])=([\d.e+-]+),([\d.e+-]*)", name, re.DOTALL)
    if match is None:
        return name, WHOLE_FILE
    return match[1], FileSegment(
        float(match[3]), float(match[4] or math.inf), "s" if match[2] == "t" else "f"
    )


class LabelInterval(NamedTuple):
    """Phase of the frames with start <= time < end.

    If intervals overlap, the later one in the list wins.
    """

    start: float
    end: float
    phase: int  # index of the phase, or UNLABELED


def event_intervals(
    events: Sequence[float], unlabeled: Sequence[tuple[float, float]] = ()
) -> tuple[LabelInterval, ...]:
    """Convert events, each of which starts the next phase, to intervals.

    >>> [tuple(interval) for interval in event_intervals((2.5,), [(7, math.inf)])]
    [(0.0, 2.5, 0), (2.5, inf, 1), (7, inf, -1)]
    """
    between = pairwise((0.0, *events, math.inf))
    phases = [LabelInterval(start, end, phase) for phase, (start, end) in enumerate(between)]
    return (*phases, *(LabelInterval(start, end, UNLABELED) for start, end in unlabeled))


def count_overlaps(intervals: Sequence[tuple[float, float]]) -> int:
    """Return the number of intervals, sorted by start, that start before an earlier one ends.

    >>> count_overlaps([(0, 3), (2, 4), (4, 5)])
    1
    """
    latest = -math.inf
    overlaps = 0
    for start, end in intervals:
        overlaps += start < latest
        latest = max(latest, end)
    return overlaps


def order_phases(sequences: Iterable[Sequence[str]]) -> tuple[tuple[str, ...], bool]:
    """Order phase names by time.

    Args:
        sequences: Names of the phases of each video, ordered by time.

    Returns:
        All names, and whether every sequence follows their order. If there is no such order, names
        are ordered by their first occurrence.

    >>> order_phases([["crack", "whisk"], ["whisk", "fry"]])
    (('crack', 'whisk', 'fry'), True)
    >>> order_phases([["crack", "whisk", "crack"]])
    (('crack', 'whisk'), False)
    """
    sorter = TopologicalSorter[str]()
    names: dict[str, None] = {}
    for sequence in sequences:
        for name in sequence:
            names[name] = None
            sorter.add(name)
        for before, after in pairwise(sequence):
            if before != after:
                sorter.add(after, before)
    try:
        return tuple(sorter.static_order()), True
    except CycleError:
        return tuple(names), False


@dataclass(frozen=True, slots=True)
class Video:
    """A video file or a segment of one, with its annotations."""

    id: str
    view: View
    split: Split
    path: Path
    labels: tuple[int, ...] | None = None  # phase index of each frame
    # Where `labels` are not given; frames outside of all intervals are unlabeled.
    intervals: tuple[LabelInterval, ...] | None = None
    # Unit of the intervals: seconds from the segment's first frame, or frame indices.
    interval_unit: Unit = "s"
    actions: tuple[int, ...] | None = None  # video-level action classes
    pair: str | None = None  # id shared by the synchronized ego and exo videos of a performance
    group: str | None = None  # id shared by videos that must be in the same split, as of one take
    segment: FileSegment = WHOLE_FILE  # part of the file that shows the action

    @property
    def source(self) -> str:
        """Path and segment suffix, for log and error messages."""
        return f"{self.path}{self.segment.fragment}"

    def phases(self, pts_seconds: NDArray[np.float64]) -> tuple[int, ...] | None:
        """Map frame times `(T,)` to phase indices (UNLABELED if unknown); return None if no frame
        is labeled.
        """
        if self.labels is not None:
            return self.labels[: len(pts_seconds)]
        if self.intervals is None:
            return None
        times = np.arange(len(pts_seconds)) if self.interval_unit == "f" else pts_seconds
        phases = np.full(len(times), UNLABELED)
        for start, end, phase in self.intervals:
            phases[(times >= start) & (times < end)] = phase
        return tuple(phases.tolist()) if (phases != UNLABELED).any() else None

    @property
    def is_annotated(self) -> bool:
        """Whether the dataset labels the frames of this video."""
        return self.labels is not None or self.intervals is not None

    @property
    def events(self) -> tuple[float, ...]:
        """Times after the first frame at which a labeled interval starts."""
        return tuple(
            start for start, _, phase in self.intervals or () if start > 0 and phase != UNLABELED
        )

    def late_events(self, frames: int, last_seconds: float) -> str:
        """Describe events that come after the last frame (at `last_seconds`); return "" if there
        are none.
        """
        unit = self.interval_unit
        last = frames - 1 if unit == "f" else last_seconds
        late = ", ".join(f"{event:g}" for event in self.events if event > last)
        return (
            late
            and f"{self.source}: events at {late} {unit} are after its last frame "
            f"({round(last, 3):g} {unit})"
        )


@dataclass(frozen=True)
class Dataset:
    """Videos with unique ids, in a fixed order.

    Raises:
        DatasetError: If an id is not unique, a file is missing, a pair or group is not in one
            split, a pair lacks a view, or two splits share part of a file.
    """

    name: str
    root: Path
    videos: tuple[Video, ...]
    phase_names: tuple[str, ...] = ()
    # Whether every video shows the phases in this order; phases may be missing, but not repeated.
    ordered: bool = True
    action_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        by_id: dict[str, Video] = {}
        for video in self.videos:
            # Ids become file names, and some file systems ignore case.
            first = by_id.setdefault(video.id.casefold(), video)
            if first is not video:
                raise DatasetError(
                    f"{self.name}: the id {first.id!r} is not unique (case is ignored): "
                    f"{first.source}, {video.source}. Rename a file, or add an `id` column with "
                    "unique ids to the CSV."
                )
            if not video.path.is_file():
                raise DatasetError(
                    f"{video.path}: listed in the {video.split} split of {self.name} but missing. "
                    "Copy it there or unlist it."
                )
        _check_groups(self)
        for videos in _group_by((video.path, video) for video in self.videos).values():
            if len(videos) > 1:
                _check_repeats(self.name, videos)
                check_overlaps(self.name, videos)


def _group_by(items: Iterable[tuple[K, Video]]) -> dict[K, list[Video]]:
    groups: dict[K, list[Video]] = {}
    for key, video in items:
        groups.setdefault(key, []).append(video)
    return groups


def _check_groups(dataset: Dataset) -> None:
    pairs = _group_by((video.pair, video) for video in dataset.videos if video.pair is not None)
    for pair, videos in pairs.items():
        if {video.view for video in videos} != {*VIEWS} or len({v.split for v in videos}) > 1:
            raise DatasetError(
                f"{dataset.name}: pair {pair!r} must be ego and exo videos in the same split, not "
                f"{_listed(videos)}"
            )
    groups = _group_by((video.group, video) for video in dataset.videos if video.group is not None)
    for group, videos in groups.items():
        if len({video.split for video in videos}) > 1:
            raise DatasetError(
                f"{dataset.name}: group {group!r} is in several splits: {_listed(videos)}. Put all "
                "its videos into one split."
            )


def _listed(videos: Sequence[Video]) -> str:
    more = f" and {len(videos) - 4} more" * (len(videos) > 4)
    return ", ".join(f"{video.id} ({video.view}, {video.split})" for video in videos[:4]) + more


def _check_repeats(name: str, videos: Sequence[Video]) -> None:
    """Raise DatasetError if a part of a file is listed twice for one view and split."""
    first_of: dict[tuple[View, Split, FileSegment], Video] = {}
    for video in videos:
        first = first_of.setdefault((video.view, video.split, video.segment), video)
        if first is not video:
            raise DatasetError(
                f"{name}: {first.id} and {video.id} are the same part of {first.source}. Remove "
                "one of them."
            )


def check_overlaps(name: str, videos: Sequence[Video]) -> None:
    """Check videos that are parts of the same file, or of files with the same content.

    Raises:
        DatasetError: If two videos in different splits overlap.
    """
    for unit in get_args(Unit):  # seconds and frames cannot be compared here
        longest: dict[Split, Video] = {}  # video of each split that ends last, so far
        comparable = [v for v in videos if v.segment.unit == unit or v.segment == WHOLE_FILE]
        for video in sorted(comparable, key=lambda video: video.segment.start):
            for other in longest.values():
                if other.split != video.split and other.segment.end > video.segment.start:
                    raise DatasetError(
                        f"{name}: {other.id} ({other.split}) and {video.id} ({video.split}) show "
                        f"the same frames: {other.source}, {video.source}. Put them into one "
                        "split."
                    )
            if video.split not in longest or longest[video.split].segment.end < video.segment.end:
                longest[video.split] = video


def require_views(dataset: Dataset, splits: tuple[Split, ...]) -> None:
    """Raise DatasetError unless each split contains both ego and exo videos."""
    present = {(video.split, video.view) for video in dataset.videos}
    for split in splits:
        for view in VIEWS:
            if (split, view) not in present:
                raise DatasetError(
                    f"{dataset.root}: the {split} split of {dataset.name} has no {view} videos; "
                    "add one"
                )


def read_csv(path: Path, required: tuple[str, ...]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (location, row) for each row of a CSV file, with locations such as "videos.csv:3" for
    error messages.

    The delimiter may be a comma, a semicolon or a tab.
    """
    try:
        with io.StringIO(read_text(path, "utf-8-sig"), newline="") as file:
            separator = max((",", ";", "\t"), key=file.readline().count)
            file.seek(0)
            reader = csv.DictReader(file, delimiter=separator)
            columns = reader.fieldnames or ()
            if not {*required} <= {*columns} or len({*columns}) < len(columns):
                raise DatasetError(
                    f"{path}: the first line is {separator.join(columns)[:80]!r}. Expected a CSV "
                    f"file whose first line has the columns {','.join(required)}, each once."
                )
            for row in reader:
                yield f"{path}:{reader.line_num}", row
    except (FileNotFoundError, IsADirectoryError):
        raise DatasetError(
            f"{path}: missing or a folder. Expected a CSV with columns {','.join(required)}."
        ) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(
            f"{path}: not a readable CSV file ({error}). Save it as UTF-8."
        ) from None
