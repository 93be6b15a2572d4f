"""Helpers to sweep tiny runs: a small cache, grids, and a worker that runs tasks in this
process.
"""

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.factories import read_files, write_cache

from byov.sweeps.grids import Folders, PlannedRun, RunGrid, plan_runs
from byov.sweeps.sweep import SweepResult, sweep
from byov.workers import Workers, WorkerTask

TINY = {
    "dataset": "toy",
    "name": "tiny",
    "latent": 8,
    "depth": 1,
    "decoder-depth": 1,
    "heads": 2,
    "frames": 6,
    "epochs": 3,
    "validate-every": 1,
    "lr": 1e-3,
}
QUICK = {"tasks": ["retrieval"], "protocol": "standard", "untrained": False}
NAMES = ["toy-paper-r0.3-tiny-s0", "toy-paper-r0.3-tiny-s1"]  # runs with seeds 0 and 1
VIDEOS = {
    (split, view, f"{view}{number}"): 12 + 3 * number + (view == "exo")
    for view in ("ego", "exo")
    for number, split in enumerate(("train", "train", "val", "test"))
}


def make_cache(
    features: Path,
    dataset: str = "toy",
    encoder: str = "random/tiny",
    ratios: Sequence[float] = (0.3, 1.0),
) -> None:
    write_cache(features, VIDEOS, dataset=dataset, encoder=encoder, width=8, ratios=ratios)


def make_folders(root: Path) -> Folders:
    """Create folders with the dataset "toy" in the cache and no runs."""
    make_cache(root / "features")
    return Folders(root / "features", root / "runs")


def write_grid(path: Path, runs: Sequence[dict[str, Any]] = (), **settings: Any) -> Path:
    """Write a grid of tiny runs that are scored quickly."""
    tables = [("", TINY | settings), ("[evaluation]", QUICK), *(("[[runs]]", run) for run in runs)]
    with path.open("w") as file:
        for heading, table in tables:
            print(
                heading,
                *(f"{key} = {json.dumps(value)}" for key, value in table.items()),
                sep="\n",
                file=file,
            )
    return path


class InlineWorkers(Workers):
    """Executor with one worker, itself, that runs tasks in this process and records their names in
    `done`.

    `stopped` becomes True once `stop` has returned True to a task.
    """

    def __init__(self, stop: Callable[[], bool] = lambda: False) -> None:
        super().__init__(1)
        self.done: list[str] = []
        self.stopped = False
        self._should_stop = stop

    def _start(self) -> "InlineWorkers":
        return self

    def submit(self, task: WorkerTask) -> "Future[Any]":
        future: Future[Any] = Future()
        self.done.append(task.name)
        try:
            future.set_result(task(self._asked))
        except Exception as error:
            future.set_exception(error)
        return future

    def _asked(self) -> bool:
        self.stopped = self.stopped or self._should_stop()
        return self.stopped

    def result(self, future: "Future[Any]") -> Any:
        return future.result()

    def stop(self) -> None: ...

    def close(self) -> None: ...


def sweep_inline(
    grids: Sequence[RunGrid], folders: Folders, workers: InlineWorkers | None = None, **options: Any
) -> tuple[list[PlannedRun], SweepResult]:
    runs = plan_runs(grids, folders.features)
    return runs, sweep(runs, folders, workers or InlineWorkers(), device="cpu", **options)


def states(result: SweepResult) -> list[str]:
    return [status.state for status in result.runs]


def wait_for_epochs(process: "subprocess.Popen[str]", run: Path, count: int) -> None:
    """Wait until a process has trained a run for `count` epochs; fail if the run is already
    finished.
    """
    metrics = run / "metrics.jsonl"
    while not metrics.exists() or len(metrics.read_text().splitlines()) < count:
        assert process.poll() is None, f"ended early: {process.communicate()}"
        time.sleep(0.005)
    assert not (run / "model-last.safetensors").exists(), "too late"


def contents(folder: Path) -> dict[str, bytes]:
    """Return a dict mapping file names in a folder tree to contents, without locks and
    checkpoints.
    """
    files = read_files(folder).items()
    skipped = ("lock",)
    return {
        name: content
        for name, content in files
        if not name.endswith(skipped) and "/checkpoint/" not in name
    }
