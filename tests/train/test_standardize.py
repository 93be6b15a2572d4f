import numpy as np
import pytest
import torch

from byov.train.standardize import standardized


def features(frames=20, width=6):
    random = np.random.default_rng(0)
    return (random.normal(size=(frames, width)) * random.uniform(0.1, 30, width) + 5).astype(np.float32)


@pytest.mark.parametrize("convert", [lambda array: array, torch.from_numpy], ids=["numpy", "torch"])
def test_each_dimension_has_zero_mean_and_unit_deviation(convert):
    scaled = np.asarray(standardized(convert(features())))
    np.testing.assert_allclose(scaled.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(scaled.std(0), 1, atol=1e-4)


def test_training_and_embedding_see_the_same_numbers():
    array = features()
    np.testing.assert_allclose(standardized(array), standardized(torch.from_numpy(array)).numpy(), atol=1e-6)


def test_the_dimensions_do_not_mix_and_their_scale_is_lost():
    array = features()
    np.testing.assert_allclose(standardized(array * 4 - 3), standardized(array), atol=1e-4)
    np.testing.assert_allclose(standardized(array[:, 2:3]), standardized(array)[:, 2:3], atol=1e-6)


@pytest.mark.parametrize("frames", [1, 7, 3000])
def test_a_dimension_that_never_changes_becomes_zero(frames):
    array = features(frames)
    array[:, 1] = np.float16(97.3)  # a value as the cache holds it
    assert np.abs(standardized(array)[:, 1]).max() < 1e-3
    assert standardized(torch.from_numpy(array))[:, 1].abs().max() < 1e-3
    assert np.isfinite(standardized(array)).all()
