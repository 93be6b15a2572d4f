"""Speed and memory of the evaluation at the size of Break Eggs.

python benchmarks/evaluate.py             everything, about twenty minutes on two cores
python benchmarks/evaluate.py retrieval   one of: retrieval classification all equal memory
"""

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from byov.evaluate.classification import fit_classifiers, phase_f1
from byov.evaluate.frames import Frames
from byov.evaluate.kendalls_tau import kendalls_tau
from byov.evaluate.progression import phase_progression
from byov.evaluate.retrieval import mean_average_precision

# Loaded by path: with PYTHONSAFEPATH a script cannot import its neighbors.
spec = importlib.util.spec_from_file_location("naive_evaluator", Path(__file__).with_name("naive_evaluator.py"))
naive = importlib.util.module_from_spec(spec)
spec.loader.exec_module(naive)

PHASES, DIMENSIONS, KNOTS = 4, 256, 9


def make_videos(ego: int, exo: int, mean_frames: int, seed: int) -> Frames:
    """Make videos of realistic difficulty: at the size of Break Eggs, F1 is .73 / .79 / .70.

    They follow one path through the space, each with its own pace and style and an offset between the views. The phase
    changes near, not at, the labeled frame.
    """
    world, random = np.random.default_rng(0), np.random.default_rng(seed)
    path, gap = world.standard_normal((KNOTS, DIMENSIONS)), 0.5 * world.standard_normal(DIMENSIONS)
    embeddings, labels = [], []
    for video in range(ego + exo):
        frames = int(random.integers(mean_frames // 2, mean_frames * 3 // 2))
        clock = (np.arange(frames) + 0.5) / frames
        changes = np.cumsum(0.8 * random.dirichlet([4] * PHASES) + 0.2 / PHASES)[:-1]
        labels.append(np.searchsorted(changes, clock, side="right"))
        seen = np.sort(changes + random.normal(0, 0.05, PHASES - 1)).clip(0.01, 0.99)
        at = np.interp(clock, [0, *seen, 1], np.linspace(0, KNOTS - 1, PHASES + 1))
        clean = np.stack([np.interp(at, np.arange(KNOTS), column) for column in path.T], axis=1)
        style = 0.7 * random.standard_normal(DIMENSIONS) + 0.8 * random.standard_normal(KNOTS) @ path / KNOTS**0.5
        drift = 0.7 * np.cumsum(random.standard_normal((frames, DIMENSIONS)), axis=0) / frames**0.5
        grain = 0.3 * random.standard_normal((frames, DIMENSIONS))
        embeddings.append((clean + style + drift - drift.mean(axis=0) + grain + gap * (video < ego)).astype(np.float32))
    return Frames(
        np.concatenate(embeddings),
        np.concatenate(labels),
        np.array([len(video) for video in labels]),
        np.arange(ego + exo) < ego,
        tuple(f"video{video}" for video in range(ego + exo)),
    )


@cache
def break_eggs() -> tuple[Frames, Frames]:
    return make_videos(61, 57, 149, seed=1), make_videos(10, 10, 155, seed=2)


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    """Return (seconds, result)."""
    fit_classifiers.cache_clear()
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def compare(title: str, theirs: Callable[[], Any], ours: Callable[[], Any], want: str) -> None:
    """Print the ratio of both times, the mean of two measured in alternation, and the largest difference of scores."""
    ours()  # warm up
    timings = [(timed(theirs), timed(ours)) for _ in range(2)]
    slow, fast = (fmean(seconds for seconds, _ in column) for column in zip(*timings, strict=True))
    (_, expected), (_, found) = timings[0]
    difference = np.abs(np.subtract(flat(expected), flat(found))).max()
    print(f"{title}: naive {slow:.2f} s, ours {fast:.2f} s: {slow / fast:.1f}x (want {want})", flush=True)
    print(f"  largest difference {difference:.1e}", flush=True)


def flat(scores: Any) -> list[float]:
    return [value for one in scores.values() for value in flat(one)] if isinstance(scores, dict) else [scores]


def bench_retrieval() -> None:
    _, test = break_eggs()
    title = f"retrieval, {len(test.embeddings)} frames, three settings, K = 5, 10, 15"
    compare(title, lambda: naive.mean_average_precision(test), lambda: mean_average_precision(test), ">= 50x")


def bench_classification() -> None:
    train, test = break_eggs()
    title = f"classification, {len(train.embeddings)} and {len(test.embeddings)} frames, three settings"
    compare(title, lambda: naive.phase_f1(train, test), lambda: phase_f1(train, test), ">= 2x")


def bench_all() -> None:
    """AE2's four tasks; its evaluator also predicts the training frames, which is counted as its own."""
    train, test = break_eggs()
    ours = {
        "classification": lambda: phase_f1(train, test),
        "retrieval": lambda: mean_average_precision(test),
        "progression": lambda: [phase_progression(train, frames) for frames in (train, test)],
        "tau": lambda: kendalls_tau(test),
    }
    theirs = {
        "classification": lambda: [naive.phase_f1(train, frames) for frames in (train, test)],
        "retrieval": lambda: naive.mean_average_precision(test),
        "progression": lambda: [naive.phase_progression(train, frames) for frames in (train, test)],
        "tau": lambda: naive.kendalls_tau(test),
    }
    fast = {task: timed(work)[0] for task, work in ours.items()}
    slow = {task: timed(work)[0] for task, work in theirs.items()}
    slow["classification"] -= timed(lambda: naive.fit(train))[0]  # both predictions need only one fit
    for task in ours:
        print(f"  {task}: as AE2 {slow[task]:.2f} s, ours {fast[task]:.2f} s", flush=True)
    total, total_ours = sum(slow.values()), sum(fast.values())
    print(f"AE2's four tasks: {total:.1f} s, ours {total_ours:.2f} s: {total / total_ours:.1f}x (want >= 10x)")


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
            print(
                f"{task}, {len(train.embeddings)} and {len(test.embeddings)} frames, equal to {kind}: {seconds:.2f} s, "
                f"ordinary {ordinary:.2f} s: {seconds / ordinary:.2f}x (want <= 3x)",
                flush=True,
            )


def collapsed(frames: Frames, kind: str) -> Frames:
    embeddings = frames.embeddings.copy()
    if kind == "every second frame":
        embeddings[::2] = embeddings[0]
    else:
        embeddings = embeddings[np.arange(len(embeddings)) % (1 if kind == "one frame" else 3)]
    return replace(frames, embeddings=embeddings)


def bench_memory() -> None:
    """Peak memory of a new process that runs every task on 100,000 test frames."""
    subprocess.run([sys.executable, __file__, "--peak"], check=True)


def print_peaks() -> None:
    train, _ = break_eggs()
    test = make_videos(200, 200, 251, seed=3)
    for task, work in {
        "making the videos": lambda: None,
        "tau": lambda: kendalls_tau(test),
        "progression": lambda: phase_progression(train, test, time_column=True),
        "classification": lambda: phase_f1(train, test),
        "retrieval": lambda: mean_average_precision(test),
    }.items():
        seconds, _ = timed(work)
        peak = peak_memory_bytes() / 2**20
        print(f"100,000 test frames, after {task}: peak {peak:.0f} MiB, {seconds:.0f} s (want <= 2048)", flush=True)


def peak_memory_bytes() -> int:
    # getrusage would report the parent's peak if that was larger.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


BENCHMARKS = {
    "retrieval": bench_retrieval,
    "classification": bench_classification,
    "all": bench_all,
    "equal": bench_equal,
    "memory": bench_memory,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["--peak"]:
        print_peaks()
    else:
        for benchmark in sys.argv[1:] or BENCHMARKS:
            BENCHMARKS[benchmark]()
