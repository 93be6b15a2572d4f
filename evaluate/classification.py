"""Phase classification: weighted F1 of a support vector classifier on single frames, also in the
few-shot setting.
"""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from byov.evaluate.frames import SETTINGS, Frames, Missing, Score, missing_view
from byov.evaluate.neighbors import BLOCK_ELEMENTS

# The time to fit an SVC grows faster than linearly. The paper's datasets are smaller.
MAX_TRAINING_FRAMES = 50_000

if TYPE_CHECKING:  # scikit-learn takes a second to import
    from sklearn.svm import SVC


def phase_f1(train: Frames, test: Frames) -> dict[str, float | Missing]:
    """Compute the weighted F1 of an RBF support vector classifier with scikit-learn's defaults on
    raw embeddings.

    F1 = sum over phases p of (n_p / n) * 2 TP_p / (2 TP_p + FP_p + FN_p), where n_p of n test
    frames are in phase p.

    Args:
        train: Labeled frames to fit.
        test: Labeled frames to score.

    Returns:
        Dict mapping each setting to its F1. "regular" fits and scores on both views, "ego2exo" fits
        on ego videos and scores on exo videos, and "exo2ego" does the reverse.

    Example:
        >>> x = np.array([[0.0], [0.1], [1.0], [1.1]], np.float32)
        >>> frames = Frames(x, np.array([0, 0, 1, 1]), np.array([4]), np.array([True]))
        >>> phase_f1(frames, frames)["regular"]
        1.0
        >>> phase_f1(frames, frames)["ego2exo"]
        Missing(reason='no exo test videos')
    """
    from sklearn.metrics import f1_score

    return {
        setting: predicted
        if isinstance(predicted, Missing)
        else float(
            f1_score(
                test.of_view(SETTINGS[setting][1]).phases,
                predicted,
                average="weighted",
                zero_division=0.0,
            )
        )
        for setting, predicted in predict_phases(train, test).items()
    }


def predict_phases(train: Frames, test: Frames) -> dict[str, NDArray[np.int64] | Missing]:
    """Return a dict mapping each setting to the predicted phases of the frames in its test view."""
    if test.labels is None:
        return dict.fromkeys(SETTINGS, Missing("no phase labels"))
    predictions: dict[str, NDArray[np.int64] | Missing] = {}
    for setting, classifier in fit_classifiers(train).items():
        view = SETTINGS[setting][1]
        if isinstance(classifier, Missing):
            predictions[setting] = classifier
        else:
            missing = missing_view(test.is_ego, view, "test")
            predictions[setting] = missing or classifier.predict(test.of_view(view).embeddings)
    return predictions


@lru_cache(maxsize=1)
def fit_classifiers(train: Frames) -> "dict[str, PhaseClassifier | Missing]":
    """Fit one classifier per setting.

    The last result is cached because all protocols use the same classifiers.
    """
    return {setting: _fit(train, SETTINGS[setting][0]) for setting in SETTINGS}


def _fit(train: Frames, view: bool | None) -> "PhaseClassifier | Missing":
    if train.labels is None:
        return Missing("no phase labels")
    if missing := missing_view(train.is_ego, view, "training"):
        return missing
    fitted = train.of_view(view)
    sample = stratified_sample(fitted.phases, MAX_TRAINING_FRAMES)
    phases = fitted.phases[sample]
    if (phases == phases[0]).all():
        return Missing(f"only phase {phases[0]} in the training videos")
    # Fit in double precision: in single precision, F1 with scikit-learn-intelex differs from
    # scikit-learn's by 1e-3.
    embeddings = fitted.embeddings[sample].astype(np.float64)
    # scikit-learn's default.
    gamma = 1 / (embeddings.shape[1] * (embeddings.var() or 1 / embeddings.shape[1]))
    svc = new_svc(gamma).fit(embeddings, phases)
    sign = -1 if len(svc.classes_) == 2 else 1  # SVC flips the sign for two classes
    vectors = [
        (embeddings[svc.support_[chosen]], sign * svc.dual_coef_[:, chosen].T)
        for chosen in (phases[svc.support_] == phase for phase in svc.classes_)
    ]
    return PhaseClassifier(svc.classes_, gamma, vectors, sign * svc.intercept_)


