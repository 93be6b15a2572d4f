"""Features of one clip on a common scale."""

from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = TypeVar("Array", NDArray[np.float32], Tensor)
SMALLEST_DEVIATION = 1e-6


def standardized(features: Array) -> Array:
    """(T, width) → each dimension with zero mean and unit deviation over the clip; a constant one becomes zero."""
    centred: Any = features - features.mean(0)
    deviation = (centred * centred).mean(0) ** 0.5
    return centred / (deviation + SMALLEST_DEVIATION)  # type: ignore[no-any-return]
