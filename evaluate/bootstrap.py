"""95% intervals by resampling the scored videos.

Videos are drawn with replacement within each view; the two sub-clips of a video come and go together. Nothing is fitted
or searched again: every figure is a function of sums over videos, and a resampling weighs these sums. So in retrieval
only the queries are resampled, and what they search stays; in tau a video drawn twice is not compared with itself.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from byov.evaluate.frames import SETTINGS, VIEWS, Frames, Missing
from byov.evaluate.tasks import Material, Settings, Task

Weights = NDArray[np.float64]  # (N, V) how often each resampling has drawn each video
Estimates = NDArray[np.float64]  # (N,)
ENDS_PERCENT = (2.5, 97.5)


def intervals(material: Material, tasks: Sequence[Task], settings: Settings) -> dict[str, tuple[float, float]]:
    """By name of figure; few-shot has its spread over draws, actions have none."""
    weights = draw_weights(material, settings.bootstrap, settings.seed)
    estimators = [task for task in tasks if task in _ESTIMATORS]
    bar = tqdm(estimators, desc="resampling", unit="task", disable=None, delay=1, leave=False)
    estimates = {
        name: values for task in bar for name, values in _ESTIMATORS[task](material, weights, settings).items()
    }
    return {name: _interval(values) for name, values in estimates.items() if np.isfinite(values).any()}


def draw_weights(material: Material, count: int, seed: int) -> Weights:
    """(N, V) by stretch of the test frames."""
    videos = len(material.test.lengths)
    recordings = np.arange(videos) if material.recordings is None else material.recordings
    _, first = np.unique(recordings, return_index=True)
    is_ego = material.test.is_ego[first]
    random = np.random.default_rng(seed)
    drawn = np.zeros((count, len(first)))
    for view in (True, False):
        of_view = np.flatnonzero(is_ego == view)
        if len(of_view):
            drawn[:, of_view] = random.multinomial(len(of_view), np.full(len(of_view), 1 / len(of_view)), count)
    return drawn[:, recordings]


def weighted_f1(confusion: NDArray[np.float64]) -> NDArray[np.float64]:
    """(...,) from (..., P, P) counts of frames: true phase, then named phase."""
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    true, named = confusion.sum(axis=-1), confusion.sum(axis=-2)
    f1 = 2 * hits / np.maximum(true + named, 1)
    with np.errstate(invalid="ignore"):  # a resampling without any frame has none
        scores: NDArray[np.float64] = (f1 * true).sum(axis=-1) / true.sum(axis=-1)
    return scores


def _classification(material: Material, weights: Weights, _: Settings) -> dict[str, Estimates]:
    from byov.evaluate.classification import learn

    estimates = {}
    for setting, classifier in learn(material.training).items():
        view = VIEWS[setting][1]
        test = material.test.of_view(view)
        if isinstance(classifier, Missing) or test.labels is None or not len(test.lengths):
            continue
        asked = weights if view is None else weights[:, material.test.is_ego == view]
        confusion = _confusion(test, classifier.name(test.embeddings))
        estimates[f"classification/{setting}"] = weighted_f1(np.tensordot(asked, confusion, 1))
    return estimates


def _retrieval(material: Material, weights: Weights, settings: Settings) -> dict[str, Estimates]:
    from byov.evaluate.retrieval import precision_of_each_query

    test = material.joined_test
    if test.labels is None:
        return {}
    if material.recordings is not None:  # one weight for each recording
        weights = weights[:, np.flatnonzero(np.diff(material.recordings, prepend=-1))]
    order = np.argsort(~test.is_ego, kind="stable")
    test, weights = test.select(order), weights[:, order]
    regular, across = precision_of_each_query(test, settings.ks)
    estimates: dict[str, Estimates] = {}
    for setting in SETTINGS:
        precisions, asking = (regular if setting == "regular" else across), VIEWS[setting][0]
        asked = weights * (1.0 if asking is None else test.is_ego == asking)
        sums = np.add.reduceat(precisions, test.starts)  # (V, K)
        with np.errstate(invalid="ignore"):
            means = (asked @ sums) / (asked @ test.lengths)[:, None]
        estimates |= {f"retrieval/map@{k}/{setting}": means[:, i] for i, k in enumerate(settings.ks)}
    return estimates


def _progression(material: Material, weights: Weights, settings: Settings) -> dict[str, Estimates]:
    from byov.evaluate.progression import fit_phases, regressor_inputs, targets_of

    test = material.test
    if test.labels is None:
        return {}
    inputs, scores = regressor_inputs(test, settings.time_column), []
    for fit in fit_phases(material.training, settings.time_column):
        targets = targets_of(test, np.array([fit.phase]))[:, 0]
        known = ~np.isnan(targets)
        targets = np.where(known, targets, 0)
        errors = np.where(known, targets - (inputs @ fit.weights + fit.intercept), 0)
        counts, sums, squares, losses = (
            weights @ np.add.reduceat(values, test.starts)
            for values in (known.astype(np.float64), targets, targets**2, errors**2)
        )
        with np.errstate(invalid="ignore", divide="ignore"):  # no video with the phase was drawn
            scores.append(1 - losses / (squares - sums**2 / counts))
    scores = [np.where(np.isfinite(score), score, np.nan) for score in scores]
    return {"progression/val": _mean_of_given(scores)} if scores else {}


def _tau(material: Material, weights: Weights, settings: Settings) -> dict[str, Estimates]:
    from byov.evaluate.kendalls_tau import PAIRS, tau_of_each_pair

    is_ego = material.test.is_ego
    taus = tau_of_each_pair(material.test.every(settings.tau_stride), material.recordings)
    given = (~np.isnan(taus)).astype(np.float64)
    estimates = {}
    for pairs, (asking, answering) in PAIRS.items():
        rows = weights * (1.0 if asking is None else is_ego == asking)
        columns = weights * (1.0 if answering is None else is_ego == answering)
        sums = np.einsum("ni,ij,nj->n", rows, np.nan_to_num(taus), columns, optimize=True)
        counts = np.einsum("ni,ij,nj->n", rows, given, columns, optimize=True)
        estimates[f"kendalls_tau/{pairs}"] = np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
    return estimates


_ESTIMATORS: Mapping[Task, Callable[[Material, Weights, Settings], dict[str, Estimates]]] = {
    "classification": _classification,
    "retrieval": _retrieval,
    "progression": _progression,
    "tau": _tau,
}


def _confusion(test: Frames, named: NDArray[np.int64]) -> NDArray[np.float64]:
    """(V, P, P) frames of each video by true and named phase."""
    phases = np.union1d(test.phases, named)
    counts = np.zeros((len(test.lengths), len(phases), len(phases)))
    np.add.at(counts, (test.video_of_frame, *np.searchsorted(phases, (test.phases, named))), 1)
    return counts


def _mean_of_given(estimates: Sequence[Estimates]) -> Estimates:
    """(N,) over the estimates that a resampling has; NaN if it has none."""
    stacked = np.stack(estimates)
    given = np.isfinite(stacked)
    means: Estimates = np.where(given, stacked, 0).sum(axis=0) / np.maximum(given.sum(axis=0), 1)
    return np.where(given.any(axis=0), means, np.nan)


def _interval(estimates: Estimates) -> tuple[float, float]:
    low, high = np.nanpercentile(estimates, ENDS_PERCENT)
    return float(low), float(high)
