import pickle

import numpy as np
import pytest

from byov.data.ae2 import KEY_EVENTS, phase_names, read_ae2
from byov.data.dataset import SPLITS, VIEWS
from byov.errors import DatasetError

LISTED = ["break_eggs", "tennis_forehand"]
IN_FOLDERS = ["pour_milk", "pour_liquid"]
PHASES = {"break_eggs": 4, "tennis_forehand": 2, "pour_milk": 3, "pour_liquid": 3}


def stem_of(view, split):
    other = "exo" if view == "ego" else "ego"
    return f"{view}_lego_{other}_{split}"  # contains both views: only the folder tells the view


STEMS = [stem_of(view, split) for split in SPLITS for view in VIEWS]


@pytest.fixture
def build(place, tmp_path):
    """build(name, labels, more): the published layout with a video per view and split; more: (stem, view, split)."""

    def write(name, labels=None, more=()):
        videos = [(stem_of(view, split), view, split) for split in SPLITS for view in VIEWS] + list(more)
        for stem, view, split in videos:
            place(f"{name}/{view}/{stem}.mp4" if name in LISTED else f"{name}/{split}/{view}/{stem}.mp4")
        if name in LISTED:
            for split in SPLITS:
                for view in VIEWS:
                    lines = [f"{stem}.mp4\n" for stem, *place_of in videos if place_of == [view, split]]
                    place(f"{name}/{view}/{split}.csv", "".join(lines))
        labels = {stem: [0, 0, 1] for stem, _, _ in videos} if labels is None else labels
        place(f"{name}/label.pickle", pickle.dumps(labels))
        return tmp_path / name

    return write


@pytest.mark.parametrize("name", LISTED + IN_FOLDERS)
def test_published_layout(name, build):
    root = build(name, dict.fromkeys(STEMS, np.array([0, 0, 1])))
    dataset = read_ae2(name, root)
    assert [(video.id, video.view, video.split) for video in dataset.videos] == [
        (stem_of(view, split), view, split) for split in SPLITS for view in VIEWS
    ]
    assert len(dataset.phase_names) == PHASES[name]
    for video in dataset.videos:
        assert video.labels == (0, 0, 1)
        assert video.path.is_file()
        assert video.path.is_relative_to(root)


def test_phases_lie_between_key_events():
    assert phase_names(KEY_EVENTS["tennis_forehand"]) == ("start to racket touches ball", "racket touches ball to end")


@pytest.mark.parametrize("lines", ["\ufeff{}\n", "{}\r\n", "\n\n  {}  \n\n", "{}"])
def test_list_dialects(lines, build, place):
    root = build("break_eggs")
    place("break_eggs/ego/train.csv", lines.format(f"{stem_of('ego', 'train')}.mp4"))
    assert len(read_ae2("break_eggs", root).videos) == 6


def test_other_files_are_ignored(build, place):
    for name, files in (("break_eggs", ["ego/unlisted.mp4"]), ("pour_milk", ["train/ego/._a.mp4", "train/ego/a.txt"])):
        root = build(name)
        for file in files:
            place(f"{name}/{file}")
        assert len(read_ae2(name, root).videos) == 6


@pytest.mark.parametrize("name", ["break_eggs", "pour_milk"])
@pytest.mark.parametrize(("view", "split"), [("ego", "train"), ("exo", "val")])
def test_every_split_needs_both_views(name, view, split, build):
    root = build(name)
    if name in LISTED:
        (root / view / f"{split}.csv").write_text("")
    else:
        (root / split / view / f"{stem_of(view, split)}.mp4").unlink()
    with pytest.raises(DatasetError, match=f"the {split} split of {name} has no {view} videos"):
        read_ae2(name, root)


@pytest.mark.parametrize("file", ["exo/test.csv", "label.pickle", f"exo/{stem_of('exo', 'val')}.mp4"])
def test_missing_files_are_named(file, build):
    root = build("break_eggs")
    (root / file).unlink()
    with pytest.raises(DatasetError, match=f"{root / file}: .*missing"):
        read_ae2("break_eggs", root)


def test_list_that_is_not_text(build, place):
    root = build("break_eggs")
    place("break_eggs/exo/test.csv", b"caf\xe9.mp4\n")
    with pytest.raises(DatasetError, match="not a text file"):
        read_ae2("break_eggs", root)


@pytest.mark.parametrize("name", ["break_eggs", "pour_milk"])
def test_video_without_labels(name, build):
    root = build(name, dict.fromkeys(STEMS[:-1], (0,)))
    with pytest.raises(DatasetError, match=f"no labels for {STEMS[-1]!r} in {root / 'label.pickle'}"):
        read_ae2(name, root)


@pytest.mark.parametrize("name", LISTED + IN_FOLDERS)
def test_phases_out_of_range(name, build):
    labels = dict.fromkeys(STEMS, (0, PHASES[name] - 1))
    assert read_ae2(name, build(name, labels)).videos[0].labels == (0, PHASES[name] - 1)
    labels[STEMS[3]] = (0, PHASES[name])
    with pytest.raises(DatasetError, match=rf"{STEMS[3]}\.mp4: phase {PHASES[name]}"):
        read_ae2(name, build(name, labels))


@pytest.mark.parametrize("name", LISTED + IN_FOLDERS)
def test_a_stem_in_both_views_is_a_pair(name, build):
    stem = stem_of("ego", "train")
    videos = {video.id: video for video in read_ae2(name, build(name, more=[(stem, "exo", "train")])).videos}
    ego, exo = videos[f"{stem}-ego"], videos[f"{stem}-exo"]
    assert (ego.view, exo.view, ego.pair, exo.pair) == ("ego", "exo", stem, stem)
    assert (ego.path.parent.name, exo.path.parent.name) == ("ego", "exo")
    assert [video.id for video in videos.values() if video.pair is None] == [other for other in STEMS if other != stem]


def test_a_stem_in_different_splits_is_not_a_pair(build):
    stem = stem_of("ego", "train")
    videos = {
        video.id: video for video in read_ae2("pour_milk", build("pour_milk", more=[(stem, "exo", "test")])).videos
    }
    assert (videos[f"{stem}-ego"].split, videos[f"{stem}-exo"].split) == ("train", "test")
    assert {video.pair for video in videos.values()} == {None}


@pytest.mark.parametrize(
    "more",
    [
        [(stem_of("ego", "train"), "ego", "test")],
        [(stem_of("ego", "train"), "exo", "train"), (stem_of("ego", "train"), "exo", "val")],
        [(stem_of("ego", "train"), "exo", "train"), (f"{stem_of('ego', 'train')}-exo", "ego", "val")],
    ],
)
def test_ids_must_be_unique(more, build):
    with pytest.raises(DatasetError, match="not unique"):
        read_ae2("pour_milk", build("pour_milk", more=more))


@pytest.mark.parametrize("line", ["../../x.mp4", "/etc/x.mp4", "../exo/x.mp4", ".."])
def test_listed_path_outside_of_the_folder(line, build, place):
    root = build("break_eggs")
    place("break_eggs/ego/train.csv", f"{line}\n")
    with pytest.raises(DatasetError, match=rf"train\.csv: .*{line!r}.* outside"):
        read_ae2("break_eggs", root)
