import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from byov.data.ae2 import KEY_EVENTS, phase_names, read_ae2
from byov.data.dataset import SPLITS, VIEWS, Dataset
from byov.errors import DatasetError

LISTED = ["break_eggs", "tennis_forehand"]
IN_FOLDERS = ["pour_milk", "pour_liquid"]
PHASES = {"break_eggs": 4, "tennis_forehand": 2, "pour_milk": 3, "pour_liquid": 3}
Place = Callable[..., Path]
Summary = Callable[[Dataset], set[tuple[str, str, str]]]


def stem_of(view: str, split: str) -> str:
    other = "exo" if view == "ego" else "ego"
    return f"{view}_lego_{other}_{split}"  # both views are in the name: it cannot tell them apart


@pytest.fixture
def build(place: Place, tmp_path: Path) -> Callable[..., Path]:
    """The published layout with one video per view and split, as the download of `name` has it."""

    def write(name: str, labels: Any = None) -> Path:
        stems = []
        for split in SPLITS:
            for view in VIEWS:
                stem = stem_of(view, split)
                stems.append(stem)
                if name in LISTED:
                    place(f"{name}/{view}/{stem}.mp4")
                    place(f"{name}/{view}/{split}.csv", f"{stem}.mp4\n")
                else:
                    place(f"{name}/{split}/{view}/{stem}.mp4")
        content = {stem: [0, 0, 1] for stem in stems} if labels is None else labels
        place(f"{name}/label.pickle", pickle.dumps(content))
        return tmp_path / name

    return write


def message_of(name: str, root: Path) -> str:
    with pytest.raises(DatasetError) as error:
        read_ae2(name, root)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", LISTED + IN_FOLDERS)
def test_published_layout(name: str, build: Callable[..., Path], summary: Summary) -> None:
    root = build(name)
    dataset = read_ae2(name, root)
    assert summary(dataset) == {(stem_of(view, split), view, split) for view in VIEWS for split in SPLITS}
    assert len(dataset.phase_names) == PHASES[name]
    for video in dataset.videos:
        assert video.labels == (0, 0, 1)
        assert video.path.is_file()
        assert video.path.is_relative_to(root)


def test_phases_lie_between_key_events() -> None:
    assert phase_names(KEY_EVENTS["tennis_forehand"]) == ("start to racket touches ball", "racket touches ball to end")


@pytest.mark.parametrize("name", LISTED + IN_FOLDERS)
def test_labels_as_arrays(name: str, build: Callable[..., Path]) -> None:
    labels = {stem_of(view, split): np.array([0, 1, 1]) for view in VIEWS for split in SPLITS}
    assert {video.labels for video in read_ae2(name, build(name, labels)).videos} == {(0, 1, 1)}


def test_video_in_exo_folder_is_exo_whatever_its_name(build: Callable[..., Path], place: Place) -> None:
    for name, file in (("break_eggs", "exo/exo_lego_ego.mp4"), ("pour_milk", "train/exo/exo_lego_ego.mp4")):
        labels = {stem_of(view, split): [0] for view in VIEWS for split in SPLITS} | {"exo_lego_ego": [0]}
        root = build(name, labels)
        place(f"{name}/{file}")
        if name in LISTED:
            place(f"{name}/exo/train.csv", f"{stem_of('exo', 'train')}.mp4\nexo_lego_ego.mp4\n")
        videos = {video.id: video for video in read_ae2(name, root).videos}
        assert videos["exo_lego_ego"].view == "exo"
        assert videos["exo_lego_ego"].split == "train"
        assert len(videos) == 7


@pytest.mark.parametrize("lines", ["\ufeff{}\n", "{}\r\n", "\n\n  {}  \n\n", "{}"])
def test_list_with_byte_order_mark_windows_ends_blanks_or_no_last_end(
    lines: str, build: Callable[..., Path], place: Place
) -> None:
    root = build("break_eggs")
    place("break_eggs/ego/train.csv", lines.format(f"{stem_of('ego', 'train')}.mp4"))
    assert len(read_ae2("break_eggs", root).videos) == 6


