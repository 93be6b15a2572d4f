"""Features of one clip on a common scale."""

from torch import Tensor

SMALLEST_DEVIATION = 1e-6


def standardized(features: Tensor) -> Tensor:
    """(T, width) → each dimension with zero mean and unit deviation over the clip; a constant one becomes zero."""
    centred = features - features.mean(0)
    deviation = centred.square().mean(0).sqrt()
    return centred / (deviation + SMALLEST_DEVIATION)
