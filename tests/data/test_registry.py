import pytest

from byov.data.demo import PHASES
from byov.data.registry import READERS, open_dataset
from byov.errors import DatasetError

NAMES = ["break_eggs", "pour_milk", "pour_liquid", "tennis_forehand", "charades_ego", "demo"]


def test_known_names(tmp_path):
    assert list(READERS) == NAMES
    with pytest.raises(DatasetError, match=r"unknown dataset 'milk'.*break_eggs.*--manifest"):
        open_dataset("milk", tmp_path)


@pytest.mark.parametrize(
    ("name", "download"), [("pour_milk", "AlignEgoExo"), ("charades_ego", "prior.allenai.org/projects/charades-ego")]
)
def test_missing_dataset_names_folder_and_download(name, download, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("a file, not the folder")
    with pytest.raises(DatasetError, match=f"{tmp_path / name} is missing.*{download}"):
        open_dataset(name, tmp_path.relative_to(tmp_path))


def test_demo(place, tmp_path):
    lines = ["path,view,split,id,events"]
    for view in ("ego", "exo"):
        place(f"demo/{view}.mp4")
        lines.append(f"{view}.mp4,{view},train,{view}_0,0.5;1.5")
    place("demo/videos.csv", "\n".join(lines))
    dataset = open_dataset("demo", tmp_path)
    assert (dataset.name, dataset.phase_names) == ("demo", tuple(PHASES))
    assert [video.id for video in dataset.videos] == ["ego_0", "exo_0"]


@pytest.mark.parametrize(
    ("name", "file"),
    [("break_eggs", "label.pickle"), ("charades_ego", "CharadesEgo_v1_train.csv"), ("demo", "videos.csv")],
)
def test_empty_folder_names_the_missing_file(name, file, tmp_path):
    (tmp_path / name).mkdir()
    with pytest.raises(DatasetError, match=str(tmp_path / name / file)):
        open_dataset(name, tmp_path)
