"""Features of one clip on a common scale: the same arithmetic for NumPy arrays and for tensors."""

from typing import Any, Protocol, TypeVar

SMALLEST_DEVIATION = 1e-6


class Array(Protocol):
    """A NumPy array or a tensor, as far as this file needs it."""

    def mean(self, axis: int, /) -> Any: ...

    def __sub__(self, other: Any, /) -> Any: ...


AnyArray = TypeVar("AnyArray", bound=Array)


def standardized(features: AnyArray) -> AnyArray:
    """(T, width) → each dimension with zero mean and unit deviation over the clip; a constant one becomes zero.

    NumPy adds frames up one by one, so its arrays should be float64: in float32 the mean of a long constant dimension
    is no longer its value, and what is left of it is blown up to unit deviation.
    """
    centred = features - features.mean(0)
    deviation = (centred * centred).mean(0) ** 0.5
    scaled: AnyArray = centred / (deviation + SMALLEST_DEVIATION)
    return scaled
