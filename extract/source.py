"""Sources of videos: a dataset, a CSV, a folder of videos or a folder in the format of a reader."""

import logging
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from byov.cache.atomic import write_text
from byov.cache.layout import check_name
from byov.data import READERS, dataset_names, find_dataset, folder_readers, open_dataset
from byov.data.dataset import Dataset
from byov.data.own_videos import TableOptions, read_own_videos
from byov.data.reader import Choice
from byov.data.video_folder import (
    CSV_NAME,
    FolderOptions,
    list_folder,
    log_skipped,
    to_csv,
    video_files,
)
from byov.errors import DatasetError
from byov.extract.encoder_names import DEFAULT_ENCODER, IMAGENET
from byov.progress import Progress
from byov.records import Record, problem

LOGGER = logging.getLogger(__name__)


def option_classes() -> dict[str, type[Record]]:
    """Return the options of each kind of source except datasets, as records."""
    return {"manifest": TableOptions, "folder": FolderOptions, **folder_readers()}


@dataclass(frozen=True)
class VideoSource:
    """Source of the videos of an extraction."""

    kind: str  # "dataset", "manifest", "folder" or the name of a reader
    place: str | os.PathLike[str]  # name of a dataset, or path
    name: str | None = None  # name of the dataset, if it is not a built-in one
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind == "dataset" and self.name is not None:
            raise DatasetError(
                "--name requires --manifest, --folder or another folder; a dataset has a name"
            )
        for name in self.options:
            if name not in self._record_class.model_fields:
                usable = [
                    f"--{kind}"
                    for kind, options in option_classes().items()
                    if name in options.model_fields
                ]
                option = f"--{name.replace('_', '-')}"
                raise DatasetError(f"{option} requires {' or '.join(usable) or 'another dataset'}")
        try:
            self._record_class(**self.options)
        except ValidationError as error:
            raise DatasetError(problem(error)) from None

    @property
    def _record_class(self) -> type[Record]:
        if self.kind == "dataset":
            return find_dataset(str(self.place))
        return option_classes()[self.kind]

    @property
    def default_encoder(self) -> str:
        """Id of the default encoder; datasets that need no download have a default encoder that
        needs none.
        """
        is_created = getattr(self._record_class, "is_created", False)
        return IMAGENET if is_created else DEFAULT_ENCODER

    def choices(self) -> list[Choice]:
        """List what has to be chosen with the options of a reader; empty if nothing has to be."""
        if self.kind not in folder_readers():
            return []
        return READERS[self.kind](**self.options).choices(Path(self.place))

    def open(self, datasets_dir: Path, features_dir: Path, progress: Progress) -> Dataset:
        """Read the dataset.

        A folder of videos is read through its CSV; if it has none, a CSV based on the file names is
        written.
        """
        if self.kind == "dataset":
            return open_dataset(str(self.place), datasets_dir, progress, **self.options)
        path = Path(self.place)
        if self.kind in folder_readers():
            dataset = READERS[self.kind](**self.options).read(path, progress)
            name = _not_built_in(self.name or dataset.name)
            return dataset if name == dataset.name else replace(dataset, name=name)
        folder = path.parent if self.kind == "manifest" else path
        is_table_name = self.kind == "manifest" and path.name != CSV_NAME
        name = _not_built_in(self.name or (path.stem if is_table_name else folder.resolve().name))
        if self.kind == "manifest":
            videos = TableOptions(**self.options).videos
            return read_own_videos(name, path, folder=None if videos is None else Path(videos))
        options = FolderOptions(**self.options)
        table = folder_csv(folder, options, features_dir / check_name(name, "dataset"))
        return read_own_videos(name, table, folder=folder)


def _not_built_in(name: str) -> str:
    if name in dataset_names():
        raise DatasetError(
            f"{name!r} is the name of a built-in dataset; choose another one with --name"
        )
    return name


def choose_source(given: Mapping[str, Any]) -> VideoSource:
    """Return the source that the arguments of `extract_features` describe; values may be None."""
    given = {name: value for name, value in given.items() if value is not None}
    kinds = {kind.replace("-", "_"): kind for kind in ("dataset", *option_classes())}
    chosen = [name for name in given if name in kinds]
    if len(chosen) != 1:
        listed = ", ".join(f"--{kind}" for kind in kinds.values())
        raise DatasetError(f"pass one of {listed}. Datasets: {', '.join(dataset_names())}.")
    options = {name: value for name, value in given.items() if name not in (*kinds, "name")}
    if options.get("split") is not None:
        options["split"] = tuple(map(float, options["split"]))
    return VideoSource(kinds[chosen[0]], given[chosen[0]], given.get("name"), options)


def folder_csv(folder: Path, options: FolderOptions, alternative: Path) -> Path:
    """Return the CSV of a folder of videos, which is written if there is none.

    If the folder is read-only, the CSV is in the folder `alternative`.
    """
    tables = (folder / CSV_NAME, alternative / CSV_NAME)
    table = next((path for path in tables if path.is_file()), None)
    if table is not None:
        if options != FolderOptions():
            raise DatasetError(f"{table} already defines splits and views. Edit it or delete it.")
        LOGGER.info(f"videos listed in {table} (edit it, or delete it to list {folder} again)")
        listed = {
            video.path.resolve() for video in read_own_videos("", table, folder=folder).videos
        }
        present, _ = video_files(folder)
        log_skipped(
            "not listed", [path for path in present if (folder / path).resolve() not in listed]
        )
        return table
    videos = list_folder(folder, options.split, options.patterns)
    table = tables[0]
    try:
        write_text(table, to_csv(videos))
    except OSError:  # a read-only folder
        table = tables[1]
        write_text(table, to_csv(videos))
    counts = Counter(f"{video.split} {video.view}" for video in videos)
    listed_counts = ", ".join(f"{count} {kind}" for kind, count in counts.items())
    LOGGER.info(
        f"videos: {listed_counts}; listed in {table} (edit it to change splits or add events, "
        "then run again)"
    )
    return table
