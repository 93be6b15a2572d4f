"""Your own videos, listed in a CSV file.

docs/your-own-videos.md documents the CSV columns.
"""

import logging
import math
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import ROUND_FLOOR, Decimal
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from byov.data.dataset import (
    Dataset,
    FileSegment,
    LabelInterval,
    Unit,
    Video,
    count_overlaps,
    event_intervals,
    order_phases,
    read_csv,
    require_views,
)
from byov.data.video_folder import unique_ids
from byov.errors import DatasetError
from byov.records import SPLITS, VIEWS, Record
from byov.text import pluralize

REQUIRED = ("path", "view", "split")
OPTIONAL = ("id", "start", "end", "events", "segments", "phases", "group", "pair")
UNLABELED_MARK = "-"
RESUME_MARK = "+"
LOGGER = logging.getLogger(__name__)
_SEGMENT = re.compile(r"\s*(\d+(?:\.\d+)?|\d+f)\s*-\s*(\d+(?:\.\d+)?|\d+f)\s+(\S.*)")


class TableOptions(Record):
    """Options for the videos listed in a CSV file."""

    videos: str | None = Field(
        default=None,
        description="Folder that the paths in the CSV are relative to, instead of its own folder.",
    )


class _Events(NamedTuple):
    times: tuple[float, ...] | None
    unlabeled: tuple[tuple[float, float], ...] = ()
    unit: Unit = "s"
    names: tuple[str, ...] = ()  # empty if the events are not named


class _Segments(NamedTuple):
    intervals: tuple[tuple[float, float], ...]
    names: tuple[str, ...]
    unit: Unit


class _Row(NamedTuple):
    path: Path  # as written in the CSV
    video: Video  # its id is "" if the row has none
    events: _Events
    segments: _Segments | None
    phases: tuple[str, ...]


def read_own_videos(name: str, manifest: Path, *, folder: Path | None = None) -> Dataset:
    """Read the dataset listed in a CSV file.

    Paths are relative to `folder` (default: the CSV's folder).
    """
    root = folder or manifest.parent
    rows = [_read_row(root, fields, source) for source, fields in read_csv(manifest, REQUIRED)]
    dataset = _dataset(name, root, manifest, rows)
    require_views(dataset, ("train",))
    return dataset


def read_labels(path: Path, folder: Path) -> Dataset:
    """Read the labeled videos in a CSV file, in which only paths and labels are required.

    Paths are relative to the folder of the CSV or, if there is no such file, to `folder`. Rows
    without labels are ignored.
    """
    rows = []
    for source, fields in read_csv(path, ("path",)):
        root = path.parent if (path.parent / fields["path"]).is_file() else folder
        defaults = {"view": fields.get("view") or VIEWS[0], "split": fields.get("split") or "train"}
        rows.append(_read_row(root, fields | defaults, source))
    labeled = [row for row in rows if row.events.times or row.segments]
    if not labeled:
        raise DatasetError(
            f"{path}: no video is labeled. Add a column `events` with cells like '2.5 pour;7.1 put "
            "down'."
        )
    return _dataset("labels", folder, path, labeled)


def _dataset(name: str, root: Path, source: Path, rows: Sequence[_Row]) -> Dataset:
    unnamed = [row for row in rows if not row.video.id]
    ids = iter(unique_ids([row.path for row in unnamed], {row.video.id for row in rows}))
    rows = [
        row if row.video.id else row._replace(video=replace(row.video, id=next(ids)))
        for row in rows
    ]
    if any(row.segments for row in rows):
        phases, ordered = _segment_names(source, rows)
        videos = tuple(_with_segments(row, phases) for row in rows)
    else:
        phases = _phase_names(source, rows)
        ordered = True
        videos = tuple(row.video for row in rows)
    return Dataset(name, root, videos, phase_names=phases, ordered=ordered)


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
    segments = _parse_segments(values["segments"], source) if values["segments"] else None
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
        intervals=None if events.times is None else event_intervals(events.times, events.unlabeled),
        interval_unit=events.unit,
        pair=values["pair"] or None,
        group=values["group"] or None,
        segment=_parse_segment(values["start"], values["end"], source),
    )
    return _Row(Path(values["path"]), video, events, segments, phases)


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
            "like 75f and 210f, with start before end."
        )
    return segment


