"""Compare retrieval and its nearest-neighbor search with plain loops."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from byov.evaluate import neighbors, retrieval
from byov.evaluate.frames import SETTINGS, Missing, view_mask
from byov.evaluate.neighbors import Points
from byov.evaluate.retrieval import (
    average_precision_of_each_query,
    ego_first,
    mean_average_precision,
    sampled_queries,
)
from byov.evaluate.tasks import TASKS, EvaluationOptions

KINDS = (
    "walk",
    "grid",
    "clock",
    "one",
    "three",
    "every second",
    "far point",
    "steps",
    "tiny",
    "huge",
)


def embeddings(kind, points=400, width=6):
    """Return points with many, few or no equal distances."""
    random = np.random.default_rng(0)
    walk = np.cumsum(random.standard_normal((points, width)), axis=0).astype(np.float32)
    if kind == "every second":
        walk[::2] = walk[0]
    if kind == "far point":
        walk[7] = 1e6
    return {
        "grid": np.round(walk[:, :2] / 4),
        "clock": (np.arange(points) % 50 / np.float32(50))[:, None],
        "one": np.full_like(walk, 0.3),
        "three": walk[np.arange(points) % 3],
        "steps": np.float32(3000)
        + random.integers(-3, 4, walk.shape).astype(np.float32) * np.float32(2**-12),
        "tiny": walk * np.float32(1e-30),
        "huge": walk * np.float32(1e30),
    }.get(kind, walk)


def nearest_by_differences(points, rows, excluded, first, count):
    found = np.full((len(rows), count), -1)
    for place, row in enumerate(rows):
        candidates = np.flatnonzero(~excluded[place])
        differences = points[candidates + first].astype(np.float64) - points[row]
        order = np.argsort(np.einsum("cd,cd->c", differences, differences), kind="stable")[:count]
        found[place, : len(order)] = candidates[order] + first
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_nearest_points_match_a_search_over_differences(kind):
    values = embeddings(kind)
    points = Points(values)
    rows = np.arange(0, 400, 7)
    first = 31
    distances = points.distances(rows, slice(first, 390))
    excluded = np.abs(np.arange(first, 390) - rows[:, None]) < 20
    distances[excluded] = np.inf
    for count in (1, 15):
        expected = nearest_by_differences(values, rows, excluded, first, count)
        np.testing.assert_array_equal(points.nearest(rows, distances, first, count), expected, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_points_nearest_to_other_queries_match_a_search_over_differences(kind):
    values = embeddings(kind)
    points = Points(values[:300])
    queries = 3 * values[300:] + np.float32(1)
    distances, nearest = points.nearest_to(queries, 10)
    expected = cdist(queries.astype(np.float64), values[:300].astype(np.float64))
    np.testing.assert_array_equal(nearest, np.argsort(expected, axis=1, kind="stable")[:, :10])
    np.testing.assert_allclose(distances, np.sort(expected, axis=1)[:, :10])
    assert points.nearest_to(queries[:0], 10)[1].shape == (0, 10)


def test_nearest_of_many_close_points_is_exact():
    values = (1 + 1e-3 * np.random.default_rng(0).standard_normal((5000, 3))).astype(np.float32)
    values[0] = -1  # an outlier that makes distances between the others imprecise
    points = Points(values)
    rows = np.arange(40)
    distances = points.distances(rows)
    excluded = np.arange(5000) == rows[:, None]
    distances[excluded] = np.inf
    expected = nearest_by_differences(values, rows, excluded, 0, 15)
    np.testing.assert_array_equal(points.nearest(rows, distances, 0, 15), expected)


def assert_matches_naive(naive, frames, ks=(1, 5, 15)):
    for k in ks[:2]:  # also one K at a time, which is then the last rank searched
        score = mean_average_precision(frames, (k,))["regular"][k]
        assert score == pytest.approx(naive.retrieval_at(frames, "regular", k))
    scores = mean_average_precision(frames, ks)
    for setting, by_k in naive.mean_average_precision(frames, ks).items():
        assert scores[setting] == pytest.approx(by_k, abs=1e-12), setting
    return scores


@pytest.fixture
def test(make_frames):
    return make_frames(5, ego=3, exo=4, noise=1.2)


def test_map_matches_the_naive_version(naive, test):
    scores = assert_matches_naive(naive, test)
    assert 0.3 < scores["regular"][5] < 0.99
    assert list(scores) == list(SETTINGS)


@pytest.mark.parametrize("kind", ["grid", "one", "three", "every second", "steps", "far point"])
def test_ties_are_broken_by_position(naive, test, kind):
    values = embeddings(kind, len(test.embeddings))
    values[1::4] = np.where(values[1::4] == 0, np.float32(-0.0), values[1::4])  # -0 equals 0
    assert_matches_naive(naive, replace(test, embeddings=values))


def test_block_size_does_not_matter(monkeypatch, test):
    whole = mean_average_precision(test)
    monkeypatch.setattr(neighbors, "BLOCK_ELEMENTS", 1000)
    assert mean_average_precision(test) == whole


@pytest.mark.parametrize("settings", [("ego2exo", "exo2ego"), ("exo2ego",), ("regular",)])
def test_settings_can_be_scored_alone(test, settings):
    everything = mean_average_precision(test, (5, 10))
    assert mean_average_precision(test, (5, 10), settings) == {
        setting: everything[setting] for setting in settings
    }


def test_short_videos_and_few_candidates(naive, join):
    random = np.random.default_rng(0)
    videos = [random.standard_normal((length, 3)) for length in (2, 1, 3)]
    frames = join(videos, [[0, 1], [0], [0, 1, 1]], [True, False, False])
    assert assert_matches_naive(naive, frames, (1, 3, 50))["exo2ego"][50] > 0
    singles = join(
        list(random.standard_normal((9, 1, 3))), [[v % 2] for v in range(9)], np.arange(9) < 4
    )
    assert_matches_naive(naive, singles)


def test_sub_clips_of_one_recording_are_no_candidates(test):
    # If allowed, the copy would always be the nearest.
    twice = test.select(np.repeat(np.arange(7), 2))
    apart = replace(twice, recordings=np.repeat(np.arange(7), 2))
    assert mean_average_precision(twice, (1,))["regular"][1] == 1
    for setting in SETTINGS:
        expected = mean_average_precision(test, (1,))[setting]
        assert mean_average_precision(apart, (1,))[setting] == pytest.approx(expected)


def test_missing_views_videos_and_labels_have_a_reason(test):
    scores = mean_average_precision(test.of_view(False), (5,))
    assert isinstance(scores["regular"][5], float)
    assert scores["ego2exo"][5] == scores["exo2ego"][5] == Missing("no ego test videos")
    assert mean_average_precision(test.select(np.array([0])), (5,))["regular"][5] == Missing(
        "only one test video"
    )
    assert mean_average_precision(replace(test, labels=None), (5,))["regular"][5] == Missing(
        "no phase labels"
    )
    for ks in ((), (0,), (5, -1)):
        with pytest.raises(ValueError, match="K must be at least 1"):
            mean_average_precision(test, ks)


def test_of_many_frames_a_sample_are_queries(make_frames, monkeypatch):
    test = ego_first(make_frames(2))
    every = average_precision_of_each_query(test, (10,))
    size = len(test.embeddings) // 3
    monkeypatch.setattr(retrieval, "MAX_QUERIES", size)
    sampled = sampled_queries(test)
    assert (len(sampled), len(np.unique(sampled))) == (size, size)
    assert (np.bincount(test.video_of_frame[sampled]) >= test.lengths // 3).all()
    means = mean_average_precision(test, (10,))
    for setting, (view, _) in SETTINGS.items():
        rows = sampled[view_mask(test.is_ego, view)[test.video_of_frame[sampled]]]
        assert means[setting][10] == pytest.approx(every[setting][rows].mean())
    options = EvaluationOptions(ks=(10,))
    scores = TASKS["retrieval"].score(test, test, options)
    weights = np.ones((1, len(test.lengths)))
    for name, estimates in TASKS["retrieval"].resample(test, test, weights, options).items():
        assert estimates[0] == pytest.approx(scores[name].value)
        assert f"{size:,} evenly spaced queries of {len(test.embeddings):,}" in scores[name].remark