def stratified_sample(phases: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Draw a random sample of frames in which each phase is as frequent as among all frames.

    Args:
        phases: (F,) phase of each frame.
        size: Size of the sample. If there are no more frames, all are returned.

    Returns:
        Sorted frame indices.

    >>> phases = np.array([0, 0, 0, 0, 1, 1])
    >>> np.bincount(phases[stratified_sample(phases, 3)]).tolist()
    [2, 1]
    """
    if len(phases) <= size:
        return np.arange(len(phases))
    shuffled = np.random.default_rng(0).permutation(len(phases))
    by_phase = shuffled[np.argsort(phases[shuffled], kind="stable")]
    return np.sort(by_phase[np.arange(size) * len(phases) // size])


def sample_remark(train: Frames, setting: str) -> str | None:
    """Return a footnote if the classifier of a setting is fitted on a sample of the frames."""
    frames = int(train.of_view(SETTINGS[setting][0]).lengths.sum())
    if train.labels is None or frames <= MAX_TRAINING_FRAMES:
        return None
    return (
        f"{setting}: the classifier is fitted on a stratified sample of {MAX_TRAINING_FRAMES:,} of "
        f"{frames:,} training frames"
    )


def svm_solver() -> str:
    """Return the package that fits the classifier: scikit-learn-intelex if it is installed, else
    scikit-learn.

    scikit-learn-intelex is several times faster if most frames are support vectors; 1 in 5,000
    predictions differs.
    """
    return "scikit-learn-intelex" if find_spec("sklearnex") else "scikit-learn"


def new_svc(gamma: float) -> "SVC":
    """Return an unfitted RBF `SVC` from the package that `svm_solver` returns, with scikit-learn's
    defaults.
    """
    if svm_solver() == "scikit-learn":
        import sklearn.svm

        return sklearn.svm.SVC(gamma=gamma)
    import daal4py
    import sklearnex.svm

    # Use one thread, because the results depend on the number of threads. n_jobs works only in the
    # main thread.
    daal4py.daalinit(1)
    warnings.filterwarnings("ignore", "'Threading' parallel backend")
    return sklearnex.svm.SVC(gamma=gamma, n_jobs=1)


@dataclass(frozen=True)
class PhaseClassifier:
    """Fitted SVC that predicts like libsvm: each pair of phases casts a vote, and the first phase
    wins ties.

    `SVC.predict` is slower than fitting, and in scikit-learn-intelex 2026.2 its predictions are
    wrong for some numbers of support vectors, such as 258.
    """

    phases: NDArray[np.int64]  # (P,)
    gamma: float
    # Per phase: (S, D), and (S, P - 1) coefficients.
    vectors: list[tuple[NDArray[np.float64], NDArray[np.float64]]]
    intercepts: NDArray[np.float64]  # one per pair of phases

    def predict(self, embeddings: NDArray[np.float32]) -> NDArray[np.int64]:
        """Predict the (F,) phases of (F, D) embeddings."""
        from sklearn.metrics.pairwise import rbf_kernel

        pairs = list(combinations(range(len(self.phases)), 2))
        step = max(1, BLOCK_ELEMENTS // sum(len(vectors) for vectors, _ in self.vectors))
        predicted = []
        for block in (
            embeddings[start : start + step] for start in range(0, len(embeddings), step)
        ):
            sums = [
                rbf_kernel(block.astype(np.float64), vectors, self.gamma) @ c
                for vectors, c in self.vectors
            ]
            votes = np.zeros((len(block), len(self.phases)), np.int64)
            for (first, second), intercept in zip(pairs, self.intercepts, strict=True):
                is_first = sums[first][:, second - 1] + sums[second][:, first] + intercept > 0
                votes[np.arange(len(block)), np.where(is_first, first, second)] += 1
            predicted.append(self.phases[votes.argmax(axis=1)])
        return np.concatenate(predicted)


def weighted_f1(confusion: NDArray[np.float64]) -> NDArray[np.float64]:
    """Compute weighted F1 from (..., P, P) confusion matrices with true phases as rows; NaN if
    there are no frames.

    >>> float(weighted_f1(np.array([[3.0, 1.0], [0.0, 4.0]])).round(4))
    0.873
    """
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    true = confusion.sum(axis=-1)
    predicted = confusion.sum(axis=-2)
    f1 = 2 * hits / np.maximum(true + predicted, 1)
    with np.errstate(invalid="ignore"):
        scores: NDArray[np.float64] = (f1 * true).sum(axis=-1) / true.sum(axis=-1)
    return scores


def few_shot_f1(
    train: Frames, test: Frames, *, fractions: Sequence[float] = (0.1, 0.5, 1.0), seed: int = 0
) -> dict[float, dict[str, Score]]:
    """Compute the mean `phase_f1` of classifiers fitted on disjoint random subsets of the training
    videos.

    Args:
        train: Labeled training frames.
        test: Labeled frames to score.
        fractions: Sizes of the subsets as fractions of the training videos. Defaults from the
            paper's appendix.
        seed: Random seed for drawing the subsets.

    Returns:
        Nested dict mapping fraction and setting to the mean and sample standard deviation over the
        subsets.
    """
    scores = {}
    for fraction in fractions:
        sets = draw_videos(train.is_ego, fraction, seed)
        draws = [train] if fraction == 1 else [train.select(videos) for videos in sets]
        f1 = [phase_f1(draw, test) for draw in draws]
        scores[fraction] = {
            setting: _summarize([draw[setting] for draw in f1], sample_remark(draws[0], setting))
            for setting in SETTINGS
        }
    return scores


def draw_videos(is_ego: NDArray[np.bool_], fraction: float, seed: int) -> list[NDArray[np.int64]]:
    """Draw as many disjoint subsets as possible, each with about this fraction of the videos, as
    sorted indices.

    Each view is split separately, so a view with at least one video per subset is in every subset.

    >>> sets = draw_videos(np.array([True, True, False, False]), 0.5, seed=0)
    >>> [len(videos) for videos in sets]
    [2, 2]
    """
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction must be in (0, 1], not {fraction}")
    random = np.random.default_rng(seed)
    shuffled = [random.permutation(np.flatnonzero(is_ego == view)) for view in (True, False)]
    draws = np.arange(int(1 / fraction + 1e-9) + 1)
    parts = [
        np.split(videos, (fraction * len(videos) * draws + 0.5).astype(np.int64))[1:-1]
        for videos in shuffled
    ]
    sets = [np.sort(np.concatenate(views)) for views in zip(*parts, strict=True)]
    return [videos for videos in sets if len(videos)]


def _summarize(scores: Sequence[float | Missing], remark: str | None) -> Score:
    values = [score for score in scores if isinstance(score, float)]
    if not values:
        return Score.of(next(iter(scores), Missing("no training videos")))
    deviation = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Score.of(float(np.mean(values)), deviation=deviation, draws=len(values), remark=remark)
