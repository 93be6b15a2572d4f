import math
from collections.abc import Callable
from pathlib import Path

import pytest

from byov.data.own_videos import MOST_VIDEOS, read_events, read_own_videos
from byov.errors import DatasetError

Place = Callable[..., Path]
HEADER = "path,view,split,id,events\n"
NAMES = "'2.5 pour;7.1 put down'"
TRAIN = "a.mp4,ego,train,,\nb.mp4,exo,train,,\n"


@pytest.fixture
def manifest(place: Place) -> Callable[..., Path]:
    def write(content: str | bytes) -> Path:
        for name in ("a.mp4", "b.mp4", "sub/c.mp4"):
            place(name)
        return place("videos.csv", content)

    return write


def message_of(path: Path) -> str:
    with pytest.raises(DatasetError) as error:
        read_own_videos("mine", path)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_minimal_manifest_and_default_id(manifest: Callable[..., Path], tmp_path: Path) -> None:
    dataset = read_own_videos(
        "mine", manifest("path,view,split\na.mp4,ego,train\nb.mp4,exo,train\nsub/c.mp4,exo,val\n")
    )
    assert [(video.id, video.view, video.split) for video in dataset.videos] == [
        ("a", "ego", "train"),
        ("b", "exo", "train"),
        ("c", "exo", "val"),
    ]
    assert dataset.videos[2].path == tmp_path / "sub" / "c.mp4"
    assert dataset.phase_names == ()
    assert dataset.videos[0].event_seconds is None
    assert dataset.name == "mine"


def test_columns_in_any_order_with_id_and_events(manifest: Callable[..., Path]) -> None:
    text = "events,split,id,view,path\n0.5;2,train,one,ego,a.mp4\n1;1.5,train,two,exo,b.mp4\n"
    dataset = read_own_videos("mine", manifest(text))
    assert [video.id for video in dataset.videos] == ["one", "two"]
    assert [video.event_seconds for video in dataset.videos] == [(0.5, 2.0), (1.0, 1.5)]
    assert dataset.phase_names == ("phase 0", "phase 1", "phase 2")


def test_phase_names_are_used_where_their_number_fits(manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER + "a.mp4,ego,train,,1\nb.mp4,exo,train,,2\n")
    assert read_own_videos("mine", path, ("before", "after")).phase_names == ("before", "after")
    assert read_own_videos("mine", path, ("before", "amid", "after")).phase_names == ("phase 0", "phase 1")


def test_some_videos_may_lack_events(manifest: Callable[..., Path]) -> None:
    dataset = read_own_videos("mine", manifest(HEADER + "a.mp4,ego,train,,1;2\nb.mp4,exo,train,,\n"))
    assert len(dataset.phase_names) == 3
    assert dataset.videos[1].event_seconds is None


def test_byte_order_mark_windows_line_ends_and_blanks(manifest: Callable[..., Path]) -> None:
    text = "\ufeffpath,view,split\r\n a.mp4 , ego ,train\r\n\r\nb.mp4,exo,train\r\n"
    assert [video.id for video in read_own_videos("mine", manifest(text)).videos] == ["a", "b"]


PAIRED = "path,view,split,pair\n"


def test_videos_filmed_at_once_share_a_pair(manifest: Callable[..., Path]) -> None:
    text = PAIRED + "a.mp4,ego,train, Monday 1 \nb.mp4,exo,train,Monday 1\nsub/c.mp4,exo,train,\n"
    assert [video.pair for video in read_own_videos("mine", manifest(text)).videos] == ["Monday 1", "Monday 1", None]


@pytest.mark.parametrize(
    ("rows", "wrong"),
    [
        ("a.mp4,ego,train,x\nb.mp4,exo,train,X\n", "pair 'x' has no exo video"),
        ("a.mp4,ego,train,x\nb.mp4,exo,train,x\nsub/c.mp4,exo,train,x\n", "pair 'x' has 2 exo videos"),
        ("a.mp4,ego,train,x\nb.mp4,exo,train,\nsub/c.mp4,exo,val,x\n", "pair 'x' is in the splits train and val"),
        ('a.mp4,ego,train,"x\ny"\nb.mp4,exo,train,\n', "pair 'x\\ny' has no exo video"),
    ],
)
def test_pair_that_is_none(rows: str, wrong: str, manifest: Callable[..., Path]) -> None:
    message = message_of(manifest(PAIRED + rows))
    assert message == f"mine: {wrong}; give it one ego and one exo video of the same split"


