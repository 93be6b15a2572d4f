from collections.abc import Callable
from pathlib import Path

import pytest

from byov.data.demo import PHASES
from byov.data.registry import READERS, open_dataset
from byov.errors import DatasetError

NAMES = ["break_eggs", "pour_milk", "pour_liquid", "tennis_forehand", "charades_ego", "demo"]


def test_names() -> None:
    assert list(READERS) == NAMES


def test_unknown_name_lists_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="unknown dataset 'milk'") as error:
        open_dataset("milk", tmp_path)
    assert all(name in str(error.value) for name in NAMES)
    assert "--manifest" in str(error.value)


@pytest.mark.parametrize(
    ("name", "obtained"),
    [
        *((name, "github.com/zihuixue/AlignEgoExo") for name in NAMES[:4]),
        ("charades_ego", "prior.allenai.org/projects/charades-ego"),
    ],
)
def test_absent_dataset_says_where_it_looked_and_how_it_is_obtained(tmp_path: Path, name: str, obtained: str) -> None:
    with pytest.raises(DatasetError) as error:
        open_dataset(name, tmp_path)
    message = str(error.value)
    assert str(tmp_path / name) in message
    assert obtained in message
    assert "DATASET=demo" in message
    assert "\n" not in message


def test_absent_dataset_below_a_relative_folder_is_named_absolutely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DatasetError, match=str(tmp_path / "datasets" / "pour_milk")):
        open_dataset("pour_milk", Path("datasets"))


def test_file_in_place_of_the_folder_is_absent(tmp_path: Path) -> None:
    (tmp_path / "pour_milk").write_text("")
    with pytest.raises(DatasetError, match="pour_milk is not at"):
        open_dataset("pour_milk", tmp_path)


def test_demo_is_read_with_its_phase_names(place: Callable[..., Path], tmp_path: Path) -> None:
    rows = []
    for view in ("ego", "exo"):
        place(f"demo/train/{view}/{view}_0.mp4")
        rows.append(f"train/{view}/{view}_0.mp4,{view},train,{view}_0,0.5;1.5\n")
    place("demo/videos.csv", "path,view,split,id,events\n" + "".join(rows))
    dataset = open_dataset("demo", tmp_path)
    assert dataset.name == "demo"
    assert dataset.phase_names == tuple(PHASES)
    assert [video.id for video in dataset.videos] == ["ego_0", "exo_0"]


def test_folder_without_the_dataset_in_it_names_the_missing_file(tmp_path: Path) -> None:
    for name, first in (
        ("break_eggs", "label.pickle"),
        ("charades_ego", "CharadesEgo_v1_train.csv"),
        ("demo", "videos.csv"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises(DatasetError) as error:
            open_dataset(name, tmp_path)
        assert str(tmp_path / name / first) in str(error.value)
