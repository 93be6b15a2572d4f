import json
import re

import numpy as np
import pytest
from tests.factories import write_features, write_file

from byov.cache.digests import read_sealed_json
from byov.cache.hdf5 import read_array
from byov.errors import ByovError, CacheError, StaleError, TrainError
from byov.train.feature_store import FeatureStore, open_training_data

SLUG = "openai--clip-vit-base-patch16"


@pytest.fixture
def folder(features_dir):
    return features_dir / "demo" / SLUG


@pytest.fixture
def edit_video(features_dir):
    """Return a function that changes the manifest entry of the exo video "f"."""
    path = features_dir / "demo" / "manifest.json"

    def edit(**changes):
        manifest = read_sealed_json(path.read_bytes())
        next(video for video in manifest["videos"] if video["id"] == "f").update(changes)
        path.write_text(json.dumps(manifest))

    return edit


def error_of(*arguments):
    with pytest.raises(ByovError) as raised:
        open_training_data(*arguments)
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("ratio", [0.3, 1.0, 1])
@pytest.mark.parametrize(
    ("dataset", "encoder"), [(None, None), ("demo", SLUG), ("demo", SLUG.replace("--", "/"))]
)
def test_features_are_found_by_name_or_because_they_are_the_only_ones(
    features_dir, folder, ratio, dataset, encoder
):
    data = open_training_data(features_dir, dataset, encoder, ratio)
    assert (data.dataset, data.folder, data.width) == ("demo", folder, 16)
    assert data.column == f"merged/{float(ratio)}"
    assert data.identity["encoder"] == "openai/clip-vit-base-patch16"


def test_videos_have_the_facts_of_the_manifest(features_dir, folder):
    data = open_training_data(features_dir, None, None, 0.3)
    assert len(data.videos) == 11
    assert [(video.id, video.frames) for video in data.split("train", "exo")] == [
        ("c", 33),
        ("a", 50),
    ]
    assert [video.id for video in data.split("val")] == ["d", "e", "f", "g"]
    assert [video.pair for video in data.split("train")] == ["p", None, "q", "p", "q"]
    (video,) = data.split("test", "ego")
    assert video.labels == tuple(frame * 3 // 20 for frame in range(20))
    (folder / "ego" / "b.h5").unlink()  # videos that are not in the cache are skipped
    assert "b" not in [
        video.id for video in open_training_data(features_dir, None, None, 0.3).videos
    ]


def test_features_are_preloaded_if_they_fit(features_dir):
    data = open_training_data(features_dir, None, None, 1.0)
    videos = data.split("train", "ego")
    size = (40 + 25 + 3) * 16 * 2
    preloaded = FeatureStore(data, videos, size)
    lazy = FeatureStore(data, videos, size - 1)
    assert (preloaded.size_bytes, preloaded.preloaded, lazy.preloaded) == (size, True, False)
    for video in data.videos:  # including videos that are not preloaded
        assert np.array_equal(preloaded.read(video), read_array(video.path, "merged/1.0"))
        assert np.array_equal(lazy.read(video), preloaded.read(video))
    videos[0].path.unlink()
    assert preloaded.read(videos[0]).shape == (40, 16)
    with pytest.raises(CacheError, match=r"a\.h5"):
        lazy.read(videos[0])


def test_several_datasets_or_encoders_must_be_chosen_from(features_dir, folder, make_cache):
    write_file(folder.with_name("resnet50-conv4c") / "ego" / "none.h5")
    assert f"--encoder {SLUG} | resnet50-conv4c" in error_of(features_dir, None, None, 0.3)
    # A local folder with the encoder, passed with a slash as byov-extract allows.
    model = folder.parents[1] / SLUG
    model.mkdir()
    assert open_training_data(features_dir, None, f"{model}/", 0.3).width == 16
    assert "byov-extract --dataset demo" in error_of(features_dir, None, "resnet50-conv4c", 0.3)
    make_cache({("train", "ego", "x"): 5}, dataset="pour_milk")
    assert "--dataset demo | pour_milk" in error_of(features_dir, None, None, 0.3)
    assert "demo, pour_milk" in error_of(features_dir, "pour", None, 0.3)


def test_features_whose_videos_all_failed_are_not_offered(features_dir, folder):
    for failed in (folder.with_name("failed"), features_dir / "mine" / "failed"):
        write_file(failed / "failures.json", "{}")
        write_file(features_dir / "mine" / "manifest.json", "{}")
    assert open_training_data(features_dir, None, None, 0.3).folder == folder
    assert "failures.json" in error_of(features_dir, "mine", None, 0.3)
    assert "byov-extract" in error_of(features_dir, "demo", "failed", 0.3)


@pytest.mark.parametrize(
    ("values", "provenance", "fact"),
    [
        ({1.0: np.zeros((30, 16))}, {}, "0.3"),
        ({0.3: np.zeros((30, 16))}, {"encoder_sha256": "00" * 32}, "weights '0000"),
        ({0.3: np.zeros((30, 16))}, {"compute_dtype": "float16"}, "'float16'"),
    ],
)
def test_a_file_that_does_not_fit_the_others_is_named(
    features_dir, folder, values, provenance, fact
):
    path = folder / "exo" / "f.h5"
    write_features(
        path,
        {ratio: features.astype(np.float16) for ratio, features in values.items()},
        **provenance,
    )
    message = error_of(features_dir, None, None, 0.3)
    assert message.startswith(str(path))
    assert fact in message


@pytest.mark.parametrize("labels", [[0] * 29, [], [0] * 29 + [3], [-2] * 30])
def test_labels_that_do_not_fit_name_the_video(features_dir, edit_video, labels):
    edit_video(labels=labels)
    message = error_of(features_dir, None, None, 0.3)
    assert message.startswith("f has ")
    assert f"{len(labels)} labels" in message


@pytest.mark.parametrize("preload_bytes", [0, 2**30])
def test_unusable_and_replaced_features_are_noticed(features_dir, folder, preload_bytes):
    before = open_training_data(features_dir, None, None, 0.3)
    features = np.where(np.arange(30)[:, None] == 7, np.nan, np.zeros((30, 16)))
    write_features(folder / "exo" / "f.h5", {0.3: features.astype(np.float16)})
    after = open_training_data(features_dir, None, None, 0.3)
    for data, error, message in (
        (before, StaleError, "replaced"),
        (after, TrainError, "not finite at frame 7"),
    ):
        (video,) = [video for video in data.videos if video.id == "f"]
        with pytest.raises(error, match=rf"^{re.escape(str(video.path))}.*{message}"):
            FeatureStore(data, [video], preload_bytes).read(video)
