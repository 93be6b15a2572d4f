import numpy as np
import pytest

from byov.cache.row_reader import read_array
from byov.errors import EvaluationError
from byov.evaluate.embedding_readers import CachedFeatures, TimeOnly, clock, features_name, time_only
from byov.evaluate.protocols import segments

CLIP_FOLDER = "openai--clip-vit-base-patch16"


def test_features_are_the_cached_column(features_dir):
    source = CachedFeatures(features_dir, "tea", CLIP_FOLDER, "merged/1.0")
    stored = read_array(features_dir / "tea" / CLIP_FOLDER / "ego" / "test_ego_0.h5", "merged/1.0")
    np.testing.assert_array_equal(source.frames("test").embeddings[: len(stored)], stored.astype(np.float32))
    clip = segments(source.manifest, "test", "trimmed")[1]
    trimmed = source.frames("test", "trimmed")
    np.testing.assert_array_equal(
        trimmed.embeddings[trimmed.starts[1] : trimmed.starts[2]], stored[clip.frames].astype(np.float32)
    )
    assert source.name == "CLIP features (vit-base-patch16), merged 1.0"


def test_features_that_are_not_there_name_the_command(features_dir):
    (features_dir / "tea" / CLIP_FOLDER / "ego" / "test_ego_0.h5").unlink()
    with pytest.raises(EvaluationError, match=r"1 of 6 test videos \(ego/test_ego_0\); .*byov-extract --dataset tea"):
        CachedFeatures(features_dir, "tea", CLIP_FOLDER, "cls").frames("test")


@pytest.mark.parametrize(
    ("encoder", "name"),
    [
        ("random/resnet-50", "Random features (resnet-50)"),
        ("microsoft/resnet-50", "ImageNet features (resnet-50)"),
        ("openai/clip-vit-large-patch14", "CLIP features (vit-large-patch14)"),
        ("facebook/dinov2-base", "dinov2-base features"),
    ],
)
def test_rows_bear_the_papers_names(encoder, name):
    assert features_name(encoder) == name


def test_time_only_runs_from_0_to_1_over_each_stretch(features_dir):
    source = TimeOnly(features_dir, "tea")
    for protocol in ("standard", "trimmed"):
        frames = source.frames("test", protocol)
        ends = frames.starts + frames.lengths - 1
        assert frames.embeddings.shape[1] == 1
        assert (frames.embeddings[frames.starts] == 0).all()
        assert (frames.embeddings[ends] == 1).all()
        np.testing.assert_array_equal(time_only(frames).embeddings, frames.embeddings)


def test_the_clock_of_one_frame_stands():
    assert clock(1).tolist() == [[0.0]]


def test_the_digest_of_the_features_is_the_same_under_both_protocols(features_dir):
    digests = []
    for protocol in ("standard", "trimmed"):
        source = CachedFeatures(features_dir, "tea", CLIP_FOLDER, "cls")
        source.frames("test", protocol)
        digests.append(source.origin()["features_sha256"])
    source.frames("val")
    assert digests[0] == digests[1] != source.origin()["features_sha256"]
