"""Transfer progress and phases from reference frames to other frames, by nearest neighbors in the
embedding space.

Shapes: Q queries, F reference frames, K neighbors, T frames of a video, P phases, D dimensions.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.neighbors import Points

NEIGHBORS = 10
# Width of the kernel for phases, as a fraction of the variance of the embeddings. Chosen on the
# demo set, where 0.02 to 0.1 give about the same event times.
BANDWIDTH = 0.05
SMALLEST_LIKELIHOOD = 1e-9  # keeps one unusual frame from ruling out a segmentation
# Number of neighboring frames that count as one observation in posteriors, because they are alike.
FRAMES_PER_OBSERVATION = 15


@dataclass(frozen=True, eq=False)
class ReferenceFrames:
    """Embedded frames with known progress.

    Args:
        embeddings: (F, D) embeddings.
        progress: (F,) progress of the action, from 0 to 1.
        neighbors: Number of nearest frames K to average over.

    >>> frames = ReferenceFrames(np.array([[0.0], [0.5], [1.0]]), np.array([0.0, 0.5, 1.0]), 1)
    >>> frames.predict_progress(np.array([[0.1], [0.9]]))
    array([0., 1.])
    """

    embeddings: NDArray[np.floating]
    progress: NDArray[np.float64]
    neighbors: int = NEIGHBORS

    def nearest(
        self, queries: NDArray[np.floating]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return Euclidean distances and indices (Q, K) of the nearest frames, nearest first.

        K is smaller if there are fewer frames.
        """
        return self._points.nearest_to(queries, min(self.neighbors, len(self.embeddings)))

    def predict_progress(self, queries: NDArray[np.floating]) -> NDArray[np.float64]:
        """Predict the progress (Q,) of queries as the mean over their nearest frames."""
        _, indices = self.nearest(queries)
        return np.asarray(self.progress[indices].mean(axis=1))

    @cached_property
    def _points(self) -> Points:
        return Points(self.embeddings)


def phase_log_likelihoods(
    queries: NDArray[np.floating],
    labeled: NDArray[np.floating],
    phases: NDArray[np.int64],
    count: int,
    variance: float,
) -> NDArray[np.float64]:
    """Compute the log-likelihood of each phase for each query, by kernel density estimation.

    The likelihood of a phase is the mean of exp(-d² / (2 * BANDWIDTH * variance)) over its labeled
    frames, where d is the Euclidean distance, divided by the largest term of the query.

    Args:
        queries: (Q, D) embeddings.
        labeled: (F, D) embeddings of labeled frames.
        phases: (F,) phases of the labeled frames; frames with a negative phase are ignored.
        count: Number of phases P.
        variance: Sum of the variances of the D dimensions, which sets the scale of distances.

    Returns:
        (Q, P) log-likelihoods. Phases without labeled frames have the smallest value.
    """
    distances = square_distances(queries, labeled[phases >= 0])
    distances -= distances.min(axis=1, keepdims=True)
    scale = 2 * BANDWIDTH * variance or 1.0  # all embeddings are equal if the variance is 0
    kernel = np.exp(-distances / scale)
    is_phase = phases[phases >= 0][:, None] == np.arange(count)  # (F, P)
    likelihoods = kernel @ is_phase / np.maximum(is_phase.sum(axis=0), 1)
    return np.asarray(np.log(likelihoods + SMALLEST_LIKELIHOOD))


def square_distances(
    queries: NDArray[np.floating], frames: NDArray[np.floating]
) -> NDArray[np.float64]:
    """Compute squared Euclidean distances (Q, F) between queries (Q, D) and frames (F, D)."""
    queries = queries.astype(np.float64)
    frames = frames.astype(np.float64)
    norms = [np.einsum("nd,nd->n", each, each) for each in (queries, frames)]
    distances = norms[0][:, None] + norms[1] - 2 * queries @ frames.T
    return np.asarray(np.maximum(distances, 0))  # rounding can make them negative


def find_events(log_likelihoods: NDArray[np.float64]) -> NDArray[np.int64]:
    """Find the most likely division of a video into phases that follow each other in order.

    Args:
        log_likelihoods: (T, P) log-likelihoods of the phases for each frame.

    Returns:
        (P - 1,) first frame of each phase after the first one. A phase can be empty; a video that
        ends before a phase has the event T, and one that starts after it has the event 0.

    >>> find_events(np.log([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]))
    array([2])
    """
    frames, phases = log_likelihoods.shape
    totals = np.vstack([np.zeros(phases), np.cumsum(log_likelihoods, axis=0)])  # (T + 1, P)
    best = totals[:, 0]  # of the first t frames, for t = 0 ... T, divided into the phases so far
    starts = []  # for each phase, its first frame in the best division of the first t frames
    for phase in range(1, phases):
        gains = best - totals[:, phase]
        is_best = gains >= np.maximum.accumulate(gains)
        start = np.maximum.accumulate(np.where(is_best, np.arange(frames + 1), 0))
        starts.append(start)
        best = totals[:, phase] + gains[start]
    events = []
    end = frames
    for start in reversed(starts):
        end = int(start[end])
        events.append(end)
    return np.array(events[::-1], np.int64)


def event_posteriors(log_likelihoods: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the posterior distribution of each event over all divisions of a video into phases
    that follow each other in order, which are equally likely a priori.

    Args:
        log_likelihoods: (T, P) log-likelihoods of the phases for each frame.

    Returns:
        (P - 1, T + 1) probability that each event is at frame 0, 1, ..., T; rows sum to 1.

    >>> event_posteriors(np.log([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])).round(2)
    array([[0.23, 0.26, 0.27, 0.25]])
    """
    frames, phases = log_likelihoods.shape
    totals = np.zeros((frames + 1, phases))
    totals[1:] = np.cumsum(log_likelihoods / FRAMES_PER_OBSERVATION, axis=0)
    # Log-weights of all divisions of the frames before t, ending in phase p, and of the frames from
    # t on, starting in phase p.
    before = [totals[:, 0]]
    after = [totals[-1, -1] - totals[:, -1]]
    for phase in range(1, phases):
        before.append(totals[:, phase] + np.logaddexp.accumulate(before[-1] - totals[:, phase]))
    for phase in range(phases - 2, 0, -1):
        later = (after[-1] + totals[:, phase])[::-1]
        after.append(np.logaddexp.accumulate(later)[::-1] - totals[:, phase])
    logits = [first + last for first, last in zip(before[:-1], after[::-1], strict=False)]
    if not logits:
        return np.empty((0, frames + 1))
    weights = np.exp(logits - np.max(logits, axis=1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
