"""Matching the frames of two videos by their embeddings, (Ta, D) and (Tb, D): nearest frames, dynamic time warping."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

from byov.errors import ApplyError
from byov.evaluate.kendalls_tau import taus_of_columns
from byov.evaluate.neighbours import Points

Embeddings = NDArray[np.float32]
Indices = NDArray[np.int64]
Matching = Literal["dtw", "nearest"]

MOST_CELLS = 2**30  # of the DTW table: it keeps one byte for each pair of frames
_DIAGONAL, _UP, _LEFT = 0, 1, 2  # where a cell of the table was reached from


@dataclass(frozen=True)
class Match:
    """For each frame of a the matched frame of b, and Kendall's tau in both directions."""

    frames: Indices  # (Ta,)
    distances: NDArray[np.float64]  # (Ta,) between the embeddings of the two
    tau_a_in_b: float | None  # of the nearest frames, whatever the method
    tau_b_in_a: float | None


def match(a: Embeddings, b: Embeddings, method: Matching) -> Match:
    """dtw: in order, and both from beginning to end. nearest: each frame on its own."""
    in_b = nearest(a, b)
    frames = in_b if method == "nearest" else middle_frames(dtw_path(a, b))
    distances = np.linalg.norm(a.astype(np.float64) - b[frames], axis=1)
    return Match(frames, distances, tau(in_b), tau(nearest(b, a)))


def nearest(a: Embeddings, b: Embeddings) -> Indices:
    """(Ta,) for each frame of a, the nearest of b, by the evaluator's own search."""
    points, starts = Points(np.concatenate([a, b])), np.array([0, len(a)])
    rows = points.row_blocks(slice(0, len(a)))
    return np.concatenate([points.nearest_in_each(block, starts)[:, 1] for block in rows]) - len(a)


def tau(matched: Indices) -> float | None:
    """Kendall's tau of the matched frames' order; None if they never change, or there is only one."""
    value = float(taus_of_columns(matched[:, None])[0])
    return None if np.isnan(value) else value


def dtw_path(a: Embeddings, b: Embeddings) -> Indices:
    """(P, 2) the dynamic time warping path: pairs of frames from (0, 0) to (Ta - 1, Tb - 1), neither running backwards.

    The sum of distances along it is the least. Ties go to the diagonal step, then to the step in a.
    """
    if len(a) * len(b) > MOST_CELLS:
        raise ApplyError(
            f"{len(a)} and {len(b)} frames are too many to match in order (at most {MOST_CELLS:,} pairs of frames); "
            "match each by its nearest with --method nearest"
        )
    a, b = a.astype(np.float64), b.astype(np.float64)  # once, and not anew in every row
    came_from = np.empty((len(a), len(b)), np.uint8)
    before = np.full(len(b) + 1, np.inf)  # costs of the row above, with a wall on its left
    before[0] = 0  # from which the path enters (0, 0)
    for row, frame in enumerate(a):
        diagonal, up = before[:-1], before[1:]
        entry = np.minimum(diagonal, up)
        costs = np.cumsum(cdist(frame[None], b)[0])
        # Along a row, c[j] = cost[j] + min(entry[j], c[j - 1]): less the running sum of costs, a running minimum.
        skipped = np.concatenate([[0.0], costs[:-1]])
        reached = costs + np.minimum.accumulate(entry - skipped)
        left = np.concatenate([[np.inf], reached[:-1]])
        came_from[row] = np.where(left < entry, _LEFT, np.where(diagonal <= up, _DIAGONAL, _UP))
        before = np.concatenate([[np.inf], reached])
    return _trace(came_from)


def _trace(came_from: NDArray[np.uint8]) -> Indices:
    """The path that ends in the last cell."""
    row, column = came_from.shape[0] - 1, came_from.shape[1] - 1
    path = [(row, column)]
    while row or column:
        step = came_from[row, column]
        row, column = row - (step != _LEFT), column - (step != _UP)
        path.append((row, column))
    return np.array(path[::-1], np.int64)


def middle_frames(path: Indices) -> Indices:
    """(Ta,) one frame of b for each of a: of those that the path pairs with it, the middle one."""
    frames, first, counts = np.unique(path[:, 0], return_index=True, return_counts=True)
    middle: Indices = path[first + (counts - 1) // 2, 1]
    assert len(frames) == path[-1, 0] + 1
    return middle
