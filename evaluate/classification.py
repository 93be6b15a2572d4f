"""Phase classification: a support vector machine is fitted to the phases of the training frames and predicts others.

scikit-learn's SVC takes one classifier per pair of phases, trains them one after the other, and evaluates its kernel
one pair of frames at a time to predict. The same classifiers are trained side by side here, and predict by matrix
products.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray

from byov.device import computing_threads
from byov.evaluate.frames import SETTINGS, VIEWS, Frames, Missing, absent
from byov.evaluate.neighbors import equal_rows
from byov.evaluate.scores import Score
from byov.evaluate.task import (
    Column,
    Estimates,
    EvaluationOptions,
    EvaluationTask,
    TaskData,
    Weights,
    columns_by_setting,
)

# scikit-learn is imported where it is needed: it takes a second.

BLOCK_ELEMENTS = 2**21  # of one block of kernel values: 16 MiB
FEW_VALUES = 0.1  # of the frames: with fewer distinct ones, equal frames are fitted as one


@dataclass(frozen=True)
class Decision:
    """Between two phases, by the frames that support it: positive for the second."""

    support: NDArray[np.int64]  # (S,) training frames
    weights: NDArray[np.float64]  # (S,)
    intercept: float


@dataclass(frozen=True)
class PhaseClassifier:
    """One SVC: a decision for each pair of phases."""

    train: Frames
    phases: NDArray[np.int64]  # of the training frames, rising
    gamma: float
    values: NDArray[np.int64] | None = None  # (F,) which training frames are equal, where there are few distinct ones
    decisions: tuple[Decision, ...] = ()

    def predict(self, embeddings: NDArray[np.float32]) -> NDArray[np.int64]:
        """(F,) the phase that wins most pairs; of several, the first. A decision of 0 is for the second phase."""
        support = np.unique(np.concatenate([decision.support for decision in self.decisions]))
        weights = np.zeros((len(support), len(self.decisions)))
        for pair, decision in enumerate(self.decisions):
            weights[np.searchsorted(support, decision.support), pair] = decision.weights
        intercepts = np.array([decision.intercept for decision in self.decisions])
        vectors = self.train.embeddings[support].astype(np.float64)
        pairs = np.array(self.pairs)
        predicted = np.empty(len(embeddings), np.int64)
        rows = max(1, BLOCK_ELEMENTS // len(support))
        for start in range(0, len(predicted), rows):
            block = embeddings[start : start + rows].astype(np.float64)
            decided = _kernel(block, vectors, self.gamma) @ weights + intercepts
            winners = np.where(decided < 0, pairs[:, 0], pairs[:, 1])  # (R, pairs)
            votes = (winners[:, :, None] == np.arange(len(self.phases))).sum(axis=1)
            predicted[start : start + rows] = votes.argmax(axis=1)
        return self.phases[predicted]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Of indices into the phases."""
        return list(combinations(range(len(self.phases)), 2))

    def frames_of(self, pair: tuple[int, int]) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(self.train.phases, self.phases[list(pair)]))

    def fit(self, pair: tuple[int, int]) -> Decision:
        """What SVC fits for this pair among all: it hands libsvm just these frames."""
        from sklearn.svm import SVC

        frames, counts = self._merged(self.frames_of(pair))
        embeddings, phases = self.train.embeddings[frames], self.train.phases[frames]
        machine = SVC(gamma=self.gamma).fit(embeddings, phases, sample_weight=counts)
        return Decision(frames[machine.support_], machine.dual_coef_[0], float(machine.intercept_[0]))

    def _merged(self, frames: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.float64] | None]:
        """The frames, and how many equal ones of its phase each stands for; None: each for itself.

        It is the same optimum, with the weights of equal frames added up: found at once where few frames differ, which
        frame by frame takes longer than other embeddings do.
        """
        if self.values is None:
            return frames, None
        alike = self.values[frames] * (self.train.phases.max() + 1) + self.train.phases[frames]
        _, first, counts = np.unique(alike, return_index=True, return_counts=True)
        order = np.argsort(first)
        return frames[first[order]], counts[order].astype(np.float64)


Classifiers = dict[str, PhaseClassifier | Missing]  # by setting


def phase_f1(train: Frames, test: Frames) -> dict[str, float | Missing]:
    """Weighted F1 on the test frames by setting: SVC's defaults, raw embeddings."""
    return _f1(fit_classifiers(train), test)


def phase_f1_of_each(trains: Sequence[Frames], test: Frames) -> list[dict[str, float | Missing]]:
    """The same for several training sets, all on the cores at once."""
    return [_f1(classifiers, test) for classifiers in fit_each(trains)]


@lru_cache(maxsize=1)
def fit_classifiers(train: Frames) -> Classifiers:
    """Those of the training frames; kept, since whole videos and sub-clips are scored by the same."""
    return fit_each([train])[0]


