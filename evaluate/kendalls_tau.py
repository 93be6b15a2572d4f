"""Kendall's tau: rank correlation between frames of a video and their nearest frames in another
video.
"""

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import Frames, Missing, Score, missing_view, view_mask
from byov.evaluate.neighbors import Points

# is_ego of the query video and of the candidate video.
PAIRS: dict[str, tuple[bool | None, bool | None]] = {
    "all": (None, None),
    "ego-ego": (True, True),
    "ego-exo": (True, False),
    "exo-ego": (False, True),
    "exo-exo": (False, False),
}


def kendalls_tau(test: Frames, *, stride: int = 5) -> dict[str, Score]:
    """Compute the mean Kendall's tau over ordered pairs of different videos.

    For a query and a candidate video, tau-b compares the order of the query frames with the order
    of their nearest candidate frames. Tau is undefined if all queries have the same nearest frame
    or if there is only one query; such pairs are ignored, as in AE2's evaluator.

    Args:
        test: Frames to score; labels are not needed.
        stride: Use every stride-th frame of each video.

    Returns:
        Dict mapping "all" and each combination of query and candidate view ("ego-exo", ...) to its
        mean tau.

    Example:
        >>> x = np.array([0, 1, 2, 0, 1, 2], np.float32)[:, None]
        >>> frames = Frames(x, None, np.array([3, 3]), np.array([True, False]))
        >>> kendalls_tau(frames, stride=1)["ego-exo"].value
        1.0
    """
    taus = tau_of_each_pair(test.every(stride))
    return {pairs: _mean(taus, test, *views) for pairs, views in PAIRS.items()}


def tau_for_selection(test: Frames, *, stride: int = 5) -> float | Missing:
    """Compute the mean tau over all ordered pairs, counting undefined values as 0.

    Used for model selection, where ignoring undefined values would reward a partly collapsed model.
    """
    if len(test.lengths) < 2:
        return missing_view(test.is_ego, None, "test") or Missing("only one test video")
    taus = np.nan_to_num(tau_of_each_pair(test.every(stride)))  # the diagonal becomes 0
    return float(taus.sum() / (len(taus) * (len(taus) - 1)))


def tau_of_each_pair(test: Frames) -> NDArray[np.float64]:
    """Return (V, V) tau for each query video (row) and candidate video (column);

    NaN where it is undefined.
    """
    points = Points(test.embeddings)
    recordings = test.recording_of_video
    taus = np.full((len(test.lengths), len(test.lengths)), np.nan)
    for query, (start, length) in enumerate(zip(test.starts, test.lengths, strict=True)):
        blocks = points.row_blocks(np.arange(start, start + length))
        taus[query] = taus_of_columns(
            np.concatenate([points.nearest_in_each(rows, test.starts) for rows in blocks])
        )
    taus[recordings[:, None] == recordings] = np.nan
    return taus


def taus_of_columns(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute (V,) tau-b between each column of an (n, V) array and 0, ..., n - 1; NaN for constant
    columns.

    >>> taus_of_columns(np.array([[0, 2, 1], [1, 1, 1], [2, 0, 1]]))
    array([ 1., -1., nan])
    """
    concordance, ties = np.zeros((2, values.shape[1]), np.int64)
    for index in range(len(values) - 1):
        steps = values[index + 1 :] - values[index]
        concordance += np.sign(steps).sum(axis=0)
        ties += (steps == 0).sum(axis=0)
    pairs = len(values) * (len(values) - 1) // 2
    scale = np.sqrt(pairs * (pairs - ties).astype(np.float64))
    taus = np.full(len(scale), np.nan)
    np.divide(concordance, scale, out=taus, where=scale > 0)
    return taus


def _mean(
    taus: NDArray[np.float64], test: Frames, query_view: bool | None, candidate_view: bool | None
) -> Score:
    missing = missing_view(test.is_ego, query_view, "test") or missing_view(
        test.is_ego, candidate_view, "test"
    )
    if missing:
        return Score.of(missing)
    recordings = test.recording_of_video
    queries = view_mask(test.is_ego, query_view)
    candidates = view_mask(test.is_ego, candidate_view)
    if query_view is candidate_view and len(np.unique(recordings[queries])) == 1:
        view = "" if query_view is None else "ego " if query_view else "exo "
        return Score.of(Missing(f"only one {view}test video"))
    pairs = int((recordings[queries, None] != recordings[candidates]).sum())
    values = taus[np.ix_(queries, candidates)]
    values = values[~np.isnan(values)]
    remark = f"tau is defined for {len(values)} of {pairs} pairs"
    return Score.of(
        values.mean()
        if len(values)
        else Missing("undefined for all pairs: the nearest frame never changes"),
        pairs=pairs,
        pairs_with_tau=len(values),
        remark=remark if 0 < len(values) < pairs else None,
    )
