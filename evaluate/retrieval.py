"""Frame retrieval: how many of a frame's nearest frames in other videos are of its phase."""

import logging
import time
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import SETTINGS, VIEWS, Frames, Missing, absent
from byov.evaluate.neighbors import Indices, Points, RoughDistances
from byov.evaluate.scores import Score
from byov.evaluate.task import (
    SETTING_NAMES,
    Column,
    Estimates,
    EvaluationOptions,
    EvaluationTask,
    TaskData,
    Weights,
    columns_by_setting,
)
from byov.text import format_duration

LOGGER = logging.getLogger(__name__)

MAIN_K = 10  # of the paper's Table 1
MANY_FRAMES = 10**6  # from here on it is said how long it takes


def mean_average_precision(
    test: Frames, ks: Sequence[int] = (5, 10, 15), settings: Sequence[str] = SETTINGS
) -> dict[str, dict[int, float | Missing]]:
    """map@K by setting and K.

    Every frame is a query for the nearest frames of other videos (regular) or of videos of the other view. AP@K is the
    mean of precision@j over the ranks j <= K of relevant frames, 0 without any. Where there are fewer than K
    candidates, all of them are ranked. Among equally distant frames the first in the file comes first.
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"map@K needs K of at least 1, not {list(ks)}")
    if test.labels is None:
        return {setting: dict.fromkeys(ks, Missing("no phase labels")) for setting in settings}
    test = test.select(_ego_first(test))
    precisions = precision_of_each_query(test, ks, settings)
    return {setting: _means(test, setting, ks, precisions[setting]) for setting in settings}


def _ego_first(test: Frames) -> NDArray[np.int64]:
    """(V,) the order in which the frames of either view are one range of columns."""
    return np.argsort(~test.is_ego, kind="stable")


def _means(
    test: Frames, setting: str, ks: Sequence[int], precisions: NDArray[np.float64]
) -> dict[int, float | Missing]:
    query_view, candidate_view = VIEWS[setting]
    lacking = absent(test.is_ego, query_view, "test") or absent(test.is_ego, candidate_view, "test")
    if lacking is None and len(test.lengths) < 2:
        lacking = Missing("only one test video")
    if lacking:
        return dict.fromkeys(ks, lacking)
    queries = precisions if query_view is None else precisions[test.is_ego[test.video_of_frame] == query_view]
    return {k: float(mean) for k, mean in zip(ks, queries.mean(axis=0), strict=True)}


def precision_of_each_query(
    test: Frames, ks: Sequence[int], settings: Sequence[str] = SETTINGS
) -> dict[str, NDArray[np.float64]]:
    """(F, len(ks)) by setting: AP of each query, 0 for the frames that are none. Ego videos come first in `test`."""
    points = Points(test.embeddings)
    queries, query_of_frame = _distinct_queries(test, points)
    precisions = {}
    for setting, of_queries in _nearest(test, points, queries, max(ks), settings).items():
        nearest = of_queries[query_of_frame]
        relevant = (test.phases[nearest] == test.phases[:, None]) & (nearest >= 0)
        # In C order, in which a mean over the queries is added up as AE2's is: equal in every digit.
        precisions[setting] = np.ascontiguousarray(average_precisions(relevant, ks))
    return precisions


def _distinct_queries(test: Frames, points: Points) -> tuple[Indices, Indices]:
    """(Q,) frames and (F,) which of them each frame is: equal frames of a video have the same candidates and ranks.

    Of a constant embedding that leaves one query for each video, where each would have all frames equally near.
    """
    alike = points.values * len(test.lengths) + test.video_of_frame
    _, first, of_frame = np.unique(alike, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return first[order], np.argsort(order)[of_frame]


def _nearest(test: Frames, points: Points, queries: Indices, count: int, settings: Sequence[str]) -> dict[str, Indices]:
    """(Q, count) by setting: the candidates nearest to each query, nearest first; -1 where there are no more."""
    found = {setting: np.full((len(queries), count), -1, np.int64) for setting in settings}
    started, done = time.monotonic(), 0
    everything = slice(0, len(test.embeddings))
    ego = slice(0, int(test.lengths[test.is_ego].sum()))
    exo = slice(ego.stop, everything.stop)
    for query_view, own, others in ((True, ego, exo), (False, exo, ego)):
        # By setting, the columns of its candidates. Without `regular` no distance within a view is needed.
        candidates = {
            setting: others if setting != "regular" else everything
            for setting in settings
            if VIEWS[setting][0] in (None, query_view)
        }
        searched = everything if "regular" in candidates else others
        of_view = np.flatnonzero((queries >= own.start) & (queries < own.stop))
        for block in points.row_blocks(of_view) if candidates else ():
            rows = queries[block]
            rough = points.rough_distances(rows, searched)
            if searched == everything:
                _exclude_own_video(test, rows, rough)
            for setting, columns in candidates.items():
                within = rough[:, columns.start - searched.start : columns.stop - searched.start]
                found[setting][block] = points.nearest(rows, within, columns.start, count)
            if not done and everything.stop > MANY_FRAMES:
                _say_how_long(everything.stop, (time.monotonic() - started) * len(queries) / len(block))
            done += len(block)
    return found


def _say_how_long(frames: int, seconds: float) -> None:
    LOGGER.info(
        f"retrieval compares {frames:,} frames with each other, which takes about {format_duration(seconds)}; time "
        "grows with the square of their number"
    )


def _exclude_own_video(test: Frames, rows: Indices, rough: RoughDistances) -> None:
    for row, video in enumerate(test.video_of_frame[rows]):
        start = test.starts[video]
        rough[row, start : start + test.lengths[video]] = np.inf


def average_precisions(relevant: NDArray[np.bool_], ks: Sequence[int]) -> NDArray[np.float64]:
    """(Q, len(ks)) AP@K from whether each of a query's nearest frames is relevant, (Q, max K) nearest first."""
    hits = np.cumsum(relevant, axis=1)
    gains = np.cumsum(relevant * hits / np.arange(1, relevant.shape[1] + 1), axis=1)
    last = np.asarray(ks) - 1
    return gains[:, last] / np.maximum(hits[:, last], 1)


