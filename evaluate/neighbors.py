"""Exact nearest neighbors, computed mostly with matrix products.

Rounding in ||a||² - 2ab + ||b||² can swap two nearly equal distances. The rounding error is
bounded, so only distances that differ by less than the bound are recomputed from differences.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Distances = NDArray[np.float64]
Indices = NDArray[np.int64]

BLOCK_ELEMENTS = 2**22  # distances per block: 32 MiB
CACHED_ELEMENTS = 2**16  # differences that fit into the processor's cache: 512 KiB
MIN_ROWS = 32  # per block; smaller matrix products are limited by memory bandwidth


class Points:
    """P points in D dimensions, with their squared Euclidean distances and nearest neighbors."""

    def __init__(self, embeddings: NDArray[np.float32]) -> None:
        self._exact = embeddings
        self._centered = embeddings.astype(np.float64)
        # Rounding errors grow with the distance from the origin.
        self._mean = self._centered.mean(axis=0)
        self._centered -= self._mean
        self._square_norms = _square_norms(self._centered)
        self.error = self._error(self._square_norms)

    def _error(self, square_norms: Distances) -> float:
        # Number of rounding errors in a dot product, with a safety margin.
        roundings = 4 * (int(self._exact.shape[1]) + 4)
        longest = float(square_norms.max(initial=0))
        return roundings * float(np.finfo(np.float64).eps) * longest

    @cached_property
    def values(self) -> Indices:
        """Integer id of each point, shape (P,); equal points share an id."""
        points = np.ascontiguousarray(self._exact + np.float32(0))  # -0 becomes 0
        sums = points.view(np.uint32).sum(axis=1, dtype=np.uint64)
        if len(np.unique(sums)) == len(sums):  # the usual case: all points differ
            return np.arange(len(sums))
        as_bytes = points.view(np.dtype((np.void, points.itemsize * points.shape[1]))).ravel()
        return np.unique(as_bytes, return_inverse=True)[1].astype(np.int64)

    def row_blocks(self, rows: Indices) -> Iterator[Indices]:
        """Split the rows into blocks with about BLOCK_ELEMENTS distances to all points each."""
        count = max(MIN_ROWS, BLOCK_ELEMENTS // max(1, len(self._exact)))
        return (rows[first : first + count] for first in range(0, len(rows), count))

    def distances(self, rows: Indices, columns: slice = slice(None)) -> Distances:
        """Return (R, C) squared distances with an absolute error of at most `self.error`."""
        return self._square_distances(self._centered[rows], columns)

    def _square_distances(self, queries: Distances, columns: slice = slice(None)) -> Distances:
        products = queries @ self._centered[columns].T
        products *= -2
        products += self._square_norms[columns]
        products += _square_norms(queries)[:, None]
        return products

    def nearest_to(self, queries: NDArray[np.floating], count: int) -> tuple[Distances, Indices]:
        """Return (Q, count) Euclidean distances and indices of the points nearest to any (Q, D)
        queries, nearest first. `count` must not exceed the number of points.
        """
        centered = queries - self._mean
        error = max(self.error, self._error(_square_norms(centered)))
        nearest = np.concatenate(
            [
                self._nearest(
                    queries[block], self._square_distances(centered[block]), 0, count, error
                )
                for block in self.row_blocks(np.arange(len(queries)))
            ]
            or [np.empty((0, count), np.int64)]
        )
        return np.sqrt(self._exact_distances(queries, nearest)), nearest

    def nearest(self, rows: Indices, distances: Distances, first: int, count: int) -> Indices:
        """Return (R, count) indices of the points nearest to each row, nearest first, padded with
        -1.

        `distances` has shape (R, C), for the C points starting at `first`. Points at infinite
        distance are skipped.
        """
        return self._nearest(self._exact[rows], distances, first, count, self.error)

    def _nearest(
        self,
        queries: NDArray[np.floating],
        distances: Distances,
        first: int,
        count: int,
        error: float,
    ) -> Indices:
        last = min(count, distances.shape[1] - 1)
        picked = np.argpartition(distances, last, axis=1)[:, : last + 1]
        picked.sort(axis=1)
        values = np.take_along_axis(distances, picked, 1)
        allowed = np.isfinite(values)
        exact = np.where(allowed, self._exact_distances(queries, picked + first), np.inf)
        order = np.argsort(exact, axis=1, kind="stable")[:, :count]
        nearest = np.full((len(queries), count), -1, np.int64)
        ranked = np.where(allowed, picked + first, -1)
        nearest[:, : order.shape[1]] = np.take_along_axis(ranked, order, 1)
        if picked.shape[1] < distances.shape[1]:
            rising = np.sort(values, axis=1)
            limits = rising[:, count - 1] + 2 * error
            for row in np.flatnonzero(np.isfinite(limits) & (rising[:, -1] <= limits)):
                # A point that was not picked may be nearer, within the rounding error.
                candidates = np.flatnonzero(distances[row] <= limits[row])
                nearest[row] = self._exact_order(queries[row], candidates + first)[:count]
        return nearest

    def nearest_in_each(self, rows: Indices, starts: Indices) -> Indices:
        """Return (R, G) indices of the point nearest to each row in each of G groups, which begin
        at `starts`.
        """
        distances = self.distances(rows)
        limits = np.minimum.reduceat(distances, starts, axis=1) + 2 * self.error
        close = distances <= np.repeat(limits, np.diff(starts, append=distances.shape[1]), axis=1)
        counts = np.add.reduceat(close, starts, axis=1, dtype=np.int64)  # (R, G), each at least 1
        points = np.nonzero(close)[1]
        ends = np.cumsum(counts).reshape(counts.shape)
        nearest: Indices = points[ends - counts]
        ties = counts > 1
        if ties.any():
            values = self.values[points]
            firsts = (ends - counts).ravel()
            all_equal = np.minimum.reduceat(values, firsts) == np.maximum.reduceat(values, firsts)
            ties &= ~all_equal.reshape(ties.shape)
        for row, group in np.argwhere(ties):
            candidates = points[ends[row, group] - counts[row, group] : ends[row, group]]
            nearest[row, group] = self._exact_order(self._exact[rows[row]], candidates)[0]
        return nearest

    def _exact_order(self, query: NDArray[np.floating], candidates: Indices) -> Indices:
        """Sort candidates by distance to a (D,) query; equal distances keep their order."""
        distances = self._exact_distances(query[None], candidates[None])[0]
        return candidates[np.argsort(distances, kind="stable")]

    def _exact_distances(self, queries: NDArray[np.floating], candidates: Indices) -> Distances:
        """Compute (R, C) squared distances between each query and its candidates from
        differences.
        """
        distances = np.empty(candidates.shape)
        step = max(1, CACHED_ELEMENTS // max(1, candidates.shape[1] * self._exact.shape[1]))
        for part in (slice(start, start + step) for start in range(0, len(queries), step)):
            differences = self._exact[candidates[part]].astype(np.float64) - queries[part, None]
            flat = differences.reshape(-1, differences.shape[-1])
            distances[part] = np.einsum("cd,cd->c", flat, flat).reshape(differences.shape[:-1])
        return distances


def _square_norms(points: Distances) -> Distances:
    norms: Distances = np.einsum("pd,pd->p", points, points)
    return norms
