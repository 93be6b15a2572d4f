from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from byov.evaluate.frames import Missing
from byov.evaluate.progression import phase_progression, phase_progression_of_each
from byov.records import UNLABELED


@pytest.fixture
def train(make_frames):
    return make_frames(1)


@pytest.fixture
def test(make_frames):
    return make_frames(2)


@pytest.mark.parametrize("time_column", [False, True])
def test_agrees_with_the_definition(naive, train, test, time_column):
    expected = naive.phase_progression(train, test, time_column=time_column)
    assert phase_progression(train, test, time_column=time_column) == pytest.approx(expected, abs=1e-9)
    assert 0 < expected < 1


def test_single_precision_is_ae2s_and_gives_nearly_the_same(naive, make_frames):
    """AE2 hands scikit-learn float32, which fits in float32."""
    train, test = (make_frames(seed, ego=30, exo=30, dimensions=64) for seed in (1, 2))
    ours, single = phase_progression(train, test), naive.phase_progression(train, test, precision=np.float32)
    assert ours == pytest.approx(single, abs=1e-5)
    assert ours != single


def test_videos_without_a_phase_are_left_out_of_it(naive, train, test):
    for frames in (train, test):
        frames.labels[frames.video_of_frame == 1] %= 2
        frames.labels[frames.video_of_frame == 5] = 1
    assert phase_progression(train, test) == pytest.approx(naive.phase_progression(train, test), abs=1e-9)


def test_one_fit_serves_several_sets(train, test):
    scores = phase_progression_of_each(train, [train, test])
    assert scores == [phase_progression(train, train), phase_progression(train, test)]


def test_the_time_column_counts_frames(join):
    """Where the embedding says nothing, the target follows from the index, in videos of one length."""
    nothing = join([np.zeros((20, 2))] * 4, [np.repeat([0, 1], 10)] * 4, [True, True, False, False])
    assert phase_progression(nothing, nothing) == pytest.approx(0)
    assert phase_progression(nothing, nothing, time_column=True) == pytest.approx(1)


def test_a_phase_of_one_split_only_is_left_out(naive, train, test):
    score = phase_progression(
        replace(train, labels=np.where(train.labels == 1, 8, train.labels)),
        replace(test, labels=np.where(test.labels == 1, 9, test.labels)),
    )
    r2 = []
    for phase in (0, 2):
        regressor = LinearRegression().fit(*naive.with_progress(train, phase, False))
        r2.append(regressor.score(*naive.with_progress(test, phase, False)))
    assert score == pytest.approx(np.mean(r2))


def test_no_phase_in_common(train, test):
    score = phase_progression(train, replace(test, labels=test.labels + 10))
    assert isinstance(score, Missing)


def test_videos_of_one_frame(join, train):
    single = join([np.zeros((1, 8))] * 3, [[0]] * 3, [True, True, False])
    assert isinstance(phase_progression(train, single), Missing)
    assert isinstance(phase_progression(single, train), float)


def test_a_constant_embedding_explains_nothing(train, test):
    flat, flat_test = (replace(frames, embeddings=np.ones_like(frames.embeddings)) for frames in (train, test))
    assert phase_progression(flat, flat_test) == pytest.approx(0, abs=0.2)


def test_labels_and_videos_are_needed(train, test):
    assert phase_progression(replace(train, labels=None), test) == Missing("no phase labels")
    assert phase_progression(train, test.select(np.zeros(8, bool))) == Missing("no test videos")
    assert phase_progression(train.select(np.zeros(8, bool)), test) == Missing("no training videos")


def test_frames_without_labels_are_part_of_the_time(train, test):
    """No phase ends in the first three frames: where each ends is known as before, and all frames are inputs."""
    whole = phase_progression(train, test)
    for frames in (train, test):
        frames.labels[frames.index_in_video < 3] = UNLABELED
    assert phase_progression(train, test) == whole


@pytest.mark.parametrize("video", [0, 5])
def test_a_phase_that_unlabeled_frames_follow_is_left_out_of_that_video(train, test, video):
    """As if it were one that only this video has."""
    for frames in (train, test):
        last = frames.starts[video] + frames.lengths[video]
        frames.labels[last - 2 : last] = UNLABELED

    def with_another_phase(frames):
        ends = (frames.video_of_frame == video) & np.isin(frames.labels, (UNLABELED, 2))
        return replace(frames, labels=np.where(ends, 7, frames.labels))

    train_apart, test_apart = with_another_phase(train), with_another_phase(test)
    test_apart.labels[test_apart.labels == 7] = 8
    assert phase_progression(train, test) == phase_progression(train_apart, test_apart)


def test_without_any_end_of_a_phase_there_is_no_progression(train, test):
    train.labels[:] = np.where(np.arange(len(train.labels)) % 2, UNLABELED, 0)
    train.labels[train.starts + train.lengths - 1] = UNLABELED
    assert phase_progression(train, test) == Missing("no training video shows the end of a phase")
