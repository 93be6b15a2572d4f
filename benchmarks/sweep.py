"""k runs at once on k cores against the same one after another, and what a sweep costs beside its runs.

python benchmarks/sweep.py [RUNS] [EPOCHS]

Made-up features (view_gap.py) and a small model, in a temporary folder. Workers have imported PyTorch before the clock
starts; the first number is how many times as fast k workers are as one, the goal 0.85 k. The own cost is what a sweep
of one worker takes beyond the sum of its runs, by run; the goal 2 s at most.
"""

import runpy
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from byov.cluster.grids import RunGrid, parse_grid
from byov.cluster.run_work import Folders
from byov.cluster.sweep import sweep, swept_runs
from byov.cluster.workers import LocalWorkers
from byov.device import usable_cores

SMALL = {"latent": 64, "depth": 2, "decoder-depth": 1, "heads": 4, "batch-size": 4, "lr": 3e-4}
ROUNDS = 3


def grid(seeds: range, epochs: int) -> RunGrid:
    return parse_grid(SMALL | {"epochs": epochs, "seed": list(seeds)}, "benchmark")


def warm(workers: LocalWorkers, size: int, folders: Folders) -> None:
    """Every worker makes a run of one epoch, so that it has imported all."""
    swept = swept_runs([grid(range(10**6, 10**6 + 2 * size), 1)], folders.features)
    sweep(swept, folders, workers, device="cpu")


def timed(size: int, seeds: range, epochs: int, features: Path) -> tuple[float, float]:
    """Seconds of a sweep of these seeds by so many workers, and the sum of its runs' own."""
    with TemporaryDirectory() as runs:
        folders, workers = Folders(features, Path(runs)), LocalWorkers(size)
        try:
            warm(workers, size, folders)
            started = time.monotonic()
            swept = swept_runs([grid(seeds, epochs)], folders.features)
            result = sweep(swept, folders, workers, device="cpu")
            seconds = time.monotonic() - started
        finally:
            workers.close()
    assert all(one.state == "finished" for one in result.runs), result.runs
    return seconds, sum(one.seconds for one in result.runs)


def main(runs: str = "6", epochs: str = "60") -> None:
    cores, seeds = usable_cores(), range(int(runs))
    with TemporaryDirectory() as folder:
        features = Path(folder) / "features"
        runpy.run_path(str(Path(__file__).with_name("view_gap.py")))["write_toy"](features)
        for number in range(1, ROUNDS + 1):
            alone, own = timed(1, seeds, int(epochs), features)
            together, _ = timed(cores, seeds, int(epochs), features)
            print(
                f"round {number}: {runs} runs, one after another {alone:.1f} s, {cores} at once {together:.1f} s: "
                f"{alone / together:.2f} times as fast ({alone / together / cores:.2f} of {cores}); "
                f"own cost {(alone - own) / int(runs):.2f} s a run",
                flush=True,
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
