import json
import re

import numpy as np
import pytest

from byov.cache.digests import unsealed
from byov.cache.hdf5 import read_array
from byov.errors import CacheError, TrainError
from byov.train.feature_store import FeatureStore, open_training_data

SLUG = "openai--clip-vit-base-patch16"
MISTAKES = (TrainError, CacheError)


def refused(*arguments):
    with pytest.raises(MISTAKES) as caught:
        open_training_data(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(features_dir):
    return features_dir / "demo" / SLUG


@pytest.fixture
def edit_manifest(features_dir):
    """edit_manifest(change): pass the manifest's JSON through a function."""
    path = features_dir / "demo" / "manifest.json"

    def edit(change):
        raw = unsealed(json.loads(path.read_text()))
        change(raw)
        path.write_text(json.dumps(raw))

    return edit


@pytest.mark.parametrize("ratio", [0.3, 1.0, 1])
@pytest.mark.parametrize("dataset", [None, "demo"])
@pytest.mark.parametrize("encoder", [None, SLUG, "openai/clip-vit-base-patch16"])
def test_the_only_features_there_are_need_no_name(features_dir, folder, ratio, dataset, encoder):
    source = open_training_data(features_dir, dataset, encoder, ratio)
    assert (source.dataset, source.folder, source.width, source.absent) == ("demo", folder, 16, 0)
    assert source.column == f"merged/{float(ratio)}"
    assert source.identity["encoder"] == "openai/clip-vit-base-patch16"


def test_videos_come_with_split_view_length_and_labels(features_dir):
    source = open_training_data(features_dir, None, None, 0.3)
    assert len(source.videos) == 11
    assert [(video.id, video.frames) for video in source.of("train", "exo")] == [("c", 33), ("a", 50)]
    assert [video.id for video in source.of("val")] == ["d", "e", "f", "g"]
    (video,) = source.of("test", "ego")
    assert video.labels == tuple(frame * 3 // 20 for frame in range(20))


def test_pairs_come_as_the_manifest_has_them(features_dir, edit_manifest):
    found = {(video.view, video.id): video.pair for video in open_training_data(features_dir, None, None, 0.3).videos}
    wanted = {("ego", "a"): "p", ("exo", "c"): "p", ("ego", "short"): "q", ("exo", "a"): "q"}
    assert {video: pair for video, pair in found.items() if pair is not None} == wanted
    names = ["p", None, "alone", "p", "", "split", "x" * 100_000, "split", "\x1b[2J", "p", "\n"]

    def change(raw):
        for video, pair in zip(raw["videos"], names, strict=True):
            video["pair"] = pair

    edit_manifest(change)
    assert [video.pair for video in open_training_data(features_dir, None, None, 0.3).videos] == names


def test_videos_that_are_not_in_the_cache_are_counted(features_dir, folder):
    (folder / "ego" / "b.h5").unlink()
    source = open_training_data(features_dir, None, None, 0.3)
    assert source.absent == 1
    assert "b" not in [video.id for video in source.of("train", "ego")]


def test_features_are_what_the_file_holds(features_dir):
    source = open_training_data(features_dir, None, None, 1.0)
    for preload_bytes in (0, 2**30):
        store = FeatureStore(source, source.of("val"), preload_bytes)
        for video in source.videos:  # also those that were not to be preloaded
            assert np.array_equal(store.read(video), read_array(video.path, "merged/1.0"))


def test_features_are_preloaded_if_they_fit_the_budget(features_dir):
    source = open_training_data(features_dir, None, None, 0.3)
    videos = source.of("train", "ego")
    size = (40 + 25 + 3) * 16 * 2
    assert FeatureStore(source, videos, size).preloaded
    assert FeatureStore(source, videos, size).size_bytes == size
    assert not FeatureStore(source, videos, size - 1).preloaded


def test_preloaded_features_outlive_their_files_and_others_do_not(features_dir):
    source = open_training_data(features_dir, None, None, 0.3)
    video = source.of("train", "ego")[0]
    preloaded, lazy = (FeatureStore(source, [video], budget) for budget in (2**30, 0))
    video.path.unlink()
    assert preloaded.read(video).shape == (40, 16)
    with pytest.raises(CacheError, match=r"a\.h5: no such file"):
        lazy.read(video)


def test_no_cache_at_all(tmp_path):
    assert "no feature cache here; make one with byov-extract" in refused(tmp_path / "none", None, None, 0.3)
    (tmp_path / "empty").mkdir()
    assert "no features; there is nothing" in refused(tmp_path / "empty", None, None, 0.3)


def test_an_unknown_dataset_lists_those_there_are(features_dir, make_cache):
    make_cache({("train", "ego", "x"): 5}, dataset="pour_milk")
    assert refused(features_dir, "pour", None, 0.3).endswith("holds no dataset 'pour'; it holds demo, pour_milk")


def test_several_datasets_must_be_chosen_from(features_dir, make_cache):
    make_cache({("train", "ego", "x"): 5}, dataset="pour_milk")
    assert refused(features_dir, None, None, 0.3) == "which dataset? --dataset demo | pour_milk"
    assert open_training_data(features_dir, "pour_milk", None, 0.3).dataset == "pour_milk"


def test_an_unknown_encoder_lists_those_there_are(features_dir):
    assert refused(features_dir, None, "dino", 0.3).endswith(f"demo: no encoder 'dino'; there is {SLUG}")


def test_several_encoders_must_be_chosen_from(features_dir, folder):
    other = folder.with_name("resnet50-conv4c")
    other.mkdir()
    assert refused(features_dir, None, None, 0.3) == f"which encoder? --encoder {SLUG} | resnet50-conv4c"
    assert open_training_data(features_dir, None, SLUG, 0.3).folder == folder
    assert "none of the manifest's videos is in it; run byov-extract --dataset demo" in refused(
        features_dir, None, "resnet50-conv4c", 0.3
    )


def test_an_unknown_ratio_lists_those_there_are_and_says_how_to_get_it(features_dir):
    assert refused(features_dir, None, None, 0.25).endswith(
        "no STM ratio 0.25; it has 0.3, 1.0. Add it by byov-extract as before, with --ratios 0.25"
    )


def test_a_ratio_that_one_video_lacks_names_the_video(features_dir, folder, write_video):
    write_video(folder / "exo" / "f.h5", {1.0: np.zeros((30, 16), np.float16)})
    assert re.search(r"exo.f\.h5: no STM ratio 0\.3; it has 1\.0", refused(features_dir, None, None, 0.3))
    assert open_training_data(features_dir, None, None, 1.0).width == 16


@pytest.mark.parametrize("damage", ["truncated", "text", "empty"])
def test_a_damaged_file_is_named(features_dir, folder, damage):
    path = folder / "exo" / "f.h5"
    content = path.read_bytes()
    path.write_bytes({"truncated": content[: len(content) // 2], "text": b"hello", "empty": b""}[damage])
    message = refused(features_dir, None, None, 0.3)
    assert message.startswith(f"{path}: not a readable cache file (")
    assert message.endswith("delete it and run byov-extract again")


def test_a_damaged_manifest_is_named(features_dir):
    (features_dir / "demo" / "manifest.json").write_text("{")
    assert "manifest.json: not a readable manifest" in refused(features_dir, None, None, 0.3)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("preload_bytes", [0, 2**30])
def test_features_that_are_not_finite_name_the_video_and_the_frame(
    features_dir, folder, write_video, value, preload_bytes
):
    features = np.zeros((30, 16), np.float16)
    features[7, 3] = features[9, 1] = value
    write_video(folder / "exo" / "f.h5", {0.3: features})
    source = open_training_data(features_dir, None, None, 0.3)
    (video,) = [video for video in source.videos if video.id == "f"]
    with pytest.raises(TrainError, match=r"exo.f\.h5: merged/0\.3 is not finite at frame 7; extract it again$"):
        FeatureStore(source, [video], preload_bytes).read(video)


def test_features_of_another_width_name_the_video(features_dir, folder, write_video):
    write_video(folder / "exo" / "f.h5", {0.3: np.zeros((30, 12), np.float16)})
    source = open_training_data(features_dir, None, None, 0.3)
    with pytest.raises(TrainError, match=r"f\.h5: merged/0\.3 is \(30, 12\), expected \(30, 16\)"):
        FeatureStore(source, source.videos, 2**30)


def test_features_that_change_their_length_while_they_are_used_are_noticed(features_dir, folder, write_video):
    source = open_training_data(features_dir, None, None, 0.3)
    (video,) = [video for video in source.videos if video.id == "f"]
    write_video(folder / "exo" / "f.h5", {0.3: np.zeros((29, 16), np.float16)})
    with pytest.raises(TrainError, match=r"f\.h5: merged/0\.3 is \(29, 16\), expected \(30, 16\)"):
        FeatureStore(source, (), 0).read(video)


def test_features_of_another_model_name_the_video(features_dir, folder, write_video):
    write_video(folder / "exo" / "f.h5", {0.3: np.zeros((30, 16), np.float16)}, encoder_sha256="00" * 32)
    assert re.search(r"exo.f\.h5: weights '0000", refused(features_dir, None, None, 0.3))


def test_features_of_another_compute_type_name_the_video_and_both_types(features_dir, folder, write_video):
    write_video(folder / "exo" / "f.h5", {0.3: np.zeros((30, 16), np.float16)}, compute_dtype="float16")
    said = r"exo.f\.h5: compute type 'float16', but .*\.h5 has 'float32'"
    assert re.search(said, refused(features_dir, None, None, 0.3))


def test_a_video_without_frames_is_named(features_dir, folder, write_video, edit_manifest):
    write_video(folder / "exo" / "f.h5", {0.3: np.zeros((0, 16), np.float16)})
    edit_manifest(lambda raw: raw["videos"][7].update(labels=[]))
    assert re.search(r"exo.f\.h5: no frames$", refused(features_dir, None, None, 0.3))


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0] * 29, "29 labels from 0 to 0 for 30 frames and 3 phases"),
        ([0] * 31, "31 labels"),
        ([], "0 labels"),
        ([0] * 29 + [3], "30 labels from 0 to 3 for 30 frames and 3 phases"),
        ([-2] * 30, "30 labels from -2 to -2"),
    ],
)
def test_labels_that_do_not_fit_name_the_video(features_dir, edit_manifest, labels, said):
    edit_manifest(lambda raw: raw["videos"][7].update(labels=labels))
    message = refused(features_dir, None, None, 0.3)
    assert message.startswith(f"f: {said}")
    assert message.endswith("run byov-extract again, it brings the manifest up to date")


def test_a_dataset_without_phases_has_no_labels(make_cache):
    source = open_training_data(make_cache({("train", "ego", "x"): 5}, phases=()), None, None, 0.3)
    assert source.videos[0].labels is None
