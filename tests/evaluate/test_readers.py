"""Tests of the readers for run embeddings, cached features and normalized time."""

import warnings
from dataclasses import asdict, replace

import numpy as np
import pytest
from safetensors.numpy import save
from tests.evaluate.conftest import CLIP_FOLDER
from tests.factories import write_features

from byov.cache.embeddings import read_embedding
from byov.cache.features import read_header
from byov.cache.hdf5 import read_array
from byov.cache.layout import trimmed_clips
from byov.errors import CacheError, EvaluationError, StaleError
from byov.evaluate.action_probe import video_means
from byov.evaluate.protocols import segments
from byov.evaluate.readers import (
    CachedFeatures,
    RunEmbeddings,
    TimeOnly,
    features_name,
    read_manifest,
    row_title,
)


def change_test_videos(features_dir, manifest, change):
    videos = tuple(change(video) if video.split == "test" else video for video in manifest.videos)
    replace(manifest, videos=videos).save(features_dir / manifest.dataset / "manifest.json")


@pytest.fixture
def run_reader(runs_dir, features_dir, write_run):
    write_run()
    return lambda **options: RunEmbeddings(runs_dir, features_dir, "first", **options)


@pytest.fixture
def cached(features_dir, manifest):
    return lambda column="merged/0.3", **options: CachedFeatures(
        features_dir, manifest.dataset, CLIP_FOLDER, column, **options
    )


def test_run_embeddings_come_in_the_order_of_the_manifest(run_reader, manifest, runs_dir):
    frames = run_reader().frames("test")
    videos = [video for video in manifest.videos if video.split == "test"]
    assert frames.lengths.tolist() == [video.frames for video in videos]
    assert frames.is_ego.tolist() == [True] * 3 + [False] * 3
    assert frames.labels.tolist() == [label for video in videos for label in video.labels]
    last = read_embedding(runs_dir / "first" / "embeddings" / "exo" / f"{videos[-1].id}.h5")[0]
    np.testing.assert_array_equal(frames.embeddings[-len(last) :], last)


def test_untrained_embeddings_are_read_from_their_own_files(run_reader):
    trained = run_reader()
    untrained = run_reader(untrained=True)
    assert not np.array_equal(
        trained.frames("test").embeddings, untrained.frames("test").embeddings
    )
    assert untrained.origin()["model_sha256"] == untrained.run.untrained_sha256
    assert (trained.kind, untrained.kind) == ("run", "untrained")


def test_sub_clips_replace_the_videos(run_reader, manifest):
    frames = run_reader().frames("val", "trimmed")
    first = next(video for video in manifest.videos if video.split == "val")
    clips = trimmed_clips("tea", first.view, first.id, first.frames)
    assert frames.lengths[:2].tolist() == [stop - start for start, stop in clips]
    assert frames.labels[: frames.lengths[0]].tolist() == list(first.labels[slice(*clips[0])])
    assert frames.recordings.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_absent_embeddings_name_the_command(run_reader, runs_dir):
    (runs_dir / "first" / "embeddings" / "exo" / "test_exo_1.h5").unlink()
    message = (
        r"no embeddings for 1 of 6 test videos \(first: exo/test_exo_1\); .*byov-train "
        r"--run first --embed-only"
    )
    with pytest.raises(EvaluationError, match=message):
        run_reader().frames("test")
    with pytest.raises(CacheError, match="first"):
        RunEmbeddings(runs_dir, runs_dir.parent / "features", "gone")


def test_embeddings_of_another_model_are_rejected(run_reader, runs_dir):
    (runs_dir / "first" / "model.safetensors").write_bytes(save({"weight": np.ones(1)}))
    with pytest.raises(StaleError, match=r"the model has changed; .*--embed-only"):
        run_reader().frames("test")


@pytest.mark.parametrize(
    "changed", [{"column": "cls"}, {"first_frame": 4}, {"video": "other"}, {"dataset": "milk"}]
)
def test_embeddings_of_something_else_are_rejected(runs_dir, features_dir, write_run, changed):
    write_run(**changed)
    ((key, value),) = changed.items()
    with pytest.raises(StaleError, match=f"{key} is '{value}', expected"):
        RunEmbeddings(runs_dir, features_dir, "first").frames("test")


def test_cached_features_are_the_stored_column(cached, features_dir):
    reader = cached("merged/1.0")
    stored = read_array(
        features_dir / "tea" / CLIP_FOLDER / "ego" / "test_ego_0.h5", "merged/1.0"
    ).astype(np.float32)
    np.testing.assert_array_equal(reader.frames("test").embeddings[: len(stored)], stored)
    clip = segments(reader.manifest, "test", "trimmed")[1]
    trimmed = reader.frames("test", "trimmed")
    np.testing.assert_array_equal(
        trimmed.embeddings[trimmed.starts[1] : trimmed.starts[2]], stored[clip.frames]
    )
    assert reader.name == "CLIP features (vit-base-patch16), merged 1.0"


