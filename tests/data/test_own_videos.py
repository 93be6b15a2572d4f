from collections.abc import Callable
from pathlib import Path

import pytest

from byov.data.own_videos import read_own_videos
from byov.errors import DatasetError

Place = Callable[..., Path]
HEADER = "path,view,split,id,events\n"
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


def test_semicolons_between_columns_are_told(manifest):
    assert "separated by semicolons" in message_of(manifest("path;view;split\na.mp4;ego;train\n"))


@pytest.mark.parametrize("content", ["", "\n", "a.mp4,ego,train\n"])
def test_manifest_without_header(content: str, manifest: Callable[..., Path]) -> None:
    assert "no column 'path'" in message_of(manifest(content))


@pytest.mark.parametrize(
    "events", ["2;1", "-1;2", "nan", "1;nan", "inf", "1;inf", "soon", "1;", ";", "1,5", "1 2", "-inf;1"]
)
def test_events_that_are_not_rising_times(events: str, manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER + TRAIN + f'sub/c.mp4,exo,val,,"{events}"\n')
    assert message_of(path) == f"{path}:4: events {events!r}, expected rising times in seconds like '2.5;7.1'"


def test_different_numbers_of_events(manifest: Callable[..., Path]) -> None:
    path = manifest(HEADER + "a.mp4,ego,train,,1;2\nb.mp4,exo,train,,1\n")
    assert message_of(path) == f"{path}: 'a' has 2 events and 'b' has 1; give all the same number"


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
