"""Phase classification: a support vector machine learns the phases of one set of frames and names those of another.

scikit-learn's SVC takes one classifier per pair of phases, trains them one after the other, and evaluates its kernel
one pair of frames at a time to predict. The same classifiers are trained side by side here, and predict by matrix
products.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, islice

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from sklearn.svm import SVC

from byov.evaluate.frames import SETTINGS, VIEWS, Frames, Missing, Score, absent

BLOCK_ELEMENTS = 2**21  # of one block of kernel values: 16 MiB


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
    decisions: tuple[Decision, ...] = ()

    def name(self, embeddings: NDArray[np.float32]) -> NDArray[np.int64]:
        """(F,) the phase that wins most pairs; of several, the first. A decision of 0 is for the second phase."""
        support = np.unique(np.concatenate([decision.support for decision in self.decisions]))
        weights = np.zeros((len(support), len(self.decisions)))
        for pair, decision in enumerate(self.decisions):
            weights[np.searchsorted(support, decision.support), pair] = decision.weights
        intercepts = np.array([decision.intercept for decision in self.decisions])
        vectors = self.train.embeddings[support].astype(np.float64)
        pairs = np.array(self.pairs)
        named = np.empty(len(embeddings), np.int64)
        rows = max(1, BLOCK_ELEMENTS // len(support))
        for start in range(0, len(named), rows):
            asked = embeddings[start : start + rows].astype(np.float64)
            decided = _kernel(asked, vectors, self.gamma) @ weights + intercepts
            winners = np.where(decided < 0, pairs[:, 0], pairs[:, 1])  # (R, pairs)
            votes = (winners[:, :, None] == np.arange(len(self.phases))).sum(axis=1)
            named[start : start + rows] = votes.argmax(axis=1)
        return self.phases[named]

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Of indices into the phases."""
        return list(combinations(range(len(self.phases)), 2))

    def frames_of(self, pair: tuple[int, int]) -> NDArray[np.int64]:
        return np.flatnonzero(np.isin(self.train.phases, self.phases[list(pair)]))

    def learn(self, pair: tuple[int, int]) -> Decision:
        """What SVC learns for this pair among all: it hands libsvm just these frames."""
        frames = self.frames_of(pair)
        machine = SVC(gamma=self.gamma).fit(self.train.embeddings[frames], self.train.phases[frames])
        return Decision(frames[machine.support_], machine.dual_coef_[0], float(machine.intercept_[0]))


Classifiers = dict[str, PhaseClassifier | Missing]  # by setting


def phase_f1(train: Frames, test: Frames) -> dict[str, Score]:
    """Weighted F1 on the test frames by setting: SVC's defaults, raw embeddings."""
    return _f1(learn(train), test)


def phase_f1_of_each(trains: Sequence[Frames], test: Frames) -> list[dict[str, Score]]:
    """The same for several training sets, all on the cores at once."""
    return [_f1(classifiers, test) for classifiers in learn_each(trains)]


@lru_cache(maxsize=1)
def learn(train: Frames) -> Classifiers:
    """What the training frames teach; kept, since whole videos and sub-clips are scored by the same."""
    return learn_each([train])[0]


def learn_each(trains: Sequence[Frames]) -> list[Classifiers]:
    """The classifiers of all settings of several training sets, all pairs of phases on the cores at once."""
    untaught = [{setting: _untaught(train, setting) for setting in SETTINGS} for train in trains]
    todo = [(classifier, pair) for one in untaught for classifier in _there(one) for pair in classifier.pairs]
    # The longest first, so that no core is left with a long one at the end.
    order = sorted(range(len(todo)), key=lambda index: -len(todo[index][0].frames_of(todo[index][1])))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # libsvm lets go of the interpreter's lock
        learned = dict(zip(order, pool.map(lambda index: todo[index][0].learn(todo[index][1]), order), strict=True))
    decisions = iter(learned[index] for index in range(len(todo)))
    return [
        {
            setting: one
            if isinstance(one, Missing)
            else replace(one, decisions=tuple(islice(decisions, len(one.pairs))))
            for setting, one in of_train.items()
        }
        for of_train in untaught
    ]


def _untaught(train: Frames, setting: str) -> PhaseClassifier | Missing:
    if train.labels is None:
        return Missing("no phase labels")
    view = VIEWS[setting][0]
    if lacking := absent(train.is_ego, view, "training"):
        return lacking
    known = train.of_view(view)
    phases = np.unique(known.phases)
    if len(phases) < 2:
        return Missing(f"only phase {phases[0]} in the training videos")
    variance = float(known.embeddings.var(dtype=np.float64))
    gamma = 1 / (known.embeddings.shape[1] * variance) if variance > 0 else 1.0  # SVC's default, "scale"
    return PhaseClassifier(known, phases, gamma)


def _there(classifiers: Classifiers) -> list[PhaseClassifier]:
    return [classifier for classifier in classifiers.values() if isinstance(classifier, PhaseClassifier)]


def _f1(classifiers: Classifiers, test: Frames) -> dict[str, Score]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # matrix products do so too
        scores = pool.map(lambda setting: _f1_in(setting, classifiers[setting], test), SETTINGS)
        return dict(zip(SETTINGS, scores, strict=True))


def _f1_in(setting: str, classifier: PhaseClassifier | Missing, test: Frames) -> Score:
    if test.labels is None:
        return Missing("no phase labels")
    if isinstance(classifier, Missing):
        return classifier
    view = VIEWS[setting][1]
    if lacking := absent(test.is_ego, view, "test"):
        return lacking
    asked = test.of_view(view)
    named = classifier.name(asked.embeddings)
    return float(f1_score(asked.phases, named, average="weighted", zero_division=0.0))


def _kernel(a: NDArray[np.float64], b: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """(A, B) exp(-gamma ||a - b||²)"""
    kernel = a @ b.T
    kernel *= 2 * gamma
    kernel -= gamma * np.einsum("ad,ad->a", a, a)[:, None]
    kernel -= gamma * np.einsum("bd,bd->b", b, b)
    return np.exp(kernel, out=kernel)
