"""Kendall's tau: whether the nearest frames in another video come in the order of the query frames."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import Frames, Missing, absent
from byov.evaluate.neighbors import Points
from byov.evaluate.scores import Score, some_pairs
from byov.evaluate.task import Column, Estimates, EvaluationOptions, EvaluationTask, TaskData, Weights

PAIRS: dict[str, tuple[bool | None, bool | None]] = {  # is_ego of the query video and of the candidate video
    "all": (None, None),
    "ego-ego": (True, True),
    "ego-exo": (True, False),
    "exo-ego": (False, True),
    "exo-exo": (False, False),
}


@dataclass(frozen=True)
class MeanTau:
    """Over the ordered pairs of different videos that have a tau."""

    mean: float | Missing
    pairs: int = 0
    pairs_with_tau: int = 0


def kendalls_tau(
    test: Frames, *, stride: int = 5, recordings: NDArray[np.int64] | None = None
) -> dict[str, float | Missing]:
    """Mean tau over all ordered pairs of different videos, and over the pairs of each two views.

    Every `stride`-th frame of each video. A pair without a tau (all nearest frames are one and the same, or there is
    only one query) is left out, as AE2 does. recordings: (V,) of sub-clips, which video each is of; those of one are
    no pair.
    """
    return {pairs: tau.mean for pairs, tau in mean_taus(test, stride=stride, recordings=recordings).items()}


def mean_taus(test: Frames, *, stride: int = 5, recordings: NDArray[np.int64] | None = None) -> dict[str, MeanTau]:
    """The same, with the number of pairs."""
    recordings = np.arange(len(test.lengths)) if recordings is None else recordings
    taus = tau_of_each_pair(_strided(test, stride), recordings)
    return {pairs: _mean(taus, test.is_ego, recordings, *views) for pairs, views in PAIRS.items()}


def tau_for_selection(test: Frames, *, stride: int = 5) -> float | Missing:
    """Mean tau over all ordered pairs, where a pair without a tau counts 0.

    To choose a model by: the mean over the pairs that have one would reward a model that has collapsed on the others.
    """
    if len(test.lengths) < 2:
        return absent(test.is_ego, None, "test") or Missing("only one test video")
    taus = np.nan_to_num(tau_of_each_pair(_strided(test, stride)))  # a video with itself is 0, too
    return float(taus.sum() / (len(taus) * (len(taus) - 1)))


def _strided(test: Frames, stride: int) -> Frames:
    if stride < 1:
        raise ValueError(f"a stride of {stride} frames")
    return test.every(stride)


def _mean(
    taus: NDArray[np.float64],
    is_ego: NDArray[np.bool_],
    recordings: NDArray[np.int64],
    query_view: bool | None,
    candidate_view: bool | None,
) -> MeanTau:
    lacking = absent(is_ego, query_view, "test") or absent(is_ego, candidate_view, "test")
    if lacking:
        return MeanTau(lacking)
    queries = np.ones_like(is_ego) if query_view is None else is_ego == query_view
    candidates = np.ones_like(is_ego) if candidate_view is None else is_ego == candidate_view
    if query_view is candidate_view and len(np.unique(recordings[queries])) == 1:
        view = "" if query_view is None else "ego " if query_view else "exo "
        return MeanTau(Missing(f"only one {view}test video"))
    pairs = int((recordings[queries, None] != recordings[candidates]).sum())
    given = taus[np.ix_(queries, candidates)]
    given = given[~np.isnan(given)]
    if not len(given):
        return MeanTau(Missing("no pair of different videos has a tau: the nearest frame never changes"), pairs)
    return MeanTau(float(given.mean()), pairs, len(given))


def tau_of_each_pair(test: Frames, recordings: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """(V, V) tau of the query video (row) in the candidate video (column); NaN where there is none."""
    points = Points(test.embeddings)
    recordings = np.arange(len(test.lengths)) if recordings is None else recordings
    taus = np.full((len(test.lengths), len(test.lengths)), np.nan)
    for query, (start, length) in enumerate(zip(test.starts, test.lengths, strict=True)):
        blocks = points.row_blocks(slice(start, start + length))
        taus[query] = taus_of_columns(np.concatenate([points.nearest_in_each(rows, test.starts) for rows in blocks]))
    taus[recordings[:, None] == recordings] = np.nan
    return taus


def taus_of_columns(values: NDArray[np.int64]) -> NDArray[np.float64]:
    """(V,) tau-b of each column of (n, V) with 0..n-1; NaN for a column of one value."""
    rising, equal = np.zeros((2, values.shape[1]), np.int64)
    for index in range(len(values) - 1):
        steps = values[index + 1 :] - values[index]
        rising += np.sign(steps).sum(axis=0)
        equal += (steps == 0).sum(axis=0)
    pairs = len(values) * (len(values) - 1) // 2
    untied = np.sqrt(pairs * (pairs - equal).astype(np.float64))
    taus = np.full(len(untied), np.nan)
    np.divide(rising, untied, out=taus, where=untied > 0)
    return taus


def _score(data: TaskData, options: EvaluationOptions) -> dict[str, Score]:
    taus = mean_taus(data.test, stride=options.tau_stride, recordings=data.recordings)
    return {f"kendalls_tau/{pairs}": _score_of(tau) for pairs, tau in taus.items()}


def _score_of(tau: MeanTau) -> Score:
    if not tau.pairs:
        return Score.of(tau.mean)
    partial = 0 < tau.pairs_with_tau < tau.pairs
    remark = some_pairs(tau.pairs_with_tau, tau.pairs_with_tau, tau.pairs) if partial else None
    return Score.of(tau.mean, pairs=tau.pairs, pairs_with_tau=tau.pairs_with_tau, remark=remark)


def _estimate(data: TaskData, weights: Weights, options: EvaluationOptions) -> dict[str, Estimates]:
    """A video that is drawn twice is not compared with itself."""
    is_ego = data.test.is_ego
    taus = tau_of_each_pair(data.test.every(options.tau_stride), data.recordings)
    given = (~np.isnan(taus)).astype(np.float64)
    estimates = {}
    for pairs, (query_view, candidate_view) in PAIRS.items():
        queries = weights * (1.0 if query_view is None else is_ego == query_view)
        candidates = weights * (1.0 if candidate_view is None else is_ego == candidate_view)
        sums = np.einsum("ni,ij,nj->n", queries, np.nan_to_num(taus), candidates, optimize=True)
        counts = np.einsum("ni,ij,nj->n", queries, given, candidates, optimize=True)
        estimates[f"kendalls_tau/{pairs}"] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return estimates


def _columns(_: EvaluationOptions) -> tuple[Column, ...]:
    return tuple(
        Column(f"kendalls_tau/{pairs}", "Kendall's tau", "all pairs" if pairs == "all" else pairs, "tau", percent=False)
        for pairs in PAIRS
    )


TASK = EvaluationTask(
    name="tau",
    prefix="kendalls_tau",
    subject="Kendall's tau, by the views of query and candidates",
    score=_score,
    columns=_columns,
    main_columns=lambda options: _columns(options)[:1],
    estimate=_estimate,
    saturated_by_time=True,
    measured="Kendall's tau",
)
