"""The numerics of a report against naive computations."""

import numpy as np
import pytest

from byov.report.analysis import (
    darken_excluded,
    evenly_spaced,
    fit_points,
    mean_taus,
    nearest_of_each,
    quantize,
    selected_patches,
    softmax_similarity,
    tsne,
)
from byov.report.content import FrameRef


@pytest.mark.parametrize("count", [1, 100, 101, 1000])
def test_evenly_spaced_indices_include_both_ends_without_duplicates(count):
    chosen = evenly_spaced(count, 100)
    assert len(set(chosen)) == len(chosen) == min(count, 100)
    assert (chosen[0], chosen[-1]) == (0, count - 1)


def test_tsne_keeps_neighbors_together():
    random = np.random.default_rng(0)
    points = np.concatenate([random.normal(size=(15, 6)), random.normal(size=(15, 6)) + 50]).astype(np.float32)
    placed = tsne(points, 0)
    gaps = np.linalg.norm(placed[:, None] - placed[None], axis=2)
    assert gaps[:15, :15].max() < gaps[:15, 15:].min()


@pytest.mark.parametrize("width", [1, 5])
def test_tsne_of_equal_points(width):
    assert not tsne(np.full((8, width), 0.1, np.float32), 0).any()
    half = np.repeat(np.arange(2, dtype=np.float32)[:, None] * np.ones(width, np.float32), 4, axis=0)
    assert np.isfinite(tsne(half, 0)).all()


def test_points_keep_their_aspect_and_y_points_up():
    placed = fit_points(np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]]), 400, 14)
    np.testing.assert_allclose(placed, [[14, 293], [386, 293], [14, 107]])
    equal_or_invalid = np.array([[0.0, 0.0], [np.nan, 0.0]])
    assert fit_points(equal_or_invalid, 400, 14).tolist() == [[200, 200]] * 2


def test_nearest_frame_of_each_video_nearest_video_first():
    videos = [(7, np.array([[5.0], [3.0]])), (2, np.array([[1.0], [0.5]])), (4, np.array([[9.0]]))]
    found = nearest_of_each(np.array([0.0], np.float32), videos, limit=2)
    assert found == (FrameRef(2, 1), FrameRef(7, 1))


def test_mean_taus_ignore_missing_pairs():
    taus = np.array([[np.nan, 0.5, np.nan], [0.1, np.nan, np.nan], [np.nan, np.nan, np.nan]])
    np.testing.assert_allclose(mean_taus(taus), [0.3, 0.3, np.nan])


def test_softmax_of_large_products_is_finite():
    np.testing.assert_allclose(softmax_similarity(np.full((4, 2), 1e4, np.float32), 1), 0.25)


def test_cropped_borders_are_dark_at_every_ratio():
    pixels = np.full((40, 80, 3), 200, np.uint8)
    bright = darken_excluded(pixels, np.ones((4, 4), bool), cropped=True)[..., 0] == 200
    assert bright[:, 20:60].all()
    assert bright.sum() == 1600
    one = selected_patches(np.array([6, *range(6), *range(7, 16)], np.uint16), 0.01)  # second row, third column
    bright = darken_excluded(pixels, one, cropped=True)[..., 0] == 200
    assert bright[10:20, 40:50].all()
    assert bright.sum() == 100
    tall = darken_excluded(pixels.transpose(1, 0, 2), np.ones((4, 4), bool), cropped=True)[..., 0] == 200
    assert tall[20:60].all()
    assert tall.sum() == 1600


def test_quantized_embeddings_keep_their_distances():
    rows = np.random.default_rng(0).normal(3, 1, (12, 40)).astype(np.float32)
    numbers, step = quantize(rows)
    assert np.abs(numbers).max() == 127
    exact = np.linalg.norm(rows[:7, None] - rows[7:], axis=2)
    found = step * np.linalg.norm(numbers[:7, None].astype(float) - numbers[7:], axis=2)
    np.testing.assert_allclose(found, exact, rtol=0.02)


def test_constant_embeddings_become_zeros():
    assert not quantize(np.full((3, 2), 0.1, np.float32))[0].any()
