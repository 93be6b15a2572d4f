"""Some of many, evenly spread."""

import numpy as np


def evenly(count: int, most: int) -> tuple[int, ...]:
    """At most so many of 0 ... count - 1, rising, the first and the last among them.

    >>> evenly(3, 5), evenly(10, 4)
    ((0, 1, 2), (0, 3, 6, 9))
    """
    chosen: list[int] = np.linspace(0, count - 1, min(count, most)).round().astype(np.int64).tolist()
    return tuple(chosen)


def centers(count: int, parts: int) -> tuple[int, ...]:
    """The middle one of each of so many equal parts of 0 ... count - 1, each once.

    >>> centers(9, 3), centers(2, 3)
    ((1, 4, 7), (0, 1))
    """
    return tuple(dict.fromkeys(center(count, part, parts) for part in range(parts)))


def center(count: int, part: int, parts: int) -> int:
    """The middle one of one of the parts."""
    return (2 * part + 1) * count // (2 * parts)
