"""The AE2 benchmark's four datasets, read from its download as it is.

Break Eggs and Tennis Forehand: {ego,exo}/*.mp4 with {train,val,test}.csv (a file name per line) in each view's folder.
Pour Milk and Pour Liquid: {train,val,test}/{ego,exo}/*.mp4. Each has a label.pickle: file stem → phase per frame.

A stem that both views have is a pair: one performance, filmed at once. AE2 does not say so; it is inferred from its
labels, one entry per stem for both views, and from its boxes, whose entries have the view before the stem.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from byov.data.dataset import SPLITS, VIEWS, Dataset, Split, Video, View, inside, require_views
from byov.data.label_pickle import read_labels
from byov.errors import DatasetError

KEY_EVENTS = {
    "break_eggs": ("start", "hit egg", "visible crack on the eggshell", "egg contents released", "end"),
    "pour_milk": ("start", "liquid exits container", "pouring complete", "end"),
    "pour_liquid": ("start", "liquid exits container", "pouring complete", "end"),
    "tennis_forehand": ("start", "racket touches ball", "end"),
}
LISTED_IN_CSV = ("break_eggs", "tennis_forehand")


def phase_names(key_events: tuple[str, ...]) -> tuple[str, ...]:
    """Phases lie between consecutive key events."""
    return tuple(f"{before} to {after}" for before, after in pairwise(key_events))


def read_ae2(name: str, root: Path) -> Dataset:
    """One of the four datasets from its folder."""
    labels = read_labels(root / "label.pickle")
    phases = phase_names(KEY_EVENTS[name])
    found = _listed_in_csv(root) if name in LISTED_IN_CSV else _in_split_folders(root)
    videos = []
    for path, view, split in found:
        if path.stem not in labels:
            raise DatasetError(f"{path}: no labels for {path.stem!r} in {root / 'label.pickle'}")
        if max(labels[path.stem], default=0) >= len(phases):
            raise DatasetError(
                f"{path}: phase {max(labels[path.stem])} in {root / 'label.pickle'}, {name} has {len(phases)} phases"
            )
        videos.append(Video(path.stem, view, split, path, labels=labels[path.stem]))
    dataset = Dataset(name, root, tuple(_pair_up(videos)), phase_names=phases)
    require_views(dataset, SPLITS)
    return dataset


def _pair_up(videos: list[Video]) -> Iterator[Video]:
    """Where both views have a stem, the view becomes part of the id; the two are a pair if they are in one split."""
    views, splits = defaultdict(set), defaultdict(set)
    for video in videos:
        views[video.id].add(video.view)
        splits[video.id].add(video.split)
    for video in videos:
        stem = video.id
        if len(views[stem]) == 1:
            yield video
        else:
            yield replace(video, id=f"{stem}-{video.view}", pair=stem if len(splits[stem]) == 1 else None)


def _listed_in_csv(root: Path) -> Iterator[tuple[Path, View, Split]]:
    for split in SPLITS:
        for view in VIEWS:
            list_file = root / view / f"{split}.csv"
            try:
                lines = list_file.read_text(encoding="utf-8-sig").splitlines()
            except FileNotFoundError:
                raise DatasetError(f"{list_file}: not there; it is part of the dataset's download") from None
            except UnicodeDecodeError:
                raise DatasetError(f"{list_file}: not a text file") from None
            for line in filter(None, map(str.strip, lines)):
                yield inside(root / view, line, str(list_file)), view, split


def _in_split_folders(root: Path) -> Iterator[tuple[Path, View, Split]]:
    for split in SPLITS:
        for view in VIEWS:
            for path in sorted((root / split / view).glob("*.mp4")):
                if not path.name.startswith("."):
                    yield path, view, split
