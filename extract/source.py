"""Sources of videos: a built-in dataset, a CSV, a folder of videos or a LeRobot dataset."""

import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from byov.cache.atomic import write_text
from byov.cache.layout import check_name
from byov.data import READERS, WITHOUT_DOWNLOAD, open_dataset
from byov.data.dataset import Dataset
from byov.data.lerobot import read_lerobot
from byov.data.own_videos import read_own_videos
from byov.data.video_folder import CSV_NAME, list_folder, log_skipped, to_csv, video_files
from byov.errors import DatasetError
from byov.extract.encoder_names import DEFAULT_ENCODER, IMAGENET
from byov.folders import dataset_folder
from byov.progress import Progress
from byov.records import SPLITS, View

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class VideoSource:
    """Source of the videos, as described in `extract_features`; exactly one of the first four
    fields is set.
    """

    dataset: str | None = None
    manifest: str | os.PathLike[str] | None = None
    folder: str | os.PathLike[str] | None = None
    lerobot: str | os.PathLike[str] | None = None
    ego: str | None = None
    exo: str | None = None
    task: str | None = None
    split: Sequence[float] | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        split = self.split
        if (self.dataset, self.manifest, self.folder, self.lerobot).count(None) != 3:
            raise DatasetError(
                f"pass one of --dataset ({', '.join(READERS)}), --manifest, --folder or --lerobot"
            )
        if self.task is not None and self.lerobot is None:
            raise DatasetError("--task requires --lerobot")
        needs_folder = (split, self.ego, self.exo) != (None, None, None)
        if needs_folder and self.folder is None and self.lerobot is None:
            raise DatasetError(
                "--split, --ego and --exo require --folder or --lerobot; a CSV lists splits and "
                "views"
            )
        if split is not None and (
            len(split) != len(SPLITS)
            or min(split) < 0
            or not split[0]
            or abs(sum(split) - 1) > 1e-6
        ):
            raise DatasetError(
                f"split {tuple(split)}: expected fractions of train, val and test, such as "
                "0.6,0.2,0.2"
            )
        if self.folder is not None and (self.ego is None) != (self.exo is None):
            raise DatasetError(
                "--ego and --exo must be used together, such as --ego '*wrist*' --exo '*front*'"
            )
        if self.dataset is not None and self.name is not None:
            raise DatasetError(
                "--name requires --manifest, --folder or --lerobot; a built-in dataset has a name"
            )

    @property
    def default_encoder(self) -> str:
        """Id of the default encoder; datasets that need no download have a default encoder that
        needs none.
        """
        return (
            IMAGENET if dataset_folder(self.dataset or "") in WITHOUT_DOWNLOAD else DEFAULT_ENCODER
        )

    def open(self, datasets_dir: Path, features_dir: Path, progress: Progress) -> Dataset:
        """Open a built-in dataset or user-provided videos.

        A folder of videos is read through its CSV; if it has none, a CSV based on the file names is
        written.
        """
        if self.dataset is not None:
            return open_dataset(self.dataset, datasets_dir, progress)
        path = Path(self.manifest or self.folder or self.lerobot or "")
        folder = path.parent if self.manifest else path
        is_table_name = self.manifest and path.name != CSV_NAME
        name = self.name or (path.stem if is_table_name else folder.resolve().name)
        if name in READERS:
            raise DatasetError(
                f"{name!r} is the name of a built-in dataset; choose another one with --name"
            )
        if self.manifest is not None:
            return read_own_videos(name, path)
        if self.lerobot is not None:
            return read_lerobot(name, path, self.ego, self.exo, self.task, self.split)
        patterns: dict[View, str] | None = (
            {"ego": self.ego, "exo": self.exo} if self.ego and self.exo else None
        )
        next_to_videos = folder / CSV_NAME
        next_to_features = features_dir / check_name(name, "dataset") / CSV_NAME
        table = next((path for path in (next_to_videos, next_to_features) if path.is_file()), None)
        if table is not None:
            if self.split is not None or patterns is not None:
                raise DatasetError(
                    f"{table} already defines splits and views. Edit it or delete it."
                )
            LOGGER.info(f"videos listed in {table} (edit it, or delete it to list {folder} again)")
            dataset = read_own_videos(name, table, folder=folder)
            listed = {video.path.resolve() for video in dataset.videos}
            present, _ = video_files(folder)
            log_skipped(
                "not listed", [path for path in present if (folder / path).resolve() not in listed]
            )
            return dataset
        videos = list_folder(folder, self.split, patterns)
        table = next_to_videos
        try:
            write_text(table, to_csv(videos))
        except OSError:  # a read-only folder
            table = next_to_features
            write_text(table, to_csv(videos))
        counts = Counter(f"{video.split} {video.view}" for video in videos)
        listed_counts = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        LOGGER.info(
            f"videos: {listed_counts}; listed in {table} (edit it to change splits or add events, "
            "then run again)"
        )
        return read_own_videos(name, table, folder=folder)
