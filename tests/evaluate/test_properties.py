"""Invariance tests for all metrics."""

import time
from dataclasses import replace

import numpy as np
import pytest

from byov.evaluate.action_probe import action_map
from byov.evaluate.classification import phase_f1
from byov.evaluate.frames import Missing
from byov.evaluate.kendalls_tau import kendalls_tau
from byov.evaluate.progression import phase_progression
from byov.evaluate.retrieval import mean_average_precision


def retrieval(_, test):
    scores = mean_average_precision(test)
    return {
        f"{setting}@{k}": score for setting, by_k in scores.items() for k, score in by_k.items()
    }


def progression(train, test):
    return {column: phase_progression(train, test, time_column=column) for column in (False, True)}


def tau(_, test):
    return {views: score.value for views, score in kendalls_tau(test, stride=2).items()}


def actions(train, test):
    """Score action labels that are derived from the phases and the length of each video."""
    return action_map(*(replace(frames, actions=video_actions(frames)) for frames in (train, test)))


def video_actions(frames):
    videos = np.split(frames.labels, frames.starts[1:])
    longer = [(labels == 0).sum() > (labels == labels.max()).sum() for labels in videos]
    return np.stack([longer, np.logical_not(longer), frames.lengths > 30], axis=1)


METRICS = (phase_f1, retrieval, progression, tau, actions)
every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)


@pytest.fixture
def train(make_frames):
    return centered_by_view(make_frames(21, ego=6, exo=6))


@pytest.fixture
def test(make_frames):
    return centered_by_view(make_frames(22, ego=5, exo=5))


def centered_by_view(frames):
    """Center the embeddings of each view and round them to a grid, on which translations by
    integers are exact.

    SVC scales its kernel by the variance of all values, which is invariant to rotation only if each
    mean is 0.
    """
    embeddings = frames.embeddings.copy()
    ego = frames.is_ego[frames.video_of_frame]
    for view in (ego, ~ego):
        embeddings[view] -= embeddings[view].mean(axis=0)
    return replace(frames, embeddings=np.round(embeddings * 2**12) / np.float32(2**12))


def transform(frames, change):
    return replace(frames, embeddings=change(frames.embeddings).astype(np.float32))


@every_metric
def test_scores_are_numbers_in_range(metric, train, test):
    scores = metric(train, test)
    assert not any(isinstance(score, Missing) for score in scores.values())
    assert all(isinstance(score, float) and -1 <= score <= 1 for score in scores.values())
    assert len(set(scores.values())) == len(scores)


@every_metric
def test_order_of_videos_does_not_matter(metric, train, test):
    random = np.random.default_rng(0)
    shuffled = [frames.select(random.permutation(len(frames.lengths))) for frames in (train, test)]
    assert metric(*shuffled) == pytest.approx(metric(train, test), abs=1e-9)


# `actions` scales axes.
@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric is not actions])
def test_rotation_does_not_matter(metric, train, test):
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))
    rotated = [
        transform(frames, lambda embeddings: embeddings @ rotation) for frames in (train, test)
    ]
    assert metric(*rotated) == pytest.approx(metric(train, test), abs=1e-5)


@every_metric
def test_translation_does_not_matter(metric, train, test):
    # See centered_by_view.
    offset = np.full(8, 700) if metric is phase_f1 else np.arange(8) * 100 - 300
    moved = [transform(frames, lambda embeddings: embeddings + offset) for frames in (train, test)]
    assert metric(*moved) == pytest.approx(metric(train, test), abs=1e-6)


@every_metric
def test_scale_does_not_matter(metric, train, test):
    scaled = [transform(frames, lambda embeddings: embeddings * 16) for frames in (train, test)]
    assert metric(*scaled) == pytest.approx(metric(train, test), abs=1e-9)


@pytest.mark.parametrize("distinct", [1, 3])
@pytest.mark.parametrize("metric", [retrieval, tau])
def test_collapsed_embeddings_are_not_slower(metric, distinct, make_frames):
    train, test = (make_frames(seed, ego=60, exo=60, dimensions=64, noise=0.3) for seed in (1, 2))
    values = np.random.default_rng(0).standard_normal((distinct, 64)).astype(np.float32)
    equal = [
        replace(frames, embeddings=values[np.arange(len(frames.labels)) % distinct])
        for frames in (train, test)
    ]
    metric(make_frames(3), make_frames(4))  # warm up
    seconds = []
    for frames in ((train, test), equal):
        started = time.process_time()
        metric(*frames)
        seconds.append(time.process_time() - started)
    assert seconds[1] < 3 * seconds[0]
