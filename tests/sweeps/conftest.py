from pathlib import Path

import pytest
from tests.sweeps.tiny_sweeps import make_folders

from byov.sweeps.grids import Folders


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_torch_thread: None) -> None:
    pass


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return make_folders(tmp_path)
