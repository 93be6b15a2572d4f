"""Phase classification: a support vector machine learns the phases of one set of frames and names those of another.

scikit-learn's SVC takes one classifier per pair of phases, trains them one after the other, and evaluates its kernel
one pair of frames at a time to predict. The same classifiers are trained side by side here, and predict by matrix
products.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from sklearn.svm import SVC

from byov.evaluate.frames import SETTINGS, Frames, Missing, Score, sides

BLOCK_ELEMENTS = 2**21  # of one block of kernel values: 16 MiB


def phase_f1(train: Frames, test: Frames) -> dict[str, Score]:
    """Weighted F1 on the test frames by setting: SVC's defaults, raw embeddings."""
    return phase_f1_of_each([train], test)[0]


def phase_f1_of_each(trains: Sequence[Frames], test: Frames) -> list[dict[str, Score]]:
    """The same for several training sets, all on the cores at once."""
    tasks = [[_task(train, test, setting) for setting in SETTINGS] for train in trains]
    runnable = [task for of_train in tasks for task in of_train if isinstance(task, _Task)]
    scores = iter(_scores(runnable))
    return [
        {s: task if isinstance(task, Missing) else next(scores) for s, task in zip(SETTINGS, of_train, strict=True)}
        for of_train in tasks
    ]


@dataclass(frozen=True)
class _Task:
    """What is learned and what is asked, in one setting."""

    train: Frames
    test: Frames
    phases: NDArray[np.int64]  # of the training frames, rising
    gamma: float


@dataclass(frozen=True)
class _Decision:
    """Between two phases, by the frames that support it: positive for the second."""

    support: NDArray[np.int64]  # (S,) training frames
    weights: NDArray[np.float64]  # (S,)
    intercept: float


def _task(train: Frames, test: Frames, setting: str) -> _Task | Missing:
    chosen = sides(train, test, setting)
    if isinstance(chosen, Missing):
        return chosen
    known, asked = chosen
    phases = np.unique(known.phases)
    if len(phases) < 2:
        return Missing(f"only phase {phases[0]} in the training videos")
    variance = float(known.embeddings.var(dtype=np.float64))
    gamma = 1 / (known.embeddings.shape[1] * variance) if variance > 0 else 1.0  # SVC's default, "scale"
    return _Task(known, asked, phases, gamma)


def _scores(tasks: Sequence[_Task]) -> list[Score]:
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # libsvm and matrix products let go of the interpreter's lock
        pairs = [(task, *pair) for task in tasks for pair in combinations(range(len(task.phases)), 2)]
        # The longest first, so that no core is left with a long one at the end.
        order = sorted(range(len(pairs)), key=lambda index: -_frames_of_pair(*pairs[index]))
        fitted = dict(zip(order, pool.map(lambda index: _learn(*pairs[index]), order), strict=True))
        decisions = iter(fitted[index] for index in range(len(pairs)))
        learned = [[next(decisions) for _ in combinations(task.phases, 2)] for task in tasks]
        return list(pool.map(_score, tasks, learned))


def _frames_of_pair(task: _Task, first: int, second: int) -> int:
    return int(np.isin(task.train.phases, task.phases[[first, second]]).sum())


def _learn(task: _Task, first: int, second: int) -> _Decision:
    """What SVC learns for this pair among all: it hands libsvm just these frames."""
    frames = np.flatnonzero(np.isin(task.train.phases, task.phases[[first, second]]))
    machine = SVC(gamma=task.gamma).fit(task.train.embeddings[frames], task.train.phases[frames])
    return _Decision(frames[machine.support_], machine.dual_coef_[0], float(machine.intercept_[0]))


def _score(task: _Task, decisions: Sequence[_Decision]) -> float:
    named = task.phases[_named(task, decisions)]
    return float(f1_score(task.test.phases, named, average="weighted", zero_division=0.0))


def _named(task: _Task, decisions: Sequence[_Decision]) -> NDArray[np.int64]:
    """(F,) index of the phase that wins most pairs; of several, the first. A decision of 0 is for the second phase."""
    support = np.unique(np.concatenate([decision.support for decision in decisions]))
    weights = np.zeros((len(support), len(decisions)))
    for pair, decision in enumerate(decisions):
        weights[np.searchsorted(support, decision.support), pair] = decision.weights
    intercepts = np.array([decision.intercept for decision in decisions])
    vectors = task.train.embeddings[support].astype(np.float64)
    pairs = np.array(list(combinations(range(len(task.phases)), 2)))
    named = np.empty(len(task.test.embeddings), np.int64)
    rows = max(1, BLOCK_ELEMENTS // len(support))
    for start in range(0, len(named), rows):
        asked = task.test.embeddings[start : start + rows].astype(np.float64)
        decided = _kernel(asked, vectors, task.gamma) @ weights + intercepts
        winners = np.where(decided < 0, pairs[:, 0], pairs[:, 1])  # (R, pairs)
        votes = (winners[:, :, None] == np.arange(len(task.phases))).sum(axis=1)
        named[start : start + rows] = votes.argmax(axis=1)
    return named


def _kernel(a: NDArray[np.float64], b: NDArray[np.float64], gamma: float) -> NDArray[np.float64]:
    """(A, B) exp(-gamma ||a - b||²)"""
    kernel = a @ b.T
    kernel *= 2 * gamma
    kernel -= gamma * np.einsum("ad,ad->a", a, a)[:, None]
    kernel -= gamma * np.einsum("bd,bd->b", b, b)
    return np.exp(kernel, out=kernel)
