"""Metrics written as plain loops, the reference for the tests and for benchmarks/evaluate.py.

Inputs are byov.evaluate.frames.Frames with both views and all phases.
"""

import numpy as np
from scipy.stats import kendalltau
from sklearn.linear_model import LinearRegression
from sklearn.metrics import f1_score, r2_score
from sklearn.svm import SVC

from byov.evaluate.frames import SETTINGS


def phase_f1(train, test):
    scores = {}
    for setting, (train_view, test_view) in SETTINGS.items():
        fitted = train.of_view(train_view)
        scored = test.of_view(test_view)
        predicted = SVC().fit(fitted.embeddings, fitted.labels).predict(scored.embeddings)
        scores[setting] = f1_score(scored.labels, predicted, average="weighted")
    return scores


def retrieval_at(test, setting, k):
    """Compute map@K for one setting and one K, query by query."""
    embeddings = test.embeddings.astype(np.float64)
    is_ego = test.is_ego[test.video_of_frame]
    query_view, candidate_view = SETTINGS[setting]
    means = []
    for query, video in enumerate(test.video_of_frame):
        candidates = test.video_of_frame != video
        if candidate_view is not None:
            candidates &= is_ego == candidate_view
        if query_view not in (None, is_ego[query]) or not candidates.any():
            continue
        distances = ((embeddings[candidates] - embeddings[query]) ** 2).sum(axis=1)
        nearest = np.flatnonzero(candidates)[np.argsort(distances, kind="stable")[:k]]
        relevant = test.labels[nearest] == test.labels[query]
        precisions = [relevant[: rank + 1].mean() for rank in np.flatnonzero(relevant)]
        means.append(np.mean(precisions) if precisions else 0.0)
    return np.mean(means)


def mean_average_precision(test, ks=(5, 10, 15)):
    return {setting: {k: retrieval_at(test, setting, k) for k in ks} for setting in SETTINGS}


def with_progress(frames, phase, time_column, precision=np.float64):
    """Return regression inputs and targets from the videos that contain the phase."""
    inputs = []
    targets = []
    for start, length in zip(frames.starts, frames.lengths, strict=True):
        own = slice(start, start + length)
        time = np.arange(length)
        of_phase = np.flatnonzero(frames.labels[own] == phase)
        if len(of_phase):
            inputs.append(
                np.hstack(
                    [frames.embeddings[own].astype(precision)]
                    + [time[:, None] * 0.001] * time_column
                )
            )
            targets.append((time - of_phase[-1]) / length)
    return np.concatenate(inputs), np.concatenate(targets)


def phase_progression(train, test, *, time_column=False, precision=np.float64):
    """Compute the mean R² over phases.

    AE2 uses single precision, or double precision with the time column.
    """
    scores = []
    for phase in np.unique(train.labels):
        regressor = LinearRegression().fit(*with_progress(train, phase, time_column, precision))
        inputs, targets = with_progress(test, phase, time_column, precision)
        scores.append(r2_score(targets, regressor.predict(inputs)))
    return np.mean(scores)


def kendalls_tau(test, *, stride=5):
    """Compute the mean tau over all ordered pairs of videos."""
    embeddings = test.embeddings.astype(np.float64)
    videos = [
        embeddings[s : s + n : stride] for s, n in zip(test.starts, test.lengths, strict=True)
    ]
    taus = []
    for one, query in enumerate(videos):
        for other, target in enumerate(videos):
            if one != other:
                nearest = [((target - frame) ** 2).sum(axis=1).argmin() for frame in query]
                taus.append(kendalltau(np.arange(len(query)), nearest).statistic)
    return np.nanmean(taus)
