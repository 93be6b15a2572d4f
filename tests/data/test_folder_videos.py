"""A folder of videos, and what its names say."""

from pathlib import PurePath

import pytest

from byov.cache.layout import check_name
from byov.data.own_videos import list_folder, read_own_videos, share_out, unique_ids
from byov.errors import DatasetError


@pytest.fixture
def folder(tmp_path):
    """folder(*names): empty files, since names are all that is looked at."""

    def make(*names):
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path

    return make


def rows(listing):
    return [(str(video.path), video.view, video.split) for video in listing.videos]


@pytest.mark.parametrize(
    ("ego", "exo"),
    [
        ("ego/1.mp4", "exo/1.mp4"),
        ("Ego/a/1.MP4", "Exo/b/2.mov"),
        ("head_ego_01.mkv", "tripod-exo2.avi"),
        ("egocentric/x.webm", "monday/exocentric x.m4v"),
        ("ego_exo/ego1.mp4", "ego_exo/exo1.mp4"),  # a part with both words says nothing
        ("exo videos/ego 1.mp4", "ego videos/exo 1.mp4"),  # the nearest word counts
    ],
)
def test_views_are_words_of_the_path(ego, exo, folder):
    listing = list_folder(folder(ego, exo))
    assert rows(listing) == [(ego, "ego", "train"), (exo, "exo", "train")]
    assert listing.not_videos == listing.without_view == ()


def test_words_within_words_are_no_views(folder):
    with pytest.raises(DatasetError, match="2 videos in it, none with 'ego' as a word of its path; put them into"):
        list_folder(folder("lego/1.mp4", "exo/2.mp4"))


def test_one_video_is_not_enough(folder):
    with pytest.raises(DatasetError, match="1 video in it, none with 'exo' as a word"):
        list_folder(folder("ego/1.mp4"))


def test_what_is_no_video_or_has_no_view_is_told(folder):
    listing = list_folder(folder("ego/1.mp4", "exo/1.mp4", "ego/notes.txt", "x/2.mp4", ".hidden/3.mp4", "videos.csv"))
    assert listing.not_videos == (PurePath("ego/notes.txt"),)
    assert listing.without_view == (PurePath("x/2.mp4"),)
    assert len(listing.videos) == 2


def test_splits_by_folder(folder):
    names = ["ego/train/1.mp4", "Training/exo/2.mp4", "validation/ego/3.mp4", "exo/test/4.mp4"]
    assert {split for _, _, split in rows(list_folder(folder(*names)))} == {"train", "val", "test"}
    assert rows(list_folder(folder(*names)))[0] == ("ego/train/1.mp4", "ego", "train")


def test_splits_of_folders_are_of_all_videos_or_of_none(folder):
    root = folder("ego/train/1.mp4", "exo/train/2.mp4", "exo/3.mp4")
    with pytest.raises(DatasetError, match=r"ego/train/1.mp4 is in a folder of a split and exo/3.mp4 is not"):
        list_folder(root)
    with pytest.raises(DatasetError, match="leave --split out"):
        list_folder(root, (0.5, 0, 0.5))


@pytest.mark.parametrize("shares", [(0.6, 0.2, 0.2), (1, 0, 0), (0.5, 0, 0.5), (0.8, 0.1, 0.1), (1 / 3, 1 / 3, 1 / 3)])
@pytest.mark.parametrize("videos", [0, 1, 2, 5, 30, 31])
def test_shares_are_met_to_one_video_and_train_is_never_empty(videos, shares):
    given = share_out(videos, shares)
    assert given[:1] == ["train"][:videos]
    for split, share in zip(("train", "val", "test"), shares, strict=True):
        assert abs(given.count(split) - share * videos) <= 1


def test_each_view_is_shared_out_alike(folder):
    names = [f"{view}/{index}.mp4" for view in ("ego", "exo") for index in range(5)]
    listed = rows(list_folder(folder(*names), (0.6, 0.2, 0.2)))
    assert [split for _, _, split in listed] == ["train", "val", "train", "test", "train"] * 2


def test_ids_are_stems_where_they_can_be_and_names_of_files_in_any_case():
    paths = [PurePath(name) for name in ("ego/1.mp4", "exo/1.mp4", "a/_b?.mp4", "ego-1.mp4", "exo/***.mp4", "c/1.avi")]
    ids = list(unique_ids(paths).values())
    assert ids == ["ego-1", "exo-1", "b", "ego-1-2", "video", "c-1"]
    assert [check_name(name, "id") for name in ids] == ids


def test_the_csv_is_what_the_reader_reads(folder):
    root = folder("ego/a, b.mp4", "exo/été.mp4")
    (root / "videos.csv").write_text(list_folder(root).to_csv(), encoding="utf-8")
    dataset = read_own_videos("mine", root / "videos.csv")
    assert [(video.id, video.view, video.path.name) for video in dataset.videos] == [
        ("a, b", "ego", "a, b.mp4"),
        ("été", "exo", "été.mp4"),
    ]


@pytest.mark.parametrize(("name", "said"), [("none", "no such folder"), ("file", "a file, not a folder")])
def test_folder_that_is_none(name, said, folder):
    with pytest.raises(DatasetError, match=said):
        list_folder(folder("file") / name)
