"""Frame retrieval: mean average precision of a frame's nearest neighbors in other videos."""

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import SETTINGS, Frames, Missing, missing_view, view_mask
from byov.evaluate.neighbors import Indices, Points

# With all frames as queries, the time would be quadratic. The paper's test splits are smaller.
MAX_QUERIES = 50_000


def mean_average_precision(
    test: Frames, ks: Sequence[int] = (5, 10, 15), settings: Collection[str] = SETTINGS
) -> dict[str, dict[int, float | Missing]]:
    """Compute map@K of frame retrieval.

    Every frame is a query; its candidates are the frames of other recordings ("regular") or of the
    other view. AP@K is the mean of precision@j over the ranks j <= K of relevant frames (same
    phase), or 0 if there are none. If there are fewer than K candidates, all are ranked. Ties are
    broken by the order of the candidates.

    Args:
        test: Labeled frames.
        ks: Values of K.
        settings: Settings to score.

    Returns:
        Nested dict mapping setting and K to map@K.

    Example:
        >>> x = np.array([[0.0], [1.0], [0.1], [1.1]], np.float32)
        >>> frames = Frames(x, np.array([0, 1, 0, 1]), np.array([2, 2]), np.array([True, False]))
        >>> mean_average_precision(frames, ks=(1,))["ego2exo"]
        {1: 1.0}
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"K must be at least 1, not {list(ks)}")
    if test.labels is None:
        return {setting: dict.fromkeys(ks, Missing("no phase labels")) for setting in settings}
    test = ego_first(test)
    means: dict[str, dict[int, float | Missing]] = {}
    for setting, precisions in average_precision_of_each_query(test, ks, settings).items():
        query_view, candidate_view = SETTINGS[setting]
        missing = missing_view(test.is_ego, query_view, "test") or missing_view(
            test.is_ego, candidate_view, "test"
        )
        if missing or len(test.lengths) < 2:
            means[setting] = dict.fromkeys(ks, missing or Missing("only one test video"))
        else:
            scored = sampled_queries(test)
            scored = scored[view_mask(test.is_ego, query_view)[test.video_of_frame[scored]]]
            queries = precisions[scored]
            means[setting] = dict(zip(ks, queries.mean(axis=0).tolist(), strict=True))
    return means


def ego_first(test: Frames) -> Frames:
    """Return whole recordings with ego videos first, so that the frames of each view are
    contiguous.
    """
    test = test.merge_recordings()
    return test.select(np.argsort(~test.is_ego, kind="stable"))


def average_precision_of_each_query(
    test: Frames, ks: Sequence[int], settings: Collection[str] = SETTINGS
) -> dict[str, NDArray[np.float64]]:
    """Map each setting to (F, len(ks)) AP@K of its queries; 0 for frames that are not queries in
    the setting or not in `sampled_queries`.

    `test` must be sorted by `ego_first`.
    """
    points = Points(test.embeddings)
    frames = sampled_queries(test)
    queries, query_of_frame = _distinct_queries(test, points, frames)
    precisions = {}
    for setting, nearest_of_query in _nearest(test, points, queries, max(ks), settings).items():
        nearest = nearest_of_query[query_of_frame]
        relevant = (test.phases[nearest] == test.phases[frames, None]) & (nearest >= 0)
        # In C order, NumPy sums over queries in the same order as AE2's evaluator, so the means
        # match exactly.
        precisions[setting] = np.zeros((len(test.embeddings), len(ks)))
        precisions[setting][frames] = average_precisions(relevant, ks)
    return precisions


def sampled_queries(test: Frames) -> Indices:
    """Return the sorted indices of the frames that are queries: all of them, or MAX_QUERIES frames
    that are evenly spaced over all videos.
    """
    frames = len(test.embeddings)
    count = min(frames, MAX_QUERIES)
    return np.arange(count) * frames // max(count, 1)


def query_remark(test: Frames) -> str | None:
    """Return a footnote if only a sample of the frames are queries."""
    frames = len(test.embeddings)
    if frames <= MAX_QUERIES:
        return None
    return f"map@K: mean over {MAX_QUERIES:,} evenly spaced queries of {frames:,} test frames"


def average_precisions(relevant: NDArray[np.bool_], ks: Sequence[int]) -> NDArray[np.float64]:
    """Compute (Q, len(ks)) AP@K from the (Q, max K) relevance of each query's nearest frames,
    nearest first.

    >>> average_precisions(np.array([[True, False, True]]), ks=(1, 3)).round(3)
    array([[1.   , 0.833]])
    """
    hits = np.cumsum(relevant, axis=1)
    gains = np.cumsum(relevant * hits / np.arange(1, relevant.shape[1] + 1), axis=1)
    last = np.asarray(ks) - 1
    return gains[:, last] / np.maximum(hits[:, last], 1)


def _distinct_queries(test: Frames, points: Points, frames: Indices) -> tuple[Indices, Indices]:
    """Return (Q,) indices of distinct query frames and, for each of the given frames, its index
    among them.

    Equal frames in a video have the same ranking. A collapsed embedding thus has only one query per
    video.
    """
    keys = (points.values * len(test.lengths) + test.video_of_frame)[frames]
    _, first, query_of_frame = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return frames[first[order]], np.argsort(order)[query_of_frame]


def _nearest(
    test: Frames, points: Points, queries: Indices, count: int, settings: Collection[str]
) -> dict[str, Indices]:
    """Return the (Q, count) nearest candidates of each query for each setting, sorted by distance,
    padded with -1.
    """
    nearest = {setting: np.full((len(queries), count), -1, np.int64) for setting in settings}
    everything = slice(0, len(test.embeddings))
    ego = slice(0, int(test.lengths[test.is_ego].sum()))
    exo = slice(ego.stop, everything.stop)
    for query_view, own, others in ((True, ego, exo), (False, exo, ego)):
        candidates = {
            setting: everything if setting == "regular" else others
            for setting in settings
            if setting == "regular"
            or (SETTINGS[setting][0] is query_view and others.start < others.stop)
        }
        searched = everything if "regular" in candidates else others
        own_queries = np.flatnonzero((queries >= own.start) & (queries < own.stop))
        for block in points.row_blocks(own_queries) if candidates else ():
            rows = queries[block]
            distances = points.distances(rows, searched)
            if searched == everything:
                for row, video in enumerate(test.video_of_frame[rows]):
                    distances[
                        row, test.starts[video] : test.starts[video] + test.lengths[video]
                    ] = np.inf
            for setting, columns in candidates.items():
                within = distances[
                    :, columns.start - searched.start : columns.stop - searched.start
                ]
                nearest[setting][block] = points.nearest(rows, within, columns.start, count)
    return nearest
