import math
from pathlib import Path

import numpy as np
import pytest
from tests.factories import write_file

from byov.cache.layout import check_name
from byov.data.dataset import parse_source
from byov.data.own_videos import read_events, read_own_videos
from byov.data.video_folder import assign_splits, list_folder, to_csv, unique_ids
from byov.errors import DatasetError
from byov.records import UNLABELED

HEADER = "path,view,split,id,events,phases,pair\n"
TRAIN = "a.mp4,ego,train\nb.mp4,exo,train\n"


@pytest.fixture
def read(tmp_path):
    """Return a function that reads the dataset from CSV text;

    HEADER is prepended if the text has no header.
    """

    def read_text(text, **settings):
        for name in ("a.mp4", "b.mp4", "sub/c.mp4"):
            write_file(tmp_path / name)
        text = text if isinstance(text, bytes) or "split" in text else HEADER + text
        return read_own_videos("mine", write_file(tmp_path / "videos.csv", text), **settings)

    return read_text


# --- CSV


@pytest.mark.parametrize(
    "text",
    [
        "path,view,split\na.mp4,ego,train\nb.mp4,exo,train\nsub/c.mp4,exo,val\n",
        "\ufeffpath,view,split\r\n a.mp4 , ego ,train\r\n\r\nb.mp4,exo,train\r\nsub/c.mp4,exo,val",
        "id;split;view;path\na;train;ego;a.mp4\n;train;exo;b.mp4\n;val;exo;sub/c.mp4\n",
        "path\tview\tsplit\na.mp4\tego\ttrain\nb.mp4\texo\ttrain\nsub/c.mp4\texo\tval",
    ],
    ids=["minimal", "Windows", "semicolons and another order", "tabs"],
)
def test_csv_dialects(text, read, tmp_path):
    dataset = read(text)
    assert [(video.id, video.view, video.split) for video in dataset.videos] == [
        ("a", "ego", "train"),
        ("b", "exo", "train"),
        ("c", "exo", "val"),
    ]
    assert dataset.videos[2].path == tmp_path / "sub" / "c.mp4"
    assert (dataset.name, dataset.phase_names, dataset.videos[0].events) == ("mine", (), ())


def test_folder_of_the_paths(read, tmp_path, monkeypatch):
    read(TRAIN)
    table = write_file(tmp_path / "sub/videos.csv", HEADER + TRAIN)
    assert read_own_videos("mine", table, folder=tmp_path).videos[0].path == tmp_path / "a.mp4"
    monkeypatch.chdir(tmp_path)
    table = write_file(
        tmp_path / "videos.csv", f"{HEADER}sub/../a.mp4,ego,train\n{tmp_path}/b.mp4,exo,train\n"
    )
    assert [video.path for video in read_own_videos("mine", Path("videos.csv")).videos] == [
        Path("a.mp4"),
        Path("b.mp4"),
    ]


@pytest.mark.parametrize("path", ["../a.mp4", "sub/../../a.mp4", "/etc/passwd", "a\0.mp4"])
def test_paths_outside_of_the_folder_are_refused(path, read):
    with pytest.raises(DatasetError, match=r"is outside of .*must be below it"):
        read(f"{path},ego,train\n")


def test_pairs(read):
    rows = "a.mp4,ego,train,,,, Monday 1 \nb.mp4,exo,train,,,,Monday 1\nsub/c.mp4,exo,train\n"
    assert [video.pair for video in read(rows).videos] == ["Monday 1", "Monday 1", None]


