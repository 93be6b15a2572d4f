import csv
import io

import pytest
from tests.factories import write_file

from byov.data.charades_ego import CharadesEgo
from byov.errors import DatasetError

COLUMNS = ["id", "subject", "scene", "script", "actions", "length", "egocentric", "charades_video"]


def row(video_id, egocentric, actions="c092 11.90 21.20;c147 0.00 12.60", partner=""):
    values = {
        "id": video_id,
        "egocentric": egocentric,
        "actions": actions,
        "charades_video": partner,
    }
    return values | {"script": 'A person, "standing",\nlaughs.'}


TRAIN = [row("EGO01EGO", "Yes"), row("EXO01", "No")]
TEST = [row("EXOEGO2", "No"), row("PLAIN", "Yes", "")]


def table(rows, columns=COLUMNS):
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.fixture
def read(tmp_path):
    """Return a function that writes the CSV files and videos of a dataset, and reads it."""

    def write_and_read(train=TRAIN, test=TEST, columns=COLUMNS):
        for video in [*TRAIN, *TEST]:
            write_file(tmp_path / f"{video['id']}.mp4")
        for name, rows in (("train", train), ("test", test)):
            content = rows if isinstance(rows, bytes) else table(rows, columns)
            write_file(tmp_path / f"CharadesEgo_v1_{name}.csv", content)
        return CharadesEgo().read(tmp_path)

    return write_and_read


@pytest.mark.parametrize("columns", [COLUMNS, ["egocentric", "actions", "id"], [*COLUMNS, "more"]])
def test_published_layout(columns, read, tmp_path):
    dataset = read(columns=columns)
    assert [(video.id, video.view, video.split, video.actions) for video in dataset.videos] == [
        ("EGO01EGO", "ego", "train", (92, 147)),
        ("EXO01", "exo", "train", (92, 147)),
        ("EXOEGO2", "exo", "test", (92, 147)),
        ("PLAIN", "ego", "test", ()),
    ]
    assert dataset.videos[1].path == tmp_path / "EXO01.mp4"
    assert (len(dataset.action_names), dataset.action_names[92], dataset.phase_names) == (
        157,
        "c092",
        (),
    )


def test_repeated_actions_count_once(read):
    assert read(train=[row("EGO01EGO", "Yes", "c147 0 1;c003 2 3;c147 5 6"), TRAIN[1]]).videos[
        0
    ].actions == (3, 147)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"columns": COLUMNS[1:]}, "first line is 'subject,.* columns id,egocentric,actions"),
        ({"test": [TEST[0], row("PLAIN", "yes")]}, r"_test\.csv:\d+: egocentric is 'yes'"),
        ({"train": TRAIN[:1]}, "train split of charades_ego has no exo"),
        ({"test": []}, "test split of charades_ego has no ego"),
        ({"train": [*TRAIN, row("absent", "Yes")]}, "absent.mp4: listed in the train split"),
        ({"test": [*TEST, TRAIN[0]]}, "'EGO01EGO' is not unique"),
        ({"test": b""}, r"_test\.csv: the first line is ''"),
        ({"test": table(TEST).encode() + b"\xff,"}, r"_test\.csv: not a readable CSV"),
        *(
            ({"train": [row("EGO01EGO", "Yes", actions), TRAIN[1]]}, f"action '{actions}'")
            for actions in (
                "c157 0 1",
                "c92 0 1",
                "c092",
                "c092 0 1 2",
                "hello",
                "c092 0 1,c147 0 1",
            )
        ),
    ],
)
def test_malformed_lists(settings, problem, read):
    with pytest.raises(DatasetError, match=problem):
        read(**settings)


@pytest.fixture
def pairs(read, tmp_path):
    """Return a function that maps video ids to pairs, given lines of id, view and partner like "A
    exo AEGO".
    """

    def paired(*lines, **settings):
        train = []
        for video_id, view, partner in (line.split(" ") for line in lines):
            write_file(tmp_path / f"{video_id}.mp4")
            train.append(row(video_id, "Yes" if view == "ego" else "No", partner=partner))
        videos = read(train=[*TRAIN, *train], **settings).videos
        return {video.id: video.pair for video in videos if video.pair is not None}

    return paired


@pytest.mark.parametrize(
    ("lines", "paired"),
    [
        (("AEGO ego A", "A exo AEGO"), ["A AEGO"]),
        (("AEGO ego A", "A exo "), ["A AEGO"]),
        (("AEGO ego ", "A exo AEGO"), ["A AEGO"]),
        (("AEGO ego A", "A exo A"), ["A AEGO"]),  # A is its own partner
        (("A exo C", "AEGO ego A"), ["A AEGO"]),  # the partner of A is not listed
        (("AEGO ego AEGO", "A exo A"), []),
        (("AEGO ego B", "A exo B"), []),
        (("AEGO ego BEGO", "BEGO ego AEGO", "A exo B", "B exo A"), []),  # same view
        (("AEGO ego EXOEGO2", "A exo PLAIN"), []),  # different splits
        (
            ("AEGO ego A", "BEGO ego A", "A exo BEGO", "CEGO ego B", "B exo BEGO"),
            ["A AEGO", "B CEGO"],
        ),  # the first match wins
    ],
)
def test_pairs(lines, paired, pairs):
    pair_of = pairs(*lines)
    groups = {
        " ".join(sorted(video for video in pair_of if pair_of[video] == pair))
        for pair in pair_of.values()
    }
    assert sorted(groups) == paired
    assert pairs(*lines, columns=COLUMNS[:-1]) == {}  # older releases have no partner column
