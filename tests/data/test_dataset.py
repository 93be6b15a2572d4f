import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byov.data.dataset import Dataset, Video, path_inside, require_views
from byov.errors import DatasetError

ROOTS = [".", "..", "rel", "rel/../other", "/abs", "/abs/../other"]


def make_video(**changes):
    return replace(Video("a", "ego", "train", Path("a.mp4")), **changes)


@pytest.mark.parametrize(
    ("annotation", "times", "expected"),
    [
        ({"labels": (0, 0, 1, 2)}, [0.0, 0.1, 0.2, 0.3], (0, 0, 1, 2)),
        ({"labels": (0, 0, 1, 2)}, [0.0, 0.1], (0, 0)),
        ({"event_seconds": (0.5, 2.0)}, [0.0, 0.49, 0.5, 1.9, 2.0, 9.0], (0, 0, 1, 1, 2, 2)),
        ({"event_seconds": (0.0,)}, [0.0, 1.0], (1, 1)),
        (
            {"event_seconds": (2.0,), "unlabeled_seconds": ((0, 1), (3, np.inf))},
            [0.0, 0.9, 1.0, 2.0, 2.9, 3.0, 9.0],
            (-1, -1, 0, 1, 1, -1, -1),
        ),
        ({"event_seconds": (2.0,), "unlabeled_seconds": ((0, 1),)}, [0.0, 0.5], None),
        ({"actions": (3,)}, [0.0], None),
    ],
)
def test_phases_of_frames(annotation, times, expected):
    assert make_video(**annotation).phases(np.array(times)) == expected


@pytest.mark.parametrize("ids", [("a", "a"), ("Pour", "pour")])
def test_ids_are_unique_without_case(ids, place, tmp_path):
    paths = [place("ego/a.mp4"), place("exo/a.mp4")]
    videos = tuple(make_video(id=name, path=path) for name, path in zip(ids, paths, strict=True))
    with pytest.raises(DatasetError, match=f"{ids[0]!r} is not unique.*{paths[0]}, {paths[1]}"):
        Dataset("mine", tmp_path, videos)


def paired(place, members):
    """Videos of the given views and splits, all in the pair 'p'."""
    return tuple(
        Video(f"v{index}", view, split, place(f"v{index}.mp4"), pair="p") for index, (view, split) in enumerate(members)
    )


def test_pairs(place, tmp_path):
    first, second = paired(place, [("exo", "val"), ("ego", "val")])
    third, fourth = (replace(video, id=f"{video.id}'", pair="q") for video in (first, second))
    unpaired = replace(first, id="unpaired", pair=None)
    dataset = Dataset("mine", tmp_path, (first, third, unpaired, second, fourth))
    assert [video.pair for video in dataset.videos] == ["p", "q", None, "p", "q"]


@pytest.mark.parametrize(
    "members",
    [
        [("ego", "train")],
        [("ego", "train"), ("ego", "train")],
        [("ego", "train"), ("ego", "train"), ("exo", "train")],
        [("ego", "val"), ("exo", "train")],
    ],
)
def test_a_pair_is_one_ego_and_one_exo_video_of_a_split(members, place, tmp_path):
    with pytest.raises(DatasetError, match="pair 'p'"):
        Dataset("mine", tmp_path, paired(place, members))


def test_missing_files_are_named(tmp_path):
    (tmp_path / "folder.mp4").mkdir()
    for name in ("absent.mp4", "folder.mp4"):
        with pytest.raises(DatasetError, match=f"{name}: listed in the val split"):
            Dataset("mine", tmp_path, (make_video(split="val", path=tmp_path / name),))


def test_require_views(place, tmp_path):
    ego, exo = make_video(path=place("a.mp4")), make_video(id="b", view="exo", path=place("b.mp4"))
    dataset = Dataset("mine", tmp_path, (ego, exo, replace(exo, id="c", split="test")))
    require_views(dataset, ("train",))
    with pytest.raises(DatasetError, match="test split of mine has no ego videos"):
        require_views(dataset, ("train", "test"))


@pytest.mark.parametrize(
    ("name", "expected"), [("a.mp4", "a.mp4"), ("sub/a.mp4", "sub/a.mp4"), ("sub/../a.mp4", "a.mp4"), ("..a", "..a")]
)
@pytest.mark.parametrize("root", ROOTS)
def test_path_inside(root, name, expected):
    assert path_inside(Path(root), name, "list") == Path(os.path.normpath(root)) / expected


@pytest.mark.parametrize("name", ["../x.mp4", "sub/../../x.mp4", "/etc/x.mp4", "..", ".", "", "sub/..", "a\0b.mp4"])
@pytest.mark.parametrize("root", ROOTS)
def test_paths_outside_are_refused(root, name):
    with pytest.raises(DatasetError, match=r"list\.csv:3: .* outside"):
        path_inside(Path(root), name, "list.csv:3")


def test_a_neighbor_folder_with_the_same_prefix_is_outside():
    with pytest.raises(DatasetError):
        path_inside(Path("/abs/data"), "../data2/x.mp4", "list")


def test_links_below_the_root_may_point_anywhere(place, tmp_path):
    target = place("elsewhere/a.mp4")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link.mp4").symlink_to(target)
    assert path_inside(tmp_path / "root", "link.mp4", "list") == tmp_path / "root" / "link.mp4"
