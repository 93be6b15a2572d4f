import warnings
from dataclasses import asdict

import numpy as np
import pytest
from tests.factories import write_features

from byov.cache.features import read_header
from byov.cache.hdf5 import read_array
from byov.errors import EvaluationError
from byov.evaluate.embeddings import CachedFeatures, TimeOnly, clock, features_name, time_only
from byov.evaluate.evaluation import evaluate, read_task_data
from byov.evaluate.protocols import segments

CLIP_FOLDER = "openai--clip-vit-base-patch16"


def parts(frames):
    return zip(frames.starts, frames.lengths, strict=True)


def overwrite(path, values):
    """The same file with other features."""
    provenance = asdict(read_header(path).provenance)
    path.unlink()
    write_features(path, {0.3: values.astype(np.float16)}, **provenance)


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


@pytest.mark.parametrize("protocol", ["standard", "trimmed"])
def test_standardized_features_have_zero_mean_and_unit_deviation_in_each_segment(features_dir, protocol):
    column = (features_dir, "tea", CLIP_FOLDER, "merged/0.3")
    frozen, standardized = CachedFeatures(*column), CachedFeatures(*column, standardized=True)
    plain, scaled = frozen.frames("test", protocol), standardized.frames("test", protocol)
    assert scaled.embeddings.dtype == np.float32
    for start, length in parts(scaled):
        rows = plain.embeddings[start : start + length].astype(np.float64)
        expected = (rows - rows.mean(axis=0)) / rows.std(axis=0)
        np.testing.assert_allclose(scaled.embeddings[start : start + length], expected, atol=1e-5)
    assert standardized.name == f"{frozen.name}, standardized"
    assert standardized.origin() == frozen.origin() | {"standardized": True}


def test_classifiers_are_fitted_on_whole_standardized_training_videos(features_dir):
    reader = CachedFeatures(features_dir, "tea", CLIP_FOLDER, "cls", standardized=True)
    data = read_task_data(reader, "test", "trimmed", ["classification"])
    np.testing.assert_array_equal(data.train.embeddings, reader.frames("train").embeddings)
    means = [data.train.embeddings[start : start + length].mean(axis=0) for start, length in parts(data.train)]
    np.testing.assert_allclose(means, 0, atol=1e-6)


@pytest.mark.parametrize("values", ["constant", "largest", "one frame differs"])
def test_odd_features_are_standardized_without_a_warning(features_dir, values):
    reader = CachedFeatures(features_dir, "tea", CLIP_FOLDER, "merged/0.3", standardized=True)
    largest = np.finfo(np.float16).max
    for segment in (one for split in ("train", "test") for one in segments(reader.manifest, split)):
        odd = np.full((len(segment), 8), 97.3)
        if values == "largest":
            odd[:] = largest * (-1.0) ** np.arange(len(segment))[:, None]
        elif values == "one frame differs":
            odd[3] += 0.1
        overwrite(reader.path(segment), odd)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = evaluate(reader)
        embeddings = reader.frames("test").embeddings
    assert row.value("classification/regular") is not None
    assert np.isfinite(embeddings).all()
    assert (np.abs(embeddings).max() == 0) == (values == "constant")


def test_a_frame_that_is_not_finite_is_named(features_dir):
    reader = CachedFeatures(features_dir, "tea", CLIP_FOLDER, "merged/0.3", standardized=True)
    segment = segments(reader.manifest, "test")[0]
    values = np.ones((len(segment), 8))
    values[5] = np.inf
    overwrite(reader.path(segment), values)
    with pytest.raises(EvaluationError, match=r"ego/test_ego_0: .* in 1 of \d+ frames, first in 5"):
        reader.frames("test")


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
