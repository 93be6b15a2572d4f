import pickle

import numpy as np
import pytest
from tests.factories import write_file

from byov.data import READERS
from byov.errors import DatasetError
from byov.records import SPLITS, VIEWS

PHASES = {"break_eggs": 4, "tennis_forehand": 2, "pour_milk": 3, "pour_liquid": 3}
PLACES = [(view, split) for split in SPLITS for view in VIEWS]


def read(name, root):
    return READERS[name]().read(root)


def stem_of(view, split):
    other = "exo" if view == "ego" else "ego"
    # Contains both views, so that only the folder determines the view.
    return f"{view}_lego_{other}_{split}"


STEMS = [stem_of(*place) for place in PLACES]
FIRST = STEMS[0]


@pytest.fixture
def build(tmp_path):
    """Return a function that writes a dataset with one video per view and split, plus the videos
    listed in `more`.
    """

    def write(name, labels=None, more=()):
        videos = [(stem_of(*place), *place) for place in PLACES] + list(more)
        root = tmp_path / name
        for stem, view, split in videos:
            write_file(
                root / view / f"{stem}.mp4"
                if READERS[name].is_listed
                else root / split / view / f"{stem}.mp4"
            )
        for view, split in PLACES if READERS[name].is_listed else ():
            lines = [f"{stem}.mp4\n" for stem, *place in videos if tuple(place) == (view, split)]
            write_file(root / view / f"{split}.csv", "".join(lines))
        labels = {stem: [0, 0, 1] for stem, _, _ in videos} if labels is None else labels
        write_file(root / "label.pickle", pickle.dumps(labels))
        return root

    return write


def by_id(name, root):
    return {video.id: video for video in read(name, root).videos}


@pytest.mark.parametrize("name", PHASES)
def test_published_layout(name, build):
    root = build(name, dict.fromkeys(STEMS, np.array([0, 0, 1])))
    dataset = read(name, root)
    assert [(video.id, video.view, video.split) for video in dataset.videos] == [
        (stem_of(*place), *place) for place in PLACES
    ]
    assert len(dataset.phase_names) == PHASES[name]
    assert dataset.phase_names[0].startswith("start to ")
    assert {video.labels for video in dataset.videos} == {(0, 0, 1)}
    assert all(video.path.is_file() and video.path.is_relative_to(root) for video in dataset.videos)


@pytest.mark.parametrize("lines", ["\ufeff{}\n", "{}\r\n", "\n\n  {}  \n\n", "{}"])
def test_list_dialects(lines, build):
    root = build("break_eggs")
    write_file(root / "ego/train.csv", lines.format(f"{FIRST}.mp4"))
    assert len(read("break_eggs", root).videos) == 6


def test_other_files_are_ignored(build):
    for name, files in (
        ("break_eggs", ["ego/unlisted.mp4"]),
        ("pour_milk", ["train/ego/._a.mp4", "train/ego/a.txt"]),
    ):
        root = build(name)
        for file in files:
            write_file(root / file)
        assert len(read(name, root).videos) == 6


@pytest.mark.parametrize("name", ["break_eggs", "pour_milk"])
def test_every_split_needs_both_views(name, build):
    root = build(name)
    if READERS[name].is_listed:
        write_file(root / "exo/val.csv")
    else:
        (root / "val/exo" / f"{stem_of('exo', 'val')}.mp4").unlink()
    with pytest.raises(DatasetError, match=f"the val split of {name} has no exo videos"):
        read(name, root)


@pytest.mark.parametrize(
    "file", ["exo/test.csv", "label.pickle", f"exo/{stem_of('exo', 'val')}.mp4", "ego/train.csv"]
)
def test_missing_and_unreadable_files_are_named(file, build):
    root = build("break_eggs")
    problem = "missing"
    (root / file).unlink()
    if file == "ego/train.csv":  # the folder would not be recognized without it
        write_file(root / file, b"caf\xe9.mp4\n")
        problem = "not a text file"
    with pytest.raises(DatasetError, match=f"{root / file}: .*{problem}"):
        read("break_eggs", root)


def test_video_without_labels(build):
    root = build("break_eggs", dict.fromkeys(STEMS[:-1], (0,)))
    with pytest.raises(
        DatasetError, match=f"no labels for {STEMS[-1]!r} in {root / 'label.pickle'}"
    ):
        read("break_eggs", root)


@pytest.mark.parametrize("name", PHASES)
def test_phases_out_of_range(name, build):
    labels = dict.fromkeys(STEMS, (0, PHASES[name] - 1))
    assert read(name, build(name, labels)).videos[0].labels == (0, PHASES[name] - 1)
    labels[STEMS[3]] = (0, PHASES[name])
    with pytest.raises(DatasetError, match=rf"{STEMS[3]}\.mp4: phase {PHASES[name]}"):
        read(name, build(name, labels))


@pytest.mark.parametrize("name", ["break_eggs", "pour_milk"])
def test_a_stem_in_both_views_is_a_pair(name, build):
    videos = by_id(name, build(name, more=[(FIRST, "exo", "train")]))
    ego = videos[f"{FIRST}-ego"]
    exo = videos[f"{FIRST}-exo"]
    assert (ego.view, exo.view, ego.pair, exo.pair) == ("ego", "exo", FIRST, FIRST)
    assert (ego.path.parent.name, exo.path.parent.name) == ("ego", "exo")
    assert [video.id for video in videos.values() if video.pair is None] == STEMS[1:]
    # In different splits.
    videos = by_id("pour_liquid", build("pour_liquid", more=[(FIRST, "exo", "test")]))
    assert (videos[f"{FIRST}-exo"].split, videos[f"{FIRST}-exo"].pair) == ("test", None)


@pytest.mark.parametrize(
    "more",
    [
        [(FIRST, "ego", "test")],
        [(FIRST, "exo", "train"), (FIRST, "exo", "val")],
        [(FIRST, "exo", "train"), (f"{FIRST}-exo", "ego", "val")],
    ],
)
def test_ids_must_be_unique(more, build):
    with pytest.raises(DatasetError, match="not unique"):
        read("pour_milk", build("pour_milk", more=more))


@pytest.mark.parametrize("name", ["break_eggs", "pour_milk"])
def test_a_dataset_may_be_unzipped_one_folder_deeper(name, build, tmp_path):
    expected = [video.id for video in read(name, build(name)).videos]
    (tmp_path / name).rename(tmp_path / "unzipped")
    (tmp_path / name).mkdir()
    (tmp_path / "unzipped").rename(tmp_path / name / "AE2_data")
    assert [video.id for video in read(name, tmp_path / name).videos] == expected


def test_other_layouts_are_described(build, tmp_path):
    root = build("break_eggs")
    with pytest.raises(
        DatasetError,
        match=r"expected \{train,val,test\}/\{ego,exo\}.*found ego/, exo/, label.pickle",
    ):
        read("pour_milk", root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="found nothing"):
        read("break_eggs", tmp_path / "empty")
    build("pour_liquid").rename(tmp_path / "deep")
    (tmp_path / "pour_liquid/AE2").mkdir(parents=True)
    (tmp_path / "deep").rename(tmp_path / "pour_liquid/AE2/data")
    with pytest.raises(DatasetError, match=r"expected \{train,val,test\}.*found AE2/\. Move"):
        read("pour_liquid", tmp_path / "pour_liquid")
