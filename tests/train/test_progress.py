"""Tests of progress labels computed by aligning the videos of a view."""

import numpy as np
import pytest
import torch

from byov.train import progress as progress_module
from byov.train.progress import aligned_progress, discriminant_axes
from byov.train.soft_dtw import path_probabilities

WIDTH = 24


def action(times, rng=None, noise=0.0):
    """Make features (T, WIDTH) that depend smoothly on the progress of an action."""
    centers = np.linspace(0, 1, WIDTH)
    features = np.exp(-((np.asarray(times)[:, None] - centers) ** 2) / 0.02)
    return features if rng is None else features + noise * rng.standard_normal(features.shape)


def labels_of(videos, views=None):
    return [
        x.numpy()
        for x in aligned_progress(videos, views or ["ego"] * len(videos), lambda video: video)
    ]


def brute_force_probabilities(costs, gamma):
    """Compute visit probabilities by enumerating all monotonic paths."""
    rows, columns = costs.shape
    visited = np.zeros_like(costs)
    total = 0.0

    def walk(cell, path):
        nonlocal total
        if cell == (rows - 1, columns - 1):
            weight = np.exp(-sum(costs[each] for each in path) / gamma)
            total += weight
            for each in path:
                visited[each] += weight
            return
        for step in ((0, 1), (1, 0), (1, 1)):
            after = (cell[0] + step[0], cell[1] + step[1])
            if after[0] < rows and after[1] < columns:
                walk(after, [*path, after])

    walk((0, 0), [(0, 0)])
    return visited / total


@pytest.mark.parametrize("shape", [(1, 1), (1, 4), (4, 1), (3, 5), (5, 4)])
def test_path_probabilities_equal_those_of_all_enumerated_paths(shape):
    costs = np.random.default_rng(0).random((3, *shape))
    expected = np.stack([brute_force_probabilities(table, 0.3) for table in costs])
    np.testing.assert_allclose(
        path_probabilities(torch.from_numpy(costs), 0.3), expected, rtol=1e-6
    )


def test_identical_videos_and_a_single_one_have_linear_labels():
    for labels in labels_of([action(np.linspace(0, 1, 50))] * 4):
        np.testing.assert_allclose(labels, np.linspace(0, 1, 50), atol=0.01)
    (alone,) = labels_of([action(np.linspace(0, 1, 9) ** 3)])
    np.testing.assert_allclose(alone, np.linspace(0, 1, 9))


def test_labels_follow_the_action_through_a_pause_and_a_change_of_speed():
    even = np.linspace(0, 1, 90)
    paused = np.concatenate([np.linspace(0, 0.5, 45), np.full(60, 0.5), np.linspace(0.5, 1, 45)])
    slow_start = even**2
    true = [even, paused, slow_start, even, even]
    labels = labels_of([action(times) for times in true])
    during = np.diff(labels[1])[55:95]
    before = np.diff(labels[1])[10:40]
    assert during.mean() < 0.35 * before.mean()
    for aligned, times in zip(labels, true, strict=True):
        # With four other videos, the video's own normalized time still contributes one fifth.
        linear = np.linspace(0, 1, len(times))
        if not np.array_equal(times, linear):
            assert np.abs(aligned - times).mean() < 0.5 * np.abs(linear - times).mean()


def test_refined_labels_ignore_motion_that_is_not_part_of_the_action(monkeypatch):
    """Some features move at random in each video; the refinement finds those that follow the
    action.
    """
    rng = np.random.default_rng(0)
    distracting = rng.standard_normal((3, WIDTH))
    videos = []
    true = []
    views = []
    for number in range(24):
        wait = rng.uniform(0, 0.5)
        times = np.concatenate([np.zeros(int(90 * wait)), np.linspace(0, 1, 90 - int(90 * wait))])
        phases = rng.uniform(0, 2 * np.pi, 3)
        motion = np.sin(np.linspace(0, 1, len(times))[:, None] * rng.uniform(3, 12, 3) + phases)
        videos.append(action(times, rng, 0.1) + motion @ distracting)
        true.append(times)
        views.append("exo" if number % 3 else "ego")

    def deviation():
        labels = labels_of(videos, views)
        return np.std(
            [label[np.argmax(times > 0)] for label, times in zip(labels, true, strict=True)]
        )

    refined = deviation()
    monkeypatch.setattr(progress_module, "ROUNDS", 0)
    monkeypatch.setattr(progress_module, "JOINT_ROUNDS", 0)
    assert refined < 0.7 * deviation()


def test_discriminant_axes_find_what_depends_on_progress():
    generator = torch.Generator().manual_seed(0)
    progress = torch.rand(2000, generator=generator)
    frames = torch.randn(2000, 12, generator=generator)
    frames[:, 3] = 3 * progress + 0.5 * torch.randn(2000, generator=generator)
    axes = discriminant_axes(frames, progress)
    assert axes.shape == (12, progress_module.DISCRIMINANTS)
    strongest = axes[:, -1].abs() * frames.std(dim=0)
    assert strongest.argmax() == 3


def test_unrelated_videos_fall_back_toward_normalized_time():
    rng = np.random.default_rng(0)
    videos = [rng.standard_normal((60, WIDTH)) for _ in range(8)]
    for labels in labels_of(videos):
        assert np.abs(labels - np.linspace(0, 1, 60)).max() < 0.15


def test_labels_rise_from_0_to_1_whatever_the_videos():
    rng = np.random.default_rng(0)
    times = np.linspace(0, 1, 40)
    videos = [
        action(times),
        action(times[::-1]),  # reversed
        action(times[:5], rng, 0.1),
        np.ones((30, WIDTH)),  # constant
        rng.standard_normal((1, WIDTH)),
        rng.standard_normal((2, WIDTH)),
    ]
    for labels, video in zip(labels_of(videos), videos, strict=True):
        assert len(labels) == len(video)
        assert np.isfinite(labels).all()
        assert (np.diff(labels) >= 0).all()
        assert labels[0] == 0
        assert len(labels) == 1 or labels[-1] == pytest.approx(1)


def test_more_videos_than_references_are_aligned_with_a_random_subset(monkeypatch):
    rng = np.random.default_rng(0)
    videos = [action(np.linspace(0, 1, 40) ** rng.uniform(0.5, 2), rng, 0.1) for _ in range(24)]
    all_references = labels_of(videos)
    monkeypatch.setattr(progress_module, "MAX_REFERENCES", 12)
    subset = labels_of(videos)
    difference = np.mean(
        [np.abs(a - b).mean() for a, b in zip(all_references, subset, strict=True)]
    )
    assert 0 < difference < 0.05
    np.testing.assert_array_equal(subset[3], labels_of(videos)[3])  # the subset is deterministic
