import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from byov.data.dataset import Dataset, Video, inside, require_views
from byov.errors import DatasetError


def test_labels_are_the_phases_of_the_frames_that_were_decoded() -> None:
    video = Video("a", "ego", "train", Path("a.mp4"), labels=(0, 0, 1, 2))
    assert video.phases(np.array([0.0, 0.1, 0.2, 0.3])) == (0, 0, 1, 2)
    assert video.phases(np.array([0.0, 0.1])) == (0, 0)


def test_phase_is_the_number_of_events_that_have_happened() -> None:
    video = Video("a", "ego", "train", Path("a.mp4"), event_seconds=(0.5, 2.0))
    assert video.phases(np.array([0.0, 0.49, 0.5, 1.9, 2.0, 9.0])) == (0, 0, 1, 1, 2, 2)


def test_event_at_zero_has_happened_at_the_first_frame() -> None:
    video = Video("a", "ego", "train", Path("a.mp4"), event_seconds=(0.0,))
    assert video.phases(np.array([0.0, 1.0])) == (1, 1)


def test_stretches_without_labels_are_no_phase() -> None:
    video = Video("a", "ego", "train", Path("a.mp4"), event_seconds=(2.0,), unlabeled_seconds=((0, 1), (3, np.inf)))
    assert video.phases(np.array([0.0, 0.9, 1.0, 2.0, 2.9, 3.0, 9.0])) == (-1, -1, 0, 1, 1, -1, -1)
    assert video.phases(np.array([0.0, 0.5])) is None


def test_video_without_labels_and_events_has_no_phases() -> None:
    assert Video("a", "ego", "train", Path("a.mp4"), actions=(3,)).phases(np.array([0.0])) is None


def test_two_videos_with_one_id_are_named(place: Callable[..., Path], tmp_path: Path) -> None:
    first, second = place("ego/a.mp4"), place("exo/a.mp4")
    videos = (Video("a", "ego", "train", first), Video("a", "exo", "train", second))
    with pytest.raises(DatasetError) as error:
        Dataset("mine", tmp_path, videos)
    assert "mine: 1 id stands for two videos" in str(error.value)
    assert "'a'" in str(error.value)
    assert str(first) in str(error.value)
    assert str(second) in str(error.value)


def videos_of(place: Callable[..., Path], members: list[tuple[str, str]]) -> tuple[Video, ...]:
    """Videos of the given views and splits that all say they are of the pair 'p'."""
    return tuple(
        Video(f"v{index}", view, split, place(f"v{index}.mp4"), pair="p")  # type: ignore[arg-type]
        for index, (view, split) in enumerate(members)
    )


def test_a_pair_is_one_ego_and_one_exo_video_of_a_split(place: Callable[..., Path], tmp_path: Path) -> None:
    first, second = videos_of(place, [("exo", "val"), ("ego", "val")])
    third, fourth = (replace(video, id=f"{video.id}'", pair="q") for video in (first, second))
    alone = Video("alone", "ego", "val", first.path)
    dataset = Dataset("mine", tmp_path, (first, third, alone, second, fourth, replace(alone, id="alone too")))
    assert [video.pair for video in dataset.videos] == ["p", "q", None, "p", "q", None]


@pytest.mark.parametrize(
    ("members", "wrong"),
    [
        ([("ego", "train")], "has no exo video"),
        ([("exo", "train")], "has no ego video"),
        ([("ego", "train"), ("ego", "train")], "has 2 ego videos"),
        ([("ego", "train"), ("ego", "train"), ("exo", "train")], "has 2 ego videos"),
        ([("exo", "train"), ("ego", "train"), ("exo", "val"), ("exo", "val")], "has 3 exo videos"),
        ([("ego", "val"), ("exo", "train")], "is in the splits train and val"),
    ],
)
def test_what_is_no_pair_is_named(
    members: list[tuple[str, str]], wrong: str, place: Callable[..., Path], tmp_path: Path
) -> None:
    with pytest.raises(DatasetError) as error:
        Dataset("mine", tmp_path, videos_of(place, members))
    assert str(error.value) == f"mine: pair 'p' {wrong}; give it one ego and one exo video of the same split"


def test_listed_file_that_is_missing_or_a_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder.mp4").mkdir()
    for name in ("absent.mp4", "folder.mp4"):
        with pytest.raises(DatasetError, match=f"{name}: listed in mine \\(val split\\) and not there"):
            Dataset("mine", tmp_path, (Video("a", "ego", "val", tmp_path / name),))


def test_require_views_names_the_split_and_the_view(place: Callable[..., Path], tmp_path: Path) -> None:
    videos = (Video("a", "ego", "train", place("a.mp4")), Video("b", "exo", "train", place("b.mp4")))
    dataset = Dataset("mine", tmp_path, (*videos, Video("c", "exo", "test", place("c.mp4"))))
    require_views(dataset, ("train",))
    with pytest.raises(DatasetError, match="the test split of mine has no ego videos"):
        require_views(dataset, ("train", "test"))
    with pytest.raises(DatasetError, match="the val split of mine has no ego videos"):
        require_views(dataset, ("val",))


@pytest.mark.parametrize(
    ("name", "expected"), [("a.mp4", "a.mp4"), ("sub/a.mp4", "sub/a.mp4"), ("sub/../a.mp4", "a.mp4"), ("..a", "..a")]
)
@pytest.mark.parametrize("root", [".", "..", "rel", "rel/../other", "/abs", "/abs/../other"])
def test_inside_gives_the_path_below_any_root(root: str, name: str, expected: str) -> None:
    assert inside(Path(root), name, "list") == Path(os.path.normpath(root)) / expected


@pytest.mark.parametrize(
    "name", ["../x.mp4", "../../x.mp4", "sub/../../x.mp4", "/etc/x.mp4", "..", ".", "", "sub/..", "a\0b.mp4"]
)
@pytest.mark.parametrize("root", [".", "..", "rel", "rel/../other", "/abs", "/abs/../other"])
def test_inside_refuses_names_that_lead_out_of_any_root(root: str, name: str) -> None:
    with pytest.raises(DatasetError) as error:
        inside(Path(root), name, "list.csv:3")
    assert str(error.value) == f"list.csv:3: the path {name!r} leaves the dataset folder {Path(root)}"


def test_inside_refuses_a_neighbor_that_starts_with_the_name_of_the_root() -> None:
    with pytest.raises(DatasetError):
        inside(Path("/abs/data"), "../data2/x.mp4", "list")


def test_inside_follows_links_of_the_owner(place: Callable[..., Path], tmp_path: Path) -> None:
    target = place("elsewhere/a.mp4")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link.mp4").symlink_to(target)
    path = inside(tmp_path / "root", "link.mp4", "list")
    assert path == tmp_path / "root" / "link.mp4"
    assert Dataset("mine", tmp_path, (Video("a", "ego", "train", path),)).videos[0].path == path
