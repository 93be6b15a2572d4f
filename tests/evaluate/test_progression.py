from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from byov.evaluate.frames import Missing
from byov.evaluate.progression import phase_progression
from byov.records import UNLABELED


@pytest.mark.parametrize("time_column", [False, True])
def test_r2_matches_the_naive_version(naive, train, test, time_column):
    expected = naive.phase_progression(train, test, time_column=time_column)
    assert phase_progression(train, test, time_column=time_column) == pytest.approx(
        expected, abs=1e-9
    )
    assert 0 < expected < 1


def test_single_precision_as_in_ae2_gives_nearly_the_same(naive, make_frames):
    train, test = (make_frames(seed, ego=30, exo=30, dimensions=64) for seed in (1, 2))
    ours = phase_progression(train, test)
    single = naive.phase_progression(train, test, precision=np.float32)
    assert ours == pytest.approx(single, abs=1e-5)
    assert ours != single


def test_videos_without_a_phase_are_left_out_of_it(naive, train, test):
    for frames in (train, test):
        frames.labels[frames.video_of_frame == 1] %= 2
        frames.labels[frames.video_of_frame == 5] = 1
    assert phase_progression(train, test) == pytest.approx(
        naive.phase_progression(train, test), abs=1e-9
    )


def test_time_column_counts_frames(join):
    nothing = join([np.zeros((20, 2))] * 4, [np.repeat([0, 1], 10)] * 4, [True, True, False, False])
    assert phase_progression(nothing, nothing) == pytest.approx(0)
    assert phase_progression(nothing, nothing, time_column=True) == pytest.approx(1)


def test_phases_of_one_split_only_are_left_out(naive, train, test):
    score = phase_progression(
        replace(train, labels=np.where(train.labels == 1, 8, train.labels)),
        replace(test, labels=np.where(test.labels == 1, 9, test.labels)),
    )
    r2 = []
    for phase in (0, 2):
        regressor = LinearRegression().fit(*naive.with_progress(train, phase, False))
        r2.append(regressor.score(*naive.with_progress(test, phase, False)))
    assert score == pytest.approx(np.mean(r2))


def test_missing_scores_have_a_reason(join, train, test):
    none = np.zeros(8, bool)
    single = join([np.zeros((1, 8))] * 3, [[0]] * 3, [True, True, False])
    assert (
        "shows a training phase"
        in phase_progression(train, replace(test, labels=test.labels + 10)).reason
    )
    assert isinstance(phase_progression(train, single), Missing)
    assert isinstance(phase_progression(single, train), float)
    assert phase_progression(replace(train, labels=None), test) == Missing("no phase labels")
    assert phase_progression(train, test.select(none)) == Missing("no test videos")
    assert phase_progression(train.select(none), test) == Missing("no training videos")
    train.labels[:] = np.where(np.arange(len(train.labels)) % 2, UNLABELED, 0)
    train.labels[train.starts + train.lengths - 1] = UNLABELED
    assert phase_progression(train, test) == Missing("no training video shows the end of a phase")


def test_unlabeled_frames_are_part_of_the_time(train, test):
    """Check that labels of the first three frames, in which no phase ends, do not affect the
    score.
    """
    whole = phase_progression(train, test)
    for frames in (train, test):
        frames.labels[frames.index_in_video < 3] = UNLABELED
    assert phase_progression(train, test) == whole


@pytest.mark.parametrize("video", [0, 5])
def test_a_phase_followed_by_unlabeled_frames_is_left_out_of_that_video(train, test, video):
    """Check that the score is the same as if this video had another phase instead, which is in only
    one split.
    """
    for frames in (train, test):
        last = frames.starts[video] + frames.lengths[video]
        frames.labels[last - 2 : last] = UNLABELED

    def with_own_phase(frames, phase):
        ends = (frames.video_of_frame == video) & np.isin(frames.labels, (UNLABELED, 2))
        return replace(frames, labels=np.where(ends, phase, frames.labels))

    assert phase_progression(train, test) == phase_progression(
        with_own_phase(train, 7), with_own_phase(test, 8)
    )