@pytest.mark.parametrize(
    ("rows", "names"),
    [
        (
            "a.mp4,ego,train,,1;2,reach;pour ;put down\nb.mp4,exo,train,,3;4\n",
            ("reach", "pour", "put down"),
        ),
        (
            "a.mp4,ego,train,,1 pour;2 put down\nb.mp4,exo,train,,3;4\n",
            ("start", "pour", "put down"),
        ),
        ("a.mp4,ego,train,,1 pour,reach;pour\nb.mp4,exo,train\n", ("reach", "pour")),
        ("a.mp4,ego,train,,,reach;pour\nb.mp4,exo,train\n", ()),
        ("a.mp4,ego,train,,1\nb.mp4,exo,train,,2\n", ("phase 0", "phase 1")),
        ("a.mp4,ego,train,,1;2\nb.mp4,exo,train\n", ("phase 0", "phase 1", "phase 2")),
    ],
)
def test_phase_names(rows, names, read):
    assert read(rows).phase_names == names


def unlabeled_parts(video):
    return tuple((start, end) for start, end, phase in video.intervals if phase == UNLABELED)


@pytest.mark.parametrize(
    ("cell", "seconds", "unlabeled"),
    [
        ("2 pour;5 put down;7 -", (2.0, 5.0), ((7.0, math.inf),)),
        ("0 -;1 +;2;5", (2.0, 5.0), ((0.0, 1.0),)),
        ("0 -;2;3 -;4 +;5", (2.0, 5.0), ((0.0, 2.0), (3.0, 4.0))),
        ("2;4 -;5", (2.0, 5.0), ((4.0, 5.0),)),
        # The missing event may be in the unlabeled part at the end.
        ("2 pour;3 -", (2.0,), ((3.0, math.inf),)),
        ("0 -", (), ((0.0, math.inf),)),
    ],
)
def test_unlabeled_intervals(cell, seconds, unlabeled, read):
    dataset = read(f"a.mp4,ego,train,,{cell}\nb.mp4,exo,train,,3 pour;4 put down\n")
    assert (dataset.videos[0].events, unlabeled_parts(dataset.videos[0])) == (seconds, unlabeled)
    assert (dataset.videos[1].events, unlabeled_parts(dataset.videos[1])) == ((3.0, 4.0), ())
    assert dataset.phase_names == ("start", "pour", "put down")


def test_events_as_frame_indices(read):
    ego, exo, other = read(
        "a.mp4,ego,train,,31f contact;52f move;80f -\nb.mp4,exo,train,,1 contact;2.5 "
        "move\nsub/c.mp4,exo,train,,0f;1f\n"
    ).videos
    assert (ego.events, unlabeled_parts(ego), ego.interval_unit, exo.interval_unit) == (
        (31, 52),
        ((80, math.inf),),
        "f",
        "s",
    )
    irregular = np.cumsum(np.linspace(0, 0.1, 100))
    assert ego.phases(irregular) == (0,) * 31 + (1,) * 21 + (2,) * 28 + (-1,) * 20
    assert other.phases(irregular[:3]) == (1, 2, 2)


def test_segments_and_ids_of_one_file(read):
    rows = (
        "a.mp4,ego,train,,2.5,7\n"
        "a.mp4,ego,train,long,75f,\n"
        "sub/c.mp4,exo,train,,,7\n"
        "a.mp4,ego,train,,,"
    )
    videos = read("path,view,split,id,start,end\n" + rows).videos
    assert [video.id for video in videos] == ["a", "long", "c", "a-2"]
    assert [video.segment.fragment for video in videos] == ["#t=2.5,7", "#f=75,", "#t=0,7", ""]
    for video in videos:
        assert parse_source(f"{video.path.name}{video.segment.fragment}") == (
            video.path.name,
            video.segment,
        )
    assert [video.segment.cells for video in videos] == [
        ("2.5", "7"),
        ("75f", ""),
        ("", "7"),
        ("", ""),
    ]


