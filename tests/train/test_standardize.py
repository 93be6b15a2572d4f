import pytest
import torch

from byov.train.standardize import standardized


def features(frames=20, width=6):
    random = torch.Generator().manual_seed(0)
    scale = 0.1 + 30 * torch.rand(width, generator=random)
    return torch.randn(frames, width, generator=random) * scale + 5


def test_each_dimension_has_zero_mean_and_unit_deviation():
    scaled = standardized(features())
    torch.testing.assert_close(scaled.mean(0), torch.zeros(6), atol=1e-6, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(6), atol=1e-4, rtol=0)


def test_the_dimensions_do_not_mix_and_their_scale_is_lost():
    array = features()
    torch.testing.assert_close(standardized(array * 4 - 3), standardized(array), atol=1e-4, rtol=0)
    torch.testing.assert_close(standardized(array[:, 2:3]), standardized(array)[:, 2:3], atol=1e-6, rtol=0)


@pytest.mark.parametrize("frames", [1, 7, 3000])
def test_a_dimension_that_never_changes_becomes_zero(frames):
    array = features(frames)
    array[:, 1] = torch.tensor(97.3, dtype=torch.float16)  # a value as the cache holds it
    scaled = standardized(array)
    assert scaled[:, 1].abs().max() < 1e-3
    assert scaled.isfinite().all()
