"""Dataset readers for ego and exo videos, and the video decoder."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from byov.data import ae2, metaworld
from byov.data.charades_ego import read_charades_ego
from byov.data.dataset import Dataset
from byov.data.own_videos import read_own_videos
from byov.errors import DatasetError
from byov.folders import dataset_folder
from byov.progress import NO_PROGRESS, Progress

METAWORLD = [f"metaworld-{task}" for task in (*metaworld.TASKS, *metaworld.WAITING_TASKS)]
WITHOUT_DOWNLOAD = ("demo", *METAWORLD)
READERS: dict[str, Callable[[str, Path], Dataset]] = {
    **dict.fromkeys(ae2.KEY_EVENTS, ae2.read_ae2),
    "charades_ego": read_charades_ego,
    **dict.fromkeys(
        WITHOUT_DOWNLOAD, lambda name, root: read_own_videos(name, root / "videos.csv")
    ),
}
_DOWNLOADS = dict.fromkeys(ae2.KEY_EVENTS, "github.com/zihuixue/AlignEgoExo (AE2)") | {
    "charades_ego": "prior.allenai.org/projects/charades-ego",
}


def open_dataset(name: str, datasets_dir: Path, progress: Progress = NO_PROGRESS) -> Dataset:
    """Read a built-in dataset from `datasets_dir / name`.

    If the folder does not exist, demo videos are copied from the package and Meta-World videos are
    rendered.
    """
    name = dataset_folder(name)
    if name not in READERS:
        raise DatasetError(
            f"unknown dataset {name!r}. Choose from {', '.join(READERS)}, or use your own videos "
            "with --folder or --manifest."
        )
    root = datasets_dir / name
    if name == "demo" and not root.exists():
        root.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=root.parent, prefix=f".{root.name}-") as scratch:
            copy = shutil.copytree(Path(__file__).with_name("demo"), Path(scratch) / root.name)
            try:
                copy.rename(root)
            except OSError:
                if not root.is_dir():  # another process may have copied it concurrently
                    raise
    if name in METAWORLD and not (root / "videos.csv").exists():
        metaworld.write_dataset(root, name.removeprefix("metaworld-"), progress=progress)
    if not root.is_dir():
        raise DatasetError(
            f"{root.absolute()} is missing or not a folder. Download {name} from "
            f"{_DOWNLOADS[name]} into this folder, or set --datasets-dir. To try byov without a "
            "download, use --dataset demo."
        )
    return READERS[name](name, root)
