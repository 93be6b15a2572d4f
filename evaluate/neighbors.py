"""Nearest neighbors by matrix products, ranked as an exact search ranks them.

A product gives ||a||² - 2ab + ||b||², whose rounding can swap two almost equal distances. Its error is bounded, so
where two distances are closer than the bound, and only there, they are taken again from differences. Of many points, a
product in single precision finds some more than are wanted; these are ranked from differences.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Distances = NDArray[np.float64]
RoughDistances = NDArray[np.float32]
Indices = NDArray[np.int64]

BLOCK_ELEMENTS = 2**22  # of one block of distances: 32 MiB
CACHED_ELEMENTS = 2**16  # of differences: 512 KiB stay in the processor's cache
LEAST_ROWS = 32  # of a block: a product of fewer spends its time on reading the points
GROUP_SIZE = 16  # of distances of which only the smallest is looked at, at first
SPARE = 8  # so many more than are wanted are found by rough distances
FEW_CANDIDATES = 64  # up to here it is not worth looking for equal ones


def equal_rows(rows: NDArray[np.float32]) -> Indices:
    """(P, D) → (P,) a number for each row, the same for equal rows and for no others."""
    plain = np.ascontiguousarray(rows + np.float32(0))  # -0 is 0
    sums = plain.view(np.uint32).sum(axis=1, dtype=np.uint64)
    if len(np.unique(sums)) == len(sums):  # the usual case, and quickly seen
        return np.arange(len(sums))
    as_bytes = plain.view(np.dtype((np.void, plain.itemsize * plain.shape[1]))).ravel()
    return np.unique(as_bytes, return_inverse=True)[1].astype(np.int64)


def smallest(distances: NDArray[np.floating[Any]], count: int) -> Indices:
    """(R, C) → (R, count) the columns of the smallest of each row, in any order; all where there are no more.

    They lie in the `count` groups whose smallest are the smallest: any other has at least as many below its own.
    """
    rows, columns = distances.shape
    groups = columns // GROUP_SIZE
    if columns <= count:
        return np.tile(np.arange(columns), (rows, 1))
    if groups <= 2 * count:
        return np.argpartition(distances, count - 1, axis=1)[:, :count]
    grouped = distances[:, : groups * GROUP_SIZE].reshape(rows, GROUP_SIZE, groups)  # every `groups`-th is of one
    nearest = np.argpartition(grouped.min(axis=1), count - 1, axis=1)[:, :count]
    members = (nearest[:, None, :] + np.arange(0, groups * GROUP_SIZE, groups)[:, None]).reshape(rows, -1)
    rest = np.broadcast_to(np.arange(groups * GROUP_SIZE, columns), (rows, columns - groups * GROUP_SIZE))
    members = np.concatenate([members, rest], axis=1)
    chosen = np.argpartition(np.take_along_axis(distances, members, 1), count - 1, axis=1)[:, :count]
    return np.take_along_axis(members, chosen, 1)


class Points:
    """P points of D dimensions, ready for squared Euclidean distances."""

    def __init__(self, embeddings: NDArray[np.float32]) -> None:
        self._exact = embeddings
        self._centered = embeddings.astype(np.float64)
        self._centered -= self._centered.mean(axis=0)  # rounding grows with the distance from the origin
        self._square_norms = np.einsum("pd,pd->p", self._centered, self._centered)
        longest = float(self._square_norms.max(initial=0))
        # Of a product of D terms and of the sums; a safe multiple, since too large only costs time.
        roundings = 4 * (embeddings.shape[1] + 4)
        self.error = roundings * float(np.finfo(np.float64).eps) * longest
        self._rough_error = roundings * float(np.finfo(np.float32).eps)  # of points of at most 1, as `_rough` has them

    @cached_property
    def values(self) -> Indices:
        """(P,) a number for each point, the same for equal points and for no others."""
        return equal_rows(self._exact)

    def row_blocks(self, rows: slice | Indices) -> Iterator[Indices]:
        """These rows in parts whose distances to all points fit a block, or are of LEAST_ROWS."""
        indices = np.arange(rows.start, rows.stop) if isinstance(rows, slice) else rows
        count = max(LEAST_ROWS, BLOCK_ELEMENTS // max(1, len(self._exact)))
        return (indices[first : first + count] for first in range(0, len(indices), count))

    def distances(self, rows: Indices, columns: slice = slice(None)) -> Distances:
        """(R, C) squared distances of some points to some or all, each off by at most `error`."""
        products = self._centered[rows] @ self._centered[columns].T
        products *= -2
        products += self._square_norms[columns]
        products += self._square_norms[rows, None]
        return products

    @cached_property
    def _rough(self) -> RoughDistances:
        """(P, D + 1) the points, scaled to lengths of at most 1, and their square norms."""
        longest = float(np.sqrt(self._square_norms.max(initial=0))) or 1.0
        rough = np.empty((len(self._centered), self._centered.shape[1] + 1), np.float32)
        np.divide(self._centered, longest, out=rough[:, :-1], casting="same_kind")
        rough[:, -1] = self._square_norms / longest**2
        return rough

    def rough_distances(self, rows: Indices, columns: slice = slice(None)) -> RoughDistances:
        """(R, C) squared distances on another scale, and less a number for each row: enough for `nearest`."""
        queries = self._rough[rows]
        queries *= -2
        queries[:, -1] = 1
        return queries @ self._rough[columns].T

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

    def nearest(self, rows: Indices, rough: RoughDistances, first: int, count: int) -> Indices:
        """(R, count) the nearest points to each row, nearest first; -1 where there are no more.

        `rough` (R, C) are the rough distances to the C points from `first` on, infinite for a point that may not be
        taken.
        """
        picked = np.sort(smallest(rough, count + SPARE), axis=1)
        values = np.take_along_axis(rough, picked, 1)
        ranked = self._ranked(rows, picked + first, np.isfinite(values))[:, :count]
        found = np.full((len(rows), count), -1, np.int64)
        found[:, : ranked.shape[1]] = ranked
        if picked.shape[1] == rough.shape[1]:
            return found
        unsure = np.flatnonzero(~self._is_certain(np.sort(values, axis=1), count))
        if len(unsure):
            distances = self.distances(rows[unsure], slice(first, first + rough.shape[1]))
            distances[np.isinf(rough[unsure])] = np.inf
            found[unsure] = self._nearest_by_products(rows[unsure], distances, first, count)
        return found

    def _is_certain(self, rising: RoughDistances, count: int) -> NDArray[np.bool_]:
        """(R,) whether none but the picked points, whose rough distances are given, can be among the nearest."""
        farther: NDArray[np.bool_] = rising[:, -1] > rising[:, count - 1] + 2 * self._rough_error
        return farther | np.isinf(rising[:, -1])  # all others may not be taken

    def _ranked(self, rows: Indices, candidates: Indices, may_be: NDArray[np.bool_]) -> Indices:
        """(R, C) the candidates of each row, which rise, by rising distance; -1 for those that may not be taken."""
        distances = np.full(candidates.shape, np.inf)
        step = max(1, CACHED_ELEMENTS // max(1, candidates.shape[1] * self._exact.shape[1]))
        for part in (slice(start, start + step) for start in range(0, len(rows), step)):
            differences = self._exact[candidates[part]].astype(np.float64) - self._exact[rows[part], None]
            flat = differences.reshape(-1, differences.shape[-1])
            distances[part] = np.einsum("cd,cd->c", flat, flat).reshape(differences.shape[:-1])
        distances[~may_be] = np.inf
        order = np.argsort(distances, axis=1, kind="stable")
        return np.where(np.take_along_axis(may_be, order, 1), np.take_along_axis(candidates, order, 1), -1)

    def _nearest_by_products(self, rows: Indices, distances: Distances, first: int, count: int) -> Indices:
        """As `nearest`, of distances in double precision."""
        seen = min(count + 1, distances.shape[1])  # one more, to see whether the last one is certain
        if seen == distances.shape[1]:
            order = np.argsort(distances, axis=1)
        else:
            part = smallest(distances, seen)
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
