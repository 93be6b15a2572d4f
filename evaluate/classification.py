"""Phase classification: weighted F1 of a support vector classifier of single frames."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from byov.device import computing_threads
from byov.evaluate.frames import SETTINGS, VIEWS, Frames, Missing, missing_view

if TYPE_CHECKING:  # scikit-learn takes a second to import
    from sklearn.svm import SVC


def phase_f1(train: Frames, test: Frames) -> dict[str, float | Missing]:
    """Compute the weighted F1 of an RBF support vector classifier, with scikit-learn's defaults and raw embeddings.

    F1 = sum over phases p of (n_p / n) * 2 TP_p / (2 TP_p + FP_p + FN_p), with n_p test frames of phase p.

    Args:
        train: Labeled frames to fit.
        test: Labeled frames to score.

    Returns:
        F1 by setting: fitted and scored on both views ("regular"), or on one view each ("ego2exo", "exo2ego").

    Example:
        >>> x = np.array([[0.0], [0.1], [1.0], [1.1]], np.float32)
        >>> frames = Frames(x, np.array([0, 0, 1, 1]), np.array([4]), np.array([True]), ("a",))
        >>> phase_f1(frames, frames)["regular"]
        1.0
        >>> phase_f1(frames, frames)["ego2exo"]
        Missing(reason='no exo test videos')
    """
    from sklearn.metrics import f1_score

    scores: dict[str, float | Missing] = {}
    for setting, predicted in predict_phases(train, test).items():
        if isinstance(predicted, Missing):
            scores[setting] = predicted
        else:
            true = test.of_view(VIEWS[setting][1]).phases
            scores[setting] = float(f1_score(true, predicted, average="weighted", zero_division=0.0))
    return scores


def predict_phases(train: Frames, test: Frames) -> dict[str, NDArray[np.int64] | Missing]:
    """Return the predicted phase of each test frame of the setting's test view, by setting."""
    classifiers = fit_classifiers(train)

    def predict(setting: str) -> NDArray[np.int64] | Missing:
        classifier, view = classifiers[setting], VIEWS[setting][1]
        if test.labels is None:
            return Missing("no phase labels")
        if isinstance(classifier, Missing):
            return classifier
        return missing_view(test.is_ego, view, "test") or classifier.predict(test.of_view(view).embeddings)

    with ThreadPoolExecutor(computing_threads()) as pool:  # libsvm releases the GIL
        return dict(zip(SETTINGS, pool.map(predict, SETTINGS), strict=True))


@lru_cache(maxsize=1)
def fit_classifiers(train: Frames) -> "dict[str, SVC | Missing]":
    """Fit one classifier per setting. The last result is cached: both protocols are scored with the same one."""
    import sklearn.svm  # noqa: F401  (imported here once, not by several threads at a time)

    with ThreadPoolExecutor(computing_threads()) as pool:
        return dict(zip(SETTINGS, pool.map(lambda setting: _fit(train, VIEWS[setting][0]), SETTINGS), strict=True))


def _fit(train: Frames, view: bool | None) -> "SVC | Missing":
    from sklearn.svm import SVC

    if train.labels is None:
        return Missing("no phase labels")
    if missing := missing_view(train.is_ego, view, "training"):
        return missing
    fitted = train.of_view(view)
    if (fitted.phases == fitted.phases[0]).all():
        return Missing(f"only phase {fitted.phases[0]} in the training videos")
    return SVC().fit(fitted.embeddings, fitted.phases)


def weighted_f1(confusion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute the weighted F1 from (..., P, P) confusion matrices, true phase first; NaN where there are no frames.

    >>> float(weighted_f1(np.array([[3.0, 1.0], [0.0, 4.0]])).round(4))
    0.873
    """
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    true, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    f1 = 2 * hits / np.maximum(true + predicted, 1)
    with np.errstate(invalid="ignore"):
        scores: NDArray[np.float64] = (f1 * true).sum(axis=-1) / true.sum(axis=-1)
    return scores
