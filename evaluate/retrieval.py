"""Frame retrieval: how many of a frame's nearest frames in other videos are of its phase."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import SETTINGS, VIEWS, Frames, Missing, Score, absent
from byov.evaluate.neighbours import Distances, Points


def mean_average_precision(test: Frames, ks: Sequence[int] = (5, 10, 15)) -> dict[str, dict[int, Score]]:
    """map@K by setting and K.

    Each frame asks for the nearest frames of other videos (regular) or of videos of the other view. AP@K is the mean
    of precision@j over the ranks j <= K of relevant frames, 0 without any. Where there are fewer than K candidates,
    all of them are ranked. Among equally distant frames the first in the file comes first.
    """
    if not ks or min(ks) < 1:
        raise ValueError(f"map@K needs K of at least 1, not {list(ks)}")
    if test.labels is None:
        return {setting: dict.fromkeys(ks, Missing("no phase labels")) for setting in SETTINGS}
    # Ego videos first, so that the frames of either view are one range of columns.
    test = test.select(np.argsort(~test.is_ego, kind="stable"))
    regular, across = precision_of_each_query(test, ks)
    return {setting: _means(test, setting, ks, regular if setting == "regular" else across) for setting in SETTINGS}


def _means(test: Frames, setting: str, ks: Sequence[int], precisions: NDArray[np.float64]) -> dict[int, Score]:
    asking, answering = VIEWS[setting]
    lacking = absent(test.is_ego, asking, "test") or absent(test.is_ego, answering, "test")
    if lacking is None and len(test.lengths) < 2:
        lacking = Missing("only one test video")
    if lacking:
        return dict.fromkeys(ks, lacking)
    asked = precisions if asking is None else precisions[test.is_ego[test.video_of_frame] == asking]
    return {k: float(mean) for k, mean in zip(ks, asked.mean(axis=0), strict=True)}


def precision_of_each_query(test: Frames, ks: Sequence[int]) -> NDArray[np.float64]:
    """(2, F, len(ks)) AP of each frame among all other videos and among those of the other view."""
    precisions = np.zeros((2, len(test.embeddings), len(ks)))
    points = Points(test.embeddings)
    ego = slice(0, int(test.lengths[test.is_ego].sum()))
    exo = slice(ego.stop, len(test.embeddings))
    for own, other in ((ego, exo), (exo, ego)):
        for rows in points.row_blocks(own):
            distances = points.distances(rows)
            _forbid_own_video(test, rows, distances)
            for among, columns in enumerate((slice(0, exo.stop), other)):
                nearest = points.nearest(rows, distances[:, columns], columns.start, max(ks))
                relevant = (test.phases[nearest] == test.phases[rows, None]) & (nearest >= 0)
                precisions[among, rows] = average_precisions(relevant, ks)
    return precisions


def _forbid_own_video(test: Frames, rows: slice, distances: Distances) -> None:
    for row, video in enumerate(test.video_of_frame[rows]):
        start = test.starts[video]
        distances[row, start : start + test.lengths[video]] = np.inf


def average_precisions(relevant: NDArray[np.bool_], ks: Sequence[int]) -> NDArray[np.float64]:
    """(Q, len(ks)) AP@K from whether each of a query's nearest frames is relevant, (Q, max K) nearest first."""
    hits = np.cumsum(relevant, axis=1)
    gains = np.cumsum(relevant * hits / np.arange(1, relevant.shape[1] + 1), axis=1)
    last = np.asarray(ks) - 1
    return gains[:, last] / np.maximum(hits[:, last], 1)
