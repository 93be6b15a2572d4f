import numpy as np
import pytest
import torch

from byov.cache.features import SMALLEST_DEVIATION, standardize


def features(frames=20, width=6):
    random = torch.Generator().manual_seed(0)
    scale = 0.1 + 30 * torch.rand(width, generator=random)
    return torch.randn(frames, width, generator=random) * scale + 5


def test_each_dimension_has_zero_mean_and_unit_deviation():
    scaled = standardize(features())
    torch.testing.assert_close(scaled.mean(0), torch.zeros(6), atol=1e-6, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(6), atol=1e-4, rtol=0)


def test_the_dimensions_do_not_mix_and_their_scale_is_lost():
    array = features()
    torch.testing.assert_close(standardize(array * 4 - 3), standardize(array), atol=1e-4, rtol=0)
    torch.testing.assert_close(standardize(array[:, 2:3]), standardize(array)[:, 2:3], atol=1e-6, rtol=0)


@pytest.mark.parametrize("frames", [1, 7, 3000, 50_000])
@pytest.mark.parametrize("kind", ["tensor", "float64 array"])
def test_a_dimension_that_never_changes_becomes_zero(frames, kind):
    array = features(frames)
    array[:, 1] = torch.tensor(97.3, dtype=torch.float16)  # a value as the cache holds it
    scaled = standardize(array if kind == "tensor" else array.double().numpy())
    assert abs(scaled[:, 1]).max() < 1e-3
    assert np.isfinite(np.asarray(scaled)).all()


@pytest.mark.parametrize(("frames", "width"), [(1, 6), (20, 1), (333, 768), (5000, 7)])
def test_tensors_give_the_bits_that_older_runs_were_trained_on(frames, width):
    array = features(frames, width)
    centered = array - array.mean(0)
    assert torch.equal(standardize(array), centered / (centered.square().mean(0).sqrt() + SMALLEST_DEVIATION))


@pytest.mark.parametrize("frames", [1, 20, 3000])
def test_arrays_and_tensors_agree(frames):
    tensor = features(frames)
    array = standardize(tensor.double().numpy())
    assert isinstance(array, np.ndarray)
    np.testing.assert_allclose(array, standardize(tensor), atol=1e-4)