@pytest.mark.parametrize(
    "cells", ["7,2.5", "2,2", "-1,2", "x,2", "1f,2", "1.5f,3f", "nan,2", "inf,"]
)
def test_malformed_segments(cells, read):
    with pytest.raises(DatasetError, match=r"videos\.csv:2: start .*frames like 75f"):
        read(f"path,view,split,start,end\na.mp4,ego,train,{cells}\n")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "path,view,split,id\na.mp4,ego,train,x\nb.mp4,exo,train,x\n",
            "'x' is not unique.* add an `id` column",
        ),
        ("path,view,split\na.mp4,Ego,train\n", r"videos\.csv:2: view is 'Ego'"),
        ("path,view,split\na.mp4,ego,validation\n", r"videos\.csv:2: split is 'validation'"),
        ("path,split\na.mp4,train\n", "'path,split'. Expected a CSV file"),
        ("path,view,split,view\n", "each once"),
        ("path,view,split,event\na.mp4,ego,train\n", "unknown column 'event'"),
        (b"a.mp4,ego,train\n", "path,view,split"),
        ("path,view,split\neggs, broken.mp4,exo,train\n", r":2: more fields than columns\. Quote"),
        (b"path,view,split\ncaf\xe9.mp4,ego,val\n", "not a readable CSV"),
        ("path,view,split\na.mp4,ego,train\n".encode("utf-16"), "not a readable CSV"),
        ("a.mp4,ego,train\n", "train split of mine has no exo videos"),
        (TRAIN + "absent.mp4,exo,val\n", "absent.mp4: listed in the val split"),
        ("a.mp4,ego,train,,1;2\nb.mp4,exo,train,,1\n", "'a' has 2 events but 'b' has 1"),
        ("a.mp4,ego,train,,1;2,x;y\n", "but 2 events separate 3 phases"),
        ("a.mp4,ego,train,,1,x;y\nb.mp4,exo,train,,1,x;z\n", "different phases"),
        (
            "a.mp4,ego,train,,1 x\nb.mp4,exo,train,,1 y\n",
            r"'b' has events \('y',\), others have \('x',\)",
        ),
        ("a.mp4,ego,train,,1 pour;2 -\nb.mp4,exo,train,,3;4\n", "unnamed"),
        ("a.mp4,ego,train,,1,x;\n", ":2: phases 'x;'"),
        ("a.mp4,ego,train,,1;2 +\n", "must follow '-'"),
        ("a.mp4,ego,train,,1 -;2;3 +\n", "must follow '-'"),
        ("a.mp4,ego,train,,1;2 -;3;4\nb.mp4,exo,train,,1;2\n", "'a' has 3 events but 'b' has 2"),
        ("a.mp4,ego,train,,1;31f\n", "mix seconds and frame indices"),
        ("a.mp4,ego,train,,31.5f\n", "Expected increasing seconds"),
        ("a.mp4,ego,train,,1 -;2 +\nb.mp4,exo,train,,1;2\n", "'b' has 2 events but 'a' has 0"),
    ],
)
def test_malformed_csv(text, problem, read):
    with pytest.raises(DatasetError, match=problem) as error:
        read(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["none", "."])
def test_missing_csv_or_folder(name, tmp_path):
    with pytest.raises(DatasetError, match="missing"):
        read_own_videos("mine", tmp_path / name)
    with pytest.raises(DatasetError, match="no such folder"):
        list_folder(write_file(tmp_path / "file"))


@pytest.mark.parametrize(
    "events",
    ["2;1", "-1;2", "nan", "1;inf", "soon", "1;", ";", "1,5", "1 2", "-inf;1", "1 x;2", "2 -;1"],
)
def test_malformed_events(events):
    with pytest.raises(DatasetError, match=r"here: .*Expected increasing seconds"):
        read_events(events, "here")


def test_events_for_an_alignment_are_all_labeled():
    assert read_events("1 pour;2 put down", "here") == (1.0, 2.0)
    for events in ("1;2 -", "31f;52f"):
        with pytest.raises(DatasetError, match=r"seconds like '2\.5;7\.1' or '2\.5 pour"):
            read_events(events, "here")


# --- folder