def test_name_with_comma_quotes_and_accents(manifest: Callable[..., Path], place: Place) -> None:
    names = ["eggs, broken.mp4", 'say "hi".mp4', "été 50% #1.mp4"]
    for name in names:
        place(name)
    quoted = "".join('"{}",ego,val,,\n'.format(name.replace('"', '""')) for name in names)
    videos = read_own_videos("mine", manifest(HEADER + TRAIN + quoted)).videos
    assert [video.path.name for video in videos[2:]] == names


def test_comma_without_quotes_says_what_to_do(manifest: Callable[..., Path]) -> None:
    path = manifest("path,view,split\na.mp4,ego,train\neggs, broken.mp4,exo,train\n")
    message = message_of(path)
    assert message.startswith(f"{path}:3: more fields than columns")
    assert "quotes" in message


NAMED = HEADER.replace("events", "events,phases")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (NAMED + "a.mp4,ego,train,,1;2,reach;pour ;put down\nb.mp4,exo,train,,3;4,\n", ("reach", "pour", "put down")),
        (HEADER + "a.mp4,ego,train,,1 pour;2 put down\nb.mp4,exo,train,,3;4\n", ("start", "pour", "put down")),
        (NAMED + "a.mp4,ego,train,,1 pour,reach;pour\nb.mp4,exo,train,,,\n", ("reach", "pour")),
        (NAMED + "a.mp4,ego,train,,,reach;pour\nb.mp4,exo,train,,,\n", ()),
    ],
)
def test_phases_have_the_names_that_the_table_gives(text, names, manifest):
    dataset = read_own_videos("mine", manifest(text), phase_names=("never", "shown"))
    assert dataset.phase_names == names


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("a.mp4,ego,train,,1;2,x;y\n", "2 phases named, but 2 events in each video make 3"),
        ("a.mp4,ego,train,,1,x;y\nb.mp4,exo,train,,1,x;z\n", "'a' has phases ('x', 'y') and 'b' has phases ('x', 'z')"),
        ("a.mp4,ego,train,,1 x,\nb.mp4,exo,train,,1 y,\n", "'a' has events ('x',) and 'b' has events ('y',)"),
        ("a.mp4,ego,train,,1,x;\n", ":2: phases 'x;', expected names"),
        ("a.mp4,ego,train,,1 x;2,\n", ":2: events '1 x;2', expected rising times"),
    ],
)
def test_names_of_phases_that_do_not_fit(rows, said, manifest):
    assert said in message_of(manifest(NAMED + rows))


@pytest.mark.parametrize(
    ("cell", "seconds", "unlabeled"),
    [
        ("2 pour;5 put down;7 -", (2.0, 5.0), ((7.0, math.inf),)),
        ("0 -;1 +;2;5", (2.0, 5.0), ((0.0, 1.0),)),
        ("0 -;2;3 -;4 +;5", (2.0, 5.0), ((0.0, 2.0), (3.0, 4.0))),
        ("2;4 -;5", (2.0, 5.0), ((4.0, 5.0),)),
        ("2 pour;3 -", (2.0,), ((3.0, math.inf),)),  # nobody has looked for the other event
        ("0 -", (), ((0.0, math.inf),)),
    ],
)
def test_a_stretch_of_a_video_may_be_without_labels(cell, seconds, unlabeled, manifest):
    dataset = read_own_videos(
        "mine", manifest(HEADER + f"a.mp4,ego,train,,{cell}\nb.mp4,exo,train,,3 pour;4 put down\n")
    )
    assert dataset.videos[0].event_seconds == seconds
    assert dataset.videos[0].unlabeled_seconds == unlabeled
    assert dataset.videos[1].unlabeled_seconds == ()
    assert dataset.phase_names == ("start", "pour", "put down")


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        ("1;2 +", "'+' ends a stretch that '-' begins: '5 -;6 +'"),
        ("1 -;2;3 +", "'+' ends a stretch that '-' begins: '5 -;6 +'"),
        ("2 -;1", "expected rising times"),
        ("1;2 -;3;4", "'a' has 3 events and 'b' has 2 events; give all the same"),
        ("1 -;2 +", "'a' has 0 events and 'b' has 2 events; give all the same"),
        ("1;2;3;4 -", "'a' has 3 events and 'b' has 2 events; give all the same"),
        ("1 stir;2 -", "'a' has events ('stir',) and others ('pour', 'put down'); give all the same"),
    ],
)
def test_stretches_without_labels_that_do_not_fit(cell, said, manifest):
    path = manifest(HEADER + f"a.mp4,ego,train,,{cell}\nb.mp4,exo,train,,3 pour;4 put down\n")
    assert said in message_of(path)


