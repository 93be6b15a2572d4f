import csv
import io

import pytest

from byov.data.charades_ego import read_charades_ego
from byov.errors import DatasetError

COLUMNS = ["id", "subject", "scene", "script", "actions", "length", "egocentric", "charades_video"]


def row(video_id, egocentric, actions="c092 11.90 21.20;c147 0.00 12.60", partner=""):
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


def table(rows, columns):
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="", extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@pytest.fixture
def build(place, tmp_path):
    """build(train, test, columns): the folder of the dataset, with its videos."""

    def write(train=TRAIN, test=TEST, columns=COLUMNS):
        for video in [*TRAIN, *TEST]:
            place(f"{video['id']}.mp4")
        place("CharadesEgo_v1_train.csv", table(train, columns))
        place("CharadesEgo_v1_test.csv", table(test, columns))
        return tmp_path

    return write


@pytest.mark.parametrize("columns", [COLUMNS, COLUMNS[::-1], ["egocentric", "actions", "id"], [*COLUMNS, "more"]])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_published_layout(columns, mark, build, place):
    root = build(columns=columns)
    place("CharadesEgo_v1_train.csv", mark + table(TRAIN, columns))
    dataset = read_charades_ego("charades_ego", root)
    assert [(video.id, video.view, video.split, video.actions) for video in dataset.videos] == [
        ("EGO01EGO", "ego", "train", (92, 147)),
        ("EXO01", "exo", "train", (92, 147)),
        ("EXOEGO2", "exo", "test", (92, 147)),
        ("PLAIN", "ego", "test", ()),
    ]
    assert dataset.videos[1].path == root / "EXO01.mp4"
    assert (len(dataset.action_names), dataset.action_names[92], dataset.phase_names) == (157, "c092", ())


def test_repeated_actions_count_once(build):
    root = build(train=[row("EGO01EGO", "Yes", "c147 0 1;c003 2 3;c147 5 6"), TRAIN[1]])
    assert read_charades_ego("charades_ego", root).videos[0].actions == (3, 147)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"columns": COLUMNS[1:]}, "column 'id' is missing"),
        ({"test": [TEST[0], row("PLAIN", "yes")]}, r"_test\.csv:\d+: egocentric is 'yes'"),
        ({"train": TRAIN[:1]}, "train split of charades_ego has no exo"),
        ({"test": []}, "test split of charades_ego has no ego"),
        ({"train": [*TRAIN, row("absent", "Yes")]}, "absent.mp4: listed in the train split"),
        ({"test": [*TEST, TRAIN[0]]}, "'EGO01EGO' is not unique"),
        ({"train": [*TRAIN, row("../x", "Yes")]}, r"_train\.csv:\d+: .* outside"),
        *(
            ({"train": [row("EGO01EGO", "Yes", actions), TRAIN[1]]}, f"action '{actions}'")
            for actions in ("c157 0 1", "c92 0 1", "c092", "c092 0 1 2", "hello", "c092 0 1,c147 0 1")
        ),
    ],
)
def test_malformed_lists(settings, problem, build):
    with pytest.raises(DatasetError, match=problem):
        read_charades_ego("charades_ego", build(**settings))


@pytest.mark.parametrize(
    ("content", "problem"), [("", "column 'id'"), (table(TEST, COLUMNS).encode() + b"\xff,", "not a readable CSV")]
)
def test_files_that_are_not_lists(content, problem, build, place):
    root = build()
    place("CharadesEgo_v1_test.csv", content)
    with pytest.raises(DatasetError, match=rf"_test\.csv: .*{problem}"):
        read_charades_ego("charades_ego", root)
    (root / "CharadesEgo_v1_test.csv").unlink()
    with pytest.raises(DatasetError, match=r"_test\.csv: missing"):
        read_charades_ego("charades_ego", root)


@pytest.fixture
def pairs(build, place):
    """pairs("A exo AEGO", ...): id → pair of the paired videos; each argument is id, view and partner."""

    def read(*lines, **settings):
        train = []
        for video_id, view, partner in (line.split(" ") for line in lines):
            place(f"{video_id}.mp4")
            train.append(row(video_id, "Yes" if view == "ego" else "No", partner=partner))
        videos = read_charades_ego("charades_ego", build(train=[*TRAIN, *train], **settings)).videos
        return {video.id: video.pair for video in videos if video.pair is not None}

    return read


@pytest.mark.parametrize(
    "lines",
    [
        ("AEGO ego A", "A exo AEGO"),
        ("AEGO ego A", "A exo "),
        ("AEGO ego ", "A exo AEGO"),
        ("AEGO ego A", "A exo A"),  # names itself
        ("A exo C", "AEGO ego A"),  # names a video that is not listed
    ],
)
def test_one_partner_that_names_the_other_makes_a_pair(lines, pairs):
    found = pairs(*lines)
    assert set(found) == {"A", "AEGO"}
    assert found["A"] == found["AEGO"]


@pytest.mark.parametrize(
    "lines",
    [
        ("AEGO ego AEGO", "A exo A"),
        ("AEGO ego B", "A exo B"),
        ("AEGO ego BEGO", "BEGO ego AEGO", "A exo B", "B exo A"),  # same view
        ("AEGO ego EXOEGO2", "A exo PLAIN"),  # other split
    ],
)
def test_videos_that_are_not_pairs(lines, pairs):
    assert pairs(*lines) == {}


def test_the_first_of_several_claims_wins(pairs):
    found = pairs("AEGO ego A", "BEGO ego A", "A exo BEGO", "CEGO ego B", "B exo BEGO")
    assert found["AEGO"] == found["A"]
    assert found["CEGO"] == found["B"]
    assert found["A"] != found["B"]
    assert "BEGO" not in found


def test_older_releases_have_no_pairs(pairs):
    assert pairs("AEGO ego A", "A exo AEGO", columns=COLUMNS[:-1]) == {}
