import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from byov.data.charades_ego import CLASSES, read_charades_ego
from byov.data.dataset import Dataset
from byov.errors import DatasetError

PUBLISHED = [
    "id",
    "subject",
    "scene",
    "quality",
    "relevance",
    "verified",
    "script",
    "objects",
    "descriptions",
    "actions",
    "length",
    "egocentric",
    "charades_video",
]
Place = Callable[..., Path]


def table(rows: list[dict[str, str]], columns: list[str] = PUBLISHED) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def row(
    video_id: str, egocentric: str, actions: str = "c092 11.90 21.20;c147 0.00 12.60", partner: str = ""
) -> dict[str, str]:
    script = 'A person, "standing",\nlaughs.'
    return {
        "id": video_id,
        "egocentric": egocentric,
        "actions": actions,
        "script": script,
        "charades_video": partner,
    }


TRAIN = [row("EGO01EGO", "Yes"), row("EXO01", "No")]
TEST = [row("EXOEGO2", "No"), row("PLAIN", "Yes", "")]


@pytest.fixture
def build(place: Place, tmp_path: Path) -> Callable[..., Path]:
    def write(
        train: list[dict[str, str]] = TRAIN, test: list[dict[str, str]] = TEST, columns: list[str] = PUBLISHED
    ) -> Path:
        for video in TRAIN + TEST:
            place(f"{video['id']}.mp4")
        place("CharadesEgo_v1_train.csv", table(train, columns))
        place("CharadesEgo_v1_test.csv", table(test, columns))
        return tmp_path

    return write


def message_of(root: Path) -> str:
    with pytest.raises(DatasetError) as error:
        read_charades_ego("charades_ego", root)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_published_layout(build: Callable[..., Path], summary: Callable[[Dataset], set[tuple[str, str, str]]]) -> None:
    root = build()
    dataset = read_charades_ego("charades_ego", root)
    assert summary(dataset) == {
        ("EGO01EGO", "ego", "train"),
        ("EXO01", "exo", "train"),
        ("EXOEGO2", "exo", "test"),
        ("PLAIN", "ego", "test"),
    }
    videos = {video.id: video for video in dataset.videos}
    assert videos["EXO01"].actions == (92, 147)
    assert videos["PLAIN"].actions == ()
    assert videos["EXO01"].path == root / "EXO01.mp4"
    assert len(dataset.action_names) == CLASSES == 157
    assert dataset.action_names[92] == "c092"
    assert dataset.phase_names == ()


@pytest.mark.parametrize("columns", [PUBLISHED[::-1], ["egocentric", "actions", "id"], [*PUBLISHED, "more"]])
def test_columns_are_found_by_name(columns: list[str], build: Callable[..., Path]) -> None:
    videos = {video.id: video for video in read_charades_ego("charades_ego", build(columns=columns)).videos}
    assert (videos["EGO01EGO"].view, videos["EXO01"].view) == ("ego", "exo")
    assert videos["EXO01"].actions == (92, 147)


def test_repeated_action_counts_once(build: Callable[..., Path]) -> None:
    root = build(train=[row("EGO01EGO", "Yes", "c147 0 1;c003 2 3;c147 5 6"), TRAIN[1]])
    assert read_charades_ego("charades_ego", root).videos[0].actions == (3, 147)


def test_byte_order_mark(build: Callable[..., Path], place: Place) -> None:
    root = build()
    place("CharadesEgo_v1_train.csv", "\ufeff" + table(TRAIN))
    assert len(read_charades_ego("charades_ego", root).videos) == 4


@pytest.mark.parametrize("column", ["id", "egocentric", "actions"])
def test_missing_column(column: str, build: Callable[..., Path]) -> None:
    root = build(columns=[each for each in PUBLISHED if each != column])
    assert message_of(root).startswith(f"{root / 'CharadesEgo_v1_train.csv'}: no column {column!r}; it has ['")


@pytest.mark.parametrize("value", ["", "yes", "1", "maybe"])
def test_view_that_is_neither_yes_nor_no(value: str, build: Callable[..., Path]) -> None:
    root = build(test=[TEST[0], row("PLAIN", value)])
    message = message_of(root)
    assert message.startswith(f"{root / 'CharadesEgo_v1_test.csv'}:")
    assert f"egocentric is {value!r}" in message


@pytest.mark.parametrize(
    "actions", ["c157 0 1", "c92 0 1", "92 0 1", "c092", "c092 0 1 2", "hello", "c092 0 1,c147 0 1"]
)
def test_action_that_is_not_one(actions: str, build: Callable[..., Path]) -> None:
    assert f"action {actions!r}" in message_of(build(train=[row("EGO01EGO", "Yes", actions), TRAIN[1]]))


@pytest.mark.parametrize("split", ["train", "test"])
def test_missing_list(split: str, build: Callable[..., Path]) -> None:
    path = build() / f"CharadesEgo_v1_{split}.csv"
    path.unlink()
    assert message_of(path.parent).startswith(f"{path}: not there")


