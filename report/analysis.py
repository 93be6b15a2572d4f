"""Numerical routines for a report: frame sampling, t-SNE, token selection and quantization."""

from math import isqrt

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from byov.cache.layout import selected_tokens

PERPLEXITY = 30.0
DARKENED = 0.15  # brightness of excluded patches
INT8_MAX = 127


def evenly_spaced(count: int, limit: int) -> tuple[int, ...]:
    """Return at most `limit` of the indices 0 ... count - 1, evenly spaced, including the first and
    the last.

    >>> evenly_spaced(3, 5), evenly_spaced(10, 4)
    ((0, 1, 2), (0, 3, 6, 9))
    """
    chosen: list[int] = (
        np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64).tolist()
    )
    return tuple(chosen)


def centers(count: int, parts: int) -> tuple[int, ...]:
    """Return the middle index of each of `parts` equal parts of 0 ... count - 1, without
    duplicates.

    >>> centers(9, 3), centers(2, 3)
    ((1, 4, 7), (0, 1))
    """
    return tuple(dict.fromkeys((2 * part + 1) * count // (2 * parts) for part in range(parts)))


def tsne(points: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """Return the (n, 2) t-SNE of (n, D) points; zeros if all are equal.

    Uses a single thread to be reproducible.
    """
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    centered = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    scale = np.abs(centered).max()
    if scale <= np.finfo(np.float32).eps * np.abs(points).max():
        return np.zeros((len(points), 2))
    if centered.shape[1] < 2:
        centered = np.pad(centered, ((0, 0), (0, 1)))
    with threadpool_limits(1):
        fit = TSNE(
            2, perplexity=min(PERPLEXITY, (len(points) - 1) / 3), init="pca", random_state=seed
        )
        coordinates: NDArray[np.float64] = fit.fit_transform(centered / scale).astype(np.float64)
    return coordinates


def fit_points(points: NDArray[np.float64], size: float, margin: float) -> NDArray[np.float64]:
    """Scale (n, 2) points into a square of `size` pixels, with equal aspect ratio and the y-axis
    pointing up.
    """
    low = points.min(axis=0)
    high = points.max(axis=0)
    scale = (size - 2 * margin) / max(float((high - low).max()), 1e-12)
    fitted: NDArray[np.float64] = size / 2 + (points - (low + high) / 2) * scale * np.array(
        [1.0, -1.0]
    )
    return fitted


def darken_excluded(
    pixels: NDArray[np.uint8], order: NDArray[np.uint16], ratio: float, *, cropped: bool
) -> NDArray[np.uint8]:
    """Darken the patches of an (H, W, 3) picture that token merging excludes at a ratio.

    `order` lists the (N,) token indices by decreasing change. If `cropped` is True, they cover only
    the central square.
    """
    selected = np.zeros(len(order), np.bool_)
    selected[order[: selected_tokens(len(order), ratio)]] = True
    height, width = pixels.shape[:2]
    covered = (min(height, width),) * 2 if cropped else (height, width)
    top = (height - covered[0]) // 2
    left = (width - covered[1]) // 2
    bright = np.zeros((height, width, 1), np.bool_)
    patches = Image.fromarray(selected.reshape(isqrt(len(order)), -1))
    mask = patches.resize(covered[::-1], Image.Resampling.NEAREST)
    bright[top : top + covered[0], left : left + covered[1], 0] = mask
    return np.where(bright, pixels, np.round(pixels * DARKENED)).astype(np.uint8)


def quantize(embeddings: NDArray[np.float32]) -> tuple[NDArray[np.int8], float]:
    """Center (n, D) embeddings and quantize them to 8 bits; return the integers and the step
    size.
    """
    centered = embeddings - embeddings.mean(axis=0, dtype=np.float64)
    step = float(np.abs(centered).max()) / INT8_MAX or 1.0
    return np.round(centered / step).astype(np.int8), step
