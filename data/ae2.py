"""Reader for the four datasets of the AE2 benchmark, in their published folder layout.

- Break Eggs, Tennis Forehand: {ego,exo}/*.mp4, with {train,val,test}.csv (one file name per line)
  in each folder.
- Pour Milk, Pour Liquid: {train,val,test}/{ego,exo}/*.mp4.

Each dataset has a label.pickle that maps file stems to per-frame phases. An ego and an exo video
with the same stem are treated as a simultaneous recording: AE2 does not say so, but label.pickle
has only one list of labels for both.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from typing import ClassVar

from byov.data.dataset import Dataset, Video, require_views
from byov.data.label_pickle import read_labels
from byov.data.reader import DatasetReader
from byov.errors import DatasetError
from byov.files import read_text
from byov.progress import NO_PROGRESS, Progress
from byov.records import SPLITS, VIEWS, Split, View


class Ae2(DatasetReader):
    """Base class of the readers of AE2's datasets."""

    download = "github.com/zihuixue/AlignEgoExo (AE2)"
    key_events: ClassVar[tuple[str, ...]]
    is_listed: ClassVar[bool] = False  # CSV files list the videos of each split

    def read(self, folder: Path, _progress: Progress = NO_PROGRESS) -> Dataset:
        """Read an AE2 dataset from `folder`, or from a subfolder if the archive was unzipped one
        level deeper.
        """
        root = _dataset_root(self.name, folder, is_listed=self.is_listed)
        labels = read_labels(root / "label.pickle")
        phases = tuple(f"{before} to {after}" for before, after in pairwise(self.key_events))
        videos = []
        for path, view, split in _list_videos(root, is_listed=self.is_listed):
            if path.stem not in labels:
                raise DatasetError(
                    f"{path}: no labels for {path.stem!r} in {root / 'label.pickle'}"
                )
            last = max(labels[path.stem], default=0)
            if last >= len(phases):
                raise DatasetError(
                    f"{path}: phase {last} in {root / 'label.pickle'}, but {self.name} has "
                    f"{len(phases)} phases"
                )
            videos.append(Video(path.stem, view, split, path, labels=labels[path.stem]))
        dataset = Dataset(self.name, root, tuple(_with_pairs(videos)), phase_names=phases)
        require_views(dataset, SPLITS)
        return dataset


class BreakEggs(Ae2):
    name = "break_eggs"
    key_events = (
        "start",
        "hit egg",
        "visible crack on the eggshell",
        "egg contents released",
        "end",
    )
    is_listed = True


class PourMilk(Ae2):
    name = "pour_milk"
    key_events = ("start", "liquid exits container", "pouring complete", "end")


class PourLiquid(Ae2):
    name = "pour_liquid"
    key_events = ("start", "liquid exits container", "pouring complete", "end")


class TennisForehand(Ae2):
    name = "tennis_forehand"
    key_events = ("start", "racket touches ball", "end")
    is_listed = True


def _dataset_root(name: str, root: Path, *, is_listed: bool) -> Path:
    for folder in (root, *sorted(path for path in root.iterdir() if path.is_dir())):
        if (folder / ("ego/train.csv" if is_listed else "train/ego")).exists():
            return folder
    layout = (
        "{ego,exo}/*.mp4, {ego,exo}/{train,val,test}.csv"
        if is_listed
        else "{train,val,test}/{ego,exo}/*.mp4"
    )
    entries = sorted(
        path.name + "/" * path.is_dir() for path in root.iterdir() if not path.name.startswith(".")
    )
    listed = ", ".join(entries[:6]) + ", ..." * (len(entries) > 6) or "nothing"
    raise DatasetError(
        f"{root}: expected {layout} and label.pickle; found {listed}. Move {name}'s files here."
    )


def _with_pairs(videos: list[Video]) -> Iterator[Video]:
    """Append the view to ids that occur in both views, and pair these videos if they are in the
    same split.
    """
    for video in videos:
        same_id = [other for other in videos if other.id == video.id]
        if len({other.view for other in same_id}) == 1:
            yield video
        else:
            pair = video.id if len({other.split for other in same_id}) == 1 else None
            yield replace(video, id=f"{video.id}-{video.view}", pair=pair)


def _list_videos(root: Path, *, is_listed: bool) -> Iterator[tuple[Path, View, Split]]:
    for split, view in product(SPLITS, VIEWS):
        if not is_listed:
            paths = sorted((root / split / view).glob("[!.]*.mp4"))
        else:
            list_file = root / view / f"{split}.csv"
            try:
                lines = read_text(list_file, "utf-8-sig").splitlines()
            except FileNotFoundError:
                raise DatasetError(
                    f"{list_file}: missing. It is part of the published dataset."
                ) from None
            except UnicodeDecodeError:
                raise DatasetError(f"{list_file}: not a text file") from None
            paths = [root / view / line.strip() for line in lines if line.strip()]
        yield from ((path, view, split) for path in paths)
