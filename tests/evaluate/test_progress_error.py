"""Tests of the online protocol: prefixes, reference progress and predicted progress."""

from dataclasses import replace

import numpy as np
import pytest
from tests.evaluate.conftest import CLIP_FOLDER

from byov.cache.features import standardize
from byov.cache.layout import prefix_lengths
from byov.evaluate.compare import score
from byov.evaluate.progress_error import mean_phase_starts, reference_progress
from byov.evaluate.protocols import segments
from byov.evaluate.readers import CachedFeatures, RunEmbeddings, TimeOnly
from byov.evaluate.scope import Scope
from byov.evaluate.tasks import EvaluationOptions
from byov.evaluate.transfer import ReferenceFrames


def test_prefixes_are_evenly_spaced_and_end_with_the_video():
    assert prefix_lengths(100) == list(range(5, 101, 5))
    assert prefix_lengths(7) == list(range(1, 8))
    for frames in range(1, 200):
        lengths = prefix_lengths(frames)
        assert lengths[-1] == frames
        assert len(set(lengths)) == len(lengths) == min(20, frames)


def test_reference_runs_linearly_between_events():
    mean_starts = mean_phase_starts([[0] * 4 + [1] * 6 + [2], [0] * 2 + [1] * 6 + [2] * 3])
    assert mean_starts == pytest.approx({0: 0, 1: 0.3, 2: 0.9})
    progress = reference_progress(11, [0] * 5 + [1] * 3 + [2] * 3, mean_starts)
    np.testing.assert_allclose(progress[[0, 5, 8, 10]], [0, 0.3, 0.9, 1])
    np.testing.assert_allclose(np.diff(progress[:6]), 0.06)
    # Video starts in phase 1.
    assert reference_progress(11, [1] * 8 + [2] * 3, mean_starts)[0] == pytest.approx(0.3)
    np.testing.assert_allclose(
        reference_progress(11, [0] * 5 + [9] * 6, mean_starts), np.linspace(0, 1, 11)
    )
    np.testing.assert_allclose(reference_progress(11, None, mean_starts), np.linspace(0, 1, 11))
    assert reference_progress(1).tolist() == [0]
    assert mean_phase_starts([]) == {}


def test_prediction_matches_a_search_over_differences():
    random = np.random.default_rng(0)
    queries = random.normal(size=(300, 5))
    training = random.normal(size=(400, 5)) + 100
    progress = random.random(400)
    distances = np.linalg.norm(queries[:, None] - training, axis=2)
    nearest = np.argsort(distances, axis=1)[:, :10]
    np.testing.assert_allclose(
        ReferenceFrames(training, progress).predict_progress(queries),
        progress[nearest].mean(axis=1),
    )
    few = ReferenceFrames(training[:3], progress[:3])
    assert few.predict_progress(queries[:2]) == pytest.approx([progress[:3].mean()] * 2)


def test_features_need_no_context_unless_they_are_standardized(features_dir, manifest):
    plain, standardized = (
        CachedFeatures(features_dir, "tea", CLIP_FOLDER, "cls", standardized=flag)
        for flag in (False, True)
    )
    whole = plain.frames("test")
    online = plain.frames("test", "online")
    scaled = standardized.frames("test", "online")
    assert online.lengths.tolist() == [20] * 6
    first = segments(manifest, "test", "online")[0].frames
    np.testing.assert_array_equal(online.embeddings[:20], whole.embeddings[first])
    np.testing.assert_array_equal(online.labels[:20], whole.labels[first])
    np.testing.assert_allclose(online.reference_progress[:20], whole.reference_progress[first])
    prefix = whole.embeddings[: first[3] + 1].astype(np.float64)
    np.testing.assert_allclose(scaled.embeddings[3], standardize(prefix)[-1], rtol=1e-5)
    assert (
        plain.frames("train", "online").lengths.tolist() == plain.frames("train").lengths.tolist()
    )


def test_time_is_relative_to_the_mean_training_duration(manifest):
    videos = [
        replace(video, fps=10.0 if video.view == "ego" else 20.0) for video in manifest.videos
    ]
    reader = TimeOnly(replace(manifest, videos=tuple(videos)))
    frames = reader.frames("test", "online")
    seconds = [(video.frames - 1) / video.fps for video in videos if video.split == "train"]
    last = [
        (video.frames - 1) / video.fps / np.mean(seconds)
        for video in videos
        if video.split == "test"
    ]
    np.testing.assert_allclose(
        frames.embeddings[frames.starts + frames.lengths - 1, 0], last, rtol=1e-6
    )
    assert reader.frames("train", "online").embeddings.max() == 1


def test_error_of_progress_is_that_of_the_frames_embedded_online(
    runs_dir, features_dir, write_run, manifest
):
    write_run()
    reader = RunEmbeddings(runs_dir, features_dir, "first")
    clock = TimeOnly(manifest)
    scope = Scope(
        "test",
        ("online",),
        ("classification", "retrieval", "tau", "progress-error"),
        EvaluationOptions(),
    )
    row, time = (score(one, scope)["online"] for one in (reader, clock))
    assert not any(name.startswith("kendalls_tau") for name in row.scores)
    train = reader.frames("train")
    test = reader.frames("test", "online")
    errors = np.abs(
        ReferenceFrames(train.embeddings, train.reference_progress).predict_progress(
            test.embeddings
        )
        - test.reference_progress
    ).reshape(6, 20)
    assert row.value("progress_error/mean") == pytest.approx(errors.mean())
    for percent, column in ((30, 5), (50, 9), (70, 13), (90, 17)):
        assert row.value(f"progress_error/{percent}%") == pytest.approx(errors[:, column].mean())
    # With the embeddings, the error is a fraction of a phase; with time alone, it is due to
    # different durations.
    assert 0.05 < row.value("progress_error/mean") < 0.15
    assert 0 < time.value("progress_error/mean") < 0.15
