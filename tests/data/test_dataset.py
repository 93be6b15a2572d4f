from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.factories import write_file

from byov.data import READERS, open_dataset
from byov.data.dataset import Dataset, Video
from byov.errors import DatasetError


@pytest.mark.parametrize(
    ("annotation", "times", "expected"),
    [
        ({"labels": (0, 0, 1, 2)}, [0.0, 0.1, 0.2, 0.3], (0, 0, 1, 2)),
        ({"labels": (0, 0, 1, 2)}, [0.0, 0.1], (0, 0)),
        ({"events": (0.5, 2.0)}, [0.0, 0.49, 0.5, 1.9, 2.0, 9.0], (0, 0, 1, 1, 2, 2)),
        ({"events": (0.0,)}, [0.0, 1.0], (1, 1)),
        (
            {"events": (2.0,), "unlabeled": ((0, 1), (3, np.inf))},
            [0.0, 0.9, 1.0, 2.0, 2.9, 3.0, 9.0],
            (-1, -1, 0, 1, 1, -1, -1),
        ),
        ({"events": (2.0,), "unlabeled": ((0, 1),)}, [0.0, 0.5], None),
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
        [("ego", "train"), ("ego", "train"), ("exo", "train")],
        [("ego", "val"), ("exo", "train")],
    ],
)
def test_a_pair_is_one_ego_and_one_exo_video_of_a_split(members, make, tmp_path):
    Dataset("mine", tmp_path, make(("exo", "val"), ("ego", "val")))
    with pytest.raises(DatasetError, match="pair 'p'"):
        Dataset("mine", tmp_path, make(*members))


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