@pytest.fixture
def listing(tmp_path):
    """Return a function that creates empty files and lists them with `list_folder`."""

    def make(*names, fractions=None, patterns=None):
        for name in names:
            write_file(tmp_path / name)
        return list_folder(tmp_path, fractions, patterns)

    return make


@pytest.mark.parametrize(
    ("ego", "exo"),
    [
        ("ego/1.mp4", "exo/1.mp4"),
        ("Ego/a/1.MP4", "Exo/b/2.mov"),
        ("head_ego_01.mkv", "tripod-exo2.avi"),
        ("egocentric/x.webm", "monday/exocentric x.m4v"),
        ("ego_exo/ego1.mp4", "ego_exo/exo1.mp4"),  # a folder with both words is ignored
        ("exo videos/ego 1.mp4", "ego videos/exo 1.mp4"),  # the nearest word wins
    ],
)
def test_views_are_words_of_the_path(ego, exo, listing):
    assert [(str(video.path), video.view, video.split) for video in listing(ego, exo)] == [
        (ego, "ego", "train"),
        (exo, "exo", "train"),
    ]


def test_skipped_files_are_logged(listing, caplog):
    caplog.set_level("INFO")
    assert (
        len(
            listing(
                "ego/1.mp4", "exo/1.mp4", "ego/notes.txt", "x/2.mp4", ".hidden/3.mp4", "videos.csv"
            )
        )
        == 2
    )
    assert [record.message.partition(": ")[2] for record in caplog.records] == [
        "ego/notes.txt",
        "x/2.mp4",
    ]


def test_views_from_patterns(listing):
    names = ("cam_wrist/1.mp4", "cam_front/1.mp4", "other/1.mp4")
    videos = listing(*names, patterns={"ego": "*Wrist*", "exo": "*front/*"})
    assert [(str(video.path), video.view, video.id) for video in videos] == [
        ("cam_wrist/1.mp4", "ego", "cam_wrist-1"),
        ("cam_front/1.mp4", "exo", "cam_front-1"),
    ]
    with pytest.raises(DatasetError, match=r"none of its 3 videos matches --exo '\*top\*'"):
        listing(patterns={"ego": "*wrist*", "exo": "*top*"})
    with pytest.raises(DatasetError, match="matches both"):
        listing(patterns={"ego": "*cam*", "exo": "*front*"})


def test_splits_from_folder_names(listing):
    videos = listing(
        "ego/train/1.mp4", "Training/exo/2.mp4", "validation/ego/3.mp4", "exo/test/4.mp4"
    )
    assert sorted((video.path.stem, video.split) for video in videos) == [
        ("1", "train"),
        ("2", "train"),
        ("3", "val"),
        ("4", "test"),
    ]


@pytest.mark.parametrize(
    ("names", "fractions", "problem"),
    [
        (("lego/1.mp4", "exo/2.mp4"), None, "has the word 'ego'"),
        (("ego/1.mp4",), None, "has the word 'exo'"),
        (("ego/1.txt",), None, "no videos"),
        (("ego/train/1.mp4", "exo/train/2.mp4"), (0.5, 0, 0.5), "Omit --split"),
        (
            ("ego/train/1.mp4", "exo/train/2.mp4", "exo/3.mp4"),
            None,
            r"exo/3\.mp4 is not in a split folder",
        ),
    ],
)
def test_folders_that_cannot_be_listed(names, fractions, problem, listing):
    with pytest.raises(DatasetError, match=problem):
        listing(*names, fractions=fractions)


@pytest.mark.parametrize(
    "fractions", [(0.6, 0.2, 0.2), (1, 0, 0), (0.5, 0, 0.5), (0.8, 0.1, 0.1), (1 / 3,) * 3]
)
@pytest.mark.parametrize("videos", [0, 1, 2, 5, 30, 31])
def test_split_fractions_are_met_within_one_video(videos, fractions):
    assigned = assign_splits(videos, fractions)
    assert assigned[:1] == ["train"][:videos]
    for split, fraction in zip(("train", "val", "test"), fractions, strict=True):
        assert abs(assigned.count(split) - fraction * videos) <= 1


