"""A folder of one's own videos as a CSV of path,view,split,id,events,pair, which their owner can edit.

View: the part of the path nearest to the file that has the word ego or exo, the file's own name first. Split: the
nearest folder that has the word train, val or test; where there is none, by shares, in the order of names.
"""

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePath

from byov.data.dataset import SPLITS, VIEWS
from byov.errors import DatasetError
from byov.text import counted

CSV_NAME = "videos.csv"
COLUMNS = ("path", "view", "split", "id", "events", "pair")
DEFAULT_SHARES = (0.6, 0.2, 0.2)  # of train, val and test
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
                f"{folder}: {counted(len(videos), 'video')} in it, none with {view!r} as a word of its path; "
                "put them into the folders ego and exo, or list them in a CSV for --manifest"
            )
    splits = _splits_of_folders(folder, videos, given=shares is not None)
    if not splits:
        for paths in of_view.values():
            splits |= zip(paths, share_out(len(paths), shares or DEFAULT_SHARES), strict=True)
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
