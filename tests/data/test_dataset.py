from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.factories import write_file

from byov.data import READERS, open_dataset
from byov.data.dataset import WHOLE_FILE, Dataset, FileSegment, Video, event_intervals
from byov.errors import DatasetError


@pytest.mark.parametrize(
    ("annotation", "times", "expected"),
    [
        ({"labels": (0, 0, 1, 2)}, [0.0, 0.1, 0.2, 0.3], (0, 0, 1, 2)),
        ({"labels": (0, 0, 1, 2)}, [0.0, 0.1], (0, 0)),
        (
            {"intervals": event_intervals((0.5, 2.0))},
            [0.0, 0.49, 0.5, 1.9, 2.0, 9.0],
            (0, 0, 1, 1, 2, 2),
        ),
        ({"intervals": event_intervals((0.0,))}, [0.0, 1.0], (1, 1)),
        (
            {"intervals": event_intervals((2.0,), ((0, 1), (3, np.inf)))},
            [0.0, 0.9, 1.0, 2.0, 2.9, 3.0, 9.0],
            (-1, -1, 0, 1, 1, -1, -1),
        ),
        ({"intervals": event_intervals((2.0,), ((0, 1),))}, [0.0, 0.5], None),
        ({"actions": (3,)}, [0.0], None),
    ],
)
def test_phases_of_frames(annotation, times, expected):
    assert (
        Video("a", "ego", "train", Path("a.mp4"), **annotation).phases(np.array(times)) == expected
    )


@pytest.fixture
def make(tmp_path):
    """Return a function that creates a video file for each (view, split), all in the pair 'p'."""

    def videos(*members):
        paths = [write_file(tmp_path / f"{index}.mp4") for index in range(len(members))]
        return tuple(
            Video(path.stem, *member, path, pair="p")
            for path, member in zip(paths, members, strict=True)
        )

    return videos


@pytest.mark.parametrize("ids", [("a", "a"), ("Pour", "pour")])
def test_ids_are_unique_without_case(ids, make, tmp_path):
    videos = make(("ego", "train"), ("exo", "train"))
    renamed = tuple(replace(video, id=name) for video, name in zip(videos, ids, strict=True))
    with pytest.raises(
        DatasetError, match=f"{ids[0]!r} is not unique.*{videos[0].path}, {videos[1].path}"
    ):
        Dataset("mine", tmp_path, renamed)


@pytest.mark.parametrize(
    "members",
    [
        [("ego", "train")],
        [("ego", "train"), ("ego", "train")],
        [("ego", "val"), ("exo", "train")],
    ],
)
def test_a_pair_has_both_views_in_one_split(members, make, tmp_path):
    Dataset("mine", tmp_path, make(("exo", "val"), ("ego", "val"), ("exo", "val")))
    with pytest.raises(DatasetError, match="pair 'p'"):
        Dataset("mine", tmp_path, make(*members))


def test_a_group_is_in_one_split(make, tmp_path):
    videos = make(("ego", "train"), ("exo", "val"))
    Dataset("mine", tmp_path, tuple(replace(video, pair=None, group=video.id) for video in videos))
    together = tuple(replace(video, pair=None, group="take 1") for video in videos)
    with pytest.raises(DatasetError, match=r"group 'take 1' is in several splits: 0 \(ego, train"):
        Dataset("mine", tmp_path, together)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({}, "a and b are the same part of"),
        ({"view": "exo"}, None),
        ({"split": "val"}, r"a \(train\) and b \(val\) show the same frames"),
        ({"split": "val", "view": "exo", "segment": FileSegment(5, 8)}, "same frames"),
        ({"split": "val", "segment": FileSegment(0, 2)}, "same frames"),
    ],
)
@pytest.mark.parametrize("segment", [WHOLE_FILE, FileSegment(1, 6)])
def test_splits_do_not_share_frames(tmp_path, segment, second, message):
    path = write_file(tmp_path / "a.mp4")
    first = Video("a", "ego", "train", path, segment=segment)
    other = replace(first, id="b", **second)
    apart = replace(first, id="c", split="test", path=write_file(tmp_path / "c.mp4"))
    if message is None:
        Dataset("mine", tmp_path, (first, other, apart))
    else:
        with pytest.raises(DatasetError, match=message):
            Dataset("mine", tmp_path, (first, apart, other))


def test_splits_may_contain_different_parts_of_a_file(tmp_path):
    path = write_file(tmp_path / "a.mp4")
    parts = [("train", 0, 4, "s"), ("val", 4, 6, "s"), ("train", 6, 9, "s"), ("test", 9, 12, "f")]
    videos = [
        Video(f"{start}", "ego", split, path, segment=FileSegment(start, end, unit))
        for split, start, end, unit in parts
    ]
    assert len(Dataset("mine", tmp_path, tuple(videos)).videos) == 4


# --- open_dataset


def test_unknown_name(tmp_path):
    assert list(READERS)[:6] == [
        "break_eggs",
        "pour_milk",
        "pour_liquid",
        "tennis_forehand",
        "charades_ego",
        "demo",
    ]
    with pytest.raises(DatasetError, match=r"unknown dataset 'milk'.*break_eggs.*--manifest"):
        open_dataset("milk", tmp_path)


@pytest.mark.parametrize(
    ("name", "download"),
    [("pour_milk", "AlignEgoExo"), ("charades_ego", "prior.allenai.org/projects/charades-ego")],
)
def test_missing_dataset_names_folder_and_download(name, download, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_file(tmp_path / name, "a file, not the folder")
    with pytest.raises(DatasetError, match=f"{tmp_path / name} is missing.*{download}"):
        open_dataset(name, Path())


@pytest.mark.parametrize(
    ("name", "file"), [("charades_ego", "CharadesEgo_v1_train.csv"), ("demo", "videos.csv")]
)
def test_empty_folder_names_the_missing_file(name, file, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(DatasetError, match=f"{tmp_path / name / file}: missing"):
        open_dataset(name, tmp_path)