def test_ids_are_unique_file_names():
    paths = [
        Path(name)
        for name in ("ego/1.mp4", "exo/1.mp4", "a/_b?.mp4", "ego-1.mp4", "exo/***.mp4", "c/1.avi")
    ]
    ids = unique_ids(paths)
    assert ids == ["ego-1", "exo-1", "b", "ego-1-2", "video", "c-1"]
    assert [check_name(name, "id") for name in ids] == ids
    assert unique_ids([Path("a.mp4"), Path("x/A.mp4")], {"x-a"}) == ["a", "x-A-2"]


def test_the_listing_is_a_readable_csv(listing, tmp_path):
    table = write_file(
        tmp_path / "videos.csv", to_csv(listing("ego/a, b.mp4", 'exo/"été" 50% #1.mp4'))
    )
    videos = read_own_videos("mine", table).videos
    assert [(video.id, video.view, video.path.name) for video in videos] == [
        ("a, b", "ego", "a, b.mp4"),
        ("été 50 #1", "exo", '"été" 50% #1.mp4'),
    ]


# --- segments in any order

SEGMENTS = "path,view,split,segments\n"


def phases_at(video, times):
    return video.phases(np.array(times))


def test_segments_may_repeat_and_have_gaps(read):
    dataset = read(
        SEGMENTS
        + "a.mp4,ego,train,3.2-6 crack egg; 6.5-9 whisk;9-12 crack egg\n"
        + "b.mp4,exo,train,10f-20f whisk\n"
        + "sub/c.mp4,exo,train,\n"
    )
    assert (dataset.phase_names, dataset.ordered) == (("crack egg", "whisk"), False)
    a, b, c = dataset.videos
    assert phases_at(a, [0, 3.2, 5.9, 6, 6.5, 8.9, 9, 12]) == (-1, 0, 0, -1, 1, 1, 0, -1)
    assert phases_at(b, [0.0] * 21) == (-1,) * 10 + (1,) * 10 + (-1,)
    assert phases_at(c, [0, 1]) is None


def test_segments_in_the_same_order_are_ordered_phases(read):
    dataset = read(
        SEGMENTS + "a.mp4,ego,train,4-5 fry;0-2 crack\nb.mp4,exo,train,1-2 whisk;3-4 fry\n"
    )
    assert dataset.ordered
    assert dataset.phase_names.index("fry") == 2
    for video in dataset.videos:
        labels = [phase for phase in phases_at(video, np.arange(0, 5, 0.1)) if phase != UNLABELED]
        assert labels == sorted(labels)


def test_of_overlapping_segments_the_later_one_wins(read, caplog):
    caplog.set_level("INFO")
    video = read(SEGMENTS + "a.mp4,ego,train,2-5 b;0-3 a\nb.mp4,exo,train,0-1 a\n").videos[0]
    assert phases_at(video, [0, 1, 2, 3, 4]) == (0, 0, 1, 1, 1)
    assert "1 segment started before the previous one ended" in caplog.text


@pytest.mark.parametrize(
    "cell", ["3-2 a", "1-2", "1-2 a;3 b", "1f-2 a", "1-2 a;3f-4f b", "-1-2 a", "x-y a", "1f5-2f a"]
)
def test_malformed_segments_of_phases(cell, read):
    with pytest.raises(DatasetError, match=r"segments .*Expected starts, ends and names"):
        read(f"{SEGMENTS}a.mp4,ego,train,{cell}\nb.mp4,exo,train,0-1 a\n")


def test_segments_and_events_are_not_mixed(read):
    with pytest.raises(DatasetError, match="'b' has events or phases, but other videos have"):
        read("path,view,split,segments,events\na.mp4,ego,train,0-1 a,\nb.mp4,exo,train,,2\n")
