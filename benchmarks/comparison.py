"""Every method of the paper's tables on the demo set: a small grid on its val split, then some seeds of the best.

byov-extract --dataset demo --encoder imagenet/efficientnet-lite0
python benchmarks/comparison.py grid             6 runs of each row, to choose by what they have on val
python benchmarks/comparison.py seeds 5          5 runs of each row at its best of the grid; then byov-eval, once
python benchmarks/comparison.py once             one run of each row of the grid, scored on val: how long it takes

Runs that are there already are not made again. Two at a time, of one thread each.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

RUNS = Path(os.environ.get("BYOV_RUNS", "runs"))
BUDGET = ["--epochs", "120", "--batch-size", "4", "--select", "both"]
BYOV = ["--latent", "128", "--depth", "4", "--decoder-depth", "2", "--heads", "8", *BUDGET]  # small, for two cores
ROWS = {
    "tcn-single": ["--method", "tcn", "--tcn", "single", *BUDGET],
    "tcn-multi": ["--method", "tcn", "--tcn", "multi", *BUDGET],
    "tcn-unpaired": ["--method", "tcn", "--tcn", "unpaired", *BUDGET],
    "actor-observer": ["--method", "actor-observer", *BUDGET],
    "carl": ["--method", "carl", *BUDGET, "--epochs", "60"],  # whose clips are more than twice as long
    "tcc": ["--method", "tcc", *BUDGET],
    "gta": ["--method", "gta", *BUDGET],
    "ae2-alignment": ["--method", "ae2-alignment", *BUDGET],
    "paper": BYOV,
    "timeline": ["--method", "timeline"],
}
AS_THEY_ARE = {  # without a grid: at the settings of docs/training.md, which were chosen on the same val split
    "official": [*BYOV, "--lr", "3e-4", "--recipe", "official"],
    "cycle": [*BYOV, "--lr", "3e-4", "--recipe", "cycle"],
    "timeline-defaults": ["--method", "timeline"],
}
RATES, SCALES = ("1e-4", "3e-4", "1e-3"), ("none", "video")
VIDEOS = 38  # of the demo set
CHOSEN_BY = "both"  # map@10 across views, of whole videos and of sub-clips: the mean

Run = tuple[str, list[str]]  # its name and its options


def grid() -> Iterator[Run]:
    for (row, options), rate, scale in product(ROWS.items(), RATES, SCALES):
        yield f"grid-{row}-{rate}-{scale}", [*options, "--lr", rate, "--standardize", scale]


def best(row: str) -> Run:
    """Of a row's runs of the grid the one that is ahead on val."""
    return max((run for run in grid() if run[0].startswith(f"grid-{row}-")), key=lambda run: on_val(run[0]))


def seeds(count: int) -> Iterator[Run]:
    """Seed 0 of a row of the grid is there already: the one that was best."""
    first = {row: best(row) for row in ROWS} | {row: (f"{row}-0", options) for row, options in AS_THEY_ARE.items()}
    for row, (name, options) in first.items():
        yield name, options
        for seed in range(1, count):
            yield f"{row}-{seed}", [*options, "--seed", str(seed)]


def on_val(run: str) -> float:
    config = json.loads((RUNS / run / "config.json").read_text())
    score: float = config["training"]["validation"][CHOSEN_BY]
    return score


def finished(run: str) -> bool:
    """As many videos embedded as there are."""
    return len(list((RUNS / run / "embeddings-untrained").glob("*/*.h5"))) == VIDEOS


def train(run: Run) -> None:
    name, options = run
    if finished(name):
        return
    begun = ["--resume"] if (RUNS / name / "config.json").exists() else ["--dataset", "demo", *options]
    started = time.monotonic()
    done = subprocess.run(
        [Path(sys.executable).with_name("byov-train"), "--run", name, *begun],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        sys.exit(f"{name}: {done.stderr.strip()}")
    print(f"{name}: val {on_val(name):.4f}, {time.monotonic() - started:.0f} s", flush=True)


def train_all(runs: Iterable[Run]) -> None:
    with ThreadPoolExecutor(max_workers=2) as pool:
        for _ in pool.map(train, runs):
            pass


def evaluate(runs: Iterable[Run], split: str) -> None:
    chosen = [part for name, _ in runs for part in ("--run", name)]
    options = ["--task", "all", "--split", split, "--out", RUNS / "comparison"]
    subprocess.run([Path(sys.executable).with_name("byov-eval"), *chosen, *options], check=True)


def main(what: str = "once", count: str = "5") -> None:
    started = time.monotonic()
    if what == "grid":
        train_all(grid())
        for row in ROWS:
            print(f"{row}: best on val {best(row)[0]}, {on_val(best(row)[0]):.4f}")
    elif what == "seeds":
        runs = list(seeds(int(count)))
        train_all(runs)
        evaluate(runs, "test")
    else:
        runs = [(f"once-{row}", options) for row, options in ROWS.items()]
        train_all(runs)
        evaluate(runs, "val")
    print(f"{what}: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
