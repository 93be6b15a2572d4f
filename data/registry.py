"""Datasets by name."""

from collections.abc import Callable
from pathlib import Path

from byov.data import ae2, demo
from byov.data.charades_ego import read_charades_ego
from byov.data.dataset import Dataset
from byov.data.own_videos import read_own_videos
from byov.errors import DatasetError

READERS: dict[str, Callable[[str, Path], Dataset]] = {
    **dict.fromkeys(ae2.KEY_EVENTS, ae2.read_ae2),
    "charades_ego": read_charades_ego,
    "demo": lambda name, root: read_own_videos(name, root / "videos.csv", phase_names=demo.PHASES),
}
_OBTAINED_FROM = {
    **dict.fromkeys(ae2.KEY_EVENTS, "the AE2 benchmark (github.com/zihuixue/AlignEgoExo)"),
    "charades_ego": "prior.allenai.org/projects/charades-ego",
}


def open_dataset(name: str, datasets_dir: Path) -> Dataset:
    """Read the dataset `name` from its folder below `datasets_dir`."""
    if name not in READERS:
        raise DatasetError(
            f"unknown dataset {name!r}; choose from {', '.join(READERS)}, or give your own videos with --folder or "
            "--manifest"
        )
    root = datasets_dir / name
    if not root.is_dir():
        raise DatasetError(
            f"{name} is not at {root.absolute()}; put the download of {_OBTAINED_FROM.get(name, 'its authors')} "
            "there as it is, or point --datasets-dir elsewhere (DATASET=demo needs no download)"
        )
    return READERS[name](name, root)
