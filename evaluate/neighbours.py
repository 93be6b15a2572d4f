"""Nearest neighbours by matrix products, ranked as an exact search ranks them.

A product gives ||a||² - 2ab + ||b||², whose rounding can swap two almost equal distances. Its error is bounded, so
where two distances are closer than the bound, and only there, they are taken again from differences.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Distances = NDArray[np.float64]
Indices = NDArray[np.int64]

BLOCK_ELEMENTS = 2**22  # of one block of distances: 32 MiB
FEW_CANDIDATES = 64  # up to here it is not worth looking for equal ones


def equal_rows(rows: NDArray[np.float32]) -> Indices:
    """(P, D) → (P,) a number for each row, the same for equal rows and for no others."""
    plain = np.ascontiguousarray(rows + np.float32(0))  # -0 is 0
    sums = plain.view(np.uint32).sum(axis=1, dtype=np.uint64)
    if len(np.unique(sums)) == len(sums):  # the usual case, and quickly seen
        return np.arange(len(sums))
    as_bytes = plain.view(np.dtype((np.void, plain.itemsize * plain.shape[1]))).ravel()
    return np.unique(as_bytes, return_inverse=True)[1].astype(np.int64)


class Points:
    """P points of D dimensions, ready for squared Euclidean distances."""

    def __init__(self, embeddings: NDArray[np.float32]) -> None:
        self._exact = embeddings
        self._centred = embeddings.astype(np.float64)
        self._centred -= self._centred.mean(axis=0)  # rounding grows with the distance from the origin
        self._square_norms = np.einsum("pd,pd->p", self._centred, self._centred)
        longest = float(self._square_norms.max(initial=0))
        # Of a product of D terms and of the sums; a safe multiple, since too large only costs time.
        self.error = 4 * (embeddings.shape[1] + 4) * float(np.finfo(np.float64).eps) * longest

    @cached_property
    def values(self) -> Indices:
        """(P,) a number for each point, the same for equal points and for no others."""
        return equal_rows(self._exact)

    def row_blocks(self, rows: slice | Indices) -> Iterator[Indices]:
        """These rows in parts whose distances to all points fit a block."""
        indices = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        count = max(1, BLOCK_ELEMENTS // max(1, len(self._exact)))
        return (indices[first : first + count] for first in range(0, len(indices), count))

    def distances(self, rows: Indices, columns: slice = slice(None)) -> Distances:
        """(R, C) squared distances of some points to some or all, each off by at most `error`."""
        products = self._centred[rows] @ self._centred[columns].T
        products *= -2
        products += self._square_norms[columns]
        products += self._square_norms[rows, None]
        return products

    def exact_order(self, query: int, candidates: Indices) -> Indices:
        """Candidates by rising distance to the query; equal ones keep their order."""
        if len(candidates) <= FEW_CANDIDATES:
            return candidates[np.argsort(self._exact_distances(query, candidates), kind="stable")]
        values = self.values[candidates]
        if (values == values[0]).all():
            return candidates
        example = np.full(values.max() + 1, -1)  # a candidate of each value: one distance for all that are equal
        example[values] = candidates
        present = np.flatnonzero(example >= 0)
        distances = np.empty(len(example))
        distances[present] = self._exact_distances(query, example[present])
        return candidates[np.argsort(distances[values], kind="stable")]

    def _exact_distances(self, query: int, candidates: Indices) -> Distances:
        """(C,) from differences."""
        differences = self._exact[candidates].astype(np.float64) - self._exact[query]
        distances: Distances = np.einsum("cd,cd->c", differences, differences)
        return distances

    def nearest(self, rows: Indices, distances: Distances, first: int, count: int) -> Indices:
        """(R, count) the nearest points to each row, nearest first; -1 where there are no more.

        `distances` (R, C) are those to the C points from `first` on, infinite for a point that may not be taken.
        """
        seen = min(count + 1, distances.shape[1])  # one more, to see whether the last one is certain
        if seen == distances.shape[1]:
            order = np.argsort(distances, axis=1)
        else:
            part = np.argpartition(distances, seen - 1, axis=1)[:, :seen]
            order = np.take_along_axis(part, np.argsort(np.take_along_axis(distances, part, 1), axis=1), 1)
        rising = np.take_along_axis(distances, order, 1)
        found = np.full((len(distances), count), -1, np.int64)
        kept = min(count, seen)
        found[:, :kept] = np.where(np.isfinite(rising[:, :kept]), order[:, :kept] + first, -1)
        close = np.isfinite(rising[:, 1:]) & (rising[:, 1:] <= rising[:, :-1] + 2 * self.error)
        for row in np.flatnonzero(close.any(axis=1)):
            limit = rising[row, kept - 1] + 2 * self.error
            candidates = np.flatnonzero((distances[row] <= limit) & np.isfinite(distances[row]))
            ordered = self.exact_order(int(rows[row]), candidates + first)[:count]
            found[row, : len(ordered)] = ordered
        return found

    def nearest_in_each(self, rows: Indices, starts: Indices) -> Indices:
        """(R, G) the nearest point to each row in each group of consecutive points, by the groups' first points."""
        distances = self.distances(rows)
        limits = np.minimum.reduceat(distances, starts, axis=1) + 2 * self.error
        close = distances <= np.repeat(limits, np.diff(starts, append=distances.shape[1]), axis=1)
        counts = np.add.reduceat(close, starts, axis=1, dtype=np.int64)  # (R, G), each at least 1
        points = np.nonzero(close)[1]
        ends = np.cumsum(counts).reshape(counts.shape)
        nearest: Indices = points[ends - counts]
        ties = counts > 1
        if ties.any():
            ties &= ~self._all_equal(points, ends - counts)
        for row, group in np.argwhere(ties):
            candidates = points[ends[row, group] - counts[row, group] : ends[row, group]]
            nearest[row, group] = self.exact_order(int(rows[row]), candidates)[0]
        return nearest

    def _all_equal(self, points: Indices, firsts: Indices) -> NDArray[np.bool_]:
        """(R, G) whether the points of each group are one and the same: then the first is the nearest.

        `points` are those of all groups, one after the other, `firsts` (R, G) where each group begins.
        """
        values, starts = self.values[points], firsts.ravel()
        equal: NDArray[np.bool_] = np.minimum.reduceat(values, starts) == np.maximum.reduceat(values, starts)
        return equal.reshape(firsts.shape)
