"""Kendall's tau: whether the nearest frames in another video come in the order of the frames that ask for them."""

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import Frames, Missing, Score, absent
from byov.evaluate.neighbours import Points

PAIRS: dict[str, tuple[bool | None, bool | None]] = {  # is_ego of the video that asks and of the one that answers
    "all": (None, None),
    "ego-ego": (True, True),
    "ego-exo": (True, False),
    "exo-ego": (False, True),
    "exo-exo": (False, False),
}


def kendalls_tau(test: Frames, *, stride: int = 5, recordings: NDArray[np.int64] | None = None) -> dict[str, Score]:
    """Mean tau over all ordered pairs of different videos, and over the pairs of each two views.

    Every `stride`-th frame of each video. A pair without a tau (all nearest frames are one and the same, or only one
    frame asks) is left out. recordings: (V,) of sub-clips, which video each is of; those of one are no pair.
    """
    if stride < 1:
        raise ValueError(f"a stride of {stride} frames")
    recordings = np.arange(len(test.lengths)) if recordings is None else recordings
    taus = tau_of_each_pair(test.every(stride), recordings)
    return {pair: _mean(taus, test.is_ego, recordings, *views) for pair, views in PAIRS.items()}


def _mean(
    taus: NDArray[np.float64],
    is_ego: NDArray[np.bool_],
    recordings: NDArray[np.int64],
    asking: bool | None,
    answering: bool | None,
) -> Score:
    lacking = absent(is_ego, asking, "test") or absent(is_ego, answering, "test")
    if lacking:
        return lacking
    rows = np.ones_like(is_ego) if asking is None else is_ego == asking
    columns = np.ones_like(is_ego) if answering is None else is_ego == answering
    if asking is answering and len(np.unique(recordings[rows])) == 1:
        return Missing("only one test video" if asking is None else f"only one {'ego' if asking else 'exo'} test video")
    given = taus[np.ix_(rows, columns)]
    given = given[~np.isnan(given)]
    return (
        float(given.mean())
        if len(given)
        else Missing("no pair of different videos has a tau: the nearest frame never changes")
    )


def tau_of_each_pair(test: Frames, recordings: NDArray[np.int64] | None = None) -> NDArray[np.float64]:
    """(V, V) tau of the video that asks (row) in the one that answers (column); NaN where there is none."""
    points = Points(test.embeddings)
    recordings = np.arange(len(test.lengths)) if recordings is None else recordings
    taus = np.full((len(test.lengths), len(test.lengths)), np.nan)
    for asking, (start, length) in enumerate(zip(test.starts, test.lengths, strict=True)):
        blocks = points.row_blocks(slice(start, start + length))
        taus[asking] = taus_of_columns(np.concatenate([points.nearest_in_each(rows, test.starts) for rows in blocks]))
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
