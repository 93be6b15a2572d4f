"""A small cache, grids of tiny runs, and a worker that runs tasks in this process."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from tests.factories import read_files, write_cache
from tests.ray_processes import RayProcesses, TwoMachines

from byov.cluster.grids import RunGrid, parse_grid
from byov.cluster.run_task import Folders
from byov.cluster.worker_pool import PoolTask

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
VIDEOS = {
    (split, view, f"{view}{number}"): 12 + 3 * number + (view == "exo")
    for view in ("ego", "exo")
    for number, split in enumerate(("train", "train", "val", "test"))
}


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_torch_thread: None) -> None:
    pass


def _make_cache(
    features: Path, dataset: str = "toy", encoder: str = "random/tiny", ratios: Sequence[float] = (0.3, 1.0)
) -> None:
    write_cache(features, VIDEOS, dataset=dataset, encoder=encoder, width=8, ratios=ratios)


@pytest.fixture(scope="session")
def make_cache() -> Callable[..., None]:
    return _make_cache


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """features/toy, and no runs."""
    _make_cache(tmp_path / "features")
    return Folders(tmp_path / "features", tmp_path / "runs")


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """Contents of a grid file whose runs take no time."""
    return TINY


@pytest.fixture(scope="session")
def make_grid() -> Callable[..., RunGrid]:
    """make_grid(lr=[...], runs=[...]): a grid of tiny runs with other settings."""
    return lambda **settings: parse_grid(TINY | settings, "grid.toml")


class InlineWorker:
    """Worker that runs tasks in this process, and remembers their names.

    Once a task has seen its `stop` return True, `stopped` is True.
    """

    def __init__(self, stop: Callable[[], bool] = lambda: False) -> None:
        self.done: list[str] = []
        self.stopped = False
        self._should_stop = stop

    def submit(self, task: PoolTask) -> "Future[Any]":
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

    def restart(self) -> None: ...

    def stop(self) -> None: ...

    def close(self) -> None: ...


@pytest.fixture(scope="session")
def inline_worker() -> Callable[..., InlineWorker]:
    return InlineWorker


@pytest.fixture(scope="session")
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder by name, without locks and checkpoints."""

    def read(folder: Path) -> dict[str, bytes]:
        files = read_files(folder).items()
        return {name: content for name, content in files if not name.endswith("lock") and "/checkpoint/" not in name}

    return read


@pytest.fixture(scope="module")
def ray() -> Iterator[RayProcesses]:
    processes = RayProcesses()
    yield processes
    processes.close()


@pytest.fixture(scope="module")
def machines(ray: RayProcesses) -> Iterator[TwoMachines]:
    machines = TwoMachines(ray)
    yield machines
    machines.close()