@pytest.mark.parametrize("protocol", ["standard", "trimmed"])
def test_standardized_features_have_zero_mean_and_unit_deviation(cached, protocol):
    plain = cached()
    standardized = cached(standardized=True)
    before = plain.frames("test", protocol)
    after = standardized.frames("test", protocol)
    for video in range(len(before.lengths)):
        rows, scaled = (frames.select(np.array([video])).embeddings for frames in (before, after))
        np.testing.assert_allclose(scaled, (rows - rows.mean(axis=0)) / rows.std(axis=0), atol=1e-4)
    assert standardized.name == f"{plain.name}, standardized"
    assert standardized.origin() == plain.origin() | {"standardized": True}


def overwrite(path, values):
    provenance = asdict(read_header(path).provenance)
    path.unlink()
    write_features(path, {0.3: values.astype(np.float16)}, **provenance)


@pytest.mark.parametrize("values", ["constant", "largest", "one frame differs"])
def test_extreme_features_are_standardized_without_warnings(cached, values):
    reader = cached(standardized=True)
    for segment in segments(reader.manifest, "test"):
        odd = np.full((len(segment), 16), 97.3)
        if values == "largest":
            odd[:] = np.finfo(np.float16).max * (-1.0) ** np.arange(len(segment))[:, None]
        elif values == "one frame differs":
            odd[3] += 0.1
        overwrite(reader.path(segment), odd)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        embeddings = reader.frames("test").embeddings
    assert np.isfinite(embeddings).all()
    assert (np.abs(embeddings).max() == 0) == (values == "constant")


def test_infinite_and_absent_features_are_rejected(cached):
    reader = cached(standardized=True)
    first, second = segments(reader.manifest, "test")[:2]
    values = np.ones((len(first), 16))
    values[5] = np.inf
    overwrite(reader.path(first), values)
    with pytest.raises(EvaluationError, match=r"ego/test_ego_0: .* in 1 of 40 frames, first at 5"):
        reader.frames("test")
    reader.path(second).unlink()
    with pytest.raises(
        EvaluationError,
        match=r"1 of 6 test videos \(first: ego/test_ego_1\); .*byov-extract --dataset tea",
    ):
        reader.frames("test")


def test_time_only_runs_from_0_to_1(manifest):
    reader = TimeOnly(manifest)
    for protocol in ("standard", "trimmed"):
        frames = reader.frames("test", protocol)
        assert frames.embeddings.shape[1] == 1
        assert (frames.embeddings[frames.starts] == 0).all()
        assert (frames.embeddings[frames.starts + frames.lengths - 1] == 1).all()


def test_video_means(cached):
    means = cached().frames("test", means=True)
    frames = cached().frames("test")
    np.testing.assert_allclose(means.embeddings, video_means(frames), rtol=1e-6)
    assert (means.is_ego.tolist(), set(means.lengths)) == (frames.is_ego.tolist(), {1})


def test_datasets_without_labels_have_none(features_dir, manifest):
    for labels in (lambda _: None, lambda video: (-1,) * video.frames):
        change_test_videos(
            features_dir,
            manifest,
            lambda video, labels=labels: replace(video, labels=labels(video)),
        )
        assert TimeOnly(read_manifest(features_dir, "tea")).frames("test").labels is None
        assert TimeOnly(read_manifest(features_dir, "tea")).frames("val").labels is not None


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda video: video.labels[:-2], "ego/test_ego_0: 38 labels for 40 frames"),
        (lambda video: (3,) * video.frames, "from 3 to 3 for 3 phases"),
        (lambda video: (-2,) * video.frames, "from -2 to -2 for 3 phases"),
    ],
)
def test_labels_that_do_not_fit_are_rejected(features_dir, manifest, labels, message):
    change_test_videos(features_dir, manifest, lambda video: replace(video, labels=labels(video)))
    with pytest.raises(EvaluationError, match=message):
        TimeOnly(read_manifest(features_dir, "tea")).frames("test")


def test_a_missing_split_names_the_others(features_dir, manifest):
    kept = tuple(video for video in manifest.videos if video.split != "val")
    replace(manifest, videos=kept).save(features_dir / "tea" / "manifest.json")
    with pytest.raises(EvaluationError, match="tea has no val videos; it has test, train"):
        TimeOnly(read_manifest(features_dir, "tea")).frames("val")


@pytest.mark.parametrize(
    ("encoder", "features", "title"),
    [
        ("random/resnet-50", "Random features (resnet-50)", "resnet-50"),
        ("microsoft/resnet-50", "ImageNet features (resnet-50)", "resnet-50"),
        ("openai/clip-vit-large-patch14", "CLIP features (vit-large-patch14)", "ViT-L/14"),
        (
            "openai/clip-vit-large-patch14-336",
            "CLIP features (vit-large-patch14-336)",
            "ViT-L/14-336",
        ),
        ("facebook/dinov2-base", "dinov2-base features", "dinov2-base"),
    ],
)
def test_row_names(encoder, features, title):
    assert features_name(encoder) == features
    assert row_title("TCC", encoder) == f"TCC ({title}, frozen)"
