"""Datasets of ego and exo videos, and the decoder that reads them."""

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
_DOWNLOADS = dict.fromkeys(ae2.KEY_EVENTS, "github.com/zihuixue/AlignEgoExo (AE2)") | {
    "charades_ego": "prior.allenai.org/projects/charades-ego",
}


def open_dataset(name: str, datasets_dir: Path) -> Dataset:
    """Read a known dataset from datasets_dir / name."""
    if name not in READERS:
        raise DatasetError(
            f"unknown dataset {name!r}. Choose from {', '.join(READERS)}, or use your own videos with --folder or "
            "--manifest."
        )
    root = datasets_dir / name
    if not root.is_dir():
        raise DatasetError(
            f"{root.absolute()} is missing. Download {name} from {_DOWNLOADS.get(name, 'its authors')} into this "
            "folder, or set --datasets-dir. To try byov without a download, use the dataset demo."
        )
    return READERS[name](name, root)