def _score(data: TaskData, options: EvaluationOptions) -> dict[str, Score]:
    test = data.joined_test
    scores: Mapping[str, Mapping[int, float | Missing]] = mean_average_precision(test, options.ks)
    return {
        f"retrieval/map@{k}/{setting}": Score.of(scores[setting][k], remark=_few_candidates(test, setting, k))
        for k in options.ks
        for setting in SETTINGS
    }


def _few_candidates(test: Frames, setting: str, k: int) -> str | None:
    """The remark on a score if some query has fewer than K candidates."""
    query_view, candidate_view = VIEWS[setting]
    is_candidate = np.ones_like(test.is_ego) if candidate_view is None else test.is_ego == candidate_view
    is_query = np.ones_like(test.is_ego) if query_view is None else test.is_ego == query_view
    candidates = test.lengths[is_candidate].sum() - np.where(is_candidate, test.lengths, 0)[is_query]
    fewest = int(candidates.min()) if len(candidates) else k
    return f"some frames have only {fewest} candidates: all are ranked" if fewest < k else None


def _estimate(data: TaskData, weights: Weights, options: EvaluationOptions) -> dict[str, Estimates]:
    """Only the queries are resampled: their candidates stay."""
    test = data.joined_test
    if test.labels is None:
        return {}
    order = _ego_first(test)
    test, weights = test.select(order), weights[:, data.first_segments][:, order]
    estimates: dict[str, Estimates] = {}
    for setting, precisions in precision_of_each_query(test, options.ks).items():
        query_view = VIEWS[setting][0]
        queries = weights * (1.0 if query_view is None else test.is_ego == query_view)
        sums = np.add.reduceat(precisions, test.starts)  # (V, K)
        with np.errstate(invalid="ignore"):  # a resampling without any query has none
            means = (queries @ sums) / (queries @ test.lengths)[:, None]
        estimates |= {f"retrieval/map@{k}/{setting}": means[:, i] for i, k in enumerate(options.ks)}
    return estimates


def _columns_at(k: int) -> tuple[Column, ...]:
    return columns_by_setting(f"retrieval/map@{k}", f"Retrieval (map@{k})", f"map@{k}")


def _columns(options: EvaluationOptions) -> tuple[Column, ...]:
    if len(options.ks) == 1:
        return _columns_at(options.ks[0])
    return tuple(
        Column(f"retrieval/map@{k}/{setting}", f"{name} retrieval", f"map@{k}", name)
        for setting, name in SETTING_NAMES.items()
        for k in options.ks
    )


def _main_columns(options: EvaluationOptions) -> tuple[Column, ...]:
    return _columns_at(MAIN_K if MAIN_K in options.ks else options.ks[0])


TASK = EvaluationTask(
    name="retrieval",
    prefix="retrieval",
    subject="Frame retrieval",
    score=_score,
    columns=_columns,
    main_columns=_main_columns,
    estimate=_estimate,
    needs_labels=True,
)
