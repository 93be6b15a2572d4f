"""Tests of the numerical routines for a report."""

import numpy as np
import pytest

from byov.report.analysis import darken_excluded, fit_points, tsne


def test_tsne_keeps_neighbors_together():
    random = np.random.default_rng(0)
    points = np.concatenate([random.normal(size=(15, 6)), random.normal(size=(15, 6)) + 50]).astype(
        np.float32
    )
    placed = tsne(points, 0)
    gaps = np.linalg.norm(placed[:, None] - placed[None], axis=2)
    assert gaps[:15, :15].max() < gaps[:15, 15:].min()


@pytest.mark.parametrize("width", [1, 5])
def test_tsne_of_equal_points(width):
    assert not tsne(np.full((8, width), 0.1, np.float32), 0).any()
    half = np.repeat(
        np.arange(2, dtype=np.float32)[:, None] * np.ones(width, np.float32), 4, axis=0
    )
    assert np.isfinite(tsne(half, 0)).all()


def test_points_keep_their_aspect_and_y_points_up():
    placed = fit_points(np.array([[0.0, 0.0], [4.0, 0.0], [0.0, 2.0]]), 400, 14)
    np.testing.assert_allclose(placed, [[14, 293], [386, 293], [14, 107]])
    assert fit_points(np.zeros((2, 2)), 400, 14).tolist() == [[200, 200]] * 2


def test_cropped_borders_are_dark_at_every_ratio():
    pixels = np.full((40, 80, 3), 200, np.uint8)
    order = np.array([6, *range(6), *range(7, 16)], np.uint16)
    bright = darken_excluded(pixels, order, 1.0, cropped=True)[..., 0] == 200
    assert bright[:, 20:60].all()
    assert bright.sum() == 1600
    bright = darken_excluded(pixels, order, 0.01, cropped=True)[..., 0] == 200
    assert bright[10:20, 40:50].all(), "token 6: second row, third column"
    assert bright.sum() == 100
    tall = darken_excluded(pixels.transpose(1, 0, 2), order, 1.0, cropped=True)[..., 0] == 200
    assert tall[20:60].all()
    assert tall.sum() == 1600
