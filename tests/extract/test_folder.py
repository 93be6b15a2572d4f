"""Tests of `byov-extract --folder`, which extracts features from a folder of videos."""

import csv
import json

import pytest
from tests.factories import write_noise_video

TINY = ("--encoder", "random/tiny", "--ratios", "0.3")


@pytest.fixture
def my(tmp_path):
    """Folder with one ego video, two exo videos and a text file."""
    for index, name in enumerate(("ego/1.mp4", "exo/1.mp4", "exo/2.mp4")):
        write_noise_video(tmp_path / "my" / name, 3, seed=index)
    (tmp_path / "my" / "notes.txt").touch()
    return tmp_path / "my"


def test_folder_is_extracted_and_its_csv_can_be_edited(byov_extract, my, tmp_path):
    ran = byov_extract("--folder", my, *TINY)
    assert ran.code == 0, ran.err
    assert "skipped (not a video): notes.txt\n" in ran.err
    assert f"1 train ego, 1 train exo, 1 val exo; listed in {my / 'videos.csv'}" in ran.err
    with (my / "videos.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    assert [row["id"] for row in table] == ["ego-1", "exo-1", "2"]
    text = (my / "videos.csv").read_text().replace("ego,train,ego-1,,", "ego,train,ego-1,0.1 pour,")
    (my / "videos.csv").write_text(text)
    (my / "exo" / "3.mp4").write_bytes((my / "exo" / "2.mp4").read_bytes())
    again = byov_extract("--folder", my, *TINY)
    assert again.code == 0, again.err
    assert f"videos listed in {my / 'videos.csv'}" in again.err
    assert "skipped (not listed): exo/3.mp4\n" in again.err
    assert "3 already cached" in again.out
    assert "my: 0 videos extracted" in byov_extract("--manifest", my / "videos.csv", *TINY).out
    manifest = json.loads((tmp_path / "features" / "my" / "manifest.json").read_text())
    assert manifest["phases"] == ["start", "pour"]
    assert [video["labels"] for video in manifest["videos"]] == [[0, 0, 1], None, None]


def test_csv_is_in_the_cache_if_the_folder_is_read_only(byov_extract, my, tmp_path):
    (my / "videos.csv").mkdir()  # used instead of a read-only folder, to which root could write
    ran = byov_extract("--folder", my, "--name", "cups", *TINY)
    assert ran.code == 0, ran.err
    table = tmp_path / "features" / "cups" / "videos.csv"
    assert f"listed in {table}" in ran.err
    assert f"listed in {table}" in byov_extract("--folder", my, "--name", "cups", *TINY).err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--split", "60,20,20"), "0.6,0.2,0.2"),
        (("--split", "0.6,0.2"), "such as 0.6,0.2,0.2"),
        (("--split", "0,0.5,0.5"), "such as 0.6,0.2,0.2"),
        (("--split", "a,b,c"), "comma-separated numbers"),
        (("--dataset", "demo"), "pass one of --dataset"),
        (("--name", "demo"), "'demo' is the name of a built-in dataset"),
    ],
)
def test_bad_options(arguments, said, byov_extract, my):
    ran = byov_extract("--folder", my, *arguments, *TINY)
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert not (my / "videos.csv").exists()


def test_split_cannot_be_combined_with_a_csv(byov_extract, my, make_dataset):
    assert (
        "--split requires --folder"
        in byov_extract("--manifest", make_dataset([2, 2]), "--split", "1,0,0", *TINY).err
    )
    (my / "videos.csv").write_text("path,view,split\nego/1.mp4,ego,train\nexo/1.mp4,exo,train,\n")
    assert "already defines splits" in byov_extract("--folder", my, "--split", "1,0,0", *TINY).err


def test_cameras_of_a_take_stay_in_one_split(byov_extract, tmp_path):
    for take in range(5):
        for camera in range(3):
            path = tmp_path / f"my/take{take}/cam{camera}.mp4"
            write_noise_video(path, 2, seed=3 * take + camera)
            copy = tmp_path / f"my/take{take}/small/cam{camera}.mp4"
            write_noise_video(copy, 3, seed=3 * take + camera)
    patterns = ("--ego", "*cam0*", "--exo", "*cam[12]*")
    assert byov_extract("--folder", tmp_path / "my", *patterns, *TINY).code == 0
    manifest = json.loads((tmp_path / "features/my/manifest.json").read_text())
    splits = {}
    for video in manifest["videos"]:
        splits.setdefault(video["group"], set()).add(video["split"])
    assert {take: len(each) for take, each in splits.items()} == {f"take{i}": 1 for i in range(5)}
    assert set.union(*splits.values()) == {"train", "val", "test"}


def test_copies_of_a_video_in_two_splits_are_refused(byov_extract, tmp_path):
    for name in ("train/ego/1.mp4", "train/exo/1.mp4", "test/exo/9.mp4"):
        write_noise_video(tmp_path / "my" / name, 3, seed=int("ego" in name))
    message = byov_extract("--folder", tmp_path / "my", *TINY).error()
    assert "9 (test) and train-exo-1 (train) show the same frames" in message
