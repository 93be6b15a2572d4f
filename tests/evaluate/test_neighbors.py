import logging
from dataclasses import replace

import numpy as np
import pytest

from byov.evaluate import neighbors, retrieval
from byov.evaluate.neighbors import Points, smallest

KINDS = ("walk", "grid", "clock", "one", "three", "every second", "far point", "steps", "tiny", "huge")


def embeddings(kind, points=400, width=6):
    """Points of which many or few are equally far from others."""
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
        "steps": np.float32(3000) + random.integers(-3, 4, walk.shape).astype(np.float32) * np.float32(2**-12),
        "tiny": walk * np.float32(1e-30),
        "huge": walk * np.float32(1e30),
    }.get(kind, walk)


def by_definition(points, rows, excluded, first, count):
    """Every difference, squared and summed; the first of equals comes first."""
    found = np.full((len(rows), count), -1)
    for place, row in enumerate(rows):
        candidates = np.flatnonzero(~excluded[place])
        differences = points[candidates + first].astype(np.float64) - points[row]
        order = np.argsort(np.einsum("cd,cd->c", differences, differences), kind="stable")[:count]
        found[place, : len(order)] = candidates[order] + first
    return found


@pytest.fixture(params=["as it is", "small groups"])
def sizes(request, monkeypatch):
    if request.param == "small groups":
        monkeypatch.setattr(neighbors, "GROUP_SIZE", 3)
        monkeypatch.setattr(neighbors, "SPARE", 2)


@pytest.mark.usefixtures("sizes")
@pytest.mark.parametrize("kind", KINDS)
def test_the_nearest_are_those_of_the_definition(kind):
    values = embeddings(kind)
    points, rows, first = Points(values), np.arange(0, 400, 7), 31
    rough = points.rough_distances(rows, slice(first, 390))
    excluded = np.abs(np.arange(first, 390) - rows[:, None]) < 20
    rough[excluded] = np.inf
    for count in (1, 15):
        np.testing.assert_array_equal(
            points.nearest(rows, rough, first, count), by_definition(values, rows, excluded, first, count), kind
        )


def test_many_points_are_ranked_as_few_are():
    """So many that groups are looked at, and so close that rough distances decide for some and not for others."""
    random = np.random.default_rng(0)
    values = (1 + 1e-3 * random.standard_normal((5000, 3))).astype(np.float32)
    values[0] = -1
    points, rows = Points(values), np.arange(40)
    rough = points.rough_distances(rows)
    excluded = np.arange(5000) == rows[:, None]
    rough[excluded] = np.inf
    picked = np.sort(np.take_along_axis(rough, smallest(rough, 15 + neighbors.SPARE), 1), axis=1)
    assert 0 < points._is_certain(picked, 15).sum() < 40
    np.testing.assert_array_equal(points.nearest(rows, rough, 0, 15), by_definition(values, rows, excluded, 0, 15))


def test_fewer_points_than_are_wanted():
    values = embeddings("walk", points=5)
    points, rows = Points(values), np.array([0, 4])
    rough = points.rough_distances(rows)
    rough[0, 0] = rough[1] = np.inf
    found = points.nearest(rows, rough, 0, 15)
    assert set(found[0, :4]) == {1, 2, 3, 4}
    assert (found[0, 4:] == -1).all()
    assert (found[1] == -1).all()
    assert points.nearest(rows, rough[:, :0], 5, 15).tolist() == [[-1] * 15] * 2


@pytest.mark.parametrize("columns", [1, 2, 30, 31, 1000, 1001, 1500])
@pytest.mark.parametrize("values", ["random", "equal", "falling", "infinite"])
def test_the_smallest_are_as_small_as_those_of_a_sort(columns, values):
    distances = {
        "random": np.random.default_rng(0).standard_normal((4, columns)),
        "equal": np.ones((4, columns)),
        "falling": np.tile(np.arange(columns)[::-1], (4, 1)),
        "infinite": np.where(np.arange(columns) % 97 == 5, 1.0, np.inf) * np.ones((4, 1)),
    }[values]
    for count in (1, 2, 15):
        found = smallest(distances, count)
        assert found.shape == (4, min(count, columns))
        assert all(len(set(row)) == len(row) for row in found.tolist())
        np.testing.assert_array_equal(
            np.sort(np.take_along_axis(distances, found, 1), axis=1), np.sort(distances, axis=1)[:, :count]
        )


def test_the_time_of_many_frames_is_said_before_it_passes(make_frames, monkeypatch, caplog):
    test = make_frames(5, ego=2, exo=2)
    test = replace(test, embeddings=test.embeddings[:, :2])
    with caplog.at_level(logging.INFO, logger="byov"):
        retrieval.mean_average_precision(test)
        assert caplog.messages == []
        monkeypatch.setattr(retrieval, "MANY_FRAMES", 10)
        retrieval.mean_average_precision(test)
    (said,) = caplog.messages
    assert said.startswith(f"retrieval compares {len(test.embeddings):,} frames with each other, which takes about ")