def test_names_of_a_video_that_breaks_off_need_a_video_that_has_all(manifest):
    path = manifest(HEADER + "a.mp4,ego,train,,1 pour;2 -\nb.mp4,exo,train,,3;4\n")
    assert "'a' has events ('pour',) and others without names" in message_of(path)


def test_events_of_an_alignment_are_times_alone():
    assert read_events("1 pour;2 put down", "here") == (1.0, 2.0)
    with pytest.raises(DatasetError, match="here: events '1;2 -'; '-' is for the labels of a CSV"):
        read_events("1;2 -", "here")


@pytest.mark.parametrize("separator", [";", "\t"])
def test_other_separators_of_columns_are_read_as_they_are(separator, manifest):
    rows = [["path", "view", "split", "events"], ["a.mp4", "ego", "train", '"1;2"'], ["b.mp4", "exo", "train", ""]]
    dataset = read_own_videos("mine", manifest("".join(separator.join(row) + "\n" for row in rows)))
    assert [video.event_seconds for video in dataset.videos] == [(1.0, 2.0), None]


def test_events_between_semicolons_without_quotes_say_what_to_do(manifest):
    message = message_of(manifest("path;view;split;events\na.mp4;ego;train;1;2\n"))
    assert message.endswith("more fields than columns; put what has semicolons in it in quotes")


def test_absolute_paths_below_the_folder_through_a_link_or_not(manifest, tmp_path):
    link = tmp_path.with_name(tmp_path.name + "-link")
    link.symlink_to(tmp_path)
    path = manifest(f"path,view,split\n{tmp_path}/a.mp4,ego,train\n{link}/b.mp4,exo,train\n")
    assert [video.path for video in read_own_videos("mine", path).videos] == [tmp_path / "a.mp4", link / "b.mp4"]


@pytest.mark.parametrize("view", ["Ego", "third", "", "ego exo"])
def test_bad_view(view: str, manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER + TRAIN + f"sub/c.mp4,{view},val,,\n")
    assert message_of(path) == f"{path}:4: view is {view!r}, expected ego or exo"


@pytest.mark.parametrize("split", ["validation", "", "TRAIN"])
def test_bad_split(split: str, manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER + TRAIN + f"sub/c.mp4,exo,{split},,\n")
    assert message_of(path) == f"{path}:4: split is {split!r}, expected train or val or test"


@pytest.mark.parametrize("column", ["path", "view", "split"])
def test_missing_column(column: str, manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER.replace(column, "id") + TRAIN)
    assert message_of(path).startswith(f"{path}: no column {column!r}")


def test_unknown_column(manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER.replace("events", "event") + TRAIN)
    assert message_of(path).startswith(f"{path}: unknown column 'event'")
    assert message_of(path).endswith("the header is path,view,split and optionally id,events,phases,pair")


@pytest.mark.parametrize("content", ["", "\n", "a.mp4,ego,train\n"])
def test_manifest_without_header(content: str, manifest: Callable[..., Path]) -> None:
    assert "no column 'path'" in message_of(manifest(content))


@pytest.mark.parametrize(
    "events", ["2;1", "-1;2", "nan", "1;nan", "inf", "1;inf", "soon", "1;", ";", "1,5", "1 2", "-inf;1"]
)
def test_events_that_are_not_rising_times(events: str, manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER + TRAIN + f'sub/c.mp4,exo,val,,"{events}"\n')
    assert (
        message_of(path) == f"{path}:4: events {events!r}, expected rising times in seconds like '2.5;7.1' or {NAMES}"
    )


def test_different_numbers_of_events(manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER + "a.mp4,ego,train,,1;2\nb.mp4,exo,train,,1\n")
    assert message_of(path) == f"{path}: 'a' has 2 events and 'b' has 1 event; give all the same"


