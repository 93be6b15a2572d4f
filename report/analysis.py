"""Numerics of a report: frame sampling, t-SNE, alignment, failures, token selection, quantization."""

from collections.abc import Sequence
from math import isqrt

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.special import softmax

from byov.cache.layout import selected_tokens
from byov.report.content import FrameRef

PERPLEXITY = 30.0
DARKENED = 0.15  # brightness of excluded patches
INT8_MAX = 127


def evenly_spaced(count: int, limit: int) -> tuple[int, ...]:
    """Return at most `limit` of the indices 0 ... count - 1, evenly spaced, including the first and the last.

    >>> evenly_spaced(3, 5), evenly_spaced(10, 4)
    ((0, 1, 2), (0, 3, 6, 9))
    """
    chosen: list[int] = np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64).tolist()
    return tuple(chosen)


def centers(count: int, parts: int) -> tuple[int, ...]:
    """Return the middle index of each of `parts` equal parts of 0 ... count - 1, without duplicates.

    >>> centers(9, 3), centers(2, 3)
    ((1, 4, 7), (0, 1))
    """
    return tuple(dict.fromkeys((2 * part + 1) * count // (2 * parts) for part in range(parts)))


def tsne(points: NDArray[np.float32], seed: int) -> NDArray[np.float64]:
    """Return the (n, 2) t-SNE of (n, D) points; all zeros if they coincide. Single-threaded, to be reproducible."""
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    centered = points.astype(np.float64) - points.mean(axis=0, dtype=np.float64)
    scale = np.abs(centered).max()
    if scale <= np.finfo(np.float32).eps * np.abs(points).max():
        return np.zeros((len(points), 2))
    if centered.shape[1] < 2:
        centered = np.pad(centered, ((0, 0), (0, 1)))
    with threadpool_limits(1):
        fit = TSNE(2, perplexity=min(PERPLEXITY, (len(points) - 1) / 3), init="pca", random_state=seed)
        coordinates: NDArray[np.float64] = fit.fit_transform(centered / scale).astype(np.float64)
    return coordinates


def fit_points(points: NDArray[np.float64], size: float, margin: float) -> NDArray[np.float64]:
    """Scale (n, 2) points into a square of `size` pixels, with equal aspect and y upwards; NaN becomes 0."""
    finite = np.where(np.isfinite(points), points, 0.0)
    low, high = finite.min(axis=0), finite.max(axis=0)
    scale = (size - 2 * margin) / max(float((high - low).max()), 1e-12)
    fitted: NDArray[np.float64] = size / 2 + (finite - (low + high) / 2) * scale * np.array([1.0, -1.0])
    return fitted


def nearest_of_each(
    query: NDArray[np.float32], candidates: Sequence[tuple[int, NDArray[np.float32]]], limit: int
) -> tuple[FrameRef, ...]:
    """Return the nearest frame of each candidate, given by index and (T, D) embeddings, nearest video first."""
    found = []
    for video, embeddings in candidates:
        distances = np.linalg.norm(embeddings - query.astype(np.float64), axis=1)
        found.append((float(distances.min()), video, int(distances.argmin())))
    return tuple(FrameRef(video, frame) for _, video, frame in sorted(found)[:limit])


def mean_taus(taus: NDArray[np.float64]) -> NDArray[np.float64]:
    """Average (V, V) taus over the pairs of each video, as query and as candidate; NaN if it has none."""
    known = np.ma.masked_invalid(np.concatenate([taus, taus.T], axis=1))
    means: NDArray[np.float64] = known.mean(axis=1).filled(np.nan)
    return means


def softmax_similarity(embeddings: NDArray[np.float32], reference: int) -> NDArray[np.float64]:
    """Return (T,) softmax over the frames of z_ref · z_t / sqrt(D), for (T, D) embeddings."""
    exact = embeddings.astype(np.float64)
    similarity: NDArray[np.float64] = softmax(exact @ exact[reference] / np.sqrt(exact.shape[1]))
    return similarity


def selected_patches(order: NDArray[np.uint16], ratio: float) -> NDArray[np.bool_]:
    """Return the (side, side) mask of selected patches, given (N,) token indices by decreasing change."""
    side = isqrt(len(order))
    selected = np.zeros(len(order), np.bool_)
    selected[order[: selected_tokens(len(order), ratio)]] = True
    return selected.reshape(side, side)


def darken_excluded(pixels: NDArray[np.uint8], patches: NDArray[np.bool_], *, cropped: bool) -> NDArray[np.uint8]:
    """Darken the excluded patches of an (H, W, 3) picture; if cropped, patches cover only its central square."""
    height, width = pixels.shape[:2]
    covered = (min(height, width),) * 2 if cropped else (height, width)
    top, left = (height - covered[0]) // 2, (width - covered[1]) // 2
    bright = np.zeros((height, width, 1), np.bool_)
    mask = Image.fromarray(patches).resize(covered[::-1], Image.Resampling.NEAREST)
    bright[top : top + covered[0], left : left + covered[1], 0] = mask
    return np.where(bright, pixels, np.round(pixels * DARKENED)).astype(np.uint8)


def quantize(embeddings: NDArray[np.float32]) -> tuple[NDArray[np.int8], float]:
    """Quantize (n, D) embeddings around their mean to 8 bits; return the integers and the step size."""
    centered = embeddings - embeddings.mean(axis=0, dtype=np.float64)
    step = float(np.abs(centered).max()) / INT8_MAX or 1.0
    return np.round(centered / step).astype(np.int8), step
