"""A small cache, grids of tiny runs, and workers that work here, one after another."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.factories import make_provenance

from byov.cache.features import FeatureWriter
from byov.cache.manifest import Manifest, VideoEntry
from byov.cluster.grids import RunGrid, parse_grid
from byov.cluster.run_work import Folders
from byov.cluster.worker_process import Answer, Work, answer_to

WIDTH, TOKENS, PHASES = 8, 4, ("reach", "pour", "leave")
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


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_torch_thread: None) -> None:
    pass


def write_cache(
    features: Path, dataset: str = "toy", encoder: str = "random/tiny", *, ratios: Sequence[float] = (0.3, 1.0)
) -> None:
    """Of each view two training videos, one for validation and one for the test."""
    entries = []
    for view in ("ego", "exo"):
        for number, split in enumerate(("train", "train", "val", "test")):
            random = np.random.default_rng([number, view == "ego"])
            frames = int(random.integers(12, 20))
            phase = np.arange(frames) * len(PHASES) // frames
            rows = (random.normal(size=(frames, WIDTH)) + 2 * np.eye(WIDTH)[phase]).astype(np.float16)
            path = features / dataset / encoder.replace("/", "--") / view / f"{view}{number}.h5"
            writer = FeatureWriter(path, tuple(ratios), TOKENS, WIDTH, has_cls=False)
            order = np.tile(np.arange(TOKENS, dtype=np.uint16), (frames, 1))
            writer.append(dict.fromkeys(ratios, rows), order, None, np.arange(frames) / 30)
            writer.finish(make_provenance(encoder=encoder, encoder_revision="0"), fps=30.0, truncated=False)
            writer.close()
            entries.append(VideoEntry(path.stem, view, split, frames, 30.0, tuple(phase.tolist()), None))
    Manifest(dataset, PHASES, (), tuple(entries)).save(features / dataset / "manifest.json")


@pytest.fixture(scope="session")
def make_cache() -> Callable[..., None]:
    return write_cache


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    """features/toy, and no runs."""
    write_cache(tmp_path / "features")
    return Folders(tmp_path / "features", tmp_path / "runs")


@pytest.fixture(scope="session")
def tiny() -> dict[str, Any]:
    """What a file says of runs that take no time."""
    return TINY


@pytest.fixture(scope="session")
def make_grid() -> Callable[..., RunGrid]:
    """make_grid(lr=[...], runs=[...]): a grid of tiny runs, with these settings in the place of others."""
    return lambda **settings: parse_grid(TINY | settings, "grid.toml")


class Here:
    """Workers that are none: a piece of work is done when somebody waits for it."""

    def __init__(self, stop: Callable[[], bool] = lambda: False) -> None:
        """stop: what work asks; once it has been told to stop, so is everything."""
        self.told_to_stop = False
        self.done: list[str] = []
        self._stop = stop
        self._waiting: deque[Work] = deque()

    def submit(self, work: Work) -> None:
        self._waiting.append(work)

    def running(self) -> list[str]:
        return []

    def wait(self, seconds: float) -> list[Answer]:  # noqa: ARG002
        if not self._waiting:
            return []
        answer = answer_to(self._waiting.popleft(), self._asked)
        self.done.append(answer.name)
        return [answer]

    def _asked(self) -> bool:
        self.told_to_stop = self.told_to_stop or self._stop()
        return self.told_to_stop

    def stop(self) -> None:
        self._waiting.clear()

    def close(self) -> None:
        self._waiting.clear()


@pytest.fixture(scope="session")
def here() -> Callable[..., Here]:
    return Here


def read_contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in files
        if path.name not in (".lock", "lock") and path.parent.name != "checkpoint"
    }


@pytest.fixture
def contents() -> Callable[[Path], dict[str, bytes]]:
    """Every file below a folder of runs by name, without locks and checkpoints."""
    return read_contents
