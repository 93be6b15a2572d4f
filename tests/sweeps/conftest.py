from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.ray_processes import RayProcesses, TwoMachines
from tests.sweeps.tiny_sweeps import make_folders

from byov.sweeps.grids import Folders


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_torch_thread: None) -> None:
    pass


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return make_folders(tmp_path)


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