@pytest.mark.parametrize(
    ("rows", "view"),
    [("a.mp4,ego,train,,\nb.mp4,exo,val,,\n", "exo"), ("b.mp4,exo,train,,\n", "ego"), ("", "ego")],
)
def test_train_split_without_a_view(rows: str, view: str, manifest: Callable[..., Path], tmp_path: Path) -> None:
    message = message_of(manifest(HEADER + rows))
    assert message.startswith(f"{tmp_path}: the train split of mine has no {view} videos")


def test_two_videos_with_one_default_id(manifest: Callable[..., Path], place: Place, tmp_path: Path) -> None:
    place("sub/a.mp4")
    message = message_of(manifest(HEADER + TRAIN + "sub/a.mp4,exo,val,,\n"))
    assert f"first 'a': {tmp_path / 'a.mp4'}, {tmp_path / 'sub' / 'a.mp4'}" in message
    dataset = read_own_videos("mine", manifest(HEADER + TRAIN + "sub/a.mp4,exo,val,other,\n"))
    assert [video.id for video in dataset.videos] == ["a", "b", "other"]


def test_video_that_is_missing(manifest: Callable[..., Path], tmp_path: Path) -> None:
    message = message_of(manifest(HEADER + TRAIN + "absent.mp4,exo,val,,\n"))
    assert message == f"{tmp_path / 'absent.mp4'}: listed in mine (val split) and not there"


@pytest.mark.parametrize("name", ["../x.mp4", "../../x.mp4", "/etc/passwd", "sub/../../x.mp4", "", ".", "a\0.mp4"])
def test_path_that_leads_out_of_the_folder(name: str, manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER + TRAIN + f"{name},exo,val,,\n")
    assert message_of(path).startswith(f"{path}:4: the path {name!r} leaves the dataset folder {path.parent}")


def test_path_that_leads_out_of_the_working_folder(
    manifest: Callable[..., Path], place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest(HEADER + TRAIN)
    monkeypatch.chdir(tmp_path)
    assert [video.id for video in read_own_videos("mine", Path("videos.csv")).videos] == ["a", "b"]
    place("sub/videos.csv", HEADER + TRAIN.replace("a.mp4", "../a.mp4"))
    monkeypatch.chdir(tmp_path / "sub")
    assert message_of(Path("videos.csv")) == "videos.csv:2: the path '../a.mp4' leaves the dataset folder ."


def test_missing_manifest(tmp_path: Path) -> None:
    assert message_of(tmp_path / "videos.csv").startswith(f"{tmp_path / 'videos.csv'}: no such file")


def test_folder_given_as_manifest(tmp_path: Path) -> None:
    assert message_of(tmp_path).startswith(f"{tmp_path}: a folder, expected a CSV file")


@pytest.mark.parametrize("content", [b"caf\xe9.mp4,ego,val,,\n", "a.mp4,ego,train".encode("utf-16")])
def test_manifest_that_is_not_utf8(content: bytes, manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER.encode() + TRAIN.encode() + content)
    assert message_of(path).startswith(f"{path}: not a readable CSV file")


def test_video_given_as_manifest(place: Place) -> None:
    path = place("a.mp4")
    assert message_of(path).startswith(str(path))


def test_more_videos_than_one_file_may_list_are_refused_in_a_moment(tmp_path):
    rows = "a.mp4,ego,train\n" * (MOST_VIDEOS + 1)
    (tmp_path / "videos.csv").write_text("path,view,split\n" + rows)
    with pytest.raises(DatasetError, match=r"videos\.csv: more than 200,000 videos"):
        read_own_videos("mine", tmp_path / "videos.csv")


def test_a_column_that_is_there_twice_is_named(tmp_path):
    (tmp_path / "videos.csv").write_text("path,view,split,view\na.mp4,ego,train,exo\n")
    with pytest.raises(DatasetError, match=r"videos\.csv: the column 'view' is there 2 times"):
        read_own_videos("mine", tmp_path / "videos.csv")


def test_ids_that_differ_in_case_only_are_refused(place):
    for name in ("Pour.mp4", "pour.mp4"):
        place(name)
    table = place("videos.csv", "path,view,split\nPour.mp4,ego,train\npour.mp4,exo,train\n")
    with pytest.raises(DatasetError, match="the ids 'Pour' and 'pour' differ in case only"):
        read_own_videos("mine", table)
