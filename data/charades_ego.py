"""Charades-Ego, read from its download as it is: CharadesEgo_v1_{train,test}.csv and <id>.mp4.

Its labels are actions of the whole video (157 classes), not phases. It has no val split.
A pair is one script performed twice, for one camera after the other: alike in its course, not filmed at once.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from byov.data.dataset import Dataset, Split, Video, inside, require_views
from byov.errors import DatasetError

CLASSES = 157
COLUMNS = ("id", "egocentric", "actions")
PARTNER = "charades_video"  # id of the same script in the other view; older copies do not have it
_ACTION = re.compile(r"c(\d{3}) \S+ \S+")


def read_charades_ego(name: str, root: Path) -> Dataset:
    videos = _pair_up([row for split in ("train", "test") for row in _read_list(root, split)])
    dataset = Dataset(name, root, tuple(videos), action_names=tuple(f"c{index:03d}" for index in range(CLASSES)))
    require_views(dataset, ("train", "test"))
    return dataset


def _pair_up(rows: list[tuple[Video, str]]) -> Iterator[Video]:
    """Pair videos of two views and one split of which one names the other; of several claims the first counts."""
    videos = {video.id: video for video, _ in rows}
    pairs: dict[str, str] = {}  # video id → pair
    for video, partner in rows:
        other = videos.get(partner)
        if other is None or other.view == video.view or other.split != video.split:
            continue
        if video.id not in pairs and other.id not in pairs:
            pairs[video.id] = pairs[other.id] = video.id
    for video, _ in rows:
        yield replace(video, pair=pairs.get(video.id))


def _read_list(root: Path, split: Split) -> Iterator[tuple[Video, str]]:
    """The videos of a split, each with the id of its partner."""
    path = root / f"CharadesEgo_v1_{split}.csv"
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
            if missing:
                raise DatasetError(f"{path}: no column {missing[0]!r}; it has {reader.fieldnames}")
            for row in reader:
                yield _read_row(root, split, row, f"{path}:{reader.line_num}"), row.get(PARTNER) or ""
    except FileNotFoundError:
        raise DatasetError(f"{path}: not there; it is part of the dataset's download") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise DatasetError(f"{path}: not a readable CSV file ({error})") from None


def _read_row(root: Path, split: Split, row: dict[str, str], where: str) -> Video:
    if row["egocentric"] not in ("Yes", "No"):
        raise DatasetError(f"{where}: egocentric is {row['egocentric']!r}, expected Yes or No")
    return Video(
        id=row["id"],
        view="ego" if row["egocentric"] == "Yes" else "exo",
        split=split,
        path=inside(root, f"{row['id']}.mp4", where),
        actions=_read_actions(row["actions"] or "", where),
    )


def _read_actions(text: str, where: str) -> tuple[int, ...]:
    """ "c092 11.90 21.20;c147 0.00 12.60" → (92, 147)."""
    classes = set()
    for part in filter(None, text.split(";")):
        match = _ACTION.fullmatch(part.strip())
        if match is None or int(match[1]) >= CLASSES:
            raise DatasetError(f"{where}: action {part!r}, expected like 'c092 11.90 21.20'")
        classes.add(int(match[1]))
    return tuple(sorted(classes))