def read_events(text: str, source: str) -> tuple[float, ...]:
    """Parse event times such as "2.5;7.1" or "2.5 pour;7.1 put down"; error messages start with
    `source`.
    """
    with suppress(DatasetError):
        events = _parse_events(text, source)
        if not events.unlabeled and events.unit == "s":
            return events.times or ()
    raise DatasetError(
        f"{source}: events {text!r}. Expected increasing seconds like '2.5;7.1' or '2.5 pour;7.1 "
        "put down'."
    )


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
    folder, target = (Path(os.path.normpath(each.absolute())) for each in (root, root / name))
    # May reach root through a symbolic link, so resolve links.
    if Path(name).is_absolute() and "\0" not in name:
        folder = root.resolve()
        target = target.parent.resolve() / target.name
    if "\0" in name or not target.is_relative_to(folder):
        raise DatasetError(
            f"{source}: the path {name!r} is outside of {root}. All videos must be below it."
        )
    return root / target.relative_to(folder)


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
            "pour;7.1 put down', or frame indices like '31f;52f'."
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


def _parse_segments(text: str, source: str) -> _Segments:
    """Parse a cell such as "3.2-6 crack egg; 6.5-9 whisk" or "96f-180f crack egg"."""
    matches = [_SEGMENT.fullmatch(part) for part in text.split(";") if part.strip()]
    found = [match for match in matches if match is not None]
    cells = [cell for match in found for cell in match.group(1, 2)]
    in_frames = [cell.endswith("f") for cell in cells]
    intervals = tuple(
        (float(match[1].removesuffix("f")), float(match[2].removesuffix("f"))) for match in found
    )
    if (
        len(found) < len(matches)
        or len({*in_frames}) > 1
        or not all(start < end for start, end in intervals)
    ):
        raise DatasetError(
            f"{source}: segments {text!r}. Expected starts, ends and names like '3.2-6 crack egg; "
            "6.5-9 whisk', or frame indices like '96f-180f crack egg'."
        )
    names = tuple(match[3].strip() for match in found)
    return _Segments(intervals, names, "f" if in_frames[0] else "s")


def _segment_names(manifest: Path, rows: Sequence[_Row]) -> tuple[tuple[str, ...], bool]:
    """Return the phase names of all segments, and whether they always occur in that order."""
    sequences = []
    overlaps = 0
    for row in rows:
        if row.events.times is not None or row.phases:
            raise DatasetError(
                f"{manifest}: {row.video.id!r} has events or phases, but other videos have "
                "segments. Use one of them."
            )
        if row.segments is not None:
            by_time = sorted(zip(row.segments.intervals, row.segments.names, strict=True))
            overlaps += count_overlaps([interval for interval, _ in by_time])
            sequences.append([name for _, name in by_time])
    if overlaps:
        LOGGER.info(
            f"{manifest}: {pluralize(overlaps, 'segment')} started before the previous one ended; "
            "the later one wins"
        )
    return order_phases(sequences)


def _with_segments(row: _Row, phases: tuple[str, ...]) -> Video:
    if row.segments is None:
        return row.video
    intervals = tuple(
        LabelInterval(*interval, phases.index(name))
        for interval, name in sorted(zip(row.segments.intervals, row.segments.names, strict=True))
    )
    return replace(row.video, intervals=intervals, interval_unit=row.segments.unit)


def _phase_names(manifest: Path, rows: Sequence[_Row]) -> tuple[str, ...]:
    """Return the phase names after checking that events and phases agree across videos."""
    labeled = [(len(row.events.times), row) for row in rows if row.events.times is not None]
    if not labeled:
        return ()
    events, longest = max(labeled, key=lambda item: item[0])
    names = next(
        (row.events.names for count, row in labeled if count == events and row.events.names), ()
    )
    for count, row in labeled:
        # A video may lack the last events if its end is unlabeled.
        if count < events and all(end < math.inf for _, end in row.events.unlabeled):
            raise DatasetError(
                f"{manifest}: {longest.video.id!r} has {events} events but {row.video.id!r} has "
                f"{count}. Give every labeled video the same events, or use the column `segments`."
            )
        if row.events.names != names[: len(row.events.names)]:
            raise DatasetError(
                f"{manifest}: {row.video.id!r} has events {row.events.names}, others have "
                f"{names or 'unnamed events'}. For phases in any order, use the column `segments`."
            )
    # If only events are named, the phase before the first event is called "start".
    listed = {row.phases for row in rows if row.phases} or {("start", *names) if names else ()}
    if len(listed) > 1:
        raise DatasetError(f"{manifest}: different phases in different rows: {sorted(listed)}")
    phases = listed.pop() or tuple(f"phase {index}" for index in range(events + 1))
    if len(phases) != events + 1:
        raise DatasetError(
            f"{manifest}: phases {phases}, but {events} events separate {events + 1} phases"
        )
    return phases