def test_files_that_are_not_listed_are_left_out(build: Callable[..., Path], place: Place) -> None:
    root = build("break_eggs")
    place("break_eggs/ego/unlisted.mp4")
    assert "unlisted" not in {video.id for video in read_ae2("break_eggs", root).videos}


def test_files_beside_the_videos_are_left_out(build: Callable[..., Path], place: Place) -> None:
    root = build("pour_milk")
    place("pour_milk/train/ego/._hidden.mp4", "resource fork")
    place("pour_milk/train/ego/notes.txt", "notes")
    assert len(read_ae2("pour_milk", root).videos) == 6


def test_order_is_fixed(build: Callable[..., Path]) -> None:
    root = build("pour_milk")
    ids = [video.id for video in read_ae2("pour_milk", root).videos]
    assert ids == [stem_of(view, split) for split in SPLITS for view in VIEWS]


@pytest.mark.parametrize("name", LISTED + IN_FOLDERS)
@pytest.mark.parametrize(("view", "split"), [("ego", "train"), ("exo", "val"), ("ego", "test")])
def test_split_without_videos_of_a_view(name: str, view: str, split: str, build: Callable[..., Path]) -> None:
    root = build(name)
    if name in LISTED:
        (root / view / f"{split}.csv").write_text("")
    else:
        (root / split / view / f"{stem_of(view, split)}.mp4").unlink()
    assert f"the {split} split of {name} has no {view} videos" in message_of(name, root)


def test_missing_split_folder_is_a_split_without_videos(build: Callable[..., Path]) -> None:
    root = build("pour_liquid")
    (root / "val").rename(root / "validation")
    assert "the val split of pour_liquid has no ego videos" in message_of("pour_liquid", root)


def test_listed_file_that_is_missing(build: Callable[..., Path]) -> None:
    root = build("tennis_forehand")
    path = root / "exo" / f"{stem_of('exo', 'val')}.mp4"
    path.unlink()
    message = message_of("tennis_forehand", root)
    assert str(path) in message
    assert "val split" in message


def test_missing_list(build: Callable[..., Path]) -> None:
    root = build("break_eggs")
    (root / "exo" / "test.csv").unlink()
    assert message_of("break_eggs", root).startswith(f"{root / 'exo' / 'test.csv'}: not there")


def test_list_that_is_not_text(build: Callable[..., Path]) -> None:
    root = build("break_eggs")
    (root / "exo" / "test.csv").write_bytes(b"caf\xe9.mp4\n")
    assert message_of("break_eggs", root) == f"{root / 'exo' / 'test.csv'}: not a text file"


def test_missing_label_file(build: Callable[..., Path]) -> None:
    root = build("pour_milk")
    (root / "label.pickle").unlink()
    assert message_of("pour_milk", root).startswith(f"{root / 'label.pickle'}: not there")


@pytest.mark.parametrize("name", ["break_eggs", "pour_milk"])
def test_video_without_labels(name: str, build: Callable[..., Path]) -> None:
    root = build(
        name, {stem_of(view, split): [0] for view in VIEWS for split in SPLITS if (view, split) != ("exo", "val")}
    )
    message = message_of(name, root)
    assert repr(stem_of("exo", "val")) in message
    assert str(root / "label.pickle") in message


@pytest.mark.parametrize("name", LISTED + IN_FOLDERS)
def test_largest_phase_is_admitted_and_one_more_is_not(name: str, build: Callable[..., Path]) -> None:
    labels = {stem_of(view, split): [0, PHASES[name] - 1] for view in VIEWS for split in SPLITS}
    assert read_ae2(name, build(name, labels)).videos[0].labels == (0, PHASES[name] - 1)
    labels[stem_of("exo", "val")] = [0, PHASES[name]]
    message = message_of(name, build(name, labels))
    assert f"{stem_of('exo', 'val')}.mp4: phase {PHASES[name]}" in message
    assert f"{name} has {PHASES[name]} phases" in message


