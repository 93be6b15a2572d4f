"""The metrics in plain loops: the reference for the tests and the benchmark of the fast ones.

Inputs are byov.evaluate.frames.Frames with both views and all phases.
"""

import numpy as np
from scipy.stats import kendalltau
from sklearn.linear_model import LinearRegression
from sklearn.metrics import f1_score, r2_score
from sklearn.svm import SVC

from byov.evaluate.frames import VIEWS


def fit(train):
    classifiers = {}
    for setting, (train_view, _) in VIEWS.items():
        fitted = train.of_view(train_view)
        classifiers[setting] = SVC(decision_function_shape="ovo").fit(fitted.embeddings, fitted.labels)
    return classifiers


def phase_f1(train, test):
    scores = {}
    for setting, classifier in fit(train).items():
        scored = test.of_view(VIEWS[setting][1])
        scores[setting] = f1_score(scored.labels, classifier.predict(scored.embeddings), average="weighted")
    return scores


def average_precision(relevant):
    precisions = [relevant[: rank + 1].mean() for rank in range(len(relevant)) if relevant[rank]]
    return np.mean(precisions) if precisions else 0.0


def retrieval_at(test, setting, k):
    """One setting and one K, query by query."""
    embeddings = test.embeddings.astype(np.float64)
    frame_is_ego = test.is_ego[test.video_of_frame]
    query_view, candidate_view = VIEWS[setting]
    precisions = []
    for query, video in enumerate(test.video_of_frame):
        if query_view is not None and frame_is_ego[query] != query_view:
            continue
        candidates = test.video_of_frame != video
        if candidate_view is not None:
            candidates &= frame_is_ego == candidate_view
        candidates = np.flatnonzero(candidates)
        if len(candidates) == 0:
            continue
        distances = ((embeddings[candidates] - embeddings[query]) ** 2).sum(axis=1)
        nearest = candidates[np.argsort(distances, kind="stable")[:k]]
        precisions.append(average_precision(test.labels[nearest] == test.labels[query]))
    return np.mean(precisions)


def mean_average_precision(test, ks=(5, 10, 15)):
    return {setting: {k: retrieval_at(test, setting, k) for k in ks} for setting in VIEWS}


def with_progress(frames, phase, time_column, precision=np.float64):
    """Return inputs and targets of the videos that have the phase."""
    inputs, targets = [], []
    for start, length in zip(frames.starts, frames.lengths, strict=True):
        own = slice(start, start + length)
        of_phase = np.flatnonzero(frames.labels[own] == phase)
        if len(of_phase) == 0:
            continue
        time = np.arange(length)
        columns = [frames.embeddings[own].astype(precision)]
        inputs.append(np.hstack(columns + [time[:, None] * 0.001] * time_column))
        targets.append((time - of_phase[-1]) / length)
    return np.concatenate(inputs), np.concatenate(targets)


def phase_progression(train, test, *, time_column=False, precision=np.float64):
    """AE2 uses single precision, and double with the time column."""
    scores = []
    for phase in np.unique(train.labels):
        regressor = LinearRegression().fit(*with_progress(train, phase, time_column, precision))
        inputs, targets = with_progress(test, phase, time_column, precision)
        scores.append(r2_score(targets, regressor.predict(inputs)))
    return np.mean(scores)


def kendalls_tau(test, *, stride=5):
    """The mean over all ordered pairs of videos."""
    embeddings = test.embeddings.astype(np.float64)
    videos = [embeddings[s : s + n : stride] for s, n in zip(test.starts, test.lengths, strict=True)]
    taus = []
    for one, query in enumerate(videos):
        for other, target in enumerate(videos):
            if one == other:
                continue
            nearest = [((target - frame) ** 2).sum(axis=1).argmin() for frame in query]
            taus.append(kendalltau(np.arange(len(query)), nearest).statistic)
    return np.nanmean(taus)
