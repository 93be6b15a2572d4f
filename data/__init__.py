"""Dataset readers for ego and exo videos, and the video decoder."""

from pathlib import Path
from typing import Any

from byov.data.ae2 import BreakEggs, PourLiquid, PourMilk, TennisForehand
from byov.data.charades_ego import CharadesEgo
from byov.data.dataset import Dataset
from byov.data.demo_videos import Demo
from byov.data.ego_exo4d import EgoExo4D
from byov.data.lerobot import LeRobot
from byov.data.metaworld import METAWORLD
from byov.data.reader import DatasetReader
from byov.errors import DatasetError
from byov.folders import dataset_folder
from byov.plugins import PROBLEMS, Registry
from byov.progress import NO_PROGRESS, Progress

_BUILT_IN: tuple[type[DatasetReader], ...] = (
    BreakEggs,
    PourMilk,
    PourLiquid,
    TennisForehand,
    CharadesEgo,
    Demo,
    *METAWORLD,
    EgoExo4D,
    LeRobot,
)


def _check(name: str, reader: Any) -> None:
    if not isinstance(reader, type) or not issubclass(reader, DatasetReader) or reader.name != name:
        raise ValueError(f"not a subclass of DatasetReader with the name {name!r}")


READERS = Registry[type[DatasetReader]](
    "byov.datasets", {reader.name: reader for reader in _BUILT_IN}, _check
)


def dataset_names() -> list[str]:
    """Return the names of the datasets that are read from the datasets folder."""
    return [name for name, reader in READERS.items() if not reader.takes_folder]


def folder_readers() -> dict[str, type[DatasetReader]]:
    """Return the readers of any folder, by name."""
    return {name: reader for name, reader in READERS.items() if reader.takes_folder}


def find_dataset(name: str) -> type[DatasetReader]:
    """Return the reader of a dataset in the datasets folder."""
    name = dataset_folder(name)
    if name not in dataset_names():
        skipped = "".join(f"; {line}" for line in PROBLEMS)
        raise DatasetError(
            f"unknown dataset {name!r}. Choose from {', '.join(dataset_names())}, or use your own "
            f"videos with --folder or --manifest{skipped}."
        )
    return READERS[name]


def open_dataset(
    name: str, datasets_dir: Path, progress: Progress = NO_PROGRESS, **options: Any
) -> Dataset:
    """Read a dataset from `datasets_dir / name`.

    If the folder does not exist, demo videos are copied from the package and Meta-World videos are
    rendered.
    """
    reader = find_dataset(name)(**options)
    folder = datasets_dir / reader.name
    if not folder.is_dir() and not (reader.is_created and not folder.exists()):
        place = f" from {reader.download}" if reader.download else ""
        raise DatasetError(
            f"{folder.absolute()} is missing or not a folder. Download {reader.name}{place} into "
            "this folder, or set --datasets-dir. To try byov without a download, use --dataset "
            "demo."
        )
    return reader.read(folder, progress)
