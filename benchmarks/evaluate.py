"""Speed of the evaluation at the size of Break Eggs, and of a report.

python benchmarks/evaluate.py             everything, about seventeen minutes on two cores
python benchmarks/evaluate.py retrieval   one of: retrieval tau classification report
"""

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import byov
from byov.evaluate.classification import fit_classifiers, phase_f1, svm_solver
from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import kendalls_tau
from byov.evaluate.retrieval import mean_average_precision

sys.path.append(str(Path(__file__).parents[1]))

from benchmarks.common import compare_times, seconds, write_dataset
from tests.evaluate import naive

PHASES = 4


def make_frames(videos: int, frames: int, seed: int, width: int = 256, grain: float = 1.0) -> Frames:
    """Make videos that pass through the same phases, half of them ego; the grain decides how much phases overlap."""
    world, random = np.random.default_rng(0), np.random.default_rng(seed)
    phases = world.standard_normal((PHASES, width))
    labels = np.tile(np.arange(frames) * PHASES // frames, videos)
    styles = 0.7 * random.standard_normal((videos, width))
    embeddings = phases[labels] + styles.repeat(frames, axis=0) + grain * random.standard_normal((len(labels), width))
    is_ego = np.arange(videos) % 2 == 0
    return Frames(embeddings.astype(np.float32), labels, np.full(videos, frames), is_ego)


def bench_retrieval() -> None:
    test = make_frames(20, 146, seed=2)
    loops, ours = partial(naive.mean_average_precision, test), partial(mean_average_precision, test)
    compare_times("retrieval, three settings, K = 5, 10, 15: loops / ours", loops, ours, ">= 50")


def bench_tau() -> None:
    test = make_frames(20, 146, seed=2)
    compare_times("tau: loops / ours", partial(naive.kendalls_tau, test), partial(kendalls_tau, test), ">= 2")


def bench_classification() -> None:
    """Compare SVC with both solvers. As in real embeddings of this width, most frames are support vectors."""
    train, test = (make_frames(80, 140, seed, width=672, grain=3) for seed in (1, 2))
    expected = {}
    theirs = seconds(lambda: expected.update(naive.phase_f1(train, test)))
    for solver in sorted({svm_solver(), "scikit-learn"}):
        sys.modules.pop("sklearnex", None)
        if solver == "scikit-learn":
            sys.modules["sklearnex"] = None  # as if it were not installed
        fit_classifiers.cache_clear()
        found = {}
        ours = seconds(lambda found=found: found.update(phase_f1(train, test)))
        difference = max(abs(expected[setting] - found[setting]) for setting in expected)
        print(f"classification: SVC {theirs:.0f} s / ours with {solver} {ours:.0f} s: {theirs / ours:.1f} (want >= 2)")
        print(f"  largest difference of F1: {difference:.1e}", flush=True)


def bench_report() -> None:
    """Time and size of the report of a run with 40 test videos."""
    with tempfile.TemporaryDirectory() as folder:
        features, runs = Path(folder) / "features", Path(folder) / "runs"
        table = write_dataset(Path(folder), ("train",) * 8 + ("val",) * 8 + ("test",) * 40, 100, events="1;2")
        byov.extract_features(manifest=table, encoder="random/tiny", features_dir=features)
        small = {"latent": 256, "depth": 1, "decoder_depth": 1, "heads": 4, "epochs": 5}
        run = byov.train_run("bench", features_dir=features, runs_dir=runs, **small)
        command = [Path(sys.executable).with_name("byov-report"), "--features-dir", features, "--runs-dir", runs]
        elapsed = seconds(partial(subprocess.run, command, check=True))
        size = (run.folder / "report.html").stat().st_size / 1e6
        print(f"report of 40 videos of 100 frames: {elapsed:.1f} s (want < 60), {size:.1f} MB (want < 15)")


if __name__ == "__main__":
    for benchmark in sys.argv[1:] or ("retrieval", "tau", "classification", "report"):
        globals()[f"bench_{benchmark}"]()
