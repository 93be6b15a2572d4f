"""One's own videos from a CSV file: path,view,split and, if wanted, id and events.

path: relative to the CSV's folder. events: key-event times in seconds from the first frame, separated by ";".
"""

import csv
import math
from pathlib import Path
from typing import cast

from byov.data.dataset import SPLITS, VIEWS, Dataset, Split, Video, View, inside, require_views
from byov.errors import DatasetError

REQUIRED = ("path", "view", "split")
OPTIONAL = ("id", "events")


def read_own_videos(name: str, manifest: Path, phase_names: tuple[str, ...] = ()) -> Dataset:
    """The dataset that a CSV file lists. Key events, where given, cut every video into the same number of phases."""
    root = manifest.parent
    try:
        with manifest.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            _check_columns(manifest, list(reader.fieldnames or ()))
            videos = [_read_row(root, row, f"{manifest}:{reader.line_num}") for row in reader]
    except FileNotFoundError:
        raise DatasetError(f"{manifest}: no such file; it should list your videos as path,view,split") from None
    except IsADirectoryError:
        raise DatasetError(f"{manifest}: a folder, expected a CSV file that lists videos as path,view,split") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{manifest}: not a readable CSV file ({error})") from None
    phases = _check_phases(manifest, videos, phase_names)
    dataset = Dataset(name, root, tuple(videos), phase_names=phases)
    require_views(dataset, ("train",))
    return dataset


def _check_columns(manifest: Path, columns: list[str]) -> None:
    missing = [column for column in REQUIRED if column not in columns]
    unknown = [column for column in columns if column not in REQUIRED + OPTIONAL]
    if len(columns) == 1 and ";" in columns[0]:
        raise DatasetError(f"{manifest}: its columns are separated by semicolons; save it with commas")
    if missing or unknown:
        wrong = f"no column {missing[0]!r}" if missing else f"unknown column {unknown[0]!r}"
        raise DatasetError(f"{manifest}: {wrong}; the header is path,view,split and optionally id,events")


def _read_row(root: Path, row: dict[str, str | None], where: str) -> Video:
    values = {column: (row.get(column) or "").strip() for column in REQUIRED + OPTIONAL}
    if None in row:
        raise DatasetError(f"{where}: more fields than columns; put a name with commas in quotes")
    path = inside(root, values["path"], where)
    return Video(
        id=values["id"] or path.stem,
        view=cast(View, _one_of(values["view"], VIEWS, "view", where)),
        split=cast(Split, _one_of(values["split"], SPLITS, "split", where)),
        path=path,
        event_seconds=read_events(values["events"], where) if values["events"] else None,
    )


def _one_of(value: str, choices: tuple[str, ...], what: str, where: str) -> str:
    if value not in choices:
        raise DatasetError(f"{where}: {what} is {value!r}, expected {' or '.join(choices)}")
    return value


def read_events(text: str, where: str) -> tuple[float, ...]:
    """ "2.5;7.1" → (2.5, 7.1); `where` begins the message of a mistake."""
    try:
        events = tuple(float(part) for part in text.split(";"))
    except ValueError:
        events = (math.nan,)
    if not all(math.isfinite(event) and event >= 0 for event in events) or list(events) != sorted(events):
        raise DatasetError(f"{where}: events {text!r}, expected rising times in seconds like '2.5;7.1'")
    return events


def _check_phases(manifest: Path, videos: list[Video], phase_names: tuple[str, ...]) -> tuple[str, ...]:
    counts = {len(video.event_seconds): video.id for video in videos if video.event_seconds is not None}
    if len(counts) > 1:
        (first, first_id), (second, second_id) = list(counts.items())[:2]
        raise DatasetError(
            f"{manifest}: {first_id!r} has {first} events and {second_id!r} has {second}; give all the same number"
        )
    if not counts:
        return ()
    phases = next(iter(counts)) + 1
    return phase_names if len(phase_names) == phases else tuple(f"phase {index}" for index in range(phases))