def fit_each(trains: Sequence[Frames]) -> list[Classifiers]:
    """The classifiers of all settings of several training sets, all pairs of phases on the cores at once."""
    import sklearn.svm  # noqa: F401  (here and not by several threads at once)

    unfitted = [{setting: _unfitted(train, setting) for setting in SETTINGS} for train in trains]
    todo = [(classifier, pair) for one in unfitted for classifier in _there(one) for pair in classifier.pairs]
    # The longest first, so that no core is left with a long one at the end.
    order = sorted(range(len(todo)), key=lambda index: -len(todo[index][0].frames_of(todo[index][1])))
    with ThreadPoolExecutor(computing_threads()) as pool:  # libsvm releases the GIL
        fitted = dict(zip(order, pool.map(lambda index: todo[index][0].fit(todo[index][1]), order), strict=True))
    decisions = iter(fitted[index] for index in range(len(todo)))
    return [
        {
            setting: one
            if isinstance(one, Missing)
            else replace(one, decisions=tuple(islice(decisions, len(one.pairs))))
            for setting, one in of_train.items()
        }
        for of_train in unfitted
    ]


def _unfitted(train: Frames, setting: str) -> PhaseClassifier | Missing:
    if train.labels is None:
        return Missing("no phase labels")
    view = VIEWS[setting][0]
    if lacking := absent(train.is_ego, view, "training"):
        return lacking
    of_view = train.of_view(view)
    phases = np.unique(of_view.phases)
    if len(phases) < 2:
        return Missing(f"only phase {phases[0]} in the training videos")
    variance = float(of_view.embeddings.var(dtype=np.float64))
    gamma = 1 / (of_view.embeddings.shape[1] * variance) if variance > 0 else 1.0  # SVC's default, "scale"
    values = equal_rows(of_view.embeddings)
    few = values.max() < FEW_VALUES * len(values)
    return PhaseClassifier(of_view, phases, gamma, values if few else None)


def _there(classifiers: Classifiers) -> list[PhaseClassifier]:
    return [classifier for classifier in classifiers.values() if isinstance(classifier, PhaseClassifier)]


def _f1(classifiers: Classifiers, test: Frames) -> dict[str, float | Missing]:
    import sklearn.metrics  # noqa: F401  (as above)

    with ThreadPoolExecutor(computing_threads()) as pool:  # matrix products release the GIL, too
        scores = pool.map(lambda setting: _f1_in(setting, classifiers[setting], test), SETTINGS)
        return dict(zip(SETTINGS, scores, strict=True))


def _f1_in(setting: str, classifier: PhaseClassifier | Missing, test: Frames) -> float | Missing:
    from sklearn.metrics import f1_score

    if test.labels is None:
        return Missing("no phase labels")
    if isinstance(classifier, Missing):
        return classifier
    view = VIEWS[setting][1]
    if lacking := absent(test.is_ego, view, "test"):
        return lacking
    scored = test.of_view(view)
    predicted = classifier.predict(scored.embeddings)
    return float(f1_score(scored.phases, predicted, average="weighted", zero_division=0.0))


def _kernel(a: NDArray[np.float64], b: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """(A, B) exp(-gamma ||a - b||²)"""
    kernel = a @ b.T
    kernel *= 2 * gamma
    kernel -= gamma * np.einsum("ad,ad->a", a, a)[:, None]
    kernel -= gamma * np.einsum("bd,bd->b", b, b)
    return np.exp(kernel, out=kernel)


def weighted_f1(confusion: NDArray[np.float64]) -> NDArray[np.float64]:
    """(...,) from (..., P, P) counts of frames: true phase, then predicted phase."""
    hits = np.diagonal(confusion, axis1=-2, axis2=-1)
    true, predicted = confusion.sum(axis=-1), confusion.sum(axis=-2)
    f1 = 2 * hits / np.maximum(true + predicted, 1)
    with np.errstate(invalid="ignore"):  # a resampling without any frame has none
        scores: NDArray[np.float64] = (f1 * true).sum(axis=-1) / true.sum(axis=-1)
    return scores


def _confusion(test: Frames, predicted: NDArray[np.int64]) -> NDArray[np.float64]:
    """(V, P, P) frames of each video by true and predicted phase."""
    phases = np.union1d(test.phases, predicted)
    counts = np.zeros((len(test.lengths), len(phases), len(phases)))
    np.add.at(counts, (test.video_of_frame, *np.searchsorted(phases, (test.phases, predicted))), 1)
    return counts


def _score(data: TaskData, _: EvaluationOptions) -> dict[str, Score]:
    scores = phase_f1(data.training, data.test)
    return {f"classification/{setting}": Score.of(scores[setting]) for setting in SETTINGS}


def _estimate(data: TaskData, weights: Weights, _: EvaluationOptions) -> dict[str, Estimates]:
    estimates = {}
    for setting, classifier in fit_classifiers(data.training).items():
        view = VIEWS[setting][1]
        test = data.test.of_view(view)
        if isinstance(classifier, Missing) or test.labels is None or not len(test.lengths):
            continue
        of_view = weights if view is None else weights[:, data.test.is_ego == view]
        confusion = _confusion(test, classifier.predict(test.embeddings))
        estimates[f"classification/{setting}"] = weighted_f1(np.tensordot(of_view, confusion, 1))
    return estimates


def _columns(_: EvaluationOptions) -> tuple[Column, ...]:
    return columns_by_setting("classification", "Classification (F1)", "F1")


TASK = EvaluationTask(
    name="classification",
    prefix="classification",
    subject="Phase classification",
    score=_score,
    columns=_columns,
    main_columns=_columns,
    estimate=_estimate,
    needs_labels=True,
    needs_training=True,
)