@pytest.fixture
def add(build: Callable[..., Path], place: Place) -> Callable[..., Path]:
    """The published layout and a file of the given stem more, in a view and split."""

    def write(name: str, stem: str, view: str, split: str) -> Path:
        stems = {stem_of(view, split) for view in VIEWS for split in SPLITS} | {stem}
        root = build(name, dict.fromkeys(stems, (0, 1, 1)))
        if name in LISTED:
            place(f"{name}/{view}/{stem}.mp4")
            place(f"{name}/{view}/{split}.csv", f"{stem_of(view, split)}.mp4\n{stem}.mp4\n")
        else:
            place(f"{name}/{split}/{view}/{stem}.mp4")
        return root

    return write


@pytest.mark.parametrize("name", LISTED + IN_FOLDERS)
def test_a_stem_of_both_views_is_a_pair(name: str, add: Callable[..., Path]) -> None:
    stem = stem_of("ego", "train")
    videos = {video.id: video for video in read_ae2(name, add(name, stem, "exo", "train")).videos}
    assert len(videos) == 7
    ego, exo = videos[f"{stem}-ego"], videos[f"{stem}-exo"]
    assert (ego.view, exo.view, ego.pair, exo.pair) == ("ego", "exo", stem, stem)
    assert (ego.path.parent.name, exo.path.parent.name) == ("ego", "exo")
    assert ego.labels == exo.labels == (0, 1, 1)
    assert [video.id for video in videos.values() if video.pair is None] == [
        stem_of(view, split) for split in SPLITS for view in VIEWS if (view, split) != ("ego", "train")
    ]


@pytest.mark.parametrize("name", ["break_eggs", "pour_milk"])
def test_a_stem_of_both_views_in_different_splits_is_no_pair(name: str, add: Callable[..., Path]) -> None:
    stem = stem_of("ego", "train")
    videos = {video.id: video for video in read_ae2(name, add(name, stem, "exo", "test")).videos}
    assert (videos[f"{stem}-ego"].split, videos[f"{stem}-exo"].split) == ("train", "test")
    assert {video.pair for video in videos.values()} == {None}


@pytest.mark.parametrize("name", ["break_eggs", "pour_milk"])
def test_two_videos_with_one_stem(name: str, add: Callable[..., Path]) -> None:
    stem = stem_of("ego", "train")
    root = add(name, stem, "ego", "test")
    message = message_of(name, root)
    assert repr(stem) in message
    assert message.count(f"{stem}.mp4") == 2


def test_two_videos_with_one_stem_beside_a_third_of_the_other_view(add: Callable[..., Path], place: Place) -> None:
    stem = stem_of("ego", "train")
    root = add("pour_milk", stem, "exo", "train")
    place(f"pour_milk/val/exo/{stem}.mp4")
    assert f"first '{stem}-exo'" in message_of("pour_milk", root)


def test_an_id_with_a_view_that_another_stem_has(add: Callable[..., Path], place: Place) -> None:
    stem = stem_of("ego", "train")
    root = add("pour_milk", stem, "exo", "train")
    place(f"pour_milk/val/ego/{stem}-exo.mp4")
    stems = [stem_of(view, split) for view in VIEWS for split in SPLITS]
    place("pour_milk/label.pickle", pickle.dumps(dict.fromkeys([*stems, f"{stem}-exo"], (0,))))
    assert f"first '{stem}-exo'" in message_of("pour_milk", root)


@pytest.mark.parametrize("line", ["../../x.mp4", "/etc/x.mp4", "../exo/x.mp4", ".."])
def test_list_that_leads_out_of_the_folder(line: str, build: Callable[..., Path], place: Place) -> None:
    root = build("break_eggs")
    place("x.mp4")
    place("break_eggs/ego/train.csv", f"{line}\n")
    message = message_of("break_eggs", root)
    assert message.startswith(f"{root / 'ego' / 'train.csv'}: the path {line!r} leaves")
