"""Measure the speed of the evaluation on data as large as Break Eggs.

python benchmarks/evaluate.py             everything, about seventeen minutes on two cores
python benchmarks/evaluate.py retrieval   one of: retrieval classification
"""

import sys
from functools import partial
from pathlib import Path

import numpy as np

from byov.evaluate.classification import fit_classifiers, phase_f1, svm_solver
from byov.evaluate.frames import Frames
from byov.evaluate.retrieval import mean_average_precision

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.common import compare_times, seconds
from tests.evaluate import naive

PHASES = 4


def make_frames(
    videos: int, frames: int, seed: int, width: int = 256, grain: float = 1.0
) -> Frames:
    """Make videos that show the same phases, half of them ego videos;

    `grain` controls how much the phases overlap.
    """
    random = np.random.default_rng(seed)
    phases = np.random.default_rng(0).standard_normal((PHASES, width))  # the same for all seeds
    labels = np.tile(np.arange(frames) * PHASES // frames, videos)
    styles = 0.7 * random.standard_normal((videos, width))
    embeddings = (
        phases[labels]
        + styles.repeat(frames, axis=0)
        + grain * random.standard_normal((len(labels), width))
    )
    is_ego = np.arange(videos) % 2 == 0
    return Frames(embeddings.astype(np.float32), labels, np.full(videos, frames), is_ego)


def bench_retrieval() -> None:
    test = make_frames(20, 146, seed=2)
    compare_times(
        "retrieval, three settings, K = 5, 10, 15: loops / ours",
        partial(naive.mean_average_precision, test),
        partial(mean_average_precision, test),
        ">= 50",
    )


def bench_classification() -> None:
    """Compare the two SVC solvers.

    As with real embeddings of this width, most frames are support vectors.
    """
    train, test = (make_frames(80, 140, seed, width=672, grain=3) for seed in (1, 2))
    theirs = seconds(partial(naive.phase_f1, train, test))
    for solver in sorted({svm_solver(), "scikit-learn"}):
        sys.modules.pop("sklearnex", None)
        if solver == "scikit-learn":
            sys.modules["sklearnex"] = None  # simulates that it is not installed
        fit_classifiers.cache_clear()
        ours = seconds(partial(phase_f1, train, test))
        print(
            f"classification: SVC {theirs:.0f} s / ours with {solver} {ours:.0f} s: "
            f"{theirs / ours:.1f} (want >= 2)"
        )


if __name__ == "__main__":
    for benchmark in sys.argv[1:] or ("retrieval", "classification"):
        globals()[f"bench_{benchmark}"]()
