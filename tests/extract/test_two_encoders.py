"""Tests of features of two encoders, which share the labels in the manifest."""

import pytest
from tests.factories import write_noise_video

from byov.cache.manifest import load_manifest
from byov.cache.verify import verify_folder
from byov.errors import StaleError
from byov.train.feature_store import open_training_data

FIRST = ("--encoder", "random/tiny")
HEAD = "path,view,split,events\n"


@pytest.fixture
def videos(make_dataset):
    return make_dataset([15, 30]).parent


@pytest.fixture
def extract(byov_extract, videos, model_folder, tmp_path):
    """Return a function that writes the CSV with events of both videos and extracts features."""
    second = ("--encoder", model_folder(tmp_path / "second"))

    def run(ego, exo, *options, encoder=FIRST):
        table = videos / "mine.csv"
        table.write_text(f"{HEAD}v0.mp4,ego,train,{ego}\nv1.mp4,exo,train,{exo}\n")
        encoder = second if encoder == "second" else encoder
        return byov_extract("--manifest", table, *encoder, *options, "--json")

    return run


@pytest.fixture
def first_labels(tmp_path):
    """Return a function that reads the number of frames before the event from the manifest."""

    def read():
        manifest = load_manifest(tmp_path / "features/mine/manifest.json")
        return [video.labels and video.labels.count(0) for video in manifest.videos]

    return read


def test_features_of_an_earlier_version_of_a_video_are_refused(extract, videos, tmp_path):
    assert extract("4f", "4f").code == 0
    folder = tmp_path / "features/mine/random--tiny"
    write_noise_video(videos / "v1.mp4", 30, seed=9)
    assert extract("4f", "20f", encoder="second").code == 0
    with pytest.raises(
        StaleError, match=r"exo/v1\.h5: .*another version.*Delete it.*--encoder random/tiny"
    ):
        open_training_data(tmp_path / "features", "mine", "random/tiny", 0.3)
    problems = {file.path.name: file.problem for file in verify_folder(folder) if file.problem}
    assert list(problems) == ["v1.h5"]
    assert len(open_training_data(tmp_path / "features", "mine", "second", 0.3).videos) == 2
    (folder / "exo/v1.h5").unlink()
    assert extract("4f", "20f").json["extracted_videos"] == 1
    assert len(open_training_data(tmp_path / "features", "mine", "random/tiny", 0.3).videos) == 2


def test_labels_of_a_shard_come_from_the_same_annotation_as_all_others(extract, first_labels):
    assert extract("4f", "4f").code == 0
    assert extract("6f", "8f", "--shard", "1/2", encoder="second").json["extracted_videos"] == 1
    assert first_labels() == [6, 8]


def test_labels_follow_the_annotation_back(extract, first_labels):
    assert extract("4f", "0.4").code == 0
    assert extract("6f", "0.8", encoder="second").code == 0
    assert first_labels() == [6, 12]
    assert extract("4f", "0.4").json["extracted_videos"] == 0
    assert first_labels() == [4, 6]


def test_new_labels_of_a_replaced_video_are_not_combined_with_its_old_features(
    extract, first_labels, videos, tmp_path
):
    assert extract("4f", "4f").code == 0
    write_noise_video(videos / "v1.mp4", 30, seed=9)
    assert extract("4f", "20f", "--shard", "1/2", encoder="second").code == 0
    assert first_labels() == [4, None]
    with pytest.raises(StaleError):
        open_training_data(tmp_path / "features", "mine", "random/tiny", 0.3)
