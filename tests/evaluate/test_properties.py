"""What holds for every metric, whatever the embeddings are."""

import time
from dataclasses import replace

import numpy as np
import pytest

from byov.evaluate.action_probe import action_map, video_embeddings
from byov.evaluate.classification import phase_f1
from byov.evaluate.frames import Missing
from byov.evaluate.kendalls_tau import kendalls_tau
from byov.evaluate.progression import phase_progression
from byov.evaluate.retrieval import mean_average_precision


def classification(train, test):
    return phase_f1(train, test)


def retrieval(_, test):
    scores = mean_average_precision(test)
    return {f"{setting}@{k}": score for setting, by_k in scores.items() for k, score in by_k.items()}


def progression(train, test):
    return {"progression": phase_progression(train, test)}


def time_progression(train, test):
    return {"progression": phase_progression(train, test, time_column=True)}


def tau(_, test):
    return kendalls_tau(test, stride=2)


def actions(train, test):
    """A video's action is whether its first phase is longer than its last; two more come from its length."""
    return action_map(
        video_embeddings(train), of_video(train), train.is_ego, video_embeddings(test), of_video(test), test.is_ego
    )


def of_video(frames):
    videos = [
        frames.labels[start : start + length] for start, length in zip(frames.starts, frames.lengths, strict=True)
    ]
    longer = [(labels == 0).sum() > (labels == labels.max()).sum() for labels in videos]
    return np.stack([longer, np.logical_not(longer), frames.lengths > 30], axis=1)


METRICS = (classification, retrieval, progression, time_progression, tau, actions)
every_metric = pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)


@pytest.fixture
def train(make_frames):
    return centered_by_view(make_frames(21, ego=6, exo=6))


@pytest.fixture
def test(make_frames):
    return centered_by_view(make_frames(22, ego=5, exo=5))


def centered_by_view(frames):
    """SVC scales its kernel by the variance of all numbers, which turns with the space unless each mean is 0.

    On a grid, so that whole steps away from the origin lose nothing.
    """
    embeddings = frames.embeddings.copy()
    ego = frames.is_ego[frames.video_of_frame]
    for view in (ego, ~ego):
        embeddings[view] -= embeddings[view].mean(axis=0)
    return replace(frames, embeddings=np.round(embeddings * 2**12) / np.float32(2**12))


def moved(frames, change):
    return replace(frames, embeddings=change(frames.embeddings).astype(np.float32))


@every_metric
def test_scores_are_numbers_in_range(metric, train, test):
    scores = metric(train, test)
    assert not any(isinstance(score, Missing) for score in scores.values())
    assert all(isinstance(score, float) and -1 <= score <= 1 for score in scores.values())
    assert len(set(scores.values())) == len(scores)


@every_metric
def test_the_order_of_videos_does_not_matter(metric, train, test):
    random = np.random.default_rng(0)
    shuffled = [frames.select(random.permutation(len(frames.lengths))) for frames in (train, test)]
    assert metric(*shuffled) == pytest.approx(metric(train, test), abs=1e-9)


@pytest.mark.parametrize("metric", [metric for metric in METRICS if metric is not actions])  # which standardizes
def test_turning_the_space_does_not_matter(metric, train, test):
    turn, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((8, 8)))
    turned = [moved(frames, lambda embeddings: embeddings @ turn) for frames in (train, test)]
    assert metric(*turned) == pytest.approx(metric(train, test), abs=1e-5)


@every_metric
def test_moving_the_space_does_not_matter(metric, train, test):
    offset = np.arange(8) * 100 - 300
    if metric is classification:
        offset = np.full(8, 700)  # the same for all dimensions: see centered_by_view
    away = [moved(frames, lambda embeddings: embeddings + offset) for frames in (train, test)]
    assert metric(*away) == pytest.approx(metric(train, test), abs=1e-6)


@every_metric
def test_scaling_the_space_does_not_matter(metric, train, test):
    scaled = [moved(frames, lambda embeddings: embeddings * 16) for frames in (train, test)]
    assert metric(*scaled) == pytest.approx(metric(train, test), abs=1e-9)


@every_metric
def test_the_inputs_are_left_alone(metric, train, test):
    before = [frames.embeddings.copy() for frames in (train, test)]
    metric(train, test)
    assert all(np.array_equal(frames.embeddings, was) for frames, was in zip((train, test), before, strict=True))


@pytest.mark.parametrize("values", [1, 3])
@pytest.mark.parametrize("metric", [classification, retrieval, tau])
def test_equal_frames_take_no_longer_than_others(metric, values, make_frames):
    """A model that has collapsed is scored as quickly; at most 3 times the time is asked, and it is far less."""
    train, test = (make_frames(seed, ego=60, exo=60, dimensions=64, noise=0.3) for seed in (1, 2))
    few = np.random.default_rng(0).standard_normal((values, 64)).astype(np.float32)
    equal = [replace(frames, embeddings=few[np.arange(len(frames.labels)) % values]) for frames in (train, test)]
    metric(make_frames(3), make_frames(4))  # what is imported late is imported
    seconds = []
    for frames in ((train, test), equal):
        started = time.process_time()
        metric(*frames)
        seconds.append(time.process_time() - started)
    assert seconds[1] < 3 * seconds[0]


@pytest.fixture
def clocks(join):
    """Time only: a frame's embedding is its normalized position, phases change at fixed positions."""

    def make(lengths):
        positions = [np.arange(length) / length for length in lengths]
        labels = [np.searchsorted([0.3, 0.6], position, side="right") for position in positions]
        return join([p[:, None] for p in positions], labels, np.arange(len(lengths)) % 2 == 0)

    return make


def test_time_only_is_perfect_where_phases_follow_the_clock(clocks):
    frames = clocks([40] * 12)
    assert kendalls_tau(frames)["all"] == pytest.approx(1)
    assert set(mean_average_precision(frames, (5,))["regular"].values()) == {1.0}
    assert phase_progression(frames, frames) == pytest.approx(1)
    assert phase_f1(frames, frames)["regular"] > 0.95


def test_time_only_orders_videos_of_any_length(clocks):
    """A longer video answers every frame with another one: 1. A shorter one must answer some with the same."""
    taus = kendalls_tau(clocks([40, 80]), stride=1)
    assert taus["ego-exo"] == pytest.approx(1)
    assert 0.98 < taus["exo-ego"] < 1


def test_time_only_tells_the_end_of_the_last_phase_of_any_video(join):
    """(t - (T - 1)) / T is the clock but for 1 / T."""
    lengths = [40, 60, 80, 100]
    frames = join(
        [(np.arange(n) / n)[:, None] for n in lengths], [np.zeros(n) for n in lengths], [True, True, False, False]
    )
    assert phase_progression(frames, frames) > 0.999


def test_time_only_says_nothing_where_phases_ignore_the_clock(clocks):
    """Each video holds one phase throughout: the nearest frames in time are of any phase."""
    frames = clocks([40] * 12)
    by_video = replace(frames, labels=np.asarray(frames.video_of_frame) // 2 % 3)
    assert mean_average_precision(by_video, (11,))["regular"][11] < 0.6
    assert kendalls_tau(by_video)["all"] == pytest.approx(1)
