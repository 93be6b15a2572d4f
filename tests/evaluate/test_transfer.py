"""Tests of labels transferred by nearest neighbors, and of the error of transferred events."""

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest

from byov.evaluate.event_error import event_errors
from byov.evaluate.tasks import EvaluationOptions, find_tasks, score_frames
from byov.evaluate.transfer import find_events, phase_log_likelihoods


@pytest.mark.parametrize(("frames", "phases"), [(1, 1), (1, 3), (6, 2), (7, 4)])
def test_events_divide_a_video_in_the_most_likely_way(frames, phases):
    likelihoods = np.random.default_rng(frames).normal(size=(frames, phases))

    def total(events):
        labels = np.searchsorted(events, np.arange(frames), side="right")
        return likelihoods[np.arange(frames), labels].sum()

    divisions = combinations_with_replacement(range(frames + 1), phases - 1)
    events = find_events(likelihoods)
    assert (np.diff(events, prepend=0) >= 0).all()
    assert total(events) == pytest.approx(max(map(total, map(list, divisions))))


def test_likelihoods_match_their_definition_at_any_scale():
    random = np.random.default_rng(0)
    queries = random.normal(size=(5, 3))
    labeled = random.normal(size=(9, 3))
    phases = np.array([0, 0, 1, 1, 1, -1, 3, 3, 3])
    square_distances = np.square(queries[:, None] - labeled).sum(axis=2)
    square_distances -= square_distances[:, phases >= 0].min(axis=1, keepdims=True)
    kernel = np.exp(-square_distances / (2 * 0.05 * 4.0))
    expected = np.stack([kernel[:, phases == phase].mean(axis=1) for phase in (0, 1, 3)], axis=1)
    log_likelihoods = phase_log_likelihoods(queries, labeled, phases, 4, 4.0)
    np.testing.assert_allclose(np.exp(log_likelihoods[:, [0, 1, 3]]), expected, atol=2e-9)
    assert (log_likelihoods[:, 2] == np.log(1e-9)).all()  # no frame shows this phase
    np.testing.assert_allclose(
        phase_log_likelihoods(10 * queries + 7, 10 * labeled + 7, phases, 4, 400.0),
        log_likelihoods,
        atol=1e-6,
    )
    assert np.isfinite(phase_log_likelihoods(queries, labeled, phases, 4, 0.0)).all()


def test_one_label_finds_all_events_if_frames_of_a_phase_are_alike(make_frames):
    train, test = (make_frames(seed, noise=0.0) for seed in (1, 2))
    exact = [replace(frames, embeddings=np.eye(3)[frames.phases]) for frames in (train, test)]
    assert {key: errors.max() for key, errors in event_errors(*exact).items()} == {
        (number, view): 0 for view in ("ego", "exo") for number in ("1", "3", "all")
    }  # there are fewer than five videos
    noisy = event_errors(train, test)
    assert 0 < noisy["1", "ego"].mean() < 10


def test_only_events_of_labeled_test_videos_count(make_frames):
    train = make_frames(1)
    test = make_frames(2)
    labels = test.phases.copy()
    labels[: test.lengths[0]] = -1
    second = slice(test.lengths[0], test.lengths[:2].sum())
    labels[second] = 0  # no event
    errors = event_errors(train, replace(test, labels=labels))["all", "exo"]
    assert np.isnan(errors[:2]).all()
    np.testing.assert_array_equal(errors[2:], event_errors(train, test)["all", "exo"][2:])


def test_scores_are_missing_without_frame_rates_or_labeled_videos(make_frames):
    task = find_tasks(["events"])
    frames = make_frames(1), make_frames(2)
    unknown = score_frames(*frames, task, EvaluationOptions())
    assert unknown["event_error/1/ego-exo"].value is None
    assert unknown["event_error/1/percent"].value > 0
    timed = [replace(each, fps=np.full(8, 10.0)) for each in frames]
    known = score_frames(*timed, task, EvaluationOptions())
    assert known["event_error/1/ego-exo"].value > 0
    assert known["event_error/5/mean"].missing.startswith("too few labeled videos")