def test_empty_list_has_no_columns(build: Callable[..., Path], place: Place) -> None:
    root = build()
    place("CharadesEgo_v1_train.csv", "")
    assert "no column 'id'" in message_of(root)


def test_list_that_is_not_text(build: Callable[..., Path], place: Place) -> None:
    root = build()
    place("CharadesEgo_v1_test.csv", table(TEST).encode() + b"\xff\xfe,")
    assert message_of(root).startswith(f"{root / 'CharadesEgo_v1_test.csv'}: not a readable CSV file")


@pytest.mark.parametrize(
    ("train", "test", "lacking"),
    [
        (TRAIN[:1], TEST, "the train split of charades_ego has no exo"),
        (TRAIN[1:], TEST, "the train split of charades_ego has no ego"),
        (TRAIN, TEST[:1], "the test split of charades_ego has no ego"),
        (TRAIN, [], "the test split of charades_ego has no ego"),
    ],
)
def test_split_without_a_view(
    train: list[dict[str, str]], test: list[dict[str, str]], lacking: str, build: Callable[..., Path]
) -> None:
    assert lacking in message_of(build(train, test))


def test_video_that_is_missing(build: Callable[..., Path]) -> None:
    root = build()
    (root / "EXOEGO2.mp4").unlink()
    message = message_of(root)
    assert str(root / "EXOEGO2.mp4") in message
    assert "test split" in message


def test_video_in_both_splits(build: Callable[..., Path]) -> None:
    message = message_of(build(test=[*TEST, TRAIN[0]]))
    assert "'EGO01EGO'" in message


@pytest.mark.parametrize("video_id", ["../x", "/etc/x", "a/../../x"])
def test_id_that_leads_out_of_the_folder(video_id: str, build: Callable[..., Path]) -> None:
    root = build(train=[*TRAIN, row(video_id, "Yes")])
    message = message_of(root)
    assert message.startswith(f"{root / 'CharadesEgo_v1_train.csv'}:")
    assert f"{video_id}.mp4" in message


def test_row_that_is_cut_off(build: Callable[..., Path], place: Place) -> None:
    root = build()
    place("CharadesEgo_v1_train.csv", table(TRAIN) + "EGO01")
    assert "egocentric is None" in message_of(root)


@pytest.fixture
def pairs(build: Callable[..., Path], place: Place) -> Callable[..., dict[str, str | None]]:
    """pairs("A exo AEGO", ...): id → pair of the videos that have one, of training videos as id, view, partner."""

    def read(*lines: str, **build_settings: Any) -> dict[str, str | None]:
        rows = [line.split(" ") for line in lines]
        for video_id, *_ in rows:
            place(f"{video_id}.mp4")
        train = [row(name, "Yes" if view == "ego" else "No", partner=partner) for name, view, partner in rows]
        root = build(train=[*TRAIN, *train], **build_settings)
        videos = read_charades_ego("charades_ego", root).videos
        return {video.id: video.pair for video in videos if video.pair is not None}

    return read


@pytest.mark.parametrize(
    "lines",
    [
        ("AEGO ego A", "A exo AEGO"),  # both name each other
        ("AEGO ego A", "A exo "),
        ("AEGO ego ", "A exo AEGO"),
        ("AEGO ego A", "A exo A"),  # itself
        ("A exo ../../x", "AEGO ego A"),
        ("A exo C", "AEGO ego A"),  # the one that it names is not there
    ],
)
def test_videos_of_which_one_names_the_other_are_a_pair(lines: tuple[str, ...], pairs: Callable[..., Any]) -> None:
    found = pairs(*lines)
    assert set(found) == {"A", "AEGO"}
    assert found["A"] == found["AEGO"]


@pytest.mark.parametrize(
    "lines",
    [
        ("AEGO ego AEGO", "A exo A"),
        ("AEGO ego ", "A exo "),
        ("AEGO ego B", "A exo B"),
        ("AEGO ego BEGO", "BEGO ego AEGO", "A exo B", "B exo A"),  # of the same view
        ("AEGO ego EXOEGO2", "A exo PLAIN"),  # of the other split
        ("AEGO ego \x1b[2J", "A exo AEGO;EGO01EGO"),
    ],
)
def test_videos_that_are_no_pair(lines: tuple[str, ...], pairs: Callable[..., Any]) -> None:
    assert pairs(*lines) == {}


def test_of_several_claims_the_first_counts(pairs: Callable[..., Any]) -> None:
    found = pairs("AEGO ego A", "BEGO ego A", "A exo BEGO", "CEGO ego B", "B exo BEGO")
    assert found["AEGO"] == found["A"]
    assert found["CEGO"] == found["B"]
    assert found["A"] != found["B"]
    assert "BEGO" not in found


def test_without_the_column_nothing_is_paired(pairs: Callable[..., Any]) -> None:
    lines = ("AEGO ego A", "A exo AEGO")
    assert pairs(*lines) != {}
    assert pairs(*lines, columns=PUBLISHED[:-1]) == {}
