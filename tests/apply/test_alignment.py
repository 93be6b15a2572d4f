"""Matching against the plain definitions."""

import numpy as np
import pytest

from byov.apply import align
from byov.apply.align import dtw_path, match, middle_frames, nearest, tau
from byov.errors import ApplyError


def draw(seed, longest=9):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, longest, 2)
    return [random.normal(size=(length, 3)).astype(np.float32) for length in lengths]


def distances(a, b):
    return np.linalg.norm(a[:, None].astype(float) - b[None], axis=2)


def least_cost(costs):
    """Of all paths by steps of one frame in a, in b, or in both."""
    total = np.full(costs.shape, np.inf)
    for row, column in np.ndindex(costs.shape):
        before = [total[row - i, column - j] for i, j in ((1, 1), (1, 0), (0, 1)) if row >= i and column >= j]
        total[row, column] = costs[row, column] + min(before, default=0.0)
    return total[-1, -1]


@pytest.mark.parametrize("seed", range(60))
def test_a_warp_costs_as_little_as_any_path(seed):
    a, b = draw(seed)
    path = dtw_path(a, b)
    costs = distances(a, b)
    assert path[0].tolist() == [0, 0]
    assert path[-1].tolist() == [len(a) - 1, len(b) - 1]
    assert {tuple(step) for step in np.diff(path, axis=0).tolist()} <= {(0, 1), (1, 0), (1, 1)}
    assert costs[path[:, 0], path[:, 1]].sum() == pytest.approx(least_cost(costs), rel=1e-9)


def test_a_warp_of_long_videos_is_still_the_least():
    a, b = (np.random.default_rng(seed).normal(size=(150 + 30 * seed, 8)).astype(np.float32) for seed in (1, 2))
    costs = distances(a, b)
    path = dtw_path(a, b)
    assert costs[path[:, 0], path[:, 1]].sum() == pytest.approx(least_cost(costs), rel=1e-9)


def test_of_equal_ways_the_diagonal_is_taken():
    same = np.zeros((4, 2), np.float32)
    assert dtw_path(same, same).tolist() == [[0, 0], [1, 1], [2, 2], [3, 3]]


def test_frames_that_are_held_in_b_are_followed():
    a = np.arange(5, dtype=np.float32)[:, None] * np.ones(3, np.float32)
    b = a[[0, 0, 0, 1, 2, 3, 3, 4]]
    assert middle_frames(dtw_path(a, b)).tolist() == [1, 3, 4, 5, 7]
    assert middle_frames(dtw_path(b, a)).tolist() == [0, 0, 0, 1, 2, 3, 3, 4]


def test_of_the_frames_on_a_path_the_middle_one_is_followed():
    assert middle_frames(np.array([[0, 0], [0, 1], [0, 2], [1, 3], [2, 3], [2, 4]])).tolist() == [1, 3, 3]


def test_too_many_pairs_of_frames_are_refused_before_memory_is_asked_for(monkeypatch):
    monkeypatch.setattr(align, "MAX_CELLS", 11)
    four, three = np.zeros((4, 2), np.float32), np.zeros((3, 2), np.float32)
    with pytest.raises(ApplyError, match=r"4 and 3 frames are too many.*--method nearest"):
        dtw_path(four, three)
    assert len(nearest(four, three)) == 4


@pytest.mark.parametrize("seed", range(20))
def test_the_nearest_is_that_of_all_distances(seed):
    a, b = draw(seed, longest=30)
    assert nearest(a, b).tolist() == distances(a, b).argmin(axis=1).tolist()


def test_of_equally_near_frames_the_first():
    assert nearest(np.zeros((1, 2), np.float32), np.ones((3, 2), np.float32)).tolist() == [0]


@pytest.mark.parametrize(
    ("matched", "expected"), [([0, 1, 4], 1.0), ([4, 1, 0], -1.0), ([2, 2, 2], None), ([3], None), ([0, 2, 1], 1 / 3)]
)
def test_tau_of_the_order(matched, expected):
    assert tau(np.array(matched)) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(5))
def test_a_match_has_the_distances_of_its_pairs_and_tau_of_the_nearest(seed):
    a, b = draw(seed, longest=30)
    costs = distances(a, b)
    warped, near = match(a, b, "dtw"), match(a, b, "nearest")
    for found in (warped, near):
        np.testing.assert_allclose(found.distances, costs[np.arange(len(a)), found.frames])
        assert found.tau_a_in_b == tau(costs.argmin(axis=1))
        assert found.tau_b_in_a == tau(costs.argmin(axis=0))
    assert near.frames.tolist() == costs.argmin(axis=1).tolist()
    assert (np.diff(warped.frames) >= 0).all()
