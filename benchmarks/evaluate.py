"""Speed and memory of the evaluation at the size of Break Eggs.

python benchmarks/evaluate.py             everything, about ten minutes on two cores
python benchmarks/evaluate.py retrieval   one of: retrieval tau classification equal memory
"""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from byov.evaluate.classification import fit_classifiers, phase_f1, svm_solver
from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import kendalls_tau
from byov.evaluate.progression import phase_progression
from byov.evaluate.retrieval import mean_average_precision

# Loaded by path: with PYTHONSAFEPATH a script cannot import its neighbors.
spec = importlib.util.spec_from_file_location("naive_evaluator", Path(__file__).with_name("naive_evaluator.py"))
naive = importlib.util.module_from_spec(spec)
spec.loader.exec_module(naive)

PHASES, KNOTS = 4, 9
TRAIN, TEST = (
    {"ego": 61, "exo": 57, "mean_frames": 149, "seed": 1},
    {"ego": 10, "exo": 10, "mean_frames": 155, "seed": 2},
)


def make_videos(ego: int, exo: int, mean_frames: int, seed: int, width: int = 256, grain: float = 0.3) -> Frames:
    """Make videos of realistic difficulty: at the size of Break Eggs, F1 is .73 / .79 / .70.

    They follow one path through the space, each with its own pace and style and an offset between the views. The phase
    changes near, not at, the labeled frame. The grain, noise of each frame, decides how many are support vectors.
    """
    world, random = np.random.default_rng(0), np.random.default_rng(seed)
    path, gap = world.standard_normal((KNOTS, width)), 0.5 * world.standard_normal(width)
    embeddings, labels = [], []
    for video in range(ego + exo):
        frames = int(random.integers(mean_frames // 2, mean_frames * 3 // 2))
        clock = (np.arange(frames) + 0.5) / frames
        changes = np.cumsum(0.8 * random.dirichlet([4] * PHASES) + 0.2 / PHASES)[:-1]
        labels.append(np.searchsorted(changes, clock, side="right"))
        seen = np.sort(changes + random.normal(0, 0.05, PHASES - 1)).clip(0.01, 0.99)
        at = np.interp(clock, [0, *seen, 1], np.linspace(0, KNOTS - 1, PHASES + 1))
        clean = np.stack([np.interp(at, np.arange(KNOTS), column) for column in path.T], axis=1)
        style = 0.7 * random.standard_normal(width) + 0.8 * random.standard_normal(KNOTS) @ path / KNOTS**0.5
        drift = 0.7 * np.cumsum(random.standard_normal((frames, width)), axis=0) / frames**0.5
        noise = grain * random.standard_normal((frames, width))
        embeddings.append((clean + style + drift - drift.mean(axis=0) + noise + gap * (video < ego)).astype(np.float32))
    lengths, names = np.array([len(video) for video in labels]), tuple(f"video{video}" for video in range(ego + exo))
    return Frames(np.concatenate(embeddings), np.concatenate(labels), lengths, np.arange(ego + exo) < ego, names)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return (seconds, result)."""
    fit_classifiers.cache_clear()
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def compare(title: str, theirs: Callable[[], Any], ours: Callable[[], Any], want: str) -> None:
    """Print the ratio of both times, each the mean of two, and the largest difference of scores."""
    ours()  # warm up
    (slow, expected), (fast, found), (slow_again, _), (fast_again, _) = map(timed, (theirs, ours, theirs, ours))
    slow, fast = (slow + slow_again) / 2, (fast + fast_again) / 2
    difference = np.abs(np.subtract(flat(expected), flat(found))).max()
    print(
        f"{title}: {slow:.2f} s, ours {fast:.2f} s: {slow / fast:.1f}x (want {want}); scores differ by {difference:.1e}"
    )


def flat(scores: Any) -> list[float]:
    return [value for one in scores.values() for value in flat(one)] if isinstance(scores, dict) else [scores]


def bench_retrieval() -> None:
    test = make_videos(**TEST)
    title = f"retrieval, {len(test.embeddings)} frames, three settings, K = 5, 10, 15: loops"
    compare(title, lambda: naive.mean_average_precision(test), lambda: mean_average_precision(test), ">= 50x")


def bench_tau() -> None:
    test = make_videos(**TEST)
    title = f"tau, {len(test.embeddings)} frames: loops"
    compare(title, lambda: naive.kendalls_tau(test), lambda: kendalls_tau(test)["all"].value, ">= 2x")


def bench_classification() -> None:
    """Compare SVC with both solvers. As in real embeddings of this width, most frames are support vectors."""
    train, test = (make_videos(40, 40, 149, seed, width=672, grain=3) for seed in (1, 2))
    seconds, expected = timed(lambda: naive.phase_f1(train, test))
    print(f"classification, {len(train.embeddings)} and {len(test.embeddings)} frames: SVC three times {seconds:.1f} s")
    for solver in sorted({svm_solver(), "scikit-learn"}):
        sys.modules.pop("sklearnex", None)
        if solver == "scikit-learn":
            sys.modules["sklearnex"] = None  # as if it were not installed
        ours, found = timed(lambda: phase_f1(train, test))
        difference = np.abs(np.subtract(flat(expected), flat(found))).max()
        print(
            f"  {solver}: {ours:.1f} s, {seconds / ours:.1f}x (want >= 2x); F1 differs by {difference:.1e}", flush=True
        )


def bench_equal() -> None:
    """A collapsed embedding must not take much longer than an ordinary one."""
    train, test = make_videos(10, 10, 250, seed=4), make_videos(40, 40, 250, seed=5)
    tasks = {
        "retrieval": lambda _, test: mean_average_precision(test),
        "classification": phase_f1,
        "tau": lambda _, test: kendalls_tau(test),
    }
    for task, work in tasks.items():
        work(train.select(np.array([0, 19])), test.select(np.array([0, 79])))  # warm up
        ordinary, _ = timed(partial(work, train, test))
        for kind in ("one frame", "three frames", "every second frame"):
            seconds, _ = timed(partial(work, collapsed(train, kind), collapsed(test, kind)))
            print(f"{task}, equal to {kind}: {seconds / ordinary:.2f}x of {ordinary:.2f} s (want <= 3x)", flush=True)


def collapsed(frames: Frames, kind: str) -> Frames:
    embeddings = frames.embeddings.copy()
    if kind == "every second frame":
        embeddings[::2] = embeddings[0]
    else:
        embeddings = embeddings[np.arange(len(embeddings)) % (1 if kind == "one frame" else 3)]
    return replace(frames, embeddings=embeddings)


def bench_memory() -> None:
    """Peak memory of a new process that runs every task on 100,000 test frames."""
    subprocess.run([sys.executable, __file__, "peak"], check=True)


def print_peak() -> None:
    train, test = make_videos(**TRAIN), make_videos(200, 200, 251, seed=3)
    kendalls_tau(test)
    phase_progression(train, test, time_column=True)
    phase_f1(train, test)
    mean_average_precision(test)
    # getrusage would report the parent's peak if that was larger.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(f"100,000 test frames, four tasks: peak {int(status['VmHWM'].split()[0]) / 1024:.0f} MiB (want <= 2048)")


BENCHMARKS = {
    "retrieval": bench_retrieval,
    "tau": bench_tau,
    "classification": bench_classification,
    "equal": bench_equal,
    "memory": bench_memory,
}

if __name__ == "__main__":
    for benchmark in sys.argv[1:] or BENCHMARKS:
        (BENCHMARKS | {"peak": print_peak})[benchmark]()
